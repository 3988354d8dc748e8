"""Uploads of large files in parts: a part that the store has acknowledged is never sent again.

Within a command, each part is retried singly. Across commands, a `PartLog` keeps the id of the upload and its
acknowledged parts, each with the hash of the bytes that were sent: a later command reads the file again, proves every
part against that hash, and sends only the others. The object appears only once the bytes of all parts together have the
hash that the key stands for (V11); otherwise the upload is aborted. Without a log, an upload that fails leaves nothing.

Where the store offers no such parts (`SupportsParts`), the transport sends the file as one upload, which a failure
starts again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import kept
from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, ContentChanged, NotFound, StoreError, UploadGone
from bayou.objectstore import keys, multipart
from bayou.objectstore.keys import Key
from bayou.objectstore.multipart import OnBytes
from bayou.objectstore.transport import PartTransport, PutResult

if TYPE_CHECKING:
    from bayou.objectstore.retry import RetryingClient
    from bayou.objectstore.store import Store

_ABORT_S = 10.0
"""Seconds for the request that drops an upload after a failure."""


class UploadPart(Struct, frozen=True):
    """A part that the store has acknowledged: its number, the store's tag, and the hash of the bytes that were sent."""

    number: int
    tag: str
    sha256: bytes


class Resumable(Struct, frozen=True):
    """An upload that an earlier command has begun."""

    upload: str
    part_size: int
    parts: Mapping[int, UploadPart]


class PartLog(Protocol):
    """The durable record of the upload of one object. Any thread may call it."""

    def resumable(self) -> Resumable | None:
        """Return the upload of this object that was begun and not completed."""

    def begun(self, upload: str, part_size: int) -> None:
        """Record an upload, instead of any earlier one of this object."""

    def acknowledged(self, part: UploadPart) -> None:
        """Record a part that the store has acknowledged."""

    def forget(self) -> None:
        """Drop the record: the upload was completed or aborted, or is gone."""


class PartUploader:
    """Uploads one file to one key in parts."""

    def __init__(
        self,
        store: Store,
        client: RetryingClient,
        parts: PartTransport,
        key: Key,
        log: PartLog | None,
        moved: OnBytes,
        had: OnBytes,
    ) -> None:
        self._store = store
        self._client = client
        self._parts = parts
        self._key = key
        self._full = store.full_key(key)
        self._log = log
        counted: set[int] = set()
        self._moved = _Once(moved, counted)
        self._had = _Once(had, counted)
        self._deadline = client.deadline or Deadline.after(None)

    def upload(self, source: BinaryIO, size: int, sha256: bytes) -> PutResult:
        """Send the parts that the store does not have, prove them, and complete the object."""
        earlier = self._log.resumable() if self._log is not None else None
        if earlier is not None:
            try:
                return self._send(source, size, sha256, earlier, resumed=True)
            except UploadGone:
                pass  # it has expired, or a collection has aborted it
        part_size = multipart.part_size(size, self._client.link, self._parts.least_part)
        upload = self._begin()
        if self._log is not None:
            self._log.begun(upload, part_size)
        return self._send(source, size, sha256, Resumable(upload, part_size, {}), resumed=False)

    def _begin(self) -> str:
        begin = partial(self._parts.begin, self._full)
        if not self._parts.registered:
            return begin(timeout=0)  # V17: no request, so none that counts
        return self._client.send("put", self._key, lambda timeout: begin(timeout=timeout), deadline=self._deadline)

    def _send(self, source: BinaryIO, size: int, sha256: bytes, begun: Resumable, *, resumed: bool) -> PutResult:
        digest = hashlib.sha256()
        tags: dict[int, str] = {}

        def missing() -> Iterator[tuple[UploadPart, bytes]]:
            """Read the file once, in order, and yield the parts that the store does not have as they are now."""
            chunks = multipart.file_parts(source, size, begun.part_size, self._deadline)
            for number, data in enumerate(chunks, 1):
                digest.update(data)
                part = UploadPart(number, "", hashlib.sha256(data).digest())
                known = begun.parts.get(number)
                if known is not None and known.sha256 == part.sha256:
                    tags[number] = known.tag
                    self._had(number, len(data))
                else:
                    yield part, data

        for number in begun.parts:
            self._keep(min(begun.part_size, size - (number - 1) * begun.part_size))
        try:
            for part in self._store.map(partial(self._put, begun), missing(), threads=multipart.PARALLEL):
                tags[part.number] = part.tag
            if digest.digest() != sha256:
                raise multipart.changed(source)
            ordered = [tags[number] for number in sorted(tags)]
            stored = self._complete(begun.upload, ordered, size, maybe_done=resumed)
        except BaseException as error:
            # The next command goes on where this one stopped, unless the parts are of no use to it.
            if self._log is None or isinstance(error, ContentChanged | UploadGone):
                self.abort(begun.upload)
            raise
        self._forget()
        return replace(stored, repeated=stored.repeated or resumed)

    def _put(self, begun: Resumable, piece: tuple[UploadPart, bytes]) -> UploadPart:
        part, data = piece
        put = partial(self._parts.put_part, self._full, begun.upload, part.number, data)
        tag = self._client.send(
            "put", self._key, lambda timeout: put(timeout=timeout), bytes_out=len(data), deadline=self._deadline
        )
        done = replace(part, tag=tag)
        if self._log is not None:
            self._log.acknowledged(done)
            if part.number not in begun.parts:
                self._keep(len(data))
        self._moved(part.number, len(data))
        return done

    def _keep(self, size: int) -> None:
        """Note bytes that the store has acknowledged, and that the log names: no later command sends them again."""
        if self._log is not None:
            kept.part_sent(keys.parse_payload(self._key).path, size)

    def _forget(self) -> None:
        """Drop the record of this upload."""
        if self._log is not None:
            self._log.forget()
            kept.part_ended(keys.parse_payload(self._key).path)

    def _complete(self, upload: str, tags: list[str], size: int, *, maybe_done: bool) -> PutResult:
        attempts = 0

        def attempt(timeout: float) -> PutResult:
            nonlocal attempts
            attempts += 1
            return self._parts.complete(self._full, upload, tags, timeout=timeout)

        try:
            stored = self._client.send("put", self._key, attempt, deadline=self._deadline)
        except UploadGone:
            # The response to an earlier request may have been lost. Only uploads of this hash are completed under this
            # key, and each only once (V11), so an object that is there is the one that was completed.
            if not maybe_done and attempts == 1:
                raise
            try:
                meta = self._store.head(self._key)
            except NotFound:
                raise UploadGone(f"the store no longer has the parts of {self._key}", hint="try again") from None
            if meta.size != size:
                raise multipart.wrong_size(self._key, size, meta.size) from None
            return PutResult(meta.etag, meta.version, repeated=True)
        if stored.etag is None:
            meta = self._store.head(self._key)
            if meta.size != size:
                raise multipart.wrong_size(self._key, size, meta.size)
            stored = PutResult(None, stored.version)  # V2: an ETag of the HEAD is no ETag of this write
        return replace(stored, repeated=attempts > 1)

    def abort(self, upload: str) -> None:
        """Drop an upload at the store and its record; if the store cannot do it now, a collection or time does it."""
        if self._parts.registered:
            with suppress(BayouError):
                self._client.within(Deadline.after(_ABORT_S)).send(
                    "delete", self._key, lambda timeout: self._parts.abort(self._full, upload, timeout=timeout)
                )
        self._forget()


class _Once:
    """Calls `report` once for each part, also if the part is sent again; `counted` are the parts that were reported."""

    def __init__(self, report: OnBytes, counted: set[int]) -> None:
        self._report = report
        self._counted = counted

    def __call__(self, number: int, size: int) -> None:
        if number not in self._counted:
            self._counted.add(number)
            self._report(size)


def upload_at_once(
    client: RetryingClient,
    send: Callable[[Iterator[bytes], int, int, float], PutResult],
    key: Key,
    source: BinaryIO,
    size: int,
    sha256: bytes,
    moved: OnBytes,
) -> PutResult:
    """Upload a file by a transport that sends all parts itself, and starts again after a failure.

    `send(chunks, part size, parallel parts, timeout)` is the transport's. It shows no responses to parts, so a part
    counts as moved once the transport has taken as many more as it sends at once.
    """
    deadline = client.deadline or Deadline.after(None)
    reported = attempt = 0
    while True:
        attempt += 1
        part = multipart.part_size(size, client.link)
        parallel = client.link.up.parallel(part, multipart.PARALLEL)

        def chunks(part: int = part, parallel: int = parallel) -> Iterator[bytes]:
            nonlocal reported
            at = 0
            for data in multipart.checked_parts(source, size, sha256, part, deadline):
                client.link.pace(len(data), deadline)
                yield data
                at += len(data)
                acknowledged = at - parallel * part
                if acknowledged > reported:
                    moved(acknowledged - reported)
                    reported = acknowledged

        begun = client.link.up.stalls
        moving = client.link.up.seconds(part * parallel, client.policy.least_rate)
        client.counter.sent("put", -(-size // part) + 2, bytes_out=size)
        try:
            stored = send(chunks(), part, parallel, client.request_timeout(deadline, moving, moves=True))
        except StoreError as error:
            if error.retryable and part > multipart.MIB:
                client.link.up.stalled(begun)
            client.wait_or_raise(error, attempt, f"PUT {key}", deadline, moves=True)
            continue
        client.link.up.works()
        moved(size - reported)
        return replace(stored, repeated=attempt > 1)
