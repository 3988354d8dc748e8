"""An index tree: look up paths, scan a range, and compare two trees.

`find_many` and `scan` load only the nodes on the way; `diff` loads only nodes whose digests differ. The protocols
`NodeSource` and `NodeSink` say what a tree needs of a place that stores nodes; `index.node_store` implements them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar, cast

from msgspec import Struct

from bayou.index.entry import Entry
from bayou.index.key_range import EVERYTHING, KeyRange, KeyRanges
from bayou.index.node import Branch, Child, Leaf, Node, Pointer, Ref, Root

T = TypeVar("T")
R = TypeVar("R")


class NodeSource(Protocol):
    """Loads nodes."""

    def load(self, level: int, ref: Ref) -> Node:
        """Return the node that `ref` names, verified against it; else raise `NodeMissing` or `NodeDamaged`."""

    def map(self, fn: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """Apply `fn`, which loads nodes, to each item: in order, several at once, only a few ahead of the reader."""


class NodeSink(Protocol):
    """Stores new nodes."""

    def save(self, node: Node) -> str:
        """Accept a node and return its name. The node need not be stored before `flush`."""

    def flush(self) -> None:
        """Store every node accepted so far; return when all of them can be read."""


class IndexTree(Struct, frozen=True):
    """One version of an index: a root (None: no entries) and the source of its nodes."""

    source: NodeSource
    root: Root | None


def leaves(source: NodeSource, refs: Iterable[Ref]) -> Iterator[Leaf]:
    """Load leaves in order, a few ahead of the reader."""
    return cast("Iterator[Leaf]", source.map(partial(source.load, 0), refs))


def branches(source: NodeSource, level: int, refs: Iterable[Ref]) -> Iterator[Branch]:
    """Load branches of one level in order, a few ahead of the reader."""
    return cast("Iterator[Branch]", source.map(partial(source.load, level), refs))


_first = attrgetter("first")


def find(tree: IndexTree, path: str) -> Entry | None:
    """Return the entry of a path, or None if it has none."""
    return find_many(tree, (path,)).get(path)


def find_many(tree: IndexTree, paths: Iterable[str]) -> dict[str, Entry]:
    """Return the entries of those paths that have one, by path; each node is loaded once, a level at a time."""
    wanted = sorted(set(paths))
    if tree.root is None or not wanted:
        return {}
    todo: list[tuple[Ref, list[str]]] = [(tree.root, wanted)]
    for level in range(tree.root.level, 0, -1):
        nodes = branches(tree.source, level, [ref for ref, _ in todo])
        todo = [
            (node.rows[at], keys[lo:hi])
            for node, (_, keys) in zip(nodes, todo, strict=True)
            for at, lo, hi in distribute(node.rows, keys, 0, len(keys))
        ]
    found = {}
    for node, (_, keys) in zip(leaves(tree.source, [ref for ref, _ in todo]), todo, strict=True):
        rows = {row.path: row for row in node.rows}
        found.update({key: rows[key] for key in keys if key in rows})
    return found


def scan(tree: IndexTree, span: KeyRange = EVERYTHING) -> Iterator[Entry]:
    """Yield the entries of a range in order, with only a few nodes in memory at a time."""
    if tree.root is not None:
        yield from _scan(tree.source, tree.root.level, [tree.root], span)


def names(tree: IndexTree) -> Iterator[str]:
    """Yield the name of every node of a tree; only branches are loaded."""
    if tree.root is None:
        return
    refs: Sequence[Ref] = [tree.root]
    yield tree.root.node
    for level in range(tree.root.level, 0, -1):
        refs = [row for node in branches(tree.source, level, refs) for row in node.rows]
        yield from (ref.node for ref in refs)


def leaf_refs(tree: IndexTree) -> list[Child]:
    """Return the references to the leaves of a tree, in order; none if its root is a leaf. Only branches are loaded."""
    if tree.root is None or tree.root.level == 0:
        return []
    refs: Sequence[Ref] = [tree.root]
    for level in range(tree.root.level, 0, -1):
        refs = [row for node in branches(tree.source, level, refs) for row in node.rows]
    return cast("list[Child]", refs)


def distribute(rows: Sequence[Child], keys: Sequence[str], lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
    """Divide the sorted `keys[lo:hi]` among children: yield each child's position and the slice of its keys.

    Every key belongs to a child: the last that begins at or before the key, or else the first.
    """
    while lo < hi:
        at = max(0, bisect_right(rows, keys[lo], key=_first) - 1)
        end = bisect_left(keys, rows[at + 1].first, lo, hi) if at + 1 < len(rows) else hi
        yield at, lo, end
        lo = end


def _scan(source: NodeSource, level: int, refs: Sequence[Ref], span: KeyRange) -> Iterator[Entry]:
    if level == 0:
        for leaf in leaves(source, refs):
            yield from span.rows(leaf)
        return
    for branch in branches(source, level, refs):
        yield from _scan(source, level - 1, [row for row in branch.rows if span.touches(row)], span)


class Change(Struct, frozen=True):
    """A path whose entries differ; None on the side that has no entry."""

    path: str
    old: Entry | None
    new: Entry | None

    @property
    def moved(self) -> bool:
        """Whether only the location of the bytes differs, which is no change of the file (P4)."""
        return self.old is not None and self.new is not None and self.old.same_content(self.new)


def diff(old: IndexTree, new: IndexTree, span: KeyRange | KeyRanges = EVERYTHING) -> Iterator[Change]:
    """Yield the differences of two trees in a range, in order of path. The trees may have different sources."""
    return _diff(_Side(old.source, old.root, span), _Side(new.source, new.root, span))


def removed(source: NodeSource, old: Root | Pointer | None, new: Root | Pointer | None) -> Iterator[str]:
    """Yield the paths that one version of an index has and another lacks."""
    changes = _diff(_Side(source, old, EVERYTHING), _Side(source, new, EVERYTHING))
    return (change.path for change in changes if change.new is None)


def _diff(left: _Side, right: _Side) -> Iterator[Change]:
    while True:
        _drop_shared(left, right)
        if left.level <= 0 and right.level <= 0:
            break
        level = max(left.level, right.level)
        for side in (left, right):
            if side.level == level:
                side.descend()
    yield from _compare(left.entries(), right.entries())


class _Side:
    """The nodes of one tree, at one level, that may hold a difference."""

    def __init__(self, source: NodeSource, root: Root | Pointer | None, span: KeyRange | KeyRanges) -> None:
        self._source: NodeSource = source
        self._span = span
        self.level = -1 if root is None else root.level
        self.refs: Sequence[Ref] = [] if root is None else [root]

    def descend(self) -> None:
        nodes = branches(self._source, self.level, self.refs)
        self.refs = [row for node in nodes for row in node.rows if self._span.touches(row)]
        self.level -= 1

    def entries(self) -> Iterator[Entry]:
        for leaf in leaves(self._source, self.refs):
            yield from self._span.rows(leaf)


def _drop_shared(left: _Side, right: _Side) -> None:
    """Drop the nodes that both sides have: they hold the same entries, and no other node holds those paths."""
    shared = {ref.digest for ref in left.refs} & {ref.digest for ref in right.refs}
    if shared:
        for side in (left, right):
            side.refs = [ref for ref in side.refs if ref.digest not in shared]


def _compare(olds: Iterator[Entry], news: Iterator[Entry]) -> Iterator[Change]:
    old, new = next(olds, None), next(news, None)
    while old is not None or new is not None:
        if old is not None and (new is None or old.path < new.path):
            yield Change(old.path, old, None)
            old = next(olds, None)
        elif new is not None and (old is None or new.path < old.path):
            yield Change(new.path, None, new)
            new = next(news, None)
        elif old is not None and new is not None:
            if old != new:
                yield Change(old.path, old, new)
            old, new = next(olds, None), next(news, None)
