"""Merge a batch of changes into a tree, rewriting only the nodes near them.

The merge works level by level from the leaves up. The changes of a level fall into some of its old nodes; each such
node is read, changed and divided into new nodes. Where a new boundary meets an old one, all that follows is unchanged
up to the next change. The nodes that were replaced are the batch of changes for the level above. The result is the tree
that a build from scratch would give. `BranchCursor` navigates the old tree and loads as few branches as possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from bayou.index.build import SHAPE, Chunker, ChunkParams, build, build_above, row_key
from bayou.index.entry import Entry
from bayou.index.node import Branch, Child, Digest, Node, Ref, Root, branch, child_of, leaf, root_of
from bayou.index.tree import IndexTree, NodeSink, NodeSource, branches, distribute, leaves

Position: TypeAlias = tuple[int, ...]
"""A node's position: the child to take at each branch from the root down. Positions sort in order of paths."""

Part: TypeAlias = tuple[Position, int, int]
"""A node's position, and the slice of the keys that falls into the node."""

Edits: TypeAlias = list[tuple[str, Any]]
"""Sorted keys of a level's rows, each with its new row (an `Entry` or a `Child`), or None for a row to delete."""


class BranchCursor:
    """The branches of one tree that the merge has loaded so far, and the steps between its nodes."""

    def __init__(self, source: NodeSource, root: Root) -> None:
        self._source = source
        self._root = root
        self._branches: dict[Position, Branch] = {}

    def divide(self, level: int, keys: Sequence[str]) -> list[Part]:
        """Divide sorted keys among the nodes of a level, loading the branches above them together."""
        parts: list[Part] = [((), 0, len(keys))]
        for _ in range(self._root.level - level):
            self._load([at for at, _, _ in parts])
            parts = [
                ((*at, child), first, end)
                for at, lo, hi in parts
                for child, first, end in distribute(self._branches[at].rows, keys, lo, hi)
            ]
        return parts

    def nodes(self, level: int, positions: Sequence[Position]) -> Iterator[Node]:
        """Yield the nodes at these positions in order, a few ahead of the reader; leaves are not kept in memory."""
        if level == 0:
            return iter(leaves(self._source, [self.ref(at) for at in positions]))
        self._load(positions)
        return (self._branches[at] for at in positions)

    def ref(self, at: Position) -> Ref:
        """Return the reference to the node at a position."""
        return self._branch(at[:-1]).rows[at[-1]] if at else self._root

    def is_last(self, at: Position) -> bool:
        """Return whether no node of its level comes after this one."""
        return all(at[depth] == len(self._branch(at[:depth]).rows) - 1 for depth in range(len(at)))

    def after(self, at: Position) -> Position:
        """Return the position of the next node of the level; there must be one."""
        *above, index = at
        parent = tuple(above)
        if index + 1 < len(self._branch(parent).rows):
            return (*parent, index + 1)
        return (*self.after(parent), 0)

    def before(self, at: Position) -> Position | None:
        """Return the position of the node before this one, or None if this is the first."""
        if not any(at):
            return None
        *above, index = at
        if index:
            return (*above, index - 1)
        parent = self.before(tuple(above))
        assert parent is not None  # some index above is not 0
        return (*parent, len(self._branch(parent).rows) - 1)

    def _branch(self, at: Position) -> Branch:
        if at not in self._branches:
            self._load([at])
        return self._branches[at]

    def _load(self, positions: Sequence[Position]) -> None:
        """Load the branches at these positions of one level that are not loaded yet."""
        missing = [at for at in positions if at not in self._branches]
        if missing:
            level = self._root.level - len(missing[0])
            nodes = branches(self._source, level, [self.ref(at) for at in missing])
            self._branches.update(zip(missing, nodes, strict=True))


def merge(
    tree: IndexTree, changes: Mapping[str, Entry | None], sink: NodeSink, shape: ChunkParams = SHAPE
) -> Root | None:
    """Return the root of `tree` with each path of `changes` set to its entry, or deleted where that is None.

    Everything is read before anything is stored, so that a missing or damaged node leaves no trace (V4). The result
    shares nodes with `tree` and with no other tree: the commit must replace exactly `tree.root` by it.
    """
    edits = sorted(changes.items())
    for path, entry in edits:
        if entry is not None and entry.path != path:
            raise ValueError(f"the entry of {path!r} says that its path is {entry.path!r}")
    if tree.root is None:
        return build((entry for _, entry in edits if entry is not None), sink, shape)
    root = _merge(BranchCursor(tree.source, tree.root), tree.root, edits, sink, shape)
    sink.flush()
    return root


def _merge(cursor: BranchCursor, root: Root, edits: Edits, sink: NodeSink, shape: ChunkParams) -> Root | None:
    top: list[Child] = []
    for level in range(root.level + 1):
        if not edits:
            return root
        merging = _LevelMerge(level, cursor, sink, shape)
        only = merging.run(edits)
        if only is not None:
            return root_of(level - 1, only)
        edits, top = merging.edits(), merging.made
    # The root was the only node of its level, so the nodes made from it are the whole level now.
    return build_above(root.level + 1, top, sink, shape)


class _LevelMerge:
    """The merge of one level."""

    def __init__(self, level: int, cursor: BranchCursor, sink: NodeSink, shape: ChunkParams) -> None:
        self._level = level
        self._cursor = cursor
        self._sink = sink
        self._chunker: Chunker[Any] = Chunker(level, shape, self._emit)
        self._replaced: dict[Position, Child] = {}
        self._by_digest: dict[Digest, Child] = {}
        self.made: list[Child] = []

    def run(self, edits: Edits) -> Child | None:
        """Rewrite the nodes that the edits touch. Return a child if it turns out to be the only row of this level."""
        chunker, cursor = self._chunker, self._cursor
        dirty = cursor.divide(self._level, [key for key, _ in edits])
        nodes = cursor.nodes(self._level, [at for at, _, _ in dirty])
        done = 0
        at: Position = ()
        while chunker.pending or done < len(dirty):
            # An open node continues into the next old node; otherwise all is unchanged until the next edit.
            at = cursor.after(at) if chunker.pending else dirty[done][0]
            if done < len(dirty) and dirty[done][0] == at:
                _, lo, hi = dirty[done]
                chunker.feed(_apply(self._take(at, next(nodes)), edits[lo:hi], self._level))
                done += 1
            else:
                chunker.feed(self._take(at, next(cursor.nodes(self._level, [at]))))
            if cursor.is_last(at):
                return self._end(at)
        chunker.release()
        return None

    def edits(self) -> Edits:
        """Return the edits of the level above that follow from this level's merge."""
        above: dict[str, Child | None] = {child.first: None for child in self._replaced.values()}
        kept = set(self._replaced.values())
        for child in self.made:
            if child in kept:
                del above[child.first]
            else:
                above[child.first] = child
        return sorted(above.items())

    def _take(self, at: Position, node: Node) -> Sequence[Any]:
        """Record that an old node is being replaced, and return its rows."""
        child = child_of(node, self._cursor.ref(at).node)
        self._replaced[at] = child
        self._by_digest[child.digest] = child
        return node.rows

    def _end(self, at: Position) -> Child | None:
        """Close the level after its last old node; a single row that is left joins the node before it."""
        chunker = self._chunker
        if self._level and len(chunker.pending) == 1:
            before = self._cursor.before(at)
            while before in self._replaced:
                before = self._cursor.before(before)
            if before is None and chunker.held is None:
                return chunker.pending[0]  # type: ignore[no-any-return]
            if chunker.held is None or (before is not None and self._first(before) > chunker.held[0].first):
                assert before is not None
                chunker.release()
                chunker.held = [*self._take(before, next(self._cursor.nodes(self._level, [before])))]
            chunker.held += chunker.pending
        elif chunker.pending:
            chunker.close()
        chunker.release()
        return None

    def _first(self, at: Position) -> str:
        ref = self._cursor.ref(at)
        assert isinstance(ref, Child)  # the root is the only node of its level, and is being replaced
        return ref.first

    def _emit(self, rows: list[Any]) -> None:
        node = branch(self._level, rows) if self._level else leaf(rows)
        # The same rows as before are the same node: keep its name, and with it everything below.
        self.made.append(self._by_digest.get(node.digest) or child_of(node, self._sink.save(node)))


def _apply(rows: Sequence[Any], edits: Edits, level: int) -> Iterator[Any]:
    """Yield the rows of a node with the edits made."""
    key = row_key(level)
    done = 0
    for edited, row in edits:
        at = bisect_left(rows, edited, done, key=key)
        yield from rows[done:at]
        if row is not None:
            yield row
        done = at + (at < len(rows) and key(rows[at]) == edited)
    yield from rows[done:]
