"""The store that everybody sees: scoped, retried, bounded in time, counted.

A `Store` is born with its prefix and namespace (V9); every key it takes is relative to them, and nothing it does can
name an object outside. Below it sits a `Transport` that sends single requests.

Delete a batch of objects, and find out which of them are still there.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from msgspec.structs import replace

from bayou.core.deadline import Deadline, stop_event
from bayou.core.errors import AlreadyExists, DeleteFailed, NotFound, PreconditionFailed, StoreError, TooLarge
from bayou.objectstore import multipart
from bayou.objectstore.keys import Key, KeyScope
from bayou.objectstore.listing import Listing, named
from bayou.objectstore.retry import RetryingClient, RetryPolicy
from bayou.objectstore.threads import in_order, run_interruptible
from bayou.objectstore.transport import (
    Condition,
    Fetched,
    Level,
    LimitsReads,
    ObjectMeta,
    Reads,
    RequestCounter,
    Requests,
    Stored,
    SupportsServerTime,
    Transport,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


def delete_batch(transport: Transport, sender: RetryingClient, batch: Sequence[str]) -> dict[str, StoreError]:
    """Delete objects by their whole keys, in one request if that works; return why some could not be."""
    deadline = sender.bound()
    left, attempt = batch, 1
    while True:
        timeout = sender.timeout(deadline)
        sender.meter.sent("delete")
        try:
            run_interruptible(partial(transport.delete, left, timeout=timeout))
            return {}
        except StoreError as error:
            failed = error.failed if isinstance(error, DeleteFailed) else dict.fromkeys(left, error)
            left = [key for key in left if key in failed]
            final = any(not cause.retryable for cause in failed.values())
            if final and len(left) > 1:
                # Of a batch, stores tell one failure at most (Azure: one key that is not there); ask one by one.
                return {key: cause for one in left for key, cause in delete_batch(transport, sender, [one]).items()}
            if not sender.policy.again(failed[left[0]], attempt, contacted=True):
                return failed
        deadline.sleep(sender.policy.pause(attempt))
        attempt += 1


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
        scope: KeyScope,
        *,
        concurrency: int = 64,
        policy: RetryPolicy | None = None,
        sender: RetryingClient | None = None,
    ) -> None:
        self._transport = transport
        self._scope = scope
        self._sender = sender or RetryingClient(self.url, policy or RetryPolicy(), RequestCounter(), threading.Event())
        self._listing = Listing(transport, scope, self._sender)
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
        return self._sender.meter.read()

    def add_requests(self, sent: Requests) -> None:
        """Count what another process has sent to this store for us (V17)."""
        self._sender.meter.add(sent)

    def within(self, deadline: Deadline) -> Store:
        """Return a view of this store whose calls all end by `deadline`."""
        return self._view(self._sender.within(deadline))

    def for_operation(self, deadline: Deadline | None = None) -> Store:
        """Return a view for one of the operations that share this store: it counts its own requests (V17).

        Whether the store ever answered is its own knowledge too: an operation that cannot reach the store at all fails
        at once, although an earlier one could.
        """
        sender = RetryingClient(self.url, self._sender.policy, RequestCounter(), threading.Event())
        sender.deadline = deadline
        return Store(self._transport, self._scope, concurrency=self.concurrency, sender=sender)

    def within_seconds(self, seconds: float) -> Store:
        return self.within(Deadline.after(seconds))

    def with_request_timeout(self, seconds: float) -> Store:
        """Return a view of this store that repeats a request which is not answered within `seconds`."""
        return self._view(self._sender.with_request_timeout(seconds))

    def _view(self, sender: RetryingClient) -> Store:
        return Store(self._transport, self._scope, concurrency=self.concurrency, sender=sender)

    def now(self) -> int | None:
        """Return the store's time in ms, without writing anything; None if it does not tell. For people: to a second.

        What must be sure of an object's age asks for the time of an object that it has just written.
        """
        if not isinstance(self._transport, SupportsServerTime):
            return None
        timeout = self._sender.timeout(self._sender.bound())
        self._sender.meter.sent("head")
        return run_interruptible(partial(self._transport.now, timeout=timeout))

    def get(
        self,
        key: Key,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        most: int | None = None,
    ) -> Fetched | None:
        """Return an object with the metadata that came with its bytes (V2), or None if it is not modified.

        `NotFound` only for a real "no such key" (V4); `PreconditionFailed` when `if_match` names another version.
        `TooLarge` for an object of more than `most` bytes, before they are in memory (V25).
        """
        if most is None:
            return self._get(key, span, if_match, if_none_match, self._sender.bound())
        assert span is None, "a span has a limit of its own"
        return self._get_limited(key, most, if_match, if_none_match, self._sender.bound())

    def _get(
        self,
        key: Key,
        span: tuple[int, int] | None,
        if_match: str | None,
        if_none_match: str | None,
        deadline: Deadline,
    ) -> Fetched | None:
        full = self._scope.full(key)
        found = self._sender.send(
            "get",
            key,
            lambda timeout: self._transport.get(
                full, span=span, if_match=if_match, if_none_match=if_none_match, timeout=timeout
            ),
            deadline=deadline,
        )
        return self._received(found, key, if_match)

    def _get_limited(
        self, key: Key, most: int, if_match: str | None, if_none_match: str | None, deadline: Deadline
    ) -> Fetched | None:
        transport, full = self._transport, self._scope.full(key)

        def attempt(timeout: float) -> Fetched | None:
            if isinstance(transport, LimitsReads):
                return transport.get_limited(
                    full, most, if_match=if_match, if_none_match=if_none_match, timeout=timeout
                )
            found = transport.get(full, if_match=if_match, if_none_match=if_none_match, timeout=timeout)
            if found is not None and len(memoryview(found.data)) > most:
                raise TooLarge.of(key, len(memoryview(found.data)), most)
            return found

        return self._received(self._sender.send("get", key, attempt, deadline=deadline), key, if_match)

    def _received(self, found: Fetched | None, key: Key, if_match: str | None) -> Fetched | None:
        if found is None:
            return None
        if if_match is not None and found.meta.etag not in (None, if_match):
            raise PreconditionFailed(f"{key} has changed")  # V2: not every store looks at If-Match
        self._sender.meter.received(len(memoryview(found.data)))
        return Fetched(named(found.meta, key), found.data, found.attributes)

    def read(self, key: Key, size: int, sha256: bytes) -> Buffer | None:
        """Return the bytes of an object whose size and hash are known, and nothing about it; None if it has others.

        An object of another size is `BadAnswer`. Costs less than `get`.
        """
        data = self._read_span(key, size)
        return data if hashlib.sha256(data).digest() == sha256 else None

    def _read_span(self, key: Key, size: int) -> Buffer:
        read = self._read
        if read is None or not size:
            return multipart.fetch(self, key, (0, size) if size else None, None, size).data
        full = self._scope.full(key)
        # One byte more than there should be: then an object that has grown shows.
        data = self._sender.send("get", key, lambda timeout: read(full, (0, size + 1), timeout=timeout))
        if len(memoryview(data)) != size:
            raise multipart.other_size(key, size, len(memoryview(data)))
        self._sender.meter.received(size)
        return data

    def head(self, key: Key) -> ObjectMeta:
        """Return an object's metadata. Never take an answer for the fingerprint of bytes that came earlier (V2)."""
        full = self._scope.full(key)
        try:
            meta = self._sender.send("head", key, lambda timeout: self._transport.head(full, timeout=timeout))
        except NotFound:
            # V4: this 404 has no body, so a missing bucket or a proxy's page looks the same. A GET makes it speak.
            found = self.get(key, span=(0, 1))
            if found is None:
                raise
            meta = found.meta
        return named(meta, key)

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
        deadline = self._sender.bound()
        doubtful = False

        def attempt(timeout: float) -> Stored:
            nonlocal doubtful
            try:
                return self._transport.put(full, data, condition=condition, attributes=attributes, timeout=timeout)
            except StoreError as error:
                doubtful = doubtful or error.ambiguous
                raise

        try:
            stored = self._sender.send("put", key, attempt, bytes_out=len(memoryview(data)), deadline=deadline)
            return replace(stored, repeated=True) if doubtful else stored
        except (AlreadyExists, PreconditionFailed):
            own = self._own_write(key, data, deadline) if doubtful else None
            if own is None:
                raise
            return own

    def _own_write(self, key: Key, data: Buffer, deadline: Deadline) -> Stored | None:
        try:
            found = self._get_limited(key, len(memoryview(data)), None, None, deadline)
        except (NotFound, TooLarge):
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
        if size <= multipart.THRESHOLD:
            return self.put(key, multipart.read_checked(source, size, sha256))
        full = self._scope.full(key)
        part = multipart.part_size(size)
        deadline = self._sender.bound()
        attempts = 0

        def attempt(timeout: float) -> Stored:
            nonlocal attempts
            attempts += 1
            chunks = multipart.checked_parts(source, size, sha256, part, deadline)
            return self._transport.put_chunks(
                full, chunks, part_size=part, parallel=multipart.PARALLEL, timeout=timeout
            )

        # One request to begin, one for each part, one to complete.
        stored = self._sender.send(
            "put", key, attempt, requests=-(-size // part) + 2, bytes_out=size, deadline=deadline
        )
        return replace(stored, repeated=attempts > 1)

    def download(
        self, key: Key, target: multipart.Sink, size: int, *, if_match: str | None = None
    ) -> multipart.Downloaded:
        """Read an object of a known size into an open file, in parallel ranges when it is large; memory is bounded.

        Return its hash and the metadata that came with its bytes (V2). An object of another size is `BadAnswer`,
        one that changes meanwhile is `PreconditionFailed`. The file is written from its start, in order.
        """
        return multipart.download(self, key, target, size, if_match)

    def list(self, under: Key | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of the objects below a directory of this store, keys relative to the store.

        Keys are exact, odd ones included, but for the `/` at the end of a "folder", which some listings drop. A failure
        raises, and never ends a listing early (V4). Without a deadline of the caller's, each page has its own.
        """
        return self._listing.pages(under)

    def level(self, under: Key | None = None) -> Level | None:
        """Return what lies directly in a directory of this store, keys relative to the store and exact.

        None where the store cannot tell, or not surely: then only `list` can. A failure raises (V4).
        """
        return self._listing.level(under)

    def delete(self, keys: Iterable[Key]) -> None:
        """Delete objects, in batches where the store has them; one that is not there is no error.

        Every key is tried; `DeleteFailed` names those that are still there.
        """
        whole, size = [self._scope.full(key) for key in keys], self._transport.delete_batch
        batches = [whole[start : start + size] for start in range(0, len(whole), size)]
        failed: dict[str, StoreError] = {}
        for left in self.map(partial(delete_batch, self._transport, self._sender), batches):
            failed.update(left)
        if failed:
            raise DeleteFailed({key[len(self._scope.root) :]: cause for key, cause in failed.items()})

    @property
    def stop(self) -> threading.Event:
        """Set once nobody shall wait any more."""
        deadline = self._sender.deadline
        return deadline.cancelled if deadline is not None else stop_event()

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, threads: int | None = None, ahead: int = 1
    ) -> Iterator[R]:
        """Yield `function(item)` for each item, in order, computed by up to `threads` (`concurrency`) threads.

        Not many more items are taken than can run (`ahead` times as many), so neither `items` nor results are ever
        held whole. The first error is raised in its item's turn; what has not begun by then never does.
        """
        return in_order(function, items, threads or self.concurrency, ahead, self.stop)
