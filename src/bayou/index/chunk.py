"""Where nodes end. The rule looks at content only, so one set of entries has one tree, whoever built it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from operator import attrgetter
from typing import Generic, TypeVar

from msgspec import Struct

from bayou.index.entry import Entry
from bayou.index.node import Child

Row = TypeVar("Row", Entry, Child)


class Shape(Struct, frozen=True):
    """How large nodes get. A format has one shape; others are for tests, which want many levels of few entries."""

    leaf_mod: int = 512
    leaf_max: int = 2048
    branch_mod: int = 1024
    branch_max: int = 4096

    def __post_init__(self) -> None:
        if min(self.leaf_mod, self.leaf_max, self.branch_mod) < 1 or self.branch_max < 2:
            raise ValueError("a leaf needs room for one entry, a branch for two children")


SHAPE = Shape()


def row_key(level: int) -> Callable[[Entry | Child], str]:
    """Return what orders the rows of a level: an entry's path, a child's first path."""
    return attrgetter("first" if level else "path")


def ends_leaf(path: str, shape: Shape = SHAPE) -> bool:
    """Whether a leaf ends after this path wherever it began: the paths before it have no say."""
    return int.from_bytes(sha256(b"\0" + path.encode()).digest()[:8], "big") % shape.leaf_mod == 0


class Packer(Generic[Row]):
    """Cuts the rows of one level into nodes, and gives each to `emit` in order.

    `pending` are the rows of the open node. Above the leaves the last closed node is `held` back: one row that is
    left at the end of a level joins it, so that every branch has two children and every level is at most half of the
    one below, whatever the hashes say.
    """

    def __init__(self, level: int, shape: Shape, emit: Callable[[list[Row]], None]) -> None:
        self.pending: list[Row] = []
        self.held: list[Row] | None = None
        self._emit: Callable[[list[Row]], None] = emit
        self._level = level
        self._mod, self._most = (shape.branch_mod, shape.branch_max) if level else (shape.leaf_mod, shape.leaf_max)
        self._least = 2 if level else 1
        self._salt = level.to_bytes(1, "big")
        self._key = row_key(level)
        self._last = ""

    def feed(self, rows: Iterable[Row]) -> None:
        """Take rows, which must go on in strictly increasing order."""
        pending, key, salt, mod, least, most = (
            self.pending,
            self._key,
            self._salt,
            self._mod,
            self._least,
            self._most,
        )
        last = self._last
        for row in rows:
            at = key(row)
            if at <= last:
                raise ValueError(f"rows must be sorted and unique: {at!r} came after {last!r}")
            last = at
            pending.append(row)
            ends = int.from_bytes(sha256(salt + at.encode()).digest()[:8], "big") % mod == 0
            if (ends and len(pending) >= least) or len(pending) == most:
                self.close()
                pending = self.pending
        self._last = last

    def close(self) -> None:
        """End the open node here."""
        rows, self.pending = self.pending, []
        if self._level:
            self.release()
            self.held = rows
        else:
            self._emit(rows)

    def release(self) -> None:
        """Give away the node that was held back: nothing can join it any more."""
        if self.held is not None:
            rows, self.held = self.held, None
            self._emit(rows)
