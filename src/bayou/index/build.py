"""Build a tree from sorted entries, in one pass, with one or two open nodes per level in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bayou.index.chunk import SHAPE, Packer, Shape
from bayou.index.entry import Entry
from bayou.index.node import Child, Node, Root, branch, child_of, leaf, root_of
from bayou.index.tree import NodeSink

FLUSH_EVERY = 64
"""Nodes: a build reads nothing that could still fail, so it lets go of them as they are made."""


def build(entries: Iterable[Entry], sink: NodeSink, shape: Shape = SHAPE) -> Root | None:
    """Build the tree of `entries` and return its root, or None if there are none.

    They must come sorted by path and unique; else `ValueError`.
    """
    above = Levels(1, sink, shape)
    packer = Packer[Entry](0, shape, lambda rows: above.take(leaf(rows)))
    packer.feed(entries)
    if packer.pending:
        packer.close()
    return above.finish()


def build_above(level: int, children: Iterable[Child], sink: NodeSink, shape: Shape = SHAPE) -> Root | None:
    """Build the branches from `level` up over all the nodes of the level below it, and return the root."""
    above = Levels(level, sink, shape)
    above.feed(children)
    return above.finish()


class Levels:
    """The branches of a tree that is being built, from one level up."""

    def __init__(self, level: int, sink: NodeSink, shape: Shape) -> None:
        self._base = level
        self._sink = sink
        self._shape = shape
        self._packers: list[Packer[Child]] = []
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

    def _packer(self, level: int) -> Packer[Child]:
        if level - self._base == len(self._packers):
            self._packers.append(Packer(level, self._shape, partial(self._emit, level)))
        return self._packers[level - self._base]

    def _emit(self, level: int, rows: list[Child]) -> None:
        self.take(branch(level, rows))
