"""Kernels that upload and download files (`sync.transfer.executor`), and how they get their records and report results.

The driver writes the records of all tasks to one file (`write_records`); each task reads its own batch of it. A task
returns a row for each path and, at the end, the number of requests that it sent.

An attempt at a task writes packs of its own, under new names (P1). The driver takes the first row that it gets of a
path; if another attempt has packed the file, too, no entry names the other copy, and gc deletes it with its pack.

Spark returns the rows of a task when the task ends. A large task takes minutes, and a driver that is killed before that
would have recorded nothing of it (V19). So each attempt also appends its rows to a report file of its own, which the
driver reads meanwhile (`report_done`, `Reports`). The files are in a directory that the driver and all workers see. A
record is one line of JSON, written by one call; a line without its end was not written completely. Only `done` rows are
reported: a path that failed may succeed in the next attempt. The files of a pack are `done` once the store has
acknowledged the pack.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, cast

import pyarrow
from msgspec import Struct, structs

from bayou.core import errors
from bayou.core.errors import BayouError, SparkFailed
from bayou.engine.handle import store_of
from bayou.index.entry import Entry
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.objectstore.transport import PutResult, Requests
from bayou.packs.archive import member_bytes
from bayou.spark.arrow import BYTES, INT, TEXT, array, batch, batch_to_entries, batches_of_rows, rows
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import Downloaded, PackLocation, Pause, Sender, Upload, batch_results, fetch_all
from bayou.sync.transfer.packed import upload_all
from bayou.worktree.atomic_write import temporary_name
from bayou.worktree.staging import StagingArea

Outcome = Literal["done", "nothing", "failed", "stopped", "sent"]
"""Of a path: it was transferred (`done`), its file was gone (`nothing`), or it `failed`. Of a task: an error `stopped`
it, or it `sent` a number of requests of one kind."""

MOVED = pyarrow.schema(
    {
        "outcome": TEXT,
        "path": TEXT,
        "size": INT,
        "sha256": BYTES,
        "etag": TEXT,
        "version": TEXT,
        "repeated": pyarrow.bool_(),
        "pack": TEXT,
        "offset": INT,
        "stored": INT,
        "method": INT,
        "file": TEXT,
        "code": TEXT,
        "message": TEXT,
        "hint": TEXT,
        "requests": INT,
    }
)

BATCH_ROWS = 1000
DURABLE_BATCH = 1024
"""Downloads that are made durable together, and then reported."""

R = TypeVar("R")


class TransferRow(NamedTuple):
    """A row of `MOVED`: the outcome of a path or of a task.

    Of a packed file, `size` and `sha256` are of the bytes in the pack, and the fields from `pack` to `method` say where
    these are.
    """

    outcome: Outcome
    path: str | None = None
    size: int | None = None
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    repeated: bool | None = None
    pack: str | None = None
    offset: int | None = None
    stored: int | None = None
    method: int | None = None
    file: str | None = None
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    requests: int | None = None


def result_rows(
    results: Iterable[R | Failure], to_row: Callable[[R], TransferRow], store: Store
) -> Iterator[TransferRow]:
    """Yield a row for each result, and at the end the numbers of requests that were sent for them.

    An error that every path would meet becomes a row and is not raised: Spark would retry the task and lose the error.
    """
    before = store.requests
    stopped: list[TransferRow] = []
    try:
        for result in results:
            yield _failed(result) if isinstance(result, Failure) else to_row(result)
    except BayouError as error:
        stopped = [TransferRow("stopped", code=type(error).__name__, message=error.message, hint=error.hint)]
    sent = store.requests - before
    for kind in Requests.__struct_fields__:
        if number := getattr(sent, kind):
            yield TransferRow("sent", code=kind, requests=number)
    yield from stopped  # last: `outcomes` raises it and reads no further


def to_batches(rows: Iterable[TransferRow]) -> Iterator[pyarrow.RecordBatch]:
    """Return rows as batches of `MOVED`."""
    return batches_of_rows(MOVED, rows, BATCH_ROWS)


def to_rows(batch: pyarrow.RecordBatch) -> Iterator[TransferRow]:
    """Return the rows of a batch of `MOVED`."""
    return (TransferRow(*row) for row in rows(batch, MOVED.names))  # type: ignore[arg-type]


def outcomes(found: Iterable[TransferRow], from_row: Callable[[TransferRow], R], store: Store) -> Iterator[R | Failure]:
    """Yield the results of rows, each path once, and add the workers' requests to the count of `store`.

    Raise the error that stopped a task.
    """
    seen: set[str] = set()
    for row in found:
        if row.outcome == "sent":
            store.add_requests(Requests(**{cast("str", row.code): cast("int", row.requests)}))
        elif row.outcome == "stopped":
            raise task_error(row)
        elif row.path is not None and row.path not in seen:
            seen.add(row.path)
            yield _failure(row) if row.outcome == "failed" else from_row(row)


def task_error(row: TransferRow) -> BayouError:
    """Return the error that stopped a task."""
    found = getattr(errors, row.code or "", None)
    kind = found if isinstance(found, type) and issubclass(found, BayouError) else SparkFailed
    try:
        return kind(row.message or "", hint=row.hint)
    except TypeError:  # an error class whose constructor takes no message
        return SparkFailed(row.message or "", hint=row.hint)


def _failed(failure: Failure) -> TransferRow:
    return TransferRow("failed", failure.path, code=failure.code, message=failure.message)


def _failure(row: TransferRow) -> Failure:
    return Failure(row.path or "", row.code or "", row.message or "")


Kernel = Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]


def write_records(file: Path, records: pyarrow.RecordBatch, task_of: Sequence[int]) -> int:
    """Write records to a file, a batch for each task; return the number of tasks, none of which may be empty."""
    order = sorted(range(len(task_of)), key=task_of.__getitem__)
    count = 0
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, records.schema) as writer:
        for task, positions in groupby(order, key=task_of.__getitem__):
            if task != count:
                raise ValueError(f"nothing to do for task {count}")
            writer.write_batch(records.take(array(list(positions), INT)))
            count += 1
    return count


class TaskKernel(Struct, frozen=True):
    """A kernel: read the records of a task, whose number Spark passes, from `file`, and call `kernel` with them."""

    file: Path
    kernel: Kernel

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        tasks = [number for found in batches for number in found.column(0).to_pylist()]
        with pyarrow.memory_map(str(self.file)) as source:
            reader = pyarrow.ipc.open_file(source)
            yield from self.kernel(reader.get_batch(task) for task in tasks)


def report_done(found: Iterable[TransferRow], directory: Path | None) -> Iterator[TransferRow]:
    """Yield rows as they come, and append each that is done to a new file in `directory`; if None, report nothing.

    The driver makes the directory. If the driver has removed it, the attempt fails before it does any work.
    """
    if directory is None:
        yield from found
        return
    report = os.open(directory / temporary_name(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        for row in found:
            if row.outcome == "done":
                os.write(report, _line(row))
            yield row
    finally:
        os.close(report)


class Reports:
    """The driver's side of the reports: read each record of a directory once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}

    def new(self) -> Iterator[TransferRow]:
        """Yield the rows reported since the last call. Two attempts at a task may report the same path."""
        with os.scandir(self._directory) as found:
            sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in found}
        for name, size in sizes.items():
            start = self._read.get(name, 0)
            if size == start:
                continue
            with open(self._directory / name, "rb") as file:
                file.seek(start)
                data = file.read()
            lines = data[: data.rfind(b"\n") + 1]
            self._read[name] = start + len(lines)
            for line in lines.splitlines():
                row = _row(line)
                if row is not None:
                    yield row


_REPORTED = slice(TransferRow._fields.index("path"), TransferRow._fields.index("file") + 1)
_HASH = TransferRow._fields[_REPORTED].index("sha256")


def _line(row: TransferRow) -> bytes:
    values = list(cast("tuple[object, ...]", row[_REPORTED]))
    values[_HASH] = None if row.sha256 is None else row.sha256.hex()
    return json.dumps(values).encode() + b"\n"


def _row(line: bytes) -> TransferRow | None:
    """Return the row of a line; None if its writer wrote only a part of it, as on a full disk."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    sha256 = values[_HASH]
    values[_HASH] = None if sha256 is None else bytes.fromhex(sha256)
    return TransferRow("done", *values)


_UPLOAD = {"path": TEXT, "push": TEXT, "size": INT, "sha256": BYTES, "gc": INT, "modified": INT}
UPLOADS = pyarrow.schema({**_UPLOAD, "packed": pyarrow.bool_()})
"""A file to upload: in a pack (`packed`), or as an object of its own."""


class QueuedUpload(Struct, frozen=True):
    """A row of `UPLOADS`."""

    upload: Upload
    packed: bool

    @property
    def path(self) -> str:
        return self.upload.path


class Uploads(Struct, frozen=True):
    """A kernel: upload files, from batches of `UPLOADS` to batches of `MOVED`; report each that the store acknowledged.

    The key and the hash of each single object were recorded before (V11), so a task that runs twice writes the same
    bytes to the same keys. Packs have new names in each attempt (P1), and their files are in the order of the rows.
    """

    spec: StoreSpec
    root: Path
    pack_size: int
    seconds: float | None = None
    reports: Path | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        store = store_of(self.spec, self.seconds)
        queued = [queued_upload(row) for found in batches for row in rows(found, UPLOADS.names)]
        loose = [item.upload for item in queued if not item.packed]
        packed = [item.upload for item in queued if item.packed]
        size = even_pack_size(packed, self.pack_size)
        results = last_results(upload_all(Sender(store, self.root), loose, len(loose), packed, size))
        yield from to_batches(report_done(result_rows(results, upload_row, store), self.reports))


def even_pack_size(packed: Sequence[Upload], pack_size: int) -> int:
    """Return the pack size, near `pack_size`, with which the last pack of a task is as large as its others."""
    total = sum(member_bytes(upload.path, upload.size) for upload in packed)
    return -(-total // max(1, round(total / pack_size))) if total else pack_size


def last_results(results: Iterable[Upload | Failure | Pause | None]) -> Iterator[Upload | Failure]:
    """Yield the last result of each file: the driver names no file of a pack that the store has not acknowledged."""
    for result in results:
        if isinstance(result, Failure) or (
            isinstance(result, Upload) and (result.stored is not None or result.location is None)
        ):
            yield result


def queued_to_batch(queued: Sequence[QueuedUpload]) -> pyarrow.RecordBatch:
    columns: list[list[object]] = [[getattr(item.upload, name) for item in queued] for name in _UPLOAD]
    return batch(UPLOADS, [*columns, [item.packed for item in queued]])


def queued_upload(row: tuple[object, ...]) -> QueuedUpload:
    path, push, size, sha256, gc, modified, packed = cast("tuple[str, str, int, bytes, int, int, bool]", row)
    return QueuedUpload(Upload(path, push, size, sha256, gc, modified=modified), packed)


def upload_row(upload: Upload) -> TransferRow:
    stored, location = upload.stored, upload.location
    if stored is None:
        return TransferRow("nothing", upload.path)
    done = TransferRow("done", upload.path, upload.size, upload.sha256, stored.etag, stored.version, stored.repeated)
    if location is None:
        return done
    return done._replace(pack=location.pack, offset=location.offset, stored=location.stored, method=location.method)


class UploadResults(Struct, frozen=True):
    """Turn a row into the result of its upload; `requested` has the uploads by path."""

    requested: Mapping[str, Upload]

    def __call__(self, row: TransferRow) -> Upload:
        assert row.path is not None
        upload = self.requested[row.path]
        if row.outcome == "nothing" or (row.size, row.sha256) != (upload.size, upload.sha256):
            return upload  # P3: only the bytes that this push wants become an entry
        if row.pack is None:
            # `repeated`: another attempt at the task may have written the object too, or may still write it.
            return structs.replace(upload, stored=PutResult(row.etag, row.version, repeated=True), data=None)
        location = PackLocation(row.pack, *cast("tuple[int, int, int]", (row.offset, row.stored, row.method)))
        stored = PutResult(None, None, repeated=bool(row.repeated))  # no other attempt writes this pack (P1)
        return structs.replace(upload, stored=stored, location=location, data=None)


class Downloads(Struct, frozen=True):
    """A kernel: download objects, from batches of `ENTRIES` to batches of `MOVED`; report each file once it is durable.

    `staging` is the staging directory of the caller's tree. Each file gets a unique name there, so a task that runs
    twice leaves a file that the caller does not take.
    """

    spec: StoreSpec
    root: Path
    staging: Path
    seconds: float | None = None
    reports: Path | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        store = store_of(self.spec, self.seconds)
        entries = [entry for found in batches for entry in batch_to_entries(found)]
        results = result_rows(self._durable(store, entries), download_row, store)
        yield from to_batches(report_done(results, self.reports))

    def _durable(self, store: Store, entries: list[Entry]) -> Iterator[Downloaded | Failure]:
        """Yield the results of downloads, in groups whose files are durable."""
        # A directory for each attempt: tasks that create files in one directory contend for its lock.
        incoming = StagingArea(self.root, self.staging / temporary_name(), keeps_partial=False)
        sizes = {entry.path: entry.size for entry in entries}
        results = fetch_all(store, incoming, entries, len(entries))
        groups: Iterator[list[Downloaded | Failure]] = batch_results(
            results, DURABLE_BATCH, lambda result: sizes[result.path]
        )
        for group in groups:
            incoming.sync(result.file for result in group if isinstance(result, Downloaded) and result.file is not None)
            yield from group


def download_row(downloaded: Downloaded) -> TransferRow:
    file = downloaded.file
    if file is None:
        return TransferRow("nothing", downloaded.path)
    return TransferRow("done", downloaded.path, sha256=downloaded.sha256, file=f"{file.parent.name}/{file.name}")


class DownloadResults(Struct, frozen=True):
    """Turn a row into the result of its download, with the path of the staging directory in this process."""

    staging: Path

    def __call__(self, row: TransferRow) -> Downloaded:
        assert row.path is not None
        if row.file is None:
            return Downloaded(row.path)
        return Downloaded(row.path, self.staging / row.file, row.sha256, durable=True)
