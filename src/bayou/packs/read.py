"""Read files out of packs: ranges that join neighbours, and proof of each file by its hash.

A reader uses the location in the index entry and nothing of the archive (its directory may lie). It reads the bytes
between two wanted files too, if that takes less time than another request. The caller has checked the entries
(`Entry.refusal`), so that offsets and lengths are within the pack and within limits (V25).
"""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import BadAnswer, Rejected
from bayou.index.entry import DEFLATED, Entry
from bayou.objectstore import keys
from bayou.objectstore.store import Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

JOIN_GAP = 256 << 10
"""Bytes between two wanted files that are read along: on most links a further request takes longer."""

RANGE_BYTES = 8 << 20
"""Bytes of one range, unless a single file has more."""

IN_FLIGHT_BYTES = 64 << 20
"""Bytes of all ranges that a client reads at once."""

_LEAST_THREADS = 4


class PackRange(Struct, frozen=True):
    """A range of a pack, and the wanted files in it, in the order of their offsets."""

    pack: str
    start: int
    end: int
    entries: Sequence[Entry]


def plan_ranges(entries: Iterable[Entry]) -> list[PackRange]:
    """Return the ranges to read for these entries, which all lie in packs; the pack of the first path comes first."""
    by_pack: dict[str, list[tuple[int, int, Entry]]] = defaultdict(list)
    for entry in entries:
        assert entry.pack is not None
        assert entry.offset is not None
        assert entry.stored is not None
        by_pack[entry.pack].append((entry.offset, entry.offset + entry.stored, entry))
    return [joined for pack, wanted in by_pack.items() for joined in _join(pack, wanted)]


def _join(pack: str, wanted: list[tuple[int, int, Entry]]) -> Iterator[PackRange]:
    wanted.sort(key=lambda part: part[:2])
    start, end, group = wanted[0][0], wanted[0][1], [wanted[0][2]]
    for first, last, entry in wanted[1:]:
        if first - end > JOIN_GAP or max(end, last) - start > RANGE_BYTES:
            yield PackRange(pack, start, end, group)
            start, end, group = first, last, []
        group.append(entry)
        end = max(end, last)
    yield PackRange(pack, start, end, group)


def threads_for(store: Store, ranges: Sequence[PackRange]) -> int:
    """Return how many of these ranges to read at once, so that memory stays bounded."""
    largest = max((part.end - part.start for part in ranges), default=0)
    return min(store.concurrency, max(_LEAST_THREADS, IN_FLIGHT_BYTES // max(1, largest)))


def read_range(store: Store, part: PackRange) -> Iterator[tuple[Entry, bytes | None]]:
    """Read a range in one request; yield each entry with its content, None if the bytes are not those of the entry.

    `NotFound` if the pack is gone: then the caller reads the head again, since a compaction may have moved the files
    (P7). A pack that is shorter than its name says has lost its last files only.
    """
    return extract_all(part, load_range(store, part))


def load_range(store: Store, part: PackRange) -> memoryview:
    """Return the bytes of a range, with one request if the pack is whole; `extract_all` takes the files out of them.

    Of a pack that is shorter than its name says, return the bytes of the range that it has.
    """
    if part.start == part.end:
        return memoryview(b"")
    key = keys.pack(part.pack)
    try:
        return memoryview(store.read_range(key, part.start, part.end))
    except (BadAnswer, Rejected):
        size = store.head(key).size
        if size >= part.end:
            raise
        return memoryview(store.read_range(key, part.start, size) if size > part.start else b"")


def extract_all(part: PackRange, data: memoryview) -> Iterator[tuple[Entry, bytes | None]]:
    """Yield the entries of a range with their contents, of which one is in memory at a time, however it expands."""
    for entry in part.entries:
        assert entry.offset is not None
        assert entry.stored is not None
        begin = entry.offset - part.start
        yield entry, extract(entry, data[begin : begin + entry.stored])


def extract(entry: Entry, stored: Buffer) -> bytes | None:
    """Return the content of a file from its bytes in the pack; None if these are not the bytes that were pushed.

    Inflating stops after the size that the entry names, however much a hostile pack would expand to (V25).
    """
    data = _inflate(stored, entry.size) if entry.method == DEFLATED else bytes(stored)
    if data is None or len(data) != entry.size or hashlib.sha256(data).digest() != entry.sha256:
        return None
    return data


def read_one(store: Store, entry: Entry) -> bytes | None:
    """Read one file of a pack with one request; as `read_range`."""
    (part,) = plan_ranges([entry])
    ((_, data),) = read_range(store, part)
    return data


def _inflate(stored: Buffer, size: int) -> bytes | None:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = stream.decompress(stored, size + 1)
    except zlib.error:
        return None
    return data if stream.eof and not stream.unused_data else None
