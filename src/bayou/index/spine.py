"""Find one's way in an old tree, level by level, loading as little of it as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from bayou.index.node import Branch, Node, Ref, Root
from bayou.index.read import spread
from bayou.index.tree import NodeSource, branches, leaves

Position: TypeAlias = tuple[int, ...]
"""A node's place: which child to take at each branch from the root down. Longer is deeper; order is order of paths."""

Part: TypeAlias = tuple[Position, int, int]
"""A node's place, and which slice of the keys falls into it."""


class Spine:
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
