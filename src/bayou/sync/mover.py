"""The work on single files of a sync, to upload and to download them, and who does it.

What is done to a file needs the tree's directory, the store and one record, and nothing of a sync's state. So threads
of this process can do it, or anybody else who sees both.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from bayou.errors import (
    AccessDenied,
    BadAnswer,
    BayouError,
    ContentChanged,
    NotFound,
    PreconditionFailed,
    Rejected,
    StoreError,
    TreeError,
)
from bayou.index.entry import Entry
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.ahead import read_ahead
from bayou.store.large import THRESHOLD
from bayou.store.store import Store
from bayou.store.threads import outcome
from bayou.store.transport import Stored, Undone
from bayou.sync.report import Failure
from bayou.tree.incoming import Incoming

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HANDFUL = 8
_SMALL = 1 << 16
"""Bytes: a file of up to so many is read before a thread takes it on."""

_TRIED = 2 * _HANDFUL
"""Files that are read before any thread has begun: how long they take says what reading costs here."""

_QUICK_S = 0.0005

_MANY = 2
"""Files for each connection that are many."""

_HEAVY = 64 << 20
"""Bytes: results of so many are recorded, however few they are."""

_AHEAD = 8
"""Downloads for each connection that may be done before anybody takes them."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Upload:
    """One object that is to be written, or was. `resumed`: an earlier run may have begun to, and not be done yet.

    `data`: the bytes that have that hash, if they are at hand; else they are read from the file, and proved.
    """

    path: str
    push: str
    size: int
    sha256: bytes
    gc: int
    stored: Stored | None = None
    resumed: bool = False
    data: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A download in the staging directory, and its hash; without a file if the object is not there.

    `durable`: a power cut cannot take its content any more.
    """

    path: str
    file: Path | None = None
    sha256: bytes | None = None
    durable: bool = False


Sending: TypeAlias = Generator[Upload | Failure, None, None]
"""Uploads on their way: each is told once it has arrived, or failed."""

Fetching: TypeAlias = Iterator[Arrived | Failure]

Told: TypeAlias = tuple[T, R | None] | None
"""An item and its result, or none if it must be done otherwise; None: there is nothing to tell, but time to."""


class Mover(Protocol):
    """Who does the work on single files. One result comes for each record, in any order, and names its path.

    What is wrong with one path is a `Failure` among the results; an error that every path would meet is raised.
    `count` says how many records there are.
    """

    def upload(self, uploads: Iterable[Upload], count: int) -> Sending:
        """Write objects; one that comes back without `stored` changed meanwhile, and stays journaled.

        May begin before anybody asks for results. Whoever wants no more of them closes it.
        """

    def download(self, entries: Iterable[Entry], count: int) -> Iterator[Arrived | Failure]:
        """Bring objects to the staging directory. Whoever takes a file from there places or removes it."""


class BulkMover(Mover, Protocol):
    """A `Mover` of many files, whose work begins before its results are asked for. Close it once all is in place."""

    def expect(self, entries: Sequence[Entry]) -> None:
        """Begin the downloads of a window, which `download` is asked for later."""

    def close(self) -> None:
        """Give up what was expected, and remove what it has left in the staging directory."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of this process."""

    store: Store
    root: Path
    incoming: Incoming

    def upload(self, uploads: Iterable[Upload], count: int) -> Sending:
        return send_all(self.store, self.root, uploads, count)

    def download(self, entries: Iterable[Entry], count: int) -> Fetching:
        """Downloads go on for as long as it takes to put a batch of earlier ones in place, which waits for the disk."""
        came = fetch_all(self.store, self.incoming, entries, count)
        return read_ahead(came, _AHEAD * self.store.concurrency, name="bayou-downloads")


def send_all(store: Store, root: Path, uploads: Iterable[Upload], count: int) -> Sending:
    """Upload files; small ones are read by this thread, and sent by it where the store has a quicker way for many.

    Many threads that open files get in each other's way: for each call they let go of the interpreter, and wait for it.
    But where the first few take long to read, on a network or a disk that turns, many threads are what helps.
    """
    source = iter(uploads)
    work = partial(send, store, root)
    first: list[Upload] = []
    taken: list[float] = []
    for one in islice(source, _TRIED):
        begin = time.perf_counter()
        first.append(_with_bytes(root, one))
        taken.append(time.perf_counter() - begin)
    if taken and sorted(taken)[len(taken) // 2] > _QUICK_S:  # not the mean: one that was held up says nothing
        yield from hand_out(store, work, chain(first, source), count)
        return
    ready = chain(first, (_with_bytes(root, one) for one in source))
    if count < _MANY * store.concurrency:
        yield from hand_out(store, work, ready, count)
    else:
        yield from both_ways(store, partial(_send_many, store), lambda one: one.data is not None, work, ready, count)


def _send_many(store: Store, uploads: Iterator[Upload | None]) -> Iterator[Told[Upload, Upload | Failure]]:
    orders = ((one, keys.payload(one.path, one.push), one.data or b"") if one else None for one in uploads)
    for told in store.put_many(orders):
        if told is None:
            yield None
            continue
        one, found = told
        if isinstance(found, Stored):
            yield one, _sent(one, found)
        elif isinstance(found, StoreError):
            yield one, refusal(one.path, found)
        else:
            yield replace(one, resumed=True) if found is Undone.LOST else one, None


def _with_bytes(root: Path, one: Upload) -> Upload:
    """Read a file, if it is small; one that is not as it should be is left to `send`, which finds out why."""
    if one.data is not None or one.size > _SMALL:
        return one
    try:
        descriptor = _as_it_is(f"{root}/{one.path}", os.O_RDONLY)
        try:
            data = os.read(descriptor, one.size)
        finally:
            os.close(descriptor)
    except OSError:
        return one
    if len(data) != one.size or hashlib.sha256(data).digest() != one.sha256:
        return one
    return Upload(one.path, one.push, one.size, one.sha256, one.gc, one.stored, one.resumed, data)


def send(store: Store, root: Path, one: Upload) -> Upload | Failure:
    """Upload one file. Without `stored`: it changed meanwhile, and stays journaled for the next push."""
    try:
        key = keys.payload(one.path, one.push)
        if one.data is not None:
            stored = store.upload(key, one.data, one.size, one.sha256)
        else:
            with open(f"{root}/{one.path}", "rb", buffering=0, opener=_as_it_is) as file:
                stored = store.upload(key, file, one.size, one.sha256)
    except (ContentChanged, FileNotFoundError):
        return one
    except TreeError as error:
        return failure(one.path, error)
    except StoreError as error:
        return refusal(one.path, error)
    except OSError as error:
        return Failure(one.path, "unreadable", f"{one.path}: {os.strerror(error.errno or 0)}")
    return _sent(one, stored)


def _sent(one: Upload, stored: Stored) -> Upload:
    if one.resumed:
        stored = replace(stored, repeated=True)
    return Upload(one.path, one.push, one.size, one.sha256, one.gc, stored)


def refusal(path: str, error: StoreError) -> Failure:
    """Return what is wrong with one path; raise what every path would meet."""
    if isinstance(error, AccessDenied | Rejected | BadAnswer | PreconditionFailed):
        return failure(path, error)
    raise error


def fetch_all(store: Store, incoming: Incoming, entries: Iterable[Entry], count: int) -> Fetching:
    """Download objects; small ones by this thread, where the store has a quicker way for many."""
    work = partial(fetch, store, incoming)
    if count < _MANY * store.concurrency:
        return hand_out(store, work, entries, count)
    return both_ways(store, partial(_fetch_many, store, incoming), _is_small, work, entries, count)


def _is_small(entry: Entry) -> bool:
    return entry.sha256 is not None and entry.push is not None and 0 < entry.size <= _SMALL


def _fetch_many(
    store: Store, incoming: Incoming, entries: Iterator[Entry | None]
) -> Iterator[Told[Entry, Arrived | Failure]]:
    orders = ((one, one.key, one.size, one.sha256 or b"") if one else None for one in entries)
    for told in store.read_many(orders):
        if told is None:
            yield None
            continue
        entry, found = told
        if isinstance(found, bytes):
            yield entry, _arrived(incoming, entry, found)
        elif isinstance(found, NotFound):
            yield entry, Arrived(entry.path)
        elif isinstance(found, StoreError):
            yield entry, refusal(entry.path, found)
        else:
            yield entry, None


def fetch(store: Store, incoming: Incoming, entry: Entry) -> Arrived | Failure:
    """Download one object to the staging directory, and prove it."""
    try:
        if entry.sha256 is not None and entry.push is not None and entry.size <= THRESHOLD:
            return _fetch_whole(store, incoming, entry, entry.sha256)
        return _fetch_parts(store, incoming, entry)
    except NotFound:
        return Arrived(entry.path)
    except StoreError as error:
        return refusal(entry.path, error)


def _fetch_whole(store: Store, incoming: Incoming, entry: Entry, sha256: bytes) -> Arrived | Failure:
    """What comes at once is proved before it touches the disk."""
    data = store.read(entry.key, entry.size, sha256)
    return _arrived(incoming, entry, data) if data is not None else _bad_content(entry)


def _arrived(incoming: Incoming, entry: Entry, data: Buffer) -> Arrived:
    staged, file = incoming.stage()
    try:
        with file:
            file.write(data)
    except (Exception, KeyboardInterrupt):
        staged.unlink(missing_ok=True)
        raise
    return Arrived(entry.path, staged, entry.sha256)


def _fetch_parts(store: Store, incoming: Incoming, entry: Entry) -> Arrived | Failure:
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
    return Arrived(entry.path, staged, came.sha256)


def _bad_content(entry: Entry) -> Failure:
    return Failure(entry.path, "bad_content", f"the object of {entry.path} does not have the bytes that were pushed")


def failure(path: str, error: BayouError) -> Failure:
    return Failure(path, error.code, error.message)


def hand_out(
    store: Store, work: Callable[[T], R], items: Iterable[T], count: int, *, ahead: int = 1
) -> Generator[R, None, None]:
    """Yield `work(item)` for each of `count` items, in order, done by many threads; `ahead` as in `Store.map`.

    Of many items a thread takes a handful at a time: what it costs to hand over one is a third of what a small file
    costs to send.
    """
    size = max(1, min(_HANDFUL, count // (2 * store.concurrency)))
    untold = _Untold(work)
    try:
        for done in store.map(untold.handful, batches(items, size), ahead=ahead):
            yield from map(untold.tell, done)
    except (Exception, KeyboardInterrupt):
        yield from untold.rest()
        raise


def both_ways(
    store: Store,
    quickly: Callable[[Iterator[T | None]], Iterator[Told[T, R]]],
    fits: Callable[[T], bool],
    work: Callable[[T], R],
    items: Iterable[T],
    count: int,
) -> Generator[R, None, None]:
    """Yield what becomes of each item, in any order: done `quickly` by this thread if it `fits`, by others if not.

    What cannot be done quickly comes back without a result, and goes the other way; so does all that is left once that
    way is closed. Not many more items are taken than can be done.
    """
    crew = store.crew()
    untold = _Untold(work)
    pending: deque[Future[R]] = deque()
    source = iter(items)

    def fitting() -> Iterator[T | None]:
        for item in source:
            if fits(item):
                yield item
            else:
                pending.append(crew.submit(partial(untold, item)))
                yield None  # lets us look around

    try:
        for told in quickly(fitting()):
            if told is not None and told[1] is not None:
                yield told[1]
            elif told is not None:
                pending.append(crew.submit(partial(untold, told[0])))
            while pending and (pending[0].done() or len(pending) > _AHEAD * store.concurrency):
                yield untold.tell(outcome(pending.popleft()))
        while pending:
            yield untold.tell(outcome(pending.popleft()))
        yield from hand_out(store, work, source, count)
    except (Exception, KeyboardInterrupt):
        crew.dismiss(pending, store.stop)
        yield from untold.rest()
        raise
    finally:
        crew.dismiss(pending, store.stop)


class _Untold(Generic[T, R]):
    """Work of many threads, and what it has brought that nobody was told yet: not to be lost when one of them fails."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self._work = work
        self._results: dict[int, R] = {}

    def __call__(self, item: T) -> R:
        result = self._work(item)
        self._results[id(result)] = result
        return result

    def handful(self, items: Iterable[T]) -> list[R]:
        return [self(item) for item in items]

    def tell(self, result: R) -> R:
        self._results.pop(id(result), None)
        return result

    def rest(self) -> list[R]:
        return list(self._results.values())


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of up to `size` items."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def gathered(results: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of results, each of up to `most`, or of not many more bytes than are done again without regret.

    What came before an error or a signal is yielded before that is raised: it need not be done again.
    """
    some: list[T] = []
    weight = 0
    try:
        for one in results:
            some.append(one)
            weight += size(one)
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
