"""What has to happen to a target so that it is a copy of the source: pairs that differ, in order of path."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct, field

from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.core.iterators import batched
from bayou.index.log import Tally
from bayou.index.tree import IndexTree, diff, find_many
from bayou.maintenance.replica.copy import Pair
from bayou.maintenance.replica.target import Target, same
from bayou.sync.plan.policy import version_dir

WINDOW = 20_000
"""Pairs that are held at once."""

_LOOKED_UP = 1000


class Counts(Struct):
    """How much a plan comes to."""

    copies: int = 0
    bytes: int = 0
    changed: int = 0
    """Of the copies, how many replace another content."""
    records: int = 0
    deletes: int = 0

    def add(self, pair: Pair) -> bool:
        """Count a pair; return whether anything has to be done about it."""
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
        """What a log says of a commit that does all of it."""
        return Tally(self.copies - self.changed, self.changed + self.records, self.deletes, self.bytes)


class Plan(Struct):
    """The pairs that something has to be done about. Read as often as needed: few are held, many are found out anew."""

    counts: Counts
    _again: Callable[[], Iterator[Pair]]
    _held: list[Pair] | None = field(default_factory=list)

    def pairs(self) -> Iterator[Pair]:
        return iter(self._held) if self._held is not None else self._again()


def plan(source: IndexTree, target: Target) -> Plan:
    """Compare source and target.

    After a whole replication only what the source has changed since is looked at; else everything.
    """
    if target.replica.whole and target.untouched:
        try:
            return _plan(lambda: _since(source, target))
        except (NodeMissing, NodeDamaged):
            pass  # what the source was then has been collected: the entries themselves still tell
    return _plan(lambda: _everything(source, target))


def windows(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Yield pairs as many at a time as are held at once, and never part of a version without the rest."""
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


def _plan(pairs: Callable[[], Iterator[Pair]]) -> Plan:
    found = Plan(Counts(), lambda: (pair for pair in pairs() if pair.action != "keep"))
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
    """Yield the paths that the source has changed since it was replicated."""
    if same(source.root, target.replica.root):
        return
    changes = diff(IndexTree(source.source, target.replica.root), source)
    for some in batched(changes, _LOOKED_UP):
        there = find_many(target.tree, [change.path for change in some])
        yield from (Pair(change.path, change.new, there.get(change.path)) for change in some)


def _everything(source: IndexTree, target: Target) -> Iterator[Pair]:
    """Yield every path of either side: no entry of one is equal to the other's, which has a key of its own."""
    return (Pair(change.path, change.new, change.old) for change in diff(target.tree, source))
