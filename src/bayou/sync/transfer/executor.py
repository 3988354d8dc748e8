"""Uploads and downloads of files, and the executors that run them.

To transfer a file takes the tree's directory, the store and one record, and no other state of a sync. So threads of
this process can do it (`ThreadTransfer`), or workers of Spark that can reach both (`spark.transfer`). Small files
travel together in packs (`transfer.packed`), the others as objects of their own.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeAlias, TypeGuard, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import kept
from bayou.core.errors import (
    AccessDenied,
    BadAnswer,
    BayouError,
    ContentChanged,
    NotFound,
    PreconditionFailed,
    Rejected,
    StoreError,
    TreeError,
    Unavailable,
    UploadGone,
)
from bayou.core.iterators import prefetch
from bayou.core.structs import SelectiveStruct
from bayou.index.entry import Entry
from bayou.objectstore import keys
from bayou.objectstore.multipart import THRESHOLD, PartialDownload
from bayou.objectstore.store import Store
from bayou.objectstore.transport import PutResult
from bayou.packs.read import PackRange, plan_ranges, read_range, threads_for
from bayou.sync.report import Failure
from bayou.sync.transfer.meter import UNMETERED, FileMeter, Meter
from bayou.worktree.staging import StagingArea

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from bayou.objectstore.uploads import PartLog
    from bayou.state.part_log import PartLogs

_BATCH = 8
_SMALL_BYTES = 1 << 16
"""The caller's thread reads files of up to so many bytes, before it hands them to other threads."""

_SAMPLE = 2 * _BATCH
"""Files that are read before any thread starts, to measure what reading costs on this disk."""

QUICK_READ_S = 0.0005
"""Seconds to read a small file, above which threads read faster than one thread."""

BATCH_BYTES = 64 << 20
"""Bytes of results after which a batch is recorded, however few results it has."""

BATCH_S = 1.0
"""Seconds after which a result is recorded with those before it, however few they are: a killed process repeats what it
has not recorded, and on a slow link a full batch would be minutes of work."""

_SHARE_BYTES = 1 << 18
"""Bytes that a thread takes at a time, or one file."""

BAD_CONTENT = "bad_content"
"""The code of a download whose bytes are not those that were pushed."""

_OUTAGE_COUNT = 8
"""Consecutive paths that fail with `Unavailable` before the store counts as down."""

_AHEAD = 8
"""Downloads for each connection that may finish before the caller takes them."""

T = TypeVar("T")
R = TypeVar("R")


class PackLocation(Struct, frozen=True):
    """Where a file's bytes lie in a pack; see `Entry`."""

    pack: str
    offset: int
    stored: int
    method: int


class Upload(SelectiveStruct, frozen=True):
    """An object to write, or (with `stored`) that was written. `resumed`: an earlier run may have started to write it.

    `data` has the bytes with this hash if they are in memory; otherwise the upload reads and checks the file.
    `modified` is the file's mtime in ms. `location` is where a packed file lies, as soon as its pack is made; the file
    has arrived only with `stored`.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("data",)
    unshown: ClassVar[tuple[str, ...]] = ("data",)

    path: str
    push: str
    size: int
    sha256: bytes
    gc: int
    stored: PutResult | None = None
    resumed: bool = False
    data: bytes | None = None
    modified: int = 0
    location: PackLocation | None = None


class Downloaded(Struct, frozen=True):
    """A download in the staging directory, and its hash; without a file if the object is missing.

    `durable`: the content is already synced to disk.
    """

    path: str
    file: Path | None = None
    sha256: bytes | None = None
    durable: bool = False


class Pause(Struct, frozen=True):
    """Among results: no other has come for a moment, so what has come so far can be recorded."""


PAUSE = Pause()

UploadResults: TypeAlias = Generator[Upload | Failure | Pause | None, None, None]
"""Yields each upload once it is stored or has failed; closing it stops the others.

A packed file may also come earlier, with its `location` and without `stored`. After None come only results of files
that have come with their locations: by then all entries are known, and the index nodes can be written.
"""

DownloadResults: TypeAlias = Iterator[Downloaded | Failure | Pause]


class TransferExecutor(Protocol):
    """Transfers files. It yields one last result for each record, in any order; each result names its path.

    An error of one path is a `Failure` among the results; an error that every path would meet is raised. A persistent
    500 for one object fails only its path, if the store is up (`raise_if_down`). `count` is the number of records.
    """

    def upload(self, uploads: Iterable[Upload], count: int, packed: Iterable[Upload] = ()) -> UploadResults:
        """Write objects, and packs of the `packed` files.

        A last result without `stored` is a file that changed meanwhile; it stays journaled (P3). The uploads may start
        before the caller takes the first result. A caller that wants no more results closes it.
        """

    def download(self, entries: Iterable[Entry], count: int) -> DownloadResults:
        """Download objects to the staging directory. The caller moves each file into the tree, or removes it."""


class BulkTransferExecutor(TransferExecutor, Protocol):
    """A `TransferExecutor` that starts its work before the caller requests the results. The caller closes it when all
    files are in the tree."""

    def expect(self, entries: Sequence[Entry]) -> None:
        """Begin the downloads of a window, which `download` is asked for later."""

    def close(self) -> None:
        """Give up what was expected, and remove what it has left in the staging directory."""


class ThreadTransfer(Struct, frozen=True):
    """Transfers files with threads of this process. A `TransferExecutor`."""

    store: Store
    root: Path
    incoming: StagingArea
    pack_size: int
    meter: Meter | None = None
    logs: PartLogs | None = None
    """Where uploads in parts are recorded, so that the next command can resume them; None: it cannot."""

    def upload(self, uploads: Iterable[Upload], count: int, packed: Iterable[Upload] = ()) -> UploadResults:
        from bayou.sync.transfer.packed import upload_all  # noqa: PLC0415  (a pull writes no packs)

        sender = Sender(self.store, self.root, self.meter, self.logs)
        return raise_if_down(self.store, upload_all(sender, uploads, count, packed, self.pack_size))

    def download(self, entries: Iterable[Entry], count: int) -> DownloadResults:
        """Download ahead while the caller moves a batch of earlier files into the tree, which waits for the disk."""
        came = raise_if_down(self.store, fetch_all(self.store, self.incoming, entries, count, self.meter))
        ahead = prefetch(came, _AHEAD * self.store.concurrency, name="bayou-downloads")
        return (PAUSE if result is None else result for result in ahead)


class Sender(Struct, frozen=True):
    """What the upload of a file needs: the store, the tree, and where to report bytes and to record parts."""

    store: Store
    root: Path
    meter: Meter | None = None
    logs: PartLogs | None = None

    def metered(self, upload: Upload) -> FileMeter:
        """Return the functions that report bytes of a file."""
        return self.meter.of(upload.path, upload.size) if self.meter is not None else UNMETERED

    def log(self, upload: Upload) -> PartLog | None:
        """Return the record of a file's upload in parts."""
        return self.logs.of(upload.path, upload.push) if self.logs is not None else None


def send_all(sender: Sender, uploads: Iterable[Upload], count: int) -> Iterator[Upload | Failure]:
    """Upload files with many threads; the caller's thread reads the small files.

    Threads that open many files wait for each other, because each call releases the interpreter lock and takes it
    again. But if the first few files take long to read, on a network or a spinning disk, many threads read faster.
    """
    source = iter(uploads)
    first, slow = read_sample(source, partial(with_data, sender.root))
    rest = source if slow else (with_data(sender.root, upload) for upload in source)
    yield from parallel_map(sender.store, partial(send, sender), chain(first, rest), count, size=_size)


def read_sample(source: Iterator[Upload], read: Callable[[Upload], R]) -> tuple[list[R], bool]:
    """Read the first few files; return them, and whether this disk is so slow that threads read faster."""
    first: list[R] = []
    seconds: list[float] = []
    for upload in islice(source, _SAMPLE):
        begin = time.perf_counter()
        first.append(read(upload))
        seconds.append(time.perf_counter() - begin)
    # The median, not the mean: one delayed file says nothing about the others.
    return first, bool(seconds) and sorted(seconds)[len(seconds) // 2] > QUICK_READ_S


def with_data(root: Path, upload: Upload, most: int = _SMALL_BYTES) -> Upload:
    """Return an upload with its data if the file is small; `send` reports what is wrong with an unexpected file."""
    if upload.data is not None or upload.size > most:
        return upload
    try:
        descriptor = open_regular(f"{root}/{upload.path}", os.O_RDONLY)
        try:
            data = os.read(descriptor, upload.size)
        finally:
            os.close(descriptor)
    except OSError:
        return upload
    if len(data) != upload.size or hashlib.sha256(data).digest() != upload.sha256:
        return upload
    return replace(upload, data=data)


def send(sender: Sender, upload: Upload) -> Upload | Failure:
    """Upload one file. A result without `stored` means that the file changed meanwhile; it stays journaled."""
    try:
        key = keys.payload(upload.path, upload.push)
        moved, had = sender.metered(upload)
        if upload.data is not None:
            stored = sender.store.upload(key, upload.data, upload.size, upload.sha256, moved=moved)
        else:
            log = sender.log(upload)
            with open(f"{sender.root}/{upload.path}", "rb", buffering=0, opener=open_regular) as file:
                stored = sender.store.upload(key, file, upload.size, upload.sha256, log=log, moved=moved, had=had)
    except (ContentChanged, FileNotFoundError):
        return upload
    except TreeError as error:
        return failure(upload.path, error)
    except StoreError as error:
        return path_failure(upload.path, error)
    except OSError as error:
        return Failure(upload.path, "unreadable", f"{upload.path}: {os.strerror(error.errno or 0)}")
    return _stored(upload, stored)


def _stored(upload: Upload, stored: PutResult) -> Upload:
    if upload.resumed:
        stored = replace(stored, repeated=True)
    return replace(upload, stored=stored, data=None)


def path_failure(path: str, error: StoreError) -> Failure:
    """Return the failure of one path; raise an error that every path would meet.

    `Unavailable` can be either: `parallel_map` and `raise_if_down` find out.
    """
    if isinstance(error, AccessDenied | Rejected | BadAnswer | PreconditionFailed | Unavailable | UploadGone):
        return failure(path, error)
    raise error


def raise_if_down(store: Store, results: Iterable[R | Failure]) -> Generator[R | Failure, None, None]:
    """Yield results; raise the store's error if it serves neither a path nor the head.

    An object for which the store keeps answering 500 or 503 fails only its own path, and the others are committed. Any
    path that succeeds proves that the store is up; failures are held back until then. If no path succeeds, the client
    requests the head once: a store that also fails this request is down, and its error ends the command (V4).
    `parallel_map` stops when a store goes down on the way. Both executors call this on the caller's side, because a
    task of Spark may have only the path that fails.
    """
    held: list[Failure] = []
    served = False
    for result in results:
        if not served and _is_unavailable(result):
            held.append(result)
            continue
        if not served and _proves_service(result):
            served = True
            yield from held
        yield result
    if held and not served:
        with suppress(NotFound):  # the first push has no head yet
            store.head(keys.HEAD)
        yield from held


def _proves_service(result: object) -> bool:
    """Whether a result shows that the store is up; the location of a file in a pack that is on its way does not."""
    if isinstance(result, Upload):
        return result.stored is not None
    return not (result is None or isinstance(result, Failure | Pause))


def _is_unavailable(result: object) -> TypeGuard[Failure]:
    return isinstance(result, Failure) and result.code == Unavailable.code


def outage(failed: Failure) -> Unavailable:
    return Unavailable(failed.message, hint="try again in a moment")


def fetch_all(
    store: Store, incoming: StagingArea, entries: Iterable[Entry], count: int, meter: Meter | None = None
) -> Iterator[Downloaded | Failure]:
    """Download objects with many threads: those of single files, then packs, of which one request reads many files."""
    packed: list[Entry] = []
    loose: list[Entry] = []
    for entry in entries:
        (loose if entry.pack is None else packed).append(entry)
    yield from parallel_map(store, partial(fetch, store, incoming, meter), loose, count - len(packed), size=_size)
    if not packed:
        return
    ranges = plan_ranges(packed)
    work = partial(fetch_range, store, incoming)
    for results in parallel_map(store, work, ranges, 1, threads=threads_for(store, ranges)):
        yield from results


def fetch_range(store: Store, incoming: StagingArea, part: PackRange) -> list[Downloaded | Failure]:
    """Download the wanted files of a pack's range to the staging directory, and check each file's hash."""
    results: list[Downloaded | Failure] = []
    place = incoming.new_directories()
    try:
        for entry, data in read_range(store, part):
            if data is None:
                results.append(bad_content(entry))
            elif place is not None and (staged := place.stage(entry.path, data)) is not None:
                results.append(Downloaded(entry.path, staged, entry.sha256))
            else:
                results.append(stage(incoming, entry, data))
    except NotFound:
        return [Downloaded(entry.path) for entry in part.entries]
    except StoreError as error:
        return [path_failure(entry.path, error) for entry in part.entries]
    return results


def fetch(store: Store, incoming: StagingArea, meter: Meter | None, entry: Entry) -> Downloaded | Failure:
    """Download one object to the staging directory, and check its hash."""
    metered = meter.of(entry.path, entry.size) if meter is not None else UNMETERED
    try:
        if entry.sha256 is None or entry.push is None:
            return _fetch_discovered(store, incoming, entry, metered.moved)
        if entry.size > THRESHOLD:
            return _fetch_large(store, incoming, entry, entry.sha256, metered)
        done = _fetch_at_once(store, incoming, entry, entry.sha256)
        metered.moved(entry.size)
        return done
    except NotFound:
        return Downloaded(entry.path)
    except StoreError as error:
        return path_failure(entry.path, error)


def _fetch_at_once(store: Store, incoming: StagingArea, entry: Entry, sha256: bytes) -> Downloaded | Failure:
    """Download an object in one request, and check its hash before anything is written to disk."""
    data = store.read(entry.key, entry.size, sha256)
    return stage(incoming, entry, data) if data is not None else bad_content(entry)


def stage(incoming: StagingArea, entry: Entry, data: Buffer) -> Downloaded:
    staged, file = incoming.stage()
    try:
        with file:
            file.write(data)
    except (Exception, KeyboardInterrupt):
        staged.unlink(missing_ok=True)
        raise
    return Downloaded(entry.path, staged, entry.sha256)


def _fetch_large(
    store: Store, incoming: StagingArea, entry: Entry, sha256: bytes, metered: FileMeter
) -> Downloaded | Failure:
    """Download an object in spans, after those that an earlier command has left in the staging directory.

    Only this push wrote this key, and the hash proves the whole, so that the beginning may come from anywhere.
    """

    def moved(more: int) -> None:
        metered.moved(more)
        if incoming.keeps_partial:
            kept.part_fetched(entry.path, more)

    name = hashlib.sha256(f"{entry.key} {sha256.hex()}".encode()).hexdigest()
    while True:
        partial_file = incoming.resume(name, entry.size)
        with partial_file.file as file:
            had = PartialDownload(partial_file.size, partial_file.digest) if partial_file.size else None
            metered.had(partial_file.size)
            if incoming.keeps_partial:
                kept.part_fetched(entry.path, partial_file.size)
            try:
                came = store.download(entry.key, file, entry.size, had=had, moved=moved)
            except TreeError:
                kept.part_ended(entry.path)
                partial_file.path.unlink(missing_ok=True)  # a full disk
                raise
        kept.part_ended(entry.path)
        if came.sha256 == sha256:
            return Downloaded(entry.path, partial_file.path, came.sha256)
        partial_file.path.unlink(missing_ok=True)
        if had is None:
            return bad_content(entry)
        # A power cut may have torn what was there: read it all once more before the store is blamed.


def _fetch_discovered(
    store: Store, incoming: StagingArea, entry: Entry, moved: Callable[[int], object]
) -> Downloaded | Failure:
    staged, file = incoming.stage()
    try:
        with file:
            # V2: a discovered object must still be the one that was listed.
            if_match = entry.etag if entry.push is None else None
            came = store.download(entry.key, file, entry.size, if_match=if_match, moved=moved)
    except (Exception, KeyboardInterrupt):
        staged.unlink(missing_ok=True)
        raise
    if entry.sha256 is not None and came.sha256 != entry.sha256:
        staged.unlink(missing_ok=True)
        return bad_content(entry)
    return Downloaded(entry.path, staged, came.sha256)


def bad_content(entry: Entry) -> Failure:
    return Failure(entry.path, BAD_CONTENT, f"the object of {entry.path} does not have the bytes that were pushed")


def failure(path: str, error: BayouError) -> Failure:
    return Failure(path, error.code, error.message)


def parallel_map(
    store: Store,
    work: Callable[[T], R],
    items: Iterable[T],
    count: int,
    *,
    size: Callable[[T], int] = lambda _: 0,
    threads: int | None = None,
    ahead: int = 1,
) -> Generator[R, None, None]:
    """Yield `work(item)` for each of `count` items, run by many threads, as in `Store.map_as_completed`.

    A result does not wait for those of earlier items, or a killed push would not know what has arrived meanwhile.

    A thread takes several small items (by `size`) at a time if there are many, because handing over a single item costs
    a third of what it costs to send a small file.

    Once `_OUTAGE_COUNT` consecutive paths have failed with `Unavailable`, the store counts as down and the function
    raises that error (V12): a command over 10,000 files waits for two rounds of retries, not for 10,000. Results that
    came before an error are yielded before it is raised.
    """
    most = max(1, min(_BATCH, count // (2 * store.concurrency)))
    results = _UnyieldedResults(work)
    try:
        for done in store.map_as_completed(results.run_batch, _shares(items, most, size), threads=threads, ahead=ahead):
            yield from map(results.take, done)
    except (Exception, KeyboardInterrupt):
        yield from results.unyielded()
        raise


def _shares(items: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in lists of up to `most`, or fewer if they have many bytes.

    A thread hands back its share as a whole, so a share of large files would hold back results for minutes.
    """
    share: list[T] = []
    bytes_so_far = 0
    for item in items:
        share.append(item)
        bytes_so_far += size(item)
        if len(share) == most or bytes_so_far >= _SHARE_BYTES:
            yield share
            share, bytes_so_far = [], 0
    if share:
        yield share


def _size(item: Upload | Entry) -> int:
    return item.size


class _UnyieldedResults(Generic[T, R]):
    """Runs `work` on many threads and keeps results that were not yielded yet, so that an error loses none of them."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self._work = work
        self._results: dict[int, R] = {}
        self._lock = threading.Lock()
        self._in_a_row = 0

    def __call__(self, item: T) -> R:
        result = self._work(item)
        failed = result[0] if isinstance(result, list) and result else result
        if _is_unavailable(failed):
            with self._lock:
                self._in_a_row += 1
                if self._in_a_row >= _OUTAGE_COUNT:
                    raise outage(failed)
        else:
            self._in_a_row = 0
        self._results[id(result)] = result
        return result

    def run_batch(self, items: Iterable[T]) -> list[R]:
        return [self(item) for item in items]

    def take(self, result: R) -> R:
        self._results.pop(id(result), None)
        return result

    def unyielded(self) -> list[R]:
        return list(self._results.values())


def batch_results(results: Iterable[T | Pause], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of up to `most` results, or fewer if they have many bytes or came slowly; `results` may have pauses.

    Results that came before an error or a signal are yielded before it is raised, so that their work is not repeated.
    """
    batch: list[T] = []
    size_so_far, last = 0, time.monotonic()
    try:
        for result in results:
            if not isinstance(result, Pause):
                batch.append(result)
                size_so_far += size(result)
            elif not batch:
                continue
            if len(batch) == most or size_so_far >= BATCH_BYTES or time.monotonic() - last >= BATCH_S:
                full, batch, size_so_far = batch, [], 0  # before the yield: no signal makes it yield a batch twice
                yield full
                last = time.monotonic()
    except (Exception, KeyboardInterrupt):
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def open_regular(path: str, flags: int) -> int:
    """Open a file without following a link, and without waiting for the writer of a FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
