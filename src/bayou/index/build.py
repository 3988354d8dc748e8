"""Build a tree from sorted entries, in one pass, with one or two open nodes per level in memory.

`Chunker` decides where nodes end. The rule depends on content only, so one set of entries has one tree, whichever
client built it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Generic, TypeVar

from msgspec import Struct

from bayou.index.entry import Entry
from bayou.index.node import Child, Node, Root, branch, child_of, leaf, root_of
from bayou.index.tree import NodeSink

Row = TypeVar("Row", Entry, Child)


class ChunkParams(Struct, frozen=True):
    """The sizes of nodes. The format has one set of them; tests use smaller ones, for many levels with few entries."""

    leaf_mod: int = 512
    leaf_max: int = 2048
    branch_mod: int = 1024
    branch_max: int = 4096

    def __post_init__(self) -> None:
        if min(self.leaf_mod, self.leaf_max, self.branch_mod) < 1 or self.branch_max < 2:
            raise ValueError("a leaf needs room for one entry, a branch for two children")


SHAPE = ChunkParams()
FLUSH_EVERY = 64
"""Nodes after which a build stores them: it reads nothing that could still fail, so it need not hold them."""


def row_key(level: int) -> Callable[[Entry | Child], str]:
    """Return the function for the sort key of a level's rows: an entry's path, a child's first path."""
    return attrgetter("first" if level else "path")


class Chunker(Generic[Row]):
    """Divides the rows of one level into nodes, and passes each node's rows to `emit` in order.

    `pending` are the rows of the open node. Above the leaves the last closed node is `held` back: a single row that is
    left at the end of a level joins it, so that every branch has at least two children and every level is at most half
    of the level below, whatever the hashes are.
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
        """Add rows, which must continue in strictly increasing order; else `ValueError`."""
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
        """Emit the node that was held back: no row can join it any more."""
        if self.held is not None:
            rows, self.held = self.held, None
            self._emit(rows)


def build(entries: Iterable[Entry], sink: NodeSink, shape: ChunkParams = SHAPE) -> Root | None:
    """Build the tree of `entries` and return its root, or None if there are no entries.

    Entries must be sorted by path and unique; else `ValueError`.
    """
    above = BranchBuilder(1, sink, shape)
    chunker = Chunker[Entry](0, shape, lambda rows: above.take(leaf(rows)))
    chunker.feed(entries)
    if chunker.pending:
        chunker.close()
    return above.finish()


def build_above(level: int, children: Iterable[Child], sink: NodeSink, shape: ChunkParams = SHAPE) -> Root | None:
    """Build the branches from `level` up over all the nodes of the level below it, and return the root."""
    above = BranchBuilder(level, sink, shape)
    above.feed(children)
    return above.finish()


class BranchBuilder:
    """Builds the branches of a tree, from one level up."""

    def __init__(self, level: int, sink: NodeSink, shape: ChunkParams) -> None:
        self._base = level
        self._sink = sink
        self._shape = shape
        self._chunkers: list[Chunker[Child]] = []
        self._staged = 0

    def take(self, node: Node) -> None:
        """Save a finished node and add its row to the level above it."""
        child = child_of(node, self._sink.save(node))
        self._staged += 1
        if self._staged >= FLUSH_EVERY:
            self._sink.flush()
            self._staged = 0
        self._chunker(node.level + 1).feed((child,))

    def feed(self, children: Iterable[Child]) -> None:
        self._chunker(self._base).feed(children)

    def finish(self) -> Root | None:
        """Close every level from below, and return the root: the single row of the highest level."""
        root = None
        # Closing a level can append the next to the list; this ends, since every level is at most half of the last.
        for level, chunker in enumerate(self._chunkers, self._base):
            if chunker.held is not None and len(chunker.pending) == 1:
                chunker.held += chunker.pending
            elif len(chunker.pending) == 1:
                root = root_of(level - 1, chunker.pending[0])
                break
            elif chunker.pending:
                chunker.close()
            chunker.release()
        self._sink.flush()
        return root

    def _chunker(self, level: int) -> Chunker[Child]:
        if level - self._base == len(self._chunkers):
            self._chunkers.append(Chunker(level, self._shape, partial(self._emit, level)))
        return self._chunkers[level - self._base]

    def _emit(self, level: int, rows: list[Child]) -> None:
        self.take(branch(level, rows))
