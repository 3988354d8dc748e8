"""What a task tells of the files that it has worked on, as rows: `sync.transfer.executor`'s results, and what it cost.

Hand out records to tasks through a file that all of them see: each reads its own part of it, and no other.

What tasks report while they run: each attempt appends to a file of its own, which the driver reads meanwhile.

Spark hands over the rows of a task when the task ends. A large task takes minutes, and a driver that is killed before
would have recorded nothing of it (V19). The files lie in a directory that the driver and all workers see.

A record is one line of JSON, written by one call. A line without its end is not there yet, and never will be if its
writer was killed. Only what is done is reported: a path that failed may succeed in the next attempt.

Upload files from where a task runs: `sync.transfer.executor.send`, for a part of them.

The key and the hash of each were recorded before (V11): a task that runs twice writes the same bytes to the same keys.

Download objects to where a task runs, which must be the staging directory of the caller's tree:
`sync.transfer.executor.fetch`.

A file is staged under a name that nobody else uses, so a task that runs twice leaves one that nobody takes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, cast

import pyarrow
from msgspec import Struct

from bayou.core import errors
from bayou.core.errors import BayouError, SparkFailed
from bayou.index.entry import Entry
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Requests, Stored
from bayou.spark.arrow import BYTES, INT, TEXT, batch, batch_to_entries, batches_of_rows, rows
from bayou.spark.arrow import rows as values
from bayou.spark.shared_fs import store_of
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import Downloaded, Upload, batch_results, fetch_all, send_all
from bayou.worktree.atomic_write import temporary_name
from bayou.worktree.staging import StagingArea

Outcome = Literal["done", "nothing", "failed", "stopped", "sent"]
"""A path was done, or there was nothing to do it with, or it failed; nothing could be done; requests of one kind."""

MOVED = pyarrow.schema(
    {
        "outcome": TEXT,
        "path": TEXT,
        "sha256": BYTES,
        "etag": TEXT,
        "version": TEXT,
        "file": TEXT,
        "code": TEXT,
        "message": TEXT,
        "hint": TEXT,
        "requests": INT,
    }
)

_AT_ONCE = 1000

R = TypeVar("R")


class TransferRow(NamedTuple):
    """A row of `MOVED`."""

    outcome: Outcome
    path: str | None = None
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    file: str | None = None
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    requests: int | None = None


def told(results: Iterable[R | Failure], to_row: Callable[[R], TransferRow], store: Store) -> Iterator[TransferRow]:
    """Yield a row for each result, and at the end what was sent to the store for them.

    An error that every path would meet is told, not raised: Spark would try the task again, and lose what it was.
    """
    before = store.requests
    stopped: list[TransferRow] = []
    try:
        for one in results:
            yield _failed(one) if isinstance(one, Failure) else to_row(one)
    except BayouError as error:
        stopped = [TransferRow("stopped", code=type(error).__name__, message=error.message, hint=error.hint)]
    sent = store.requests - before
    for kind in Requests.__struct_fields__:
        if number := getattr(sent, kind):
            yield TransferRow("sent", code=kind, requests=number)
    yield from stopped  # last: whoever reads it reads on no further


def in_batches(found: Iterable[TransferRow]) -> Iterator[pyarrow.RecordBatch]:
    """Put rows into batches."""
    return batches_of_rows(MOVED, found, _AT_ONCE)


def in_rows(found: pyarrow.RecordBatch) -> Iterator[TransferRow]:
    return (TransferRow(*row) for row in values(found, MOVED.names))  # type: ignore[arg-type]


def outcomes(rows: Iterable[TransferRow], from_row: Callable[[TransferRow], R], store: Store) -> Iterator[R | Failure]:
    """Yield the results that rows tell of, each path once; requests go to the tally of `store`.

    What stopped a task is raised, as the error that it was.
    """
    seen: set[str] = set()
    for row in rows:
        if row.outcome == "sent":
            store.add_requests(Requests(**{cast("str", row.code): cast("int", row.requests)}))
        elif row.outcome == "stopped":
            raise error_of(row)
        elif row.path is not None and row.path not in seen:
            seen.add(row.path)
            yield _failure(row) if row.outcome == "failed" else from_row(row)


def error_of(row: TransferRow) -> BayouError:
    """Return the error that stopped a task."""
    found = getattr(errors, row.code or "", None)
    kind = found if isinstance(found, type) and issubclass(found, BayouError) else SparkFailed
    try:
        return kind(row.message or "", hint=row.hint)
    except TypeError:  # one that is made from something else than a message
        return SparkFailed(row.message or "", hint=row.hint)


def _failed(one: Failure) -> TransferRow:
    return TransferRow("failed", one.path, code=one.code, message=one.message)


def _failure(row: TransferRow) -> Failure:
    return Failure(row.path or "", row.code or "", row.message or "")


Kernel = Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]


def write(file: Path, records: pyarrow.RecordBatch, task_of: Sequence[int]) -> int:
    """Write records, those of each task together, and return for how many tasks; no number may be left out."""
    order = sorted(range(len(task_of)), key=task_of.__getitem__)
    count = 0
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, records.schema) as writer:
        for task, rows in groupby(order, key=task_of.__getitem__):
            if task != count:
                raise ValueError(f"nothing to do for task {count}")
            writer.write_batch(records.take(pyarrow.array(list(rows))))
            count += 1
    return count


class HandedOut(Struct, frozen=True):
    """A kernel: the numbers of tasks to what `kernel` makes of their records."""

    file: Path
    kernel: Kernel

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        tasks = [number for found in batches for number in found.column(0).to_pylist()]
        with pyarrow.memory_map(str(self.file)) as source:
            reader = pyarrow.ipc.open_file(source)
            yield from self.kernel(reader.get_batch(task) for task in tasks)


def reporting(rows: Iterable[TransferRow], folder: Path | None) -> Iterator[TransferRow]:
    """Yield rows as they come, and report each that is done to a new file in `folder`; without one, report nothing.

    The driver makes the folder. Where it is gone, so is the driver, and the attempt fails before it does any work.
    """
    if folder is None:
        yield from rows
        return
    report = os.open(folder / temporary_name(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        for row in rows:
            if row.outcome == "done":
                os.write(report, _line(row))
            yield row
    finally:
        os.close(report)


class Reports:
    """The driver's side: reads what has been reported in a folder, each record once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def new(self) -> Iterator[TransferRow]:
        """Yield what has been reported since the last call. Attempts at one task may report the same path."""
        with os.scandir(self._folder) as found:
            sizes = {one.name: one.stat(follow_symlinks=False).st_size for one in found}
        for name, size in sizes.items():
            start = self._read.get(name, 0)
            if size == start:
                continue
            with open(self._folder / name, "rb") as file:
                file.seek(start)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[name] = start + len(whole)
            for line in whole.splitlines():
                row = _row(line)
                if row is not None:
                    yield row


def _line(row: TransferRow) -> bytes:
    sha256 = None if row.sha256 is None else row.sha256.hex()
    return json.dumps([row.path, sha256, row.etag, row.version, row.file]).encode() + b"\n"


def _row(line: bytes) -> TransferRow | None:
    """Return a record; None if its writer could write only a part of it, as on a full disk."""
    try:
        path, sha256, etag, version, file = json.loads(line)
    except ValueError:
        return None
    return TransferRow("done", path, None if sha256 is None else bytes.fromhex(sha256), etag, version, file)


UPLOADS = pyarrow.schema({"path": TEXT, "push": TEXT, "size": INT, "sha256": BYTES, "gc": INT})


class Uploads(Struct, frozen=True):
    """A kernel: batches of `UPLOADS` to batches of `MOVED`; what the store has acknowledged is reported at once."""

    recipe: StoreSpec
    root: Path
    seconds: float | None = None
    reports: Path | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        store = store_of(self.recipe, self.seconds)
        uploads = [Upload(*row) for found in batches for row in rows(found, UPLOADS.names)]  # type: ignore[arg-type]
        sent = told(send_all(store, self.root, uploads, len(uploads)), upload_row, store)
        yield from in_batches(reporting(sent, self.reports))


def to_batch(uploads: Sequence[Upload]) -> pyarrow.RecordBatch:
    return batch(UPLOADS, ([getattr(one, name) for one in uploads] for name in UPLOADS.names))


def upload_row(one: Upload) -> TransferRow:
    if one.stored is None:
        return TransferRow("nothing", one.path)
    return TransferRow("done", one.path, etag=one.stored.etag, version=one.stored.version)


class Sent(Struct, frozen=True):
    """Makes results of rows, with the uploads that were asked for."""

    asked: Mapping[str, Upload]

    def __call__(self, row: TransferRow) -> Upload:
        assert row.path is not None
        asked = self.asked[row.path]
        if row.outcome == "nothing":
            return asked
        # Nobody here knows whether another attempt at the task has written it too, or still will.
        stored = Stored(row.etag, row.version, repeated=True)
        return Upload(asked.path, asked.push, asked.size, asked.sha256, asked.gc, stored, asked.resumed)


_DURABLE = 1024
"""Downloads that are made durable together, and then reported."""


class Downloads(Struct, frozen=True):
    """A kernel: batches of `ENTRIES` to batches of `MOVED`; what is durable is reported at once."""

    recipe: StoreSpec
    root: Path
    staging: Path
    seconds: float | None = None
    reports: Path | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        store = store_of(self.recipe, self.seconds)
        entries = [entry for found in batches for entry in batch_to_entries(found)]
        came = told(self._durable(store, entries), download_row, store)
        yield from in_batches(reporting(came, self.reports))

    def _durable(self, store: Store, entries: list[Entry]) -> Iterator[Downloaded | Failure]:
        """Yield what came, some at a time, once it is on the disk."""
        # In a directory of its own: tasks that make files in one directory wait for each other, and burn their time.
        incoming = StagingArea(self.root, self.staging / temporary_name())
        sizes = {entry.path: entry.size for entry in entries}
        came = fetch_all(store, incoming, entries, len(entries))
        for some in batch_results(came, _DURABLE, lambda one: sizes[one.path]):
            incoming.sync(one.file for one in some if isinstance(one, Downloaded) and one.file is not None)
            yield from some


def download_row(one: Downloaded) -> TransferRow:
    if one.file is None:
        return TransferRow("nothing", one.path)
    return TransferRow("done", one.path, sha256=one.sha256, file=f"{one.file.parent.name}/{one.file.name}")


class Came(Struct, frozen=True):
    """Makes results of rows, for the staging directory as this process calls it."""

    staging: Path

    def __call__(self, row: TransferRow) -> Downloaded:
        assert row.path is not None
        if row.file is None:
            return Downloaded(row.path)
        return Downloaded(row.path, self.staging / row.file, row.sha256, durable=True)
