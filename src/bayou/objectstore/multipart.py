"""Files that are moved in parts: bounded memory, one hash over all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, ContentChanged, PreconditionFailed, TooLarge, TreeError
from bayou.objectstore.keys import Key
from bayou.objectstore.transport import Fetched, ObjectMeta

if TYPE_CHECKING:
    from bayou.objectstore.store import Store

MIB = 1 << 20
THRESHOLD = 16 * MIB
"""Up to here an object is one request, in either direction."""

PARALLEL = 4
"""Parts of one file that are under way at once."""

_PART = 16 * MIB
_SPAN = 8 * MIB
_MAX_PARTS = 9_000
"""S3 takes 10,000 parts; a little less leaves room for rounding."""


class Downloaded(Struct, frozen=True):
    """What arrived: the metadata that came with the bytes, and their hash."""

    meta: ObjectMeta
    sha256: bytes


class Sink(Protocol):
    """What a download is written to: an open file, or anything else that takes bytes."""

    def write(self, data: Any, /) -> object: ...


class NullSink:
    """A sink that keeps nothing: for whoever only wants the hash of an object."""

    def write(self, data: Any, /) -> None:
        return


def part_size(size: int) -> int:
    """Return a part size that fits a file of `size` bytes into the parts that stores allow."""
    return max(_PART, -(-size // _MAX_PARTS // MIB) * MIB)


def read_checked(source: BinaryIO, size: int, sha256: bytes) -> bytes:
    """Return the first `size` bytes of a file if they have that hash; else `ContentChanged`."""
    data = _read(source, size, start=True)
    if len(data) != size or hashlib.sha256(data).digest() != sha256:
        raise _changed(source)
    return data


def checked_parts(source: BinaryIO, size: int, sha256: bytes, part: int, deadline: Deadline) -> Iterator[bytes]:
    """Yield the first `size` bytes in parts; raise before the last one if they are others than promised (V11)."""
    digest = hashlib.sha256()
    left = size
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


def download(store: Store, key: Key, target: Sink, size: int, if_match: str | None) -> Downloaded:
    """Read an object into a file; see `Store.download`."""
    if size <= THRESHOLD:
        # A span also where one request will do: an object that has grown since is then not read whole.
        found = fetch(store, key, (0, size) if size else None, if_match, size)
        target.write(found.data)
        return Downloaded(found.meta, hashlib.sha256(found.data).digest())
    digest = hashlib.sha256()
    # One by one: whoever says how large it is may say anything (V25), and the first answer shows whether that is so.
    spans = ((at, min(at + _SPAN, size)) for at in range(0, size, _SPAN))
    first = fetch(store, key, next(spans), if_match, size)
    # V2: all parts are of the object whose metadata we report.
    rest = store.map(lambda span: fetch(store, key, span, first.meta.etag, size), spans, threads=PARALLEL)
    for found in chain([first], rest):
        if found.meta != first.meta:  # a store that does not look at If-Match
            raise PreconditionFailed(f"{key} changed while it was read")
        digest.update(found.data)
        target.write(found.data)
    return Downloaded(first.meta, digest.digest())


def fetch(store: Store, key: Key, span: tuple[int, int] | None, if_match: str | None, size: int) -> Fetched:
    """Read an object of a known size, or a span of it."""
    try:
        found = store.get(key, span=span, if_match=if_match, most=size if span is None else None)
    except TooLarge:
        raise other_size(key, size, size + 1) from None
    if found is None or found.meta.size != size:
        raise other_size(key, size, None if found is None else found.meta.size)
    return found


def other_size(key: Key, size: int, had: int | None) -> BadAnswer:
    """Return the error for an object that has not the size it should have."""
    told = "nothing" if had is None else f"more than {size} bytes" if had > size else f"{had} bytes"
    return BadAnswer(
        f"{key}: {size} bytes expected, the store has {told}", hint="bayou datastore verify shows what is damaged"
    )


def _read(source: BinaryIO, size: int, *, start: bool) -> bytes:
    try:
        if start:
            source.seek(0)
        return source.read(size)
    except OSError as error:  # ours to name: below, it would pass for a failure of the store
        raise TreeError(f"cannot read {_name(source)}: {error.strerror or error}") from None


def _changed(source: BinaryIO) -> ContentChanged:
    return ContentChanged(f"{_name(source)} changed while it was read", hint="it is pushed again with the next sync")


def _name(source: BinaryIO) -> str:
    return str(getattr(source, "name", "the file"))
