"""Look entries up and scan ranges, touching only the nodes on the way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from bayou.index.entry import Entry
from bayou.index.node import Child, Ref
from bayou.index.span import EVERYTHING, Span
from bayou.index.tree import NodeSource, Tree, branches, leaves

_first = attrgetter("first")


def find(tree: Tree, path: str) -> Entry | None:
    """Return the entry of one path, or None."""
    return find_many(tree, (path,)).get(path)


def find_many(tree: Tree, paths: Iterable[str]) -> dict[str, Entry]:
    """Return the entries of those paths that have one; each node is loaded once, a level at a time."""
    wanted = sorted(set(paths))
    if tree.root is None or not wanted:
        return {}
    todo: list[tuple[Ref, list[str]]] = [(tree.root, wanted)]
    for level in range(tree.root.level, 0, -1):
        nodes = branches(tree.source, level, [ref for ref, _ in todo])
        todo = [
            (node.rows[at], keys[lo:hi])
            for node, (_, keys) in zip(nodes, todo, strict=True)
            for at, lo, hi in spread(node.rows, keys, 0, len(keys))
        ]
    found = {}
    for node, (_, keys) in zip(leaves(tree.source, [ref for ref, _ in todo]), todo, strict=True):
        rows = {row.path: row for row in node.rows}
        found.update({key: rows[key] for key in keys if key in rows})
    return found


def scan(tree: Tree, span: Span = EVERYTHING) -> Iterator[Entry]:
    """Yield the entries of a range in order, holding only a few nodes at a time."""
    if tree.root is not None:
        yield from _scan(tree.source, tree.root.level, [tree.root], span)


def names(tree: Tree) -> Iterator[str]:
    """Yield the name of every node of a tree; only branches are loaded."""
    if tree.root is None:
        return
    refs: Sequence[Ref] = [tree.root]
    yield tree.root.node
    for level in range(tree.root.level, 0, -1):
        refs = [row for node in branches(tree.source, level, refs) for row in node.rows]
        yield from (ref.node for ref in refs)


def spread(rows: Sequence[Child], keys: Sequence[str], lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
    """Divide the sorted `keys[lo:hi]` among children: yield the child's place and its part of the keys.

    Every key has a child: the last that begins at or before it, or the very first.
    """
    while lo < hi:
        at = max(0, bisect_right(rows, keys[lo], key=_first) - 1)
        end = bisect_left(keys, rows[at + 1].first, lo, hi) if at + 1 < len(rows) else hi
        yield at, lo, end
        lo = end


def _scan(source: NodeSource, level: int, refs: Sequence[Ref], span: Span) -> Iterator[Entry]:
    if level == 0:
        for leaf in leaves(source, refs):
            yield from span.rows(leaf)
        return
    for branch in branches(source, level, refs):
        yield from _scan(source, level - 1, [row for row in branch.rows if span.touches(row)], span)
