"""`Store`: an object store with scope, retries, deadlines and request counts.

A `Store` gets its prefix and namespace when it is created (V9). Every key that a caller passes is relative to them, and
no call can name an object outside. A `Transport` below it sends single requests.
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
from bayou.core.iterators import batched
from bayou.objectstore import multipart
from bayou.objectstore.keys import Key, KeyScope, content_type
from bayou.objectstore.link import Link
from bayou.objectstore.listing import Listing, with_key
from bayou.objectstore.retry import RetryingClient, RetryPolicy
from bayou.objectstore.threads import map_as_completed, map_in_order, run_interruptible
from bayou.objectstore.transport import (
    Condition,
    DirectoryListing,
    GetResult,
    Match,
    ObjectMeta,
    PutResult,
    Requests,
    SupportsParts,
    SupportsRead,
    SupportsReadLimit,
    SupportsServerTime,
    SupportsUnquotedMatch,
    Transport,
    UnfinishedUpload,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from bayou.objectstore.uploads import PartLog

T = TypeVar("T")
R = TypeVar("R")


def _ignore(_: int) -> None:
    """Ignore that bytes have moved."""


class Store:
    """One store. Threads may share a store; each process opens its own.

    A call raises only `StoreError`, `DeadlinePassed` and `Cancelled` (`upload` also errors of its source). `within`
    returns a view under the caller's deadline; without it, each call has a deadline of its own.
    """

    def __init__(
        self,
        transport: Transport,
        scope: KeyScope,
        *,
        concurrency: int = 64,
        policy: RetryPolicy | None = None,
        client: RetryingClient | None = None,
        link: Link | None = None,
    ) -> None:
        self._transport = transport
        self._scope = scope
        self._client = client or RetryingClient(self.url, policy or RetryPolicy(), link=link)
        self._listing = Listing(transport, scope, self._client)
        self._read = transport.read if isinstance(transport, SupportsRead) else None
        self.concurrency = concurrency

    def __repr__(self) -> str:
        return f"<Store {self.url}>"

    @property
    def url(self) -> str:
        """The bucket or directory and the prefix in it, for messages; never holds a secret."""
        return f"{self._transport.url.rstrip('/')}/{self._scope.root}".rstrip("/")

    @property
    def namespace(self) -> str | None:
        return self._scope.namespace

    def full_key(self, key: Key) -> str:
        """Return the key of an object in its bucket, for a person who looks at it with another program."""
        return self._scope.full(key)

    @property
    def requests(self) -> Requests:
        """The requests that this store and all its views have sent so far, retries included."""
        return self._client.counter.read()

    @property
    def contacted(self) -> bool:
        """Whether the store has ever answered."""
        return self._client.contacted.is_set()

    @property
    def unquoted_etags(self) -> bool | None:
        """Whether conditions send ETags without their quotes; None where no server of this kind wants that."""
        transport = self._transport
        return transport.unquoted if isinstance(transport, SupportsUnquotedMatch) else None

    def add_requests(self, sent: Requests) -> None:
        """Add the requests that another process sent to this store on behalf of this one (V17)."""
        self._client.counter.add(sent)

    def within(self, deadline: Deadline) -> Store:
        """Return a view of this store whose calls all end by `deadline`."""
        return self._view(self._client.within(deadline))

    def for_operation(self, deadline: Deadline | None = None) -> Store:
        """Return a view for one of the operations that share this store, with request counts of its own (V17).

        The view also forgets that the store ever answered, so an operation that cannot reach the store gives up soon,
        even if an earlier operation could.
        """
        return self._view(self._client.for_operation(deadline))

    def within_seconds(self, seconds: float) -> Store:
        return self.within(Deadline.after(seconds))

    def with_request_timeout(self, seconds: float) -> Store:
        """Return a view of this store that retries a request if the store does not answer within `seconds`."""
        return self._view(self._client.with_request_timeout(seconds))

    def _view(self, client: RetryingClient) -> Store:
        return Store(self._transport, self._scope, concurrency=self.concurrency, client=client)

    def now(self) -> int | None:
        """Return the store's time in ms, exact to a second, or None if the store does not report it; write nothing.

        Code that must be sure of an object's age compares it with the time of an object that it has just written.
        """
        if not isinstance(self._transport, SupportsServerTime):
            return None
        timeout = self._client.request_timeout(self._client.call_deadline())
        self._client.counter.sent("head")
        return run_interruptible(partial(self._transport.now, timeout=timeout))

    def get(
        self,
        key: Key,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        most: int | None = None,
    ) -> GetResult | None:
        """Return an object with the metadata that came with its bytes (V2), or None if it is not modified.

        Raise `NotFound` only for a real "no such key" (V4), `PreconditionFailed` if `if_match` names another version,
        and `TooLarge` for an object of more than `most` bytes, before they are in memory (V25).
        """
        assert most is None or span is None, "a span is a limit by itself"
        transport, full = self._transport, self._scope.full(key)

        def attempt(timeout: float) -> GetResult | None:
            if most is None:
                return transport.get(full, span=span, if_match=if_match, if_none_match=if_none_match, timeout=timeout)
            if isinstance(transport, SupportsReadLimit):
                return transport.get_limited(
                    full, most, if_match=if_match, if_none_match=if_none_match, timeout=timeout
                )
            fetched = transport.get(full, if_match=if_match, if_none_match=if_none_match, timeout=timeout)
            if fetched is not None and len(memoryview(fetched.data)) > most:
                raise TooLarge.of(key, len(memoryview(fetched.data)), most)
            return fetched

        fetched = self._client.send("get", key, attempt, bytes_expected=span[1] - span[0] if span else 0)
        if fetched is None:
            return None
        if if_match is not None and fetched.meta.etag not in (None, if_match):
            raise PreconditionFailed(f"{key} has changed")  # V2: some stores ignore If-Match
        self._client.counter.received(len(memoryview(fetched.data)))
        return GetResult(with_key(fetched.meta, key), fetched.data, fetched.attributes)

    def read(self, key: Key, size: int, sha256: bytes) -> Buffer | None:
        """Return the bytes of an object whose size and hash are known, or None if the bytes have another hash.

        Raise `BadAnswer` for an object of another size. A read returns no metadata and costs less than `get`.
        """
        data = self._read_span(key, size)
        return data if hashlib.sha256(data).digest() == sha256 else None

    def read_range(self, key: Key, start: int, end: int) -> Buffer:
        """Return the bytes `start <= i < end` of an object; `BadAnswer` if it does not have all of them.

        A read returns no metadata and costs less than `get`. The caller proves the bytes by a hash.
        """
        read, size = self._read, end - start
        if read is None:
            fetched = self.get(key, span=(start, end))
            data = fetched.data if fetched is not None else b""
        else:
            full = self._scope.full(key)
            data = self._client.send(
                "get", key, lambda timeout: read(full, (start, end), timeout=timeout), bytes_expected=size
            )
            self._client.counter.received(len(memoryview(data)))
        if len(memoryview(data)) != size:
            raise multipart.wrong_size(key, end, start + len(memoryview(data)))
        return data

    def _read_span(self, key: Key, size: int) -> Buffer:
        read = self._read
        if read is None or not size:
            return multipart.fetch(self, key, (0, size) if size else None, None, size).data
        full = self._scope.full(key)
        # Ask for one byte more than expected, to notice an object that has grown.
        data = self._client.send(
            "get", key, lambda timeout: read(full, (0, size + 1), timeout=timeout), bytes_expected=size
        )
        if len(memoryview(data)) != size:
            raise multipart.wrong_size(key, size, len(memoryview(data)))
        self._client.counter.received(size)
        return data

    def head(self, key: Key) -> ObjectMeta:
        """Return an object's metadata, which is never the fingerprint of bytes that were read earlier (V2)."""
        full = self._scope.full(key)
        try:
            meta = self._client.send("head", key, lambda timeout: self._transport.head(full, timeout=timeout))
        except NotFound:
            # V4: the 404 of a HEAD has no body, so a missing bucket or a proxy's page looks the same. A GET tells.
            fetched = self.get(key, span=(0, 1))
            if fetched is None:
                raise
            meta = fetched.meta
        return with_key(meta, key)

    def put(
        self,
        key: Key,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> PutResult:
        """Write an object whole, and return the fingerprint that the store gave it (V2).

        With a condition, the data must differ from what any other client writes to this key (let it carry an id): after
        a lost response the retry fails, and if the store then holds exactly these bytes, this call wrote them. Without
        `attributes` the object gets the content type that its name tells.
        """
        full = self._scope.full(key)
        deadline = self._client.call_deadline(len(memoryview(data)))
        ambiguous = False
        attributes = attributes or {"Content-Type": content_type(key)}

        def attempt(timeout: float) -> PutResult:
            nonlocal ambiguous
            try:
                return self._transport.put(full, data, condition=condition, attributes=attributes, timeout=timeout)
            except StoreError as error:
                ambiguous = ambiguous or error.ambiguous
                raise

        try:
            stored = self._client.send("put", key, attempt, bytes_out=len(memoryview(data)), deadline=deadline)
            self._prove_form(condition)
            return replace(stored, repeated=True) if ambiguous else stored
        except (AlreadyExists, PreconditionFailed):
            own = self._own_write(key, data, deadline) if ambiguous else None
            if own is None and not self._changes_form(key, condition, deadline):
                raise
            return own or self.within(deadline).put(key, data, condition=condition, attributes=attributes)

    def _prove_form(self, condition: Condition | None) -> None:
        """Note that this server accepts ETags as they are sent."""
        transport = self._transport
        if (
            isinstance(condition, Match)
            and isinstance(transport, SupportsUnquotedMatch)
            and transport.unquoted is False
        ):
            transport.unquoted = None

    def _changes_form(self, key: Key, condition: Condition | None, deadline: Deadline) -> bool:
        """After a refused swap, find out whether this server wants ETags without quotes; from then on, send them so.

        It does if the object still has the very ETag that the condition named, and if the store proves, on a key of its
        own, that it honours the other form: a server that ignored it would let two writers win.
        """
        transport = self._transport
        if not (
            isinstance(condition, Match)
            and isinstance(transport, SupportsUnquotedMatch)
            and transport.unquoted is False
        ):
            return False
        from bayou.objectstore.probe import honours_swaps  # noqa: PLC0415  (only for servers that refuse a swap)

        within = self.within(deadline)
        try:
            if within.head(key).etag != condition.etag:
                return False
        except NotFound:
            return False
        if not honours_swaps(Store(transport.with_unquoted(), self._scope, client=within._client)):
            return False
        transport.unquoted = True
        return True

    def _own_write(self, key: Key, data: Buffer, deadline: Deadline) -> PutResult | None:
        """Return the fingerprint of an object that holds exactly these bytes, or None if it holds others."""
        try:
            fetched = self.within(deadline).get(key, most=len(memoryview(data)))
        except (NotFound, TooLarge):
            return None
        if fetched is None or memoryview(fetched.data) != memoryview(data):
            return None
        return PutResult(fetched.meta.etag, fetched.meta.version, repeated=True)

    def upload(
        self,
        key: Key,
        source: BinaryIO | bytes,
        size: int,
        sha256: bytes,
        *,
        log: PartLog | None = None,
        moved: multipart.OnBytes = _ignore,
        had: multipart.OnBytes = _ignore,
    ) -> PutResult:
        """Write an object from the first `size` bytes of an open file, in parts when it is large; memory is bounded.

        Raise `ContentChanged` if these bytes do not have that hash (any more) and `TreeError` if the file cannot be
        read; then no object appears. Bytes that a program appends meanwhile are ignored. If `source` is `bytes`, the
        caller has computed the hash of exactly them, and the store sends them unchecked.

        With a `log`, an upload in parts that fails or is killed can be resumed: the next call with the same log sends
        only what the store has not acknowledged. `moved` is called with the bytes that are acknowledged, by any thread,
        and `had` with those of parts that an earlier call has sent.
        """
        if isinstance(source, bytes) or size <= multipart.THRESHOLD:
            data = source if isinstance(source, bytes) else multipart.read_checked(source, size, sha256)
            stored = self.put(key, data)
            moved(size)
            return stored
        from bayou.objectstore import uploads  # noqa: PLC0415  (only for a large file)

        transport, full = self._transport, self._scope.full(key)
        parts = transport.parts() if isinstance(transport, SupportsParts) else None
        if parts is not None:
            return uploads.PartUploader(self, self._client, parts, key, log, moved, had).upload(source, size, sha256)

        def send(chunks: Iterator[bytes], part: int, parallel: int, timeout: float) -> PutResult:
            return run_interruptible(
                lambda: transport.put_chunks(
                    full,
                    chunks,
                    part_size=part,
                    parallel=parallel,
                    attributes={"Content-Type": content_type(key)},
                    timeout=timeout,
                )
            )

        return uploads.upload_at_once(self._client, send, key, source, size, sha256, moved)

    def abort_upload(self, key: Key, upload: str) -> None:
        """Drop an upload in parts that no command is going to resume; it is no error if the store cannot do it."""
        from bayou.objectstore import uploads  # noqa: PLC0415

        parts = self._transport.parts() if isinstance(self._transport, SupportsParts) else None
        if parts is not None:
            uploads.PartUploader(self, self._client, parts, key, None, _ignore, _ignore).abort(upload)

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Yield the uploads in parts below this store that are neither completed nor aborted, keys relative to it.

        Yield nothing where the store has no such uploads, or no way to list them.
        """
        parts = self._transport.parts() if isinstance(self._transport, SupportsParts) else None
        if parts is None or not parts.registered:
            return
        pages = parts.unfinished(self._scope.root, timeout=self._client.request_timeout(self._client.call_deadline()))
        while True:
            self._client.counter.sent("list")
            page = run_interruptible(lambda: next(pages, None))
            if page is None:
                return
            for found in page:
                key = self._scope.relative(found.key)
                if key is not None:
                    yield replace(found, key=key)

    def download(
        self,
        key: Key,
        target: multipart.Sink,
        size: int,
        *,
        if_match: str | None = None,
        had: multipart.PartialDownload | None = None,
        moved: multipart.OnBytes = _ignore,
    ) -> multipart.DownloadResult:
        """Read an object of a known size into an open file, in parallel ranges when it is large; memory is bounded.

        Return its hash and the metadata that came with its bytes (V2). Raise `BadAnswer` for an object of another size
        and `PreconditionFailed` for an object that changes meanwhile. The file receives the bytes in order, after those
        that it `had` from an earlier download; the caller checks the whole hash. `moved` is called with the bytes.
        """
        return multipart.download(self, key, target, size, if_match, self._client.link, had, moved)

    @property
    def link(self) -> Link:
        """The measured speed of the link to the store, for callers that choose how much to send at once."""
        return self._client.link

    def list(self, under: Key | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of the objects below a directory of this store, keys relative to the store.

        Keys are exact, unusual ones included, except for the `/` at the end of a "folder", which some listings drop. A
        failure raises and never ends a listing early (V4). Without a deadline of the caller, each page has its own.
        """
        return self._listing.pages(under)

    def list_directory(self, under: Key | None = None) -> DirectoryListing | None:
        """Return the direct content of a directory of this store, with exact keys relative to the store.

        Return None where the store cannot list exactly; then the caller uses `list`. A failure raises (V4).
        """
        return self._listing.list_directory(under)

    def delete(self, keys: Iterable[Key]) -> None:
        """Delete objects, in batches if the store has bulk deletes; deleting an absent object is no error.

        The store tries every key; `DeleteFailed` names the objects that still exist.
        """
        batches = batched([self._scope.full(key) for key in keys], self._transport.delete_batch)
        failed: dict[str, StoreError] = {}
        for failures in self.map(partial(_delete_batch, self._transport, self._client), batches):
            failed.update(failures)
        if failed:
            raise DeleteFailed({key[len(self._scope.root) :]: cause for key, cause in failed.items()})

    @property
    def stop(self) -> threading.Event:
        """The event that is set when callers must no longer wait."""
        deadline = self._client.deadline
        return deadline.cancelled if deadline is not None else stop_event()

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, threads: int | None = None, ahead: int = 1
    ) -> Iterator[R]:
        """Yield `function(item)` for each item, in order, computed by up to `threads` (`concurrency`) threads.

        The store takes only `ahead` times as many items as there are threads, so it never holds all items or results in
        memory. The first error is raised in its item's turn, and cancels the calls that have not begun.
        """
        return map_in_order(function, items, threads or self.concurrency, ahead, self.stop)

    def map_as_completed(
        self, function: Callable[[T], R], items: Iterable[T], *, threads: int | None = None, ahead: int = 1
    ) -> Iterator[R]:
        """Yield `function(item)` for each item as `map` does, but as soon as it is there, in any order."""
        return map_as_completed(function, items, threads or self.concurrency, ahead, self.stop)


def _delete_batch(transport: Transport, client: RetryingClient, batch: Sequence[str]) -> dict[str, StoreError]:
    """Delete objects by their full keys, in one request if possible; return the keys that failed and their causes."""
    deadline = client.call_deadline()
    keys, attempt = batch, 1
    while True:
        timeout = client.request_timeout(deadline)
        client.counter.sent("delete")
        try:
            run_interruptible(partial(transport.delete, keys, timeout=timeout))
            return {}
        except StoreError as error:
            failed = error.failed if isinstance(error, DeleteFailed) else dict.fromkeys(keys, error)
            keys = [key for key in keys if key in failed]
            final = any(not cause.retryable for cause in failed.values())
            if final and len(keys) > 1:
                # Stores report at most one failure of a batch (Azure: one absent key); delete the keys one by one.
                single = (_delete_batch(transport, client, [key]) for key in keys)
                return {key: cause for failures in single for key, cause in failures.items()}
            if not client.policy.should_retry(failed[keys[0]], attempt, contacted=True):
                return failed
        deadline.sleep(client.policy.backoff(attempt))
        attempt += 1
