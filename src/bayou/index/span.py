"""A range of paths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bayou.index.entry import Entry
from bayou.index.node import Child, Leaf


@dataclass(frozen=True, slots=True)
class Span:
    """The paths from `start` on and before `end` (None: no end), in bytewise order.

    Python compares strings by code point, which is the order of their UTF-8 bytes.
    """

    start: str = ""
    end: str | None = None

    @classmethod
    def under(cls, prefix: str) -> Span:
        """Return the range of all paths that begin with `prefix`."""
        return cls(prefix, _successor(prefix))

    def holds(self, path: str) -> bool:
        return path >= self.start and (self.end is None or path < self.end)

    def touches(self, child: Child) -> bool:
        """Whether a node can hold a path of this range."""
        return child.last >= self.start and (self.end is None or child.first < self.end)

    def rows(self, leaf: Leaf) -> Iterable[Entry]:
        """Return the entries of a leaf that lie in this range."""
        if self.holds(leaf.first) and self.holds(leaf.last):
            return leaf.rows
        return (row for row in leaf.rows if self.holds(row.path))

    def __and__(self, other: Span) -> Span:
        ends = [end for end in (self.end, other.end) if end is not None]
        return Span(max(self.start, other.start), min(ends) if ends else None)


EVERYTHING = Span()


def _successor(prefix: str) -> str | None:
    """Return the least string that is greater than all that begin with `prefix`."""
    while prefix:
        point = ord(prefix[-1]) + 1
        if point == 0xD800:
            point = 0xE000  # surrogates are no characters
        if point <= 0x10FFFF:
            return prefix[:-1] + chr(point)
        prefix = prefix[:-1]
    return None
