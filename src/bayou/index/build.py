"""Build a tree from sorted entries, in one pass, with one or two open nodes per level in memory.

Where nodes end. The rule looks at content only, so one set of entries has one tree, whoever built it.

A tree built in parts: each part's own leaves by whoever has its entries, the rest by one who has never all of them.

A leaf that ends by hash ends there whatever comes before it. So from the first such path on, a part of the sorted
entries knows its leaves by itself; what lies before it, and after the last leaf that is whole, are its edges. Edges and
leaves of all parts, in order, give the one tree of all entries, wherever the parts were cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Generic, TypeVar

from msgspec import Struct

from bayou.core.iterators import batched
from bayou.index.entry import Entry
from bayou.index.node import Child, Node, Root, branch, child_of, leaf, root_of
from bayou.index.tree import NodeSink

Row = TypeVar("Row", Entry, Child)


class ChunkParams(Struct, frozen=True):
    """How large nodes get. A format has one shape; others are for tests, which want many levels of few entries."""

    leaf_mod: int = 512
    leaf_max: int = 2048
    branch_mod: int = 1024
    branch_max: int = 4096

    def __post_init__(self) -> None:
        if min(self.leaf_mod, self.leaf_max, self.branch_mod) < 1 or self.branch_max < 2:
            raise ValueError("a leaf needs room for one entry, a branch for two children")


SHAPE = ChunkParams()


def row_key(level: int) -> Callable[[Entry | Child], str]:
    """Return what orders the rows of a level: an entry's path, a child's first path."""
    return attrgetter("first" if level else "path")


def ends_leaf(path: str, shape: ChunkParams = SHAPE) -> bool:
    """Whether a leaf ends after this path wherever it began: the paths before it have no say."""
    return int.from_bytes(sha256(b"\0" + path.encode()).digest()[:8], "big") % shape.leaf_mod == 0


class Chunker(Generic[Row]):
    """Cuts the rows of one level into nodes, and gives each to `emit` in order.

    `pending` are the rows of the open node. Above the leaves the last closed node is `held` back: one row that is
    left at the end of a level joins it, so that every branch has two children and every level is at most half of the
    one below, whatever the hashes say.
    """

    def __init__(self, level: int, shape: ChunkParams, emit: Callable[[list[Row]], None]) -> None:
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


FLUSH_EVERY = 64
"""Nodes: a build reads nothing that could still fail, so it lets go of them as they are made."""


def build(entries: Iterable[Entry], sink: NodeSink, shape: ChunkParams = SHAPE) -> Root | None:
    """Build the tree of `entries` and return its root, or None if there are none.

    They must come sorted by path and unique; else `ValueError`.
    """
    above = Levels(1, sink, shape)
    packer = Chunker[Entry](0, shape, lambda rows: above.take(leaf(rows)))
    packer.feed(entries)
    if packer.pending:
        packer.close()
    return above.finish()


def build_above(level: int, children: Iterable[Child], sink: NodeSink, shape: ChunkParams = SHAPE) -> Root | None:
    """Build the branches from `level` up over all the nodes of the level below it, and return the root."""
    above = Levels(level, sink, shape)
    above.feed(children)
    return above.finish()


class Levels:
    """The branches of a tree that is being built, from one level up."""

    def __init__(self, level: int, sink: NodeSink, shape: ChunkParams) -> None:
        self._base = level
        self._sink = sink
        self._shape = shape
        self._packers: list[Chunker[Child]] = []
        self._staged = 0

    def take(self, node: Node) -> None:
        """Save a finished node and hand its description to the level above it."""
        child = child_of(node, self._sink.save(node))
        self._staged += 1
        if self._staged >= FLUSH_EVERY:
            self._sink.flush()
            self._staged = 0
        self._packer(node.level + 1).feed((child,))

    def feed(self, children: Iterable[Child]) -> None:
        self._packer(self._base).feed(children)

    def finish(self) -> Root | None:
        """Close every level from below; the one that has a single row has found the root."""
        root = None
        # Closing a level can add the next one to the list: it ends since every level is at most half of the one below.
        for level, packer in enumerate(self._packers, self._base):
            if packer.held is not None and len(packer.pending) == 1:
                packer.held += packer.pending
            elif len(packer.pending) == 1:
                root = root_of(level - 1, packer.pending[0])
                break
            elif packer.pending:
                packer.close()
            packer.release()
        self._sink.flush()
        return root

    def _packer(self, level: int) -> Chunker[Child]:
        if level - self._base == len(self._packers):
            self._packers.append(Chunker(level, self._shape, partial(self._emit, level)))
        return self._packers[level - self._base]

    def _emit(self, level: int, rows: list[Child]) -> None:
        self.take(branch(level, rows))


Piece = Child | Sequence[Entry]
"""A leaf that is stored, or entries that belong to a leaf which is not known yet."""

_AT_ONCE = 8192
"""Entries: few enough to hold, enough to make a dozen leaves."""


def chunk_partition(entries: Iterable[Entry], sink: NodeSink, shape: ChunkParams = SHAPE) -> Iterator[Piece]:
    """Yield the pieces of one part, in order; a leaf is stored before it is yielded.

    `entries` must come sorted by path and unique; else `ValueError`.
    """
    source = iter(entries)
    head: list[Entry] = []
    for entry in source:
        head.append(entry)
        if ends_leaf(entry.path, shape):
            break
    if head:
        yield head
    made: list[Child] = []

    def emit(rows: list[Entry]) -> None:
        node = leaf(rows)
        made.append(child_of(node, sink.save(node)))

    packer = Chunker[Entry](0, shape, emit)
    for some in batched(source, _AT_ONCE):
        packer.feed(some)
        sink.flush()
        yield from made
        made.clear()
    if packer.pending:
        yield packer.pending


def join_partitions(pieces: Iterable[Piece], sink: NodeSink, shape: ChunkParams = SHAPE) -> Root | None:
    """Build the tree of all parts from their pieces, which must come in order, and return its root; None if empty.

    `ValueError` for pieces that overlap, or a leaf that does not begin where another ends.
    """
    above = Levels(1, sink, shape)
    packer = Chunker[Entry](0, shape, lambda rows: above.take(leaf(rows)))
    last = ""
    for piece in pieces:
        first, end = (piece.first, piece.last) if isinstance(piece, Child) else (piece[0].path, piece[-1].path)
        if first <= last:
            raise ValueError(f"pieces must be sorted and apart: {first!r} came after {last!r}")
        last = end
        if not isinstance(piece, Child):
            packer.feed(piece)
        elif packer.pending:
            raise ValueError(f"the leaf from {first!r} does not begin where another ends")
        else:
            above.feed((piece,))
    if packer.pending:
        packer.close()
    return above.finish()
