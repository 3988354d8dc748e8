"""A tree built in parts: each part's own leaves by whoever has its entries, the rest by one who has never all of them.

A leaf that ends by hash ends there whatever comes before it. So from the first such path on, a part of the sorted
entries knows its leaves by itself; what lies before it, and after the last leaf that is whole, are its edges. Edges and
leaves of all parts, in order, give the one tree of all entries, wherever the parts were cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bayou.core.batched import batched
from bayou.index.build import Levels
from bayou.index.chunk import SHAPE, Packer, Shape, ends_leaf
from bayou.index.entry import Entry
from bayou.index.node import Child, Root, child_of, leaf
from bayou.index.tree import NodeSink

Piece = Child | Sequence[Entry]
"""A leaf that is stored, or entries that belong to a leaf which is not known yet."""

_AT_ONCE = 8192
"""Entries: few enough to hold, enough to make a dozen leaves."""


def cut(entries: Iterable[Entry], sink: NodeSink, shape: Shape = SHAPE) -> Iterator[Piece]:
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

    packer = Packer[Entry](0, shape, emit)
    for some in batched(source, _AT_ONCE):
        packer.feed(some)
        sink.flush()
        yield from made
        made.clear()
    if packer.pending:
        yield packer.pending


def stitch(pieces: Iterable[Piece], sink: NodeSink, shape: Shape = SHAPE) -> Root | None:
    """Build the tree of all parts from their pieces, which must come in order, and return its root; None if empty.

    `ValueError` for pieces that overlap, or a leaf that does not begin where another ends.
    """
    above = Levels(1, sink, shape)
    packer = Packer[Entry](0, shape, lambda rows: above.take(leaf(rows)))
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
