"""The store that everybody sees: scoped, retried, bounded in time, counted.

A `Store` is born with its prefix and namespace (V9); every key it takes is relative to them, and nothing it does can
name an object outside. Below it sits a `Transport` that sends single requests.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from bayou.deadline import Deadline, stop_event
from bayou.errors import (
    AlreadyExists,
    BadAnswer,
    CannotConnect,
    DeadlinePassed,
    DeleteFailed,
    NotFound,
    PreconditionFailed,
    StoreError,
    TimedOut,
)
from bayou.store import large
from bayou.store.keys import Key
from bayou.store.meter import Meter, Requests, Verb
from bayou.store.retry import RetryPolicy
from bayou.store.scope import Scope
from bayou.store.threads import Crew, aside, outcome
from bayou.store.transport import (
    Condition,
    Fetched,
    Level,
    ListsLevels,
    ObjectMeta,
    Reads,
    Stored,
    TellsTime,
    Transport,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
R = TypeVar("R")


class Store:
    """One store. Safe to use from many threads; make a new one in each process.

    Every call may raise a `StoreError`, `DeadlinePassed` or `Cancelled`, and nothing else (`upload` also what is wrong
    with its source). `within` gives the same store under a deadline of the caller's; without, each call has its own.
    """

    def __init__(
        self,
        transport: Transport,
        scope: Scope,
        *,
        concurrency: int = 64,
        policy: RetryPolicy | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self._transport = transport
        self._scope = scope
        self._policy = policy or RetryPolicy()
        self._deadline = deadline
        self._meter = Meter()
        self._contacted = threading.Event()
        self._read = transport.read if isinstance(transport, Reads) else None
        self.concurrency = concurrency

    def __repr__(self) -> str:
        return f"<Store {self.url}>"

    @property
    def url(self) -> str:
        """The bucket, or directory, and where in it, for people; never a secret."""
        return f"{self._transport.url.rstrip('/')}/{self._scope.root}".rstrip("/")

    @property
    def namespace(self) -> str | None:
        return self._scope.namespace

    @property
    def requests(self) -> Requests:
        """What was sent so far, by this store and all its views, retries included."""
        return self._meter.read()

    def add_requests(self, sent: Requests) -> None:
        """Count what another process has sent to this store for us (V17)."""
        self._meter.add(sent)

    def within(self, deadline: Deadline) -> Store:
        """Return a view of this store whose calls all end by `deadline`."""
        view = Store(self._transport, self._scope, concurrency=self.concurrency, policy=self._policy, deadline=deadline)
        view._meter = self._meter
        view._contacted = self._contacted
        return view

    def within_seconds(self, seconds: float) -> Store:
        return self.within(Deadline.after(seconds))

    def now(self) -> int | None:
        """Return the store's time in ms, without writing anything; None if it does not tell. For people: to a second.

        What must be sure of an object's age asks for the time of an object that it has just written.
        """
        if not isinstance(self._transport, TellsTime):
            return None
        timeout = self._timeout(self._bound())
        self._meter.sent("head")
        return aside(partial(self._transport.now, timeout=timeout))

    def get(
        self,
        key: Key,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> Fetched | None:
        """Return an object with the metadata that came with its bytes (V2), or None if it is not modified.

        `NotFound` only for a real "no such key" (V4); `PreconditionFailed` when `if_match` names another version.
        """
        return self._get(key, span, if_match, if_none_match, self._bound())

    def _get(
        self,
        key: Key,
        span: tuple[int, int] | None,
        if_match: str | None,
        if_none_match: str | None,
        deadline: Deadline,
    ) -> Fetched | None:
        full = self._scope.full(key)
        found = self._send(
            "get",
            key,
            lambda timeout: self._transport.get(
                full, span=span, if_match=if_match, if_none_match=if_none_match, timeout=timeout
            ),
            deadline=deadline,
        )
        if found is None:
            return None
        if if_match is not None and found.meta.etag not in (None, if_match):
            raise PreconditionFailed(f"{key} has changed")  # V2: not every store looks at If-Match
        self._meter.received(len(memoryview(found.data)))
        return Fetched(_named(found.meta, key), found.data, found.attributes)

    def read(self, key: Key, size: int) -> Buffer:
        """Return the bytes of an object of a known size, and nothing about it: for whoever knows their hash.

        An object of another size is `BadAnswer`. Costs less than `get`.
        """
        read = self._read
        if read is None or not size:
            return large.fetch(self, key, (0, size) if size else None, None, size).data
        full = self._scope.full(key)
        # One byte more than there should be: then an object that has grown shows.
        data = self._send("get", key, lambda timeout: read(full, (0, size + 1), timeout=timeout))
        if len(memoryview(data)) != size:
            raise large.other_size(key, size, len(memoryview(data)))
        self._meter.received(size)
        return data

    def head(self, key: Key) -> ObjectMeta:
        """Return an object's metadata. Never take an answer for the fingerprint of bytes that came earlier (V2)."""
        full = self._scope.full(key)
        try:
            meta = self._send("head", key, lambda timeout: self._transport.head(full, timeout=timeout))
        except NotFound:
            # V4: this 404 has no body, so a missing bucket or a proxy's page looks the same. A GET makes it speak.
            found = self.get(key, span=(0, 1))
            if found is None:
                raise
            meta = found.meta
        return _named(meta, key)

    def put(
        self,
        key: Key,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Stored:
        """Write an object whole, and return the fingerprint that the store gave it (V2).

        Under a condition, what is written must be unlike anything that anybody else writes to this key (carry an id):
        when an answer was lost and the repetition meets an object with just these bytes, that is our own write.
        """
        full = self._scope.full(key)
        deadline = self._bound()
        doubtful = False

        def attempt(timeout: float) -> Stored:
            nonlocal doubtful
            try:
                return self._transport.put(full, data, condition=condition, attributes=attributes, timeout=timeout)
            except StoreError as error:
                doubtful = doubtful or error.ambiguous
                raise

        try:
            stored = self._send("put", key, attempt, bytes_out=len(memoryview(data)), deadline=deadline)
            return replace(stored, repeated=True) if doubtful else stored
        except (AlreadyExists, PreconditionFailed):
            own = self._own_write(key, data, deadline) if doubtful else None
            if own is None:
                raise
            return own

    def _own_write(self, key: Key, data: Buffer, deadline: Deadline) -> Stored | None:
        try:
            found = self._get(key, None, None, None, deadline)
        except NotFound:
            return None
        if found is None or memoryview(found.data) != memoryview(data):
            return None
        return Stored(found.meta.etag, found.meta.version, repeated=True)

    def upload(self, key: Key, source: BinaryIO | bytes, size: int, sha256: bytes) -> Stored:
        """Write an object from the first `size` bytes of an open file, in parts when it is large; memory is bounded.

        `ContentChanged` if these bytes do not have that hash (any more), `TreeError` if they cannot be read; then no
        object appears. What a program appends meanwhile is not looked at. Bytes in place of a file are those that the
        caller took the hash of, and are sent as they are.
        """
        if isinstance(source, bytes):
            return self.put(key, source)
        if size <= large.THRESHOLD:
            return self.put(key, large.read_checked(source, size, sha256))
        full = self._scope.full(key)
        part = large.part_size(size)
        deadline = self._bound()
        attempts = 0

        def attempt(timeout: float) -> Stored:
            nonlocal attempts
            attempts += 1
            chunks = large.checked_parts(source, size, sha256, part, deadline)
            return self._transport.put_chunks(full, chunks, part_size=part, parallel=large.PARALLEL, timeout=timeout)

        # One request to begin, one for each part, one to complete.
        stored = self._send("put", key, attempt, requests=-(-size // part) + 2, bytes_out=size, deadline=deadline)
        return replace(stored, repeated=attempts > 1)

    def download(self, key: Key, target: large.Sink, size: int, *, if_match: str | None = None) -> large.Downloaded:
        """Read an object of a known size into an open file, in parallel ranges when it is large; memory is bounded.

        Return its hash and the metadata that came with its bytes (V2). An object of another size is `BadAnswer`,
        one that changes meanwhile is `PreconditionFailed`. The file is written from its start, in order.
        """
        return large.download(self, key, target, size, if_match)

    def list(self, under: Key | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of the objects below a directory of this store, keys relative to the store.

        Keys are exact, odd ones included, but for the `/` at the end of a "folder", which some listings drop. A failure
        raises, and never ends a listing early (V4). Without a deadline of the caller's, each page has its own.
        """
        prefix = self._scope.root if under is None else f"{self._scope.full(under)}/"
        deadline = self._bound()
        last: str | None = None
        ordered, attempt = True, 1
        while True:
            resumed = last is not None
            try:
                for page in self._pages(prefix, last, deadline):
                    deadline.remaining()
                    if not page:
                        continue
                    self._contacted.set()
                    found = [_named(meta, self._relative(meta.key, prefix)) for meta in page]
                    ordered = ordered and _in_order(last, page)
                    if (resumed and not ordered) or page[-1].key == last:
                        raise BadAnswer(
                            f"{self.url} does not list in order, so a listing that broke cannot go on", hint="try again"
                        )
                    attempt, last = 1, page[-1].key
                    yield found
                    deadline = self._deadline or self._bound()
                return
            except StoreError as error:
                if last is not None and not (ordered and self._transport.sorted_listing):
                    raise
                self._pause(error, attempt, f"LIST {under or ''}".rstrip(), deadline)
                attempt += 1

    def level(self, under: Key | None = None) -> Level | None:
        """Return what lies directly in a directory of this store, keys relative to the store and exact.

        None where the store cannot tell, or not surely: then only `list` can. A failure raises (V4).
        """
        transport = self._transport
        if not isinstance(transport, ListsLevels):
            return None
        prefix = self._scope.root if under is None else f"{self._scope.full(under)}/"
        found = self._send("list", under or Key(""), lambda timeout: transport.level(prefix, timeout=timeout))
        if found is None:
            return None
        return Level(
            [self._relative(one, prefix) for one in found.directories],
            (_named(meta, self._relative(meta.key, prefix)) for meta in found.objects),
        )

    def _pages(self, prefix: str, after: str | None, deadline: Deadline) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages as they come, and count the request behind each; one at least, and one that failed."""
        pages = self._transport.list(prefix, after=after, timeout=self._timeout(deadline))
        self._meter.sent("list")
        came = 0
        try:
            while (page := aside(partial(next, pages, None))) is not None:
                self._meter.sent("list", 1 if came else 0)
                came += 1
                yield page
        except StoreError:
            self._meter.sent("list", 1 if came else 0)
            raise

    def _relative(self, full: str, prefix: str) -> str:
        if not full.startswith(prefix):  # V9
            raise BadAnswer(f"{self.url} lists {full!r}, which is not below {prefix!r}", hint="check the endpoint")
        return full[len(self._scope.root) :]

    def delete(self, keys: Iterable[Key]) -> None:
        """Delete objects, in batches where the store has them; one that is not there is no error.

        Every key is tried; `DeleteFailed` names those that are still there.
        """
        batches = _batches([self._scope.full(key) for key in keys], self._transport.delete_batch)
        failed: dict[str, StoreError] = {}
        for left in self.map(self._delete_batch, batches):
            failed.update(left)
        if failed:
            raise DeleteFailed({key[len(self._scope.root) :]: cause for key, cause in failed.items()})

    def _delete_batch(self, batch: Sequence[str]) -> dict[str, StoreError]:
        deadline = self._bound()
        left, attempt = batch, 1
        while True:
            timeout = self._timeout(deadline)
            self._meter.sent("delete")
            try:
                aside(partial(self._transport.delete, left, timeout=timeout))
                return {}
            except StoreError as error:
                failed = error.failed if isinstance(error, DeleteFailed) else dict.fromkeys(left, error)
                left = [key for key in left if key in failed]
                final = any(not cause.retryable for cause in failed.values())
                if final and len(left) > 1:
                    # Of a batch, stores tell one failure at most (Azure: one key that is not there); ask one by one.
                    return {key: cause for one in left for key, cause in self._delete_batch([one]).items()}
                if not self._policy.again(failed[left[0]], attempt, contacted=True):
                    return failed
            deadline.sleep(self._policy.pause(attempt))
            attempt += 1

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, threads: int | None = None, ahead: int = 1
    ) -> Iterator[R]:
        """Yield `function(item)` for each item, in order, computed by up to `threads` (`concurrency`) threads.

        Not many more items are taken than can run (`ahead` times as many), so neither `items` nor results are ever
        held whole. The first error is raised in its item's turn; what has not begun by then never does.
        """
        source = iter(items)
        first = list(islice(source, 2))
        if len(first) < 2:
            yield from map(function, first)
            return
        pending: deque[Future[R]] = deque()
        threads = threads or self.concurrency
        stop = self._deadline.cancelled if self._deadline is not None else stop_event()
        crew = Crew(threads)
        try:
            pending.extend(crew.submit(partial(function, item)) for item in first)
            pending.extend(crew.submit(partial(function, item)) for item in islice(source, threads * ahead))
            while pending:
                yield outcome(pending.popleft())
                pending.extend(crew.submit(partial(function, item)) for item in islice(source, 1))
        finally:
            crew.dismiss(pending, stop)

    def _send(
        self,
        verb: Verb,
        key: Key,
        call: Callable[[float], R],
        *,
        requests: int = 1,
        bytes_out: int = 0,
        deadline: Deadline | None = None,
    ) -> R:
        """Send one request until it succeeds, its failure is final, or time is up (V12)."""
        deadline = deadline or self._bound()
        attempt = 1
        while True:
            timeout = self._timeout(deadline)
            self._meter.sent(verb, requests, bytes_out=bytes_out)
            try:
                answer = aside(partial(call, timeout))
            except StoreError as error:
                if not isinstance(error, CannotConnect | TimedOut):
                    self._contacted.set()
                self._pause(error, attempt, f"{verb.upper()} {key}", deadline)
                attempt += 1
            else:
                if not self._contacted.is_set():
                    self._contacted.set()
                return answer

    def _pause(self, error: StoreError, attempt: int, what: str, deadline: Deadline) -> None:
        """Wait before the next attempt, or raise: the error if it is final, the deadline if that comes first."""
        if not self._policy.again(error, attempt, contacted=self._contacted.is_set()):
            raise error
        try:
            deadline.sleep(self._policy.pause(attempt))
        except DeadlinePassed as passed:
            message = f"{passed.message}: {what} on {self.url}: {error.message}"
            raise DeadlinePassed(message, hint=error.hint or passed.hint) from error

    def _bound(self) -> Deadline:
        return self._deadline or Deadline.after(self._policy.call_deadline_s)

    def _timeout(self, deadline: Deadline) -> float:
        return min(self._policy.request_timeout_s, deadline.remaining())


def _named(meta: ObjectMeta, key: str) -> ObjectMeta:
    """Return what a store says of an object, under our own key. Hot: `replace` takes five times as long."""
    return ObjectMeta(key, meta.size, meta.etag, meta.version, meta.modified)


def _in_order(last: str | None, page: Sequence[ObjectMeta]) -> bool:
    """Whether a page comes after `last`, bytewise, and so does each key after the one before it."""
    return (last is None or last < page[0].key) and all(one.key < two.key for one, two in pairwise(page))


def _batches(keys: list[str], size: int) -> list[list[str]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]
