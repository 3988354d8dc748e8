"""The work on single files of a sync, to upload and to download them, and who does it.

What is done to a file needs the tree's directory, the store and one record, and nothing of a sync's state. So threads
of this process can do it, or anybody else who sees both.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeAlias, TypeGuard, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.batched import batched
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
)
from bayou.core.structs import SelectiveStruct
from bayou.index.entry import Entry
from bayou.objectstore import keys
from bayou.objectstore.multipart import THRESHOLD
from bayou.objectstore.prefetcher import prefetch
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Stored
from bayou.sync.report import Failure
from bayou.worktree.staging import StagingArea

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HANDFUL = 8
_SMALL = 1 << 16
"""Bytes: a file of up to so many is read before a thread takes it on."""

_TRIED = 2 * _HANDFUL
"""Files that are read before any thread has begun: how long they take says what reading costs here."""

_QUICK_S = 0.0005

_HEAVY = 64 << 20
"""Bytes: results of so many are recorded, however few they are."""

_IN_A_ROW = 8
"""Paths that fail with `Unavailable`, with no other result between them, before the store counts as down."""

_AHEAD = 8
"""Downloads for each connection that may be done before anybody takes them."""

T = TypeVar("T")
R = TypeVar("R")


class Upload(SelectiveStruct, frozen=True):
    """One object that is to be written, or was. `resumed`: an earlier run may have begun to, and not be done yet.

    `data`: the bytes that have that hash, if they are at hand; else they are read from the file, and proved.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("data",)
    unshown: ClassVar[tuple[str, ...]] = ("data",)

    path: str
    push: str
    size: int
    sha256: bytes
    gc: int
    stored: Stored | None = None
    resumed: bool = False
    data: bytes | None = None


class Downloaded(Struct, frozen=True):
    """A download in the staging directory, and its hash; without a file if the object is not there.

    `durable`: a power cut cannot take its content any more.
    """

    path: str
    file: Path | None = None
    sha256: bytes | None = None
    durable: bool = False


UploadResults: TypeAlias = Generator[Upload | Failure, None, None]
"""Uploads on their way: each is told once it has arrived, or failed."""

DownloadResults: TypeAlias = Iterator[Downloaded | Failure]


class TransferExecutor(Protocol):
    """Who does the work on single files. One result comes for each record, in any order, and names its path.

    What is wrong with one path is a `Failure` among the results; an error that every path would meet is raised. An
    object that answers 500 throughout is wrong with its path alone, if the store is up (`raise_if_down`).
    `count` says how many records there are.
    """

    def upload(self, uploads: Iterable[Upload], count: int) -> UploadResults:
        """Write objects; one that comes back without `stored` changed meanwhile, and stays journaled.

        May begin before anybody asks for results. Whoever wants no more of them closes it.
        """

    def download(self, entries: Iterable[Entry], count: int) -> Iterator[Downloaded | Failure]:
        """Bring objects to the staging directory. Whoever takes a file from there places or removes it."""


class ThreadTransfer(Struct, frozen=True):
    """Threads of this process."""

    store: Store
    root: Path
    incoming: StagingArea

    def upload(self, uploads: Iterable[Upload], count: int) -> UploadResults:
        return raise_if_down(self.store, send_all(self.store, self.root, uploads, count))

    def download(self, entries: Iterable[Entry], count: int) -> DownloadResults:
        """Downloads go on for as long as it takes to put a batch of earlier ones in place, which waits for the disk."""
        came = raise_if_down(self.store, fetch_all(self.store, self.incoming, entries, count))
        return prefetch(came, _AHEAD * self.store.concurrency, name="bayou-downloads")


def send_all(store: Store, root: Path, uploads: Iterable[Upload], count: int) -> UploadResults:
    """Upload files by many threads; this thread reads the small ones.

    Threads that open many files wait for each other, because each call releases the interpreter and takes it again.
    But where the first few files take long to read, on a network or a spinning disk, many threads read faster.
    """
    source = iter(uploads)
    first: list[Upload] = []
    taken: list[float] = []
    for upload in islice(source, _TRIED):
        begin = time.perf_counter()
        first.append(_with_bytes(root, upload))
        taken.append(time.perf_counter() - begin)
    # The median, not the mean: one file that was held up says nothing about the others.
    slow = bool(taken) and sorted(taken)[len(taken) // 2] > _QUICK_S
    rest = source if slow else (_with_bytes(root, upload) for upload in source)
    yield from parallel_map(store, partial(send, store, root), chain(first, rest), count)


def _with_bytes(root: Path, upload: Upload) -> Upload:
    """Read a file, if it is small; one that is not as it should be is left to `send`, which finds out why."""
    if upload.data is not None or upload.size > _SMALL:
        return upload
    try:
        descriptor = _as_it_is(f"{root}/{upload.path}", os.O_RDONLY)
        try:
            data = os.read(descriptor, upload.size)
        finally:
            os.close(descriptor)
    except OSError:
        return upload
    if len(data) != upload.size or hashlib.sha256(data).digest() != upload.sha256:
        return upload
    return Upload(upload.path, upload.push, upload.size, upload.sha256, upload.gc, upload.stored, upload.resumed, data)


def send(store: Store, root: Path, upload: Upload) -> Upload | Failure:
    """Upload one file. Without `stored`: it changed meanwhile, and stays journaled for the next push."""
    try:
        key = keys.payload(upload.path, upload.push)
        if upload.data is not None:
            stored = store.upload(key, upload.data, upload.size, upload.sha256)
        else:
            with open(f"{root}/{upload.path}", "rb", buffering=0, opener=_as_it_is) as file:
                stored = store.upload(key, file, upload.size, upload.sha256)
    except (ContentChanged, FileNotFoundError):
        return upload
    except TreeError as error:
        return failure(upload.path, error)
    except StoreError as error:
        return refusal(upload.path, error)
    except OSError as error:
        return Failure(upload.path, "unreadable", f"{upload.path}: {os.strerror(error.errno or 0)}")
    return _sent(upload, stored)


def _sent(upload: Upload, stored: Stored) -> Upload:
    if upload.resumed:
        stored = replace(stored, repeated=True)
    return Upload(upload.path, upload.push, upload.size, upload.sha256, upload.gc, stored)


def refusal(path: str, error: StoreError) -> Failure:
    """Return what is wrong with one path; raise what every path would meet.

    `Unavailable` may be either: `parallel_map` and `raise_if_down` tell which.
    """
    if isinstance(error, AccessDenied | Rejected | BadAnswer | PreconditionFailed | Unavailable):
        return failure(path, error)
    raise error


def raise_if_down(store: Store, results: Iterable[R | Failure]) -> Generator[R | Failure, None, None]:
    """Yield results; raise what is wrong with the store if it serves no path, nor the head.

    An object that answers 500 or 503 throughout fails its own path, and the others are committed. Any path that
    succeeds shows that the store is up; failures wait for one. If none comes, the client asks for the head once: a
    store that answers that, too, with an error is down, and its error ends the command (V4). `parallel_map` stops the work
    of a store that goes down on the way. Both executors use this on the caller's side, since a task of Spark may have
    no path but the one that fails.
    """
    held: list[Failure] = []
    served = False
    for result in results:
        if not served and _is_unavailable(result):
            held.append(result)
            continue
        if not served and not isinstance(result, Failure):
            served = True
            yield from held
        yield result
    if held and not served:
        with suppress(NotFound):  # the first push has no head yet
            store.head(keys.HEAD)
        yield from held


def _is_unavailable(result: object) -> TypeGuard[Failure]:
    return isinstance(result, Failure) and result.code == Unavailable.code


def _outage(failed: Failure) -> Unavailable:
    return Unavailable(failed.message, hint="try again in a moment")


def fetch_all(store: Store, incoming: StagingArea, entries: Iterable[Entry], count: int) -> DownloadResults:
    """Download objects by many threads."""
    return parallel_map(store, partial(fetch, store, incoming), entries, count)


def fetch(store: Store, incoming: StagingArea, entry: Entry) -> Downloaded | Failure:
    """Download one object to the staging directory, and prove it."""
    try:
        if entry.sha256 is not None and entry.push is not None and entry.size <= THRESHOLD:
            return _fetch_whole(store, incoming, entry, entry.sha256)
        return _fetch_parts(store, incoming, entry)
    except NotFound:
        return Downloaded(entry.path)
    except StoreError as error:
        return refusal(entry.path, error)


def _fetch_whole(store: Store, incoming: StagingArea, entry: Entry, sha256: bytes) -> Downloaded | Failure:
    """What comes at once is proved before it touches the disk."""
    data = store.read(entry.key, entry.size, sha256)
    return _arrived(incoming, entry, data) if data is not None else _bad_content(entry)


def _arrived(incoming: StagingArea, entry: Entry, data: Buffer) -> Downloaded:
    staged, file = incoming.stage()
    try:
        with file:
            file.write(data)
    except (Exception, KeyboardInterrupt):
        staged.unlink(missing_ok=True)
        raise
    return Downloaded(entry.path, staged, entry.sha256)


def _fetch_parts(store: Store, incoming: StagingArea, entry: Entry) -> Downloaded | Failure:
    staged, file = incoming.stage()
    try:
        with file:
            # A discovered object must be the one that was listed.
            came = store.download(entry.key, file, entry.size, if_match=entry.etag if entry.push is None else None)
    except (Exception, KeyboardInterrupt):
        staged.unlink(missing_ok=True)
        raise
    if entry.sha256 is not None and came.sha256 != entry.sha256:
        staged.unlink(missing_ok=True)
        return _bad_content(entry)
    return Downloaded(entry.path, staged, came.sha256)


def _bad_content(entry: Entry) -> Failure:
    return Failure(entry.path, "bad_content", f"the object of {entry.path} does not have the bytes that were pushed")


def failure(path: str, error: BayouError) -> Failure:
    return Failure(path, error.code, error.message)


def parallel_map(
    store: Store, work: Callable[[T], R], items: Iterable[T], count: int, *, ahead: int = 1
) -> Generator[R, None, None]:
    """Yield `work(item)` for each of `count` items, in order, done by many threads; `ahead` as in `Store.map`.

    Of many items a thread takes a handful at a time: what it costs to hand over one is a third of what a small file
    costs to send.

    Once `_IN_A_ROW` paths have failed with `Unavailable` and no other result came between them, the store counts as
    down and this raises that error (V12): a command over 10,000 files waits for two rounds of retries, not for 10,000.
    Results that came before an error are yielded before it is raised.
    """
    size = max(1, min(_HANDFUL, count // (2 * store.concurrency)))
    untold = _Untold(work)
    try:
        for done in store.map(untold.handful, batched(items, size), ahead=ahead):
            yield from map(untold.tell, done)
    except (Exception, KeyboardInterrupt):
        yield from untold.rest()
        raise


class _Untold(Generic[T, R]):
    """Work of many threads, and what it has brought that nobody was told yet: not to be lost when one of them fails."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self._work = work
        self._results: dict[int, R] = {}
        self._lock = threading.Lock()
        self._in_a_row = 0

    def __call__(self, item: T) -> R:
        result = self._work(item)
        if _is_unavailable(result):
            with self._lock:
                self._in_a_row += 1
                if self._in_a_row >= _IN_A_ROW:
                    raise _outage(result)
        else:
            self._in_a_row = 0
        self._results[id(result)] = result
        return result

    def handful(self, items: Iterable[T]) -> list[R]:
        return [self(item) for item in items]

    def tell(self, result: R) -> R:
        self._results.pop(id(result), None)
        return result

    def rest(self) -> list[R]:
        return list(self._results.values())


def batch_results(results: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of results, each of up to `most`, or of not many more bytes than are done again without regret.

    What came before an error or a signal is yielded before that is raised: it need not be done again.
    """
    some: list[T] = []
    weight = 0
    try:
        for result in results:
            some.append(result)
            weight += size(result)
            if len(some) == most or weight >= _HEAVY:
                full, some, weight = some, [], 0  # before it is told: no signal makes it be told twice
                yield full
    except (Exception, KeyboardInterrupt):
        if some:
            yield some
        raise
    if some:
        yield some


def _as_it_is(path: str, flags: int) -> int:
    """Open a file without following a link, or waiting for somebody to write into a FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
