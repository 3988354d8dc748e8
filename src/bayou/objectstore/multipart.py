"""Large files: uploads and downloads in parts, with bounded memory and one hash over the whole file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from msgspec import Struct

from bayou.core.activity import Moved
from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, ContentChanged, PreconditionFailed, TooLarge, TreeError
from bayou.objectstore.keys import Key
from bayou.objectstore.transport import Fetched, ObjectMeta

if TYPE_CHECKING:
    from bayou.objectstore.store import Store

MIB = 1 << 20
THRESHOLD = 16 * MIB
"""Objects up to this size take one request, in either direction."""

PARALLEL = 4
"""How many parts of one file are transferred at once."""

_PART = 16 * MIB
_SPAN = 8 * MIB
_MAX_PARTS = 9_000
"""S3 allows 10,000 parts; a little less leaves room for rounding."""


class Downloaded(Struct, frozen=True):
    """The metadata that came with the downloaded bytes, and their hash."""

    meta: ObjectMeta
    sha256: bytes


class Sink(Protocol):
    """The target of a download: an open file, or any object that takes bytes."""

    def write(self, data: Any, /) -> object: ...


class NullSink:
    """A sink that keeps nothing, for callers that only need the hash of an object."""

    def write(self, data: Any, /) -> None:
        return


def part_size(size: int) -> int:
    """Return a part size with which a file of `size` bytes needs no more parts than stores allow."""
    return max(_PART, -(-size // _MAX_PARTS // MIB) * MIB)


def read_checked(source: BinaryIO, size: int, sha256: bytes) -> bytes:
    """Return the first `size` bytes of a file; raise `ContentChanged` if they do not have that hash."""
    data = _read(source, size, start=True)
    if len(data) != size or hashlib.sha256(data).digest() != sha256:
        raise _changed(source)
    return data


def checked_parts(
    source: BinaryIO, size: int, sha256: bytes, part: int, deadline: Deadline, moved: Moved | None = None
) -> Iterator[bytes]:
    """Yield the first `size` bytes in parts; raise before the last part if they do not have that hash (V11).

    `moved` is told of a part when the next one is asked for; it takes all back if the upload is given up.
    """
    digest = hashlib.sha256()
    told = 0
    left = size
    try:
        while left:
            deadline.remaining()
            data = _read(source, min(part, left), start=left == size)
            if not data:
                raise _changed(source)
            digest.update(data)
            left -= len(data)
            if not left and digest.digest() != sha256:
                raise _changed(source)
            yield data
            if moved is not None:
                moved(len(data))
                told += len(data)
    except BaseException:
        if moved is not None:
            moved(-told)
        raise


def download(
    store: Store, key: Key, target: Sink, size: int, if_match: str | None, moved: Moved | None = None
) -> Downloaded:
    """Read an object into a file; see `Store.download`."""
    if size <= THRESHOLD:
        # The span keeps one request from reading all of an object that has grown.
        fetched = fetch(store, key, (0, size) if size else None, if_match, size)
        target.write(fetched.data)
        if moved is not None:
            moved(size)
        return Downloaded(fetched.meta, hashlib.sha256(fetched.data).digest())
    digest = hashlib.sha256()
    # Read the first span alone: `size` may be a lie (V25), and the first response shows the real size.
    spans = ((at, min(at + _SPAN, size)) for at in range(0, size, _SPAN))
    first = fetch(store, key, next(spans), if_match, size)
    # V2: all parts belong to the object whose metadata this function returns.
    rest = store.map(lambda span: fetch(store, key, span, first.meta.etag, size), spans, threads=PARALLEL)
    told = 0
    try:
        for fetched in chain([first], rest):
            if fetched.meta != first.meta:  # the store ignores If-Match
                raise PreconditionFailed(f"{key} changed while it was read")
            digest.update(fetched.data)
            target.write(fetched.data)
            if moved is not None:
                arrived = memoryview(fetched.data).nbytes
                moved(arrived)
                told += arrived
    except BaseException:
        if moved is not None:
            moved(-told)
        raise
    return Downloaded(first.meta, digest.digest())


def fetch(store: Store, key: Key, span: tuple[int, int] | None, if_match: str | None, size: int) -> Fetched:
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


def _changed(source: BinaryIO) -> ContentChanged:
    return ContentChanged(f"{_name(source)} changed while it was read", hint="it is pushed again with the next sync")


def _name(source: BinaryIO) -> str:
    return str(getattr(source, "name", "the file"))
