"""Ranges of paths, by which jobs and lookups divide an index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from msgspec import Struct

from bayou.index.entry import Entry
from bayou.index.node import Child, Leaf


class KeyRange(Struct, frozen=True):
    """The paths from `start` up to but not including `end` (None: no end), in bytewise order.

    Python compares strings by code point, which is the order of their UTF-8 bytes.
    """

    start: str = ""
    end: str | None = None

    @classmethod
    def under(cls, prefix: str) -> KeyRange:
        """Return the range of all paths that begin with `prefix`."""
        return cls(prefix, _successor(prefix))

    def holds(self, path: str) -> bool:
        return path >= self.start and (self.end is None or path < self.end)

    def touches(self, child: Child) -> bool:
        """Return whether the node of a child can hold a path of this range."""
        return child.last >= self.start and (self.end is None or child.first < self.end)

    def rows(self, leaf: Leaf) -> Iterable[Entry]:
        """Return the entries of a leaf that lie in this range."""
        if self.holds(leaf.first) and self.holds(leaf.last):
            return leaf.rows
        return (row for row in leaf.rows if self.holds(row.path))

    @property
    def bounds(self) -> tuple[str, str]:
        """The start and the end, for a comparison with `>=` and `<`; every path is less than the last character."""
        return self.start, chr(0x10FFFF) if self.end is None else self.end

    def __and__(self, other: KeyRange) -> KeyRange:
        ends = [end for end in (self.end, other.end) if end is not None]
        return KeyRange(max(self.start, other.start), min(ends) if ends else None)


EVERYTHING = KeyRange()


class KeyRanges:
    """The union of several ranges; a lookup is a binary search, however many ranges there are."""

    def __init__(self, spans: Iterable[KeyRange]) -> None:
        self._spans: list[KeyRange] = []
        for span in sorted(spans, key=lambda span: span.start):
            last = self._spans[-1] if self._spans else None
            if last is None or (last.end is not None and last.end < span.start):
                self._spans.append(span)
            elif last.end is not None and (span.end is None or span.end > last.end):
                self._spans[-1] = KeyRange(last.start, span.end)
        self._starts = [span.start for span in self._spans]

    def __bool__(self) -> bool:
        return bool(self._spans)

    def holds(self, path: str) -> bool:
        at = bisect_right(self._starts, path) - 1
        return at >= 0 and self._spans[at].holds(path)

    def touches(self, child: Child) -> bool:
        """Return whether the node of a child can hold a path of these ranges."""
        at = bisect_right(self._starts, child.last) - 1
        return at >= 0 and self._spans[at].touches(child)

    def rows(self, leaf: Leaf) -> Iterable[Entry]:
        """Return the entries of a leaf that lie in these ranges."""
        return (row for row in leaf.rows if self.holds(row.path))


def _successor(prefix: str) -> str | None:
    """Return the least string that is greater than every string that begins with `prefix`; None if there is none."""
    while prefix:
        point = ord(prefix[-1]) + 1
        if point == 0xD800:
            point = 0xE000  # surrogates are no characters
        if point <= 0x10FFFF:
            return prefix[:-1] + chr(point)
        prefix = prefix[:-1]
    return None
