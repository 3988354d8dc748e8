"""Large files in parts: reading them for an upload, and downloads; bounded memory, one hash over the whole file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, ContentChanged, PreconditionFailed, TooLarge, TreeError
from bayou.objectstore.keys import Key
from bayou.objectstore.link import Link
from bayou.objectstore.transport import GetResult, ObjectMeta

if TYPE_CHECKING:
    from bayou.objectstore.store import Store

MIB = 1 << 20
THRESHOLD = 16 * MIB
"""Objects up to this size take one request, in either direction."""

PARALLEL = 4
"""How many parts of one file are transferred at once."""

PART_SIZE = 8 * MIB
_MOST_PART = 16 * MIB
_LEAST_PART = 5 * MIB
_SPAN = 8 * MIB
_LEAST_SPAN = 1 * MIB
_MAX_PARTS = 9_000
"""S3 allows 10,000 parts; a little less leaves room for rounding."""


class DownloadResult(Struct, frozen=True):
    """The metadata that came with the downloaded bytes, and their hash."""

    meta: ObjectMeta
    sha256: bytes


class Sink(Protocol):
    """The target of a download: an open file, or any object that takes bytes."""

    def write(self, data: Any, /) -> object: ...


class PartialDownload(Struct, frozen=True):
    """The beginning of an object that an earlier download has left in the target: its size, and its hash so far."""

    size: int
    digest: hashlib._Hash


OnBytes = Callable[[int], object]
"""Called with the number of bytes that were transferred since the last call."""


class NullSink:
    """A sink that keeps nothing, for callers that only need the hash of an object."""

    def write(self, data: Any, /) -> None:
        return


def part_size(size: int, link: Link, least: int = _LEAST_PART) -> int:
    """Return a part size that suits the link, and with which `size` bytes need no more parts than stores allow.

    The faster the link, the larger the part: less is sent again after a failure, and a request never takes long (V12).
    """
    suits = link.piece(link.up, least, PART_SIZE if link.up.rate is None else _MOST_PART)
    return max(-(-suits // MIB), -(-size // _MAX_PARTS // MIB)) * MIB


def read_checked(source: BinaryIO, size: int, sha256: bytes) -> bytes:
    """Return the first `size` bytes of a file; raise `ContentChanged` if they do not have that hash."""
    data = _read(source, size, start=True)
    if len(data) != size or hashlib.sha256(data).digest() != sha256:
        raise changed(source)
    return data


def file_parts(source: BinaryIO, size: int, part: int, deadline: Deadline) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, each part but the last one whole; `ContentChanged` if there are fewer."""
    left = size
    while left:
        deadline.remaining()
        wanted = min(part, left)
        data = _read(source, wanted, start=left == size)
        while data and len(data) < wanted:
            more = _read(source, wanted - len(data), start=False)
            if not more:
                raise changed(source)
            data += more
        if not data:
            raise changed(source)
        left -= len(data)
        yield data


def checked_parts(source: BinaryIO, size: int, sha256: bytes, part: int, deadline: Deadline) -> Iterator[bytes]:
    """Yield the first `size` bytes in parts; raise before the last part if they do not have that hash (V11)."""
    digest = hashlib.sha256()
    left = size
    for data in file_parts(source, size, part, deadline):
        digest.update(data)
        left -= len(data)
        if not left and digest.digest() != sha256:
            raise changed(source)
        yield data


def download(
    store: Store,
    key: Key,
    target: Sink,
    size: int,
    if_match: str | None,
    link: Link,
    had: PartialDownload | None,
    moved: OnBytes,
) -> DownloadResult:
    """Read an object into a file; see `Store.download`. Each span is retried singly, so a failure repeats only that."""
    start = had.size if had is not None else 0
    if size - start <= THRESHOLD and not start:
        # The span keeps one request from reading all of an object that has grown.
        fetched = fetch(store, key, (0, size) if size else None, if_match, size)
        target.write(fetched.data)
        moved(size)
        return DownloadResult(fetched.meta, hashlib.sha256(fetched.data).digest())
    digest = had.digest if had is not None else hashlib.sha256()
    # Read the first span alone: `size` may be a lie (V25), and the first response shows the real size.
    spans = _spans(start, size, link)
    first = fetch(store, key, next(spans), if_match, size)
    # V2: all parts belong to the object whose metadata this function returns.
    rest = store.map(lambda span: fetch(store, key, span, first.meta.etag, size), spans, threads=PARALLEL)
    for fetched in chain([first], rest):
        if fetched.meta != first.meta:  # the store ignores If-Match
            raise PreconditionFailed(f"{key} changed while it was read")
        digest.update(fetched.data)
        target.write(fetched.data)
        moved(len(memoryview(fetched.data)))
    return DownloadResult(first.meta, digest.digest())


def _spans(start: int, size: int, link: Link) -> Iterator[tuple[int, int]]:
    """Yield the spans of an object, each as long as the link moves in some seconds by now."""
    while start < size:
        end = min(size, start + link.piece(link.down, _LEAST_SPAN, _SPAN))
        yield start, end
        start = end


def fetch(store: Store, key: Key, span: tuple[int, int] | None, if_match: str | None, size: int) -> GetResult:
    """Read an object of a known size, or a span of it."""
    try:
        fetched = store.get(key, span=span, if_match=if_match, most=size if span is None else None)
    except TooLarge:
        raise wrong_size(key, size, size + 1) from None
    if fetched is None or fetched.meta.size != size:
        raise wrong_size(key, size, None if fetched is None else fetched.meta.size)
    return fetched


def wrong_size(key: Key, size: int, had: int | None) -> BadAnswer:
    """Return the error for an object that does not have the expected size."""
    actual = "nothing" if had is None else f"more than {size} bytes" if had > size else f"{had} bytes"
    return BadAnswer(
        f"{key}: {size} bytes expected, the store has {actual}", hint="bayou datastore verify shows what is damaged"
    )


def _read(source: BinaryIO, size: int, *, start: bool) -> bytes:
    try:
        if start:
            source.seek(0)
        return source.read(size)
    except OSError as error:  # further up, an OSError would pass for a failure of the store
        raise TreeError(f"cannot read {_name(source)}: {error.strerror or error}") from None


def changed(source: BinaryIO) -> ContentChanged:
    """Return the error for a file that does not have the bytes that were hashed before."""
    return ContentChanged(f"{_name(source)} changed while it was read", hint="it is pushed again with the next sync")


def _name(source: BinaryIO) -> str:
    return str(getattr(source, "name", "the file"))
