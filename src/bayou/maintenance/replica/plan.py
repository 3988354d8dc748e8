"""Plan a replication: find the pairs of entries in which source and target differ, in path order.

If the target is a whole copy of an earlier commit of the source, the plan reads only what the source has changed since;
otherwise it compares the whole trees. A small plan is kept in memory; a large one is computed again when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct, field

from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.core.iterators import batched
from bayou.index.log import Tally
from bayou.index.tree import IndexTree, diff, find_many
from bayou.maintenance.replica.pairs import Pair
from bayou.maintenance.replica.target import Target, same
from bayou.sync.plan.policy import version_dir

WINDOW = 20_000
"""Pairs that are in memory at once."""

_LOOKUP_BATCH = 1000


class Counts(Struct):
    """How many pairs of a plan have which action, and the bytes to copy."""

    copies: int = 0
    bytes: int = 0
    changed: int = 0
    """The copies that replace another content."""
    records: int = 0
    deletes: int = 0

    def add(self, pair: Pair) -> bool:
        """Count a pair; return whether the target has to change."""
        action = pair.action
        if action == "copy" and pair.source is not None:
            self.copies += 1
            self.bytes += pair.source.size
            self.changed += pair.target is not None
        elif action == "record":
            self.records += 1
        elif action == "delete":
            self.deletes += 1
        return action != "keep"

    @property
    def any(self) -> bool:
        return bool(self.copies or self.records or self.deletes)

    @property
    def tally(self) -> Tally:
        """The log's tally of a commit that carries out the whole plan."""
        return Tally(self.copies - self.changed, self.changed + self.records, self.deletes, self.bytes)


class ReplicaPlan(Struct):
    """The pairs in which the target has to change; `pairs` can be read more than once."""

    counts: Counts
    _again: Callable[[], Iterator[Pair]]
    _held: list[Pair] | None = field(default_factory=list)

    def pairs(self) -> Iterator[Pair]:
        return iter(self._held) if self._held is not None else self._again()


def plan(source: IndexTree, target: Target) -> ReplicaPlan:
    """Compare source and target; after a whole replication, only what the source has changed since."""
    if target.replica.whole and target.untouched:
        try:
            return _plan(lambda: _since(source, target))
        except (NodeMissing, NodeDamaged):
            pass  # the source has collected the nodes of the replicated commit: compare the whole trees
    return _plan(lambda: _everything(source, target))


def windows(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Divide pairs into windows that fit into memory; a version directory is never divided."""
    window: list[Pair] = []
    for pair in pairs:
        if len(window) >= WINDOW and (
            version_dir(pair.path) is None or version_dir(pair.path) != version_dir(window[-1].path)
        ):
            yield window
            window = []
        window.append(pair)
    if window:
        yield window


def _plan(pairs: Callable[[], Iterator[Pair]]) -> ReplicaPlan:
    found = ReplicaPlan(Counts(), lambda: (pair for pair in pairs() if pair.action != "keep"))
    todo = 0
    for pair in pairs():
        if not found.counts.add(pair):
            continue
        todo += 1
        if found._held is not None:
            found._held.append(pair)
            if todo > WINDOW:
                found._held = None
    return found


def _since(source: IndexTree, target: Target) -> Iterator[Pair]:
    """Yield the pairs of paths that the source has changed since it was replicated."""
    if same(source.root, target.replica.root):
        return
    changes = diff(IndexTree(source.source, target.replica.root), source)
    for batch in batched(changes, _LOOKUP_BATCH):
        there = find_many(target.tree, [change.path for change in batch])
        yield from (Pair(change.path, change.new, there.get(change.path)) for change in batch)


def _everything(source: IndexTree, target: Target) -> Iterator[Pair]:
    """Yield the pairs of all paths: entries of the two stores are never equal, since a copy has its own key."""
    return (Pair(change.path, change.new, change.old) for change in diff(target.tree, source))
