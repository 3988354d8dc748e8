"""Apply a batch of changes to a tree, rewriting only the nodes near them.

Level by level from below: the changes of a level fall into some of its old nodes. Each such node is read, changed and
cut anew; where a new boundary meets an old one, all that follows is as it was, up to the next change. What was replaced
by what is the batch of changes for the level above. The result is the tree that a build from scratch would give.

Find one's way in an old tree, level by level, loading as little of it as possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from bayou.index.build import SHAPE, Chunker, ChunkParams, build, build_above, row_key
from bayou.index.entry import Entry
from bayou.index.node import Branch, Child, Digest, Node, Ref, Root, branch, child_of, leaf, root_of
from bayou.index.tree import IndexTree, NodeSink, NodeSource, branches, leaves, spread

Position: TypeAlias = tuple[int, ...]
"""A node's place: which child to take at each branch from the root down. Longer is deeper; order is order of paths."""

Part: TypeAlias = tuple[Position, int, int]
"""A node's place, and which slice of the keys falls into it."""


class BranchCursor:
    """The branches of one tree that have been needed so far."""

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
                for child, first, end in spread(self._branches[at].rows, keys, lo, hi)
            ]
        return parts

    def nodes(self, level: int, places: Sequence[Position]) -> Iterator[Node]:
        """Yield the nodes at these places in order, a few ahead; leaves are not kept."""
        if level == 0:
            return iter(leaves(self._source, [self.ref(at) for at in places]))
        self._load(places)
        return (self._branches[at] for at in places)

    def ref(self, at: Position) -> Ref:
        """Return what names the node at a place."""
        return self._branch(at[:-1]).rows[at[-1]] if at else self._root

    def is_last(self, at: Position) -> bool:
        """Whether no node of its level comes after this one; nothing is loaded to know it."""
        return all(at[depth] == len(self._branch(at[:depth]).rows) - 1 for depth in range(len(at)))

    def after(self, at: Position) -> Position:
        """Return the place of the next node of the level; there must be one."""
        *above, index = at
        parent = tuple(above)
        if index + 1 < len(self._branch(parent).rows):
            return (*parent, index + 1)
        return (*self.after(parent), 0)

    def before(self, at: Position) -> Position | None:
        """Return the place of the node before this one, or None if it is the first."""
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

    def _load(self, places: Sequence[Position]) -> None:
        """Load the branches at these places of one level that are not here yet."""
        missing = [at for at in places if at not in self._branches]
        if missing:
            level = self._root.level - len(missing[0])
            nodes = branches(self._source, level, [self.ref(at) for at in missing])
            self._branches.update(zip(missing, nodes, strict=True))


Edits: TypeAlias = list[tuple[str, Any]]
"""Sorted keys of a level's rows, each with the row that it has from now on (an `Entry` or a `Child`), or None."""


def merge(
    tree: IndexTree, changes: Mapping[str, Entry | None], sink: NodeSink, shape: ChunkParams = SHAPE
) -> Root | None:
    """Return the root of `tree` with each path of `changes` set to its entry, or without it where that is None.

    Everything is read before anything is stored: a node that is missing or damaged leaves no trace (V4). Nodes of
    `tree` are shared, and no others: whoever publishes the result must replace exactly `tree.root` by it.
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


def _merge(spine: BranchCursor, root: Root, edits: Edits, sink: NodeSink, shape: ChunkParams) -> Root | None:
    top: list[Child] = []
    for level in range(root.level + 1):
        if not edits:
            return root
        rewriting = _Level(level, spine, sink, shape)
        only = rewriting.run(edits)
        if only is not None:
            return root_of(level - 1, only)
        edits, top = rewriting.edits(), rewriting.made
    # The root was the only node of its level, so what was made of it is the whole level now.
    return build_above(root.level + 1, top, sink, shape)


class _Level:
    """The rewriting of one level."""

    def __init__(self, level: int, spine: BranchCursor, sink: NodeSink, shape: ChunkParams) -> None:
        self._level = level
        self._spine = spine
        self._sink = sink
        self._packer: Chunker[Any] = Chunker(level, shape, self._emit)
        self._replaced: dict[Position, Child] = {}
        self._by_digest: dict[Digest, Child] = {}
        self.made: list[Child] = []

    def run(self, edits: Edits) -> Child | None:
        """Rewrite what the edits touch. Return a child if it turns out to be the only row of this level."""
        packer, spine = self._packer, self._spine
        dirty = spine.divide(self._level, [key for key, _ in edits])
        nodes = spine.nodes(self._level, [at for at, _, _ in dirty])
        done = 0
        at: Position = ()
        while packer.pending or done < len(dirty):
            # An open node goes on into the next old one; otherwise all is as it was until the next change.
            at = spine.after(at) if packer.pending else dirty[done][0]
            if done < len(dirty) and dirty[done][0] == at:
                _, lo, hi = dirty[done]
                packer.feed(_apply(self._take(at, next(nodes)), edits[lo:hi], self._level))
                done += 1
            else:
                packer.feed(self._take(at, next(spine.nodes(self._level, [at]))))
            if spine.is_last(at):
                return self._end(at)
        packer.release()
        return None

    def edits(self) -> Edits:
        """Return what this level's rewriting changes in the level above."""
        above: dict[str, Child | None] = {child.first: None for child in self._replaced.values()}
        kept = set(self._replaced.values())
        for child in self.made:
            if child in kept:
                del above[child.first]
            else:
                above[child.first] = child
        return sorted(above.items())

    def _take(self, at: Position, node: Node) -> Sequence[Any]:
        """Note that an old node is being replaced, and return its rows."""
        child = child_of(node, self._spine.ref(at).node)
        self._replaced[at] = child
        self._by_digest[child.digest] = child
        return node.rows

    def _end(self, at: Position) -> Child | None:
        """Close the level after its last old node; one row that is left joins the node before it."""
        packer = self._packer
        if self._level and len(packer.pending) == 1:
            before = self._spine.before(at)
            while before in self._replaced:
                before = self._spine.before(before)
            if before is None and packer.held is None:
                return packer.pending[0]  # type: ignore[no-any-return]
            if packer.held is None or (before is not None and self._first(before) > packer.held[0].first):
                assert before is not None
                packer.release()
                packer.held = [*self._take(before, next(self._spine.nodes(self._level, [before])))]
            packer.held += packer.pending
        elif packer.pending:
            packer.close()
        packer.release()
        return None

    def _first(self, at: Position) -> str:
        ref = self._spine.ref(at)
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
    for at, row in edits:
        place = bisect_left(rows, at, done, key=key)
        yield from rows[done:place]
        if row is not None:
            yield row
        done = place + (place < len(rows) and key(rows[place]) == at)
    yield from rows[done:]
