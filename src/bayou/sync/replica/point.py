"""Replicate in this process: windows of pairs, copied by many threads, merged into the target's tree one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from bayou.core.progress import Progress
from bayou.index.entry import Entry
from bayou.index.merge import merge
from bayou.index.node import Root
from bayou.index.node_store import Staging, StoreNodes
from bayou.index.tree import IndexTree
from bayou.objectstore.store import Store
from bayou.sync.plan.policy import version_dir
from bayou.sync.replica.copy import Age, copy_all
from bayou.sync.replica.pair import Pair
from bayou.sync.replica.plan import Plan, windows
from bayou.sync.replica.target import Target
from bayou.sync.report import Failure

MOST_FAILED = 1000
"""Failures that are named; of more, only the number is told."""


class Made(Struct):
    """What came of the copying: the target's new root, not yet anybody's, and what was sent for it."""

    root: Root | None
    copied: int = 0
    bytes: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0


def replicate(source: Store, target: Target, plan: Plan, age: Age, sink: Staging, progress: Progress) -> Made:
    """Copy what the plan says, and build the target's next tree in `sink`."""
    made = Made(target.root)
    nodes = StoreNodes(target.store)
    progress.begin("replicating", plan.counts.copies, plan.counts.bytes)
    try:
        for window in windows(plan.pairs()):
            changes = _copy(source, target.store, window, age, made, progress)
            made.root = merge(IndexTree(nodes, made.root), changes, sink)
    finally:
        progress.end()
    sink.flush()
    return made


def _copy(
    source: Store, target: Store, window: Sequence[Pair], age: Age, made: Made, progress: Progress
) -> Mapping[str, Entry | None]:
    """Copy the objects of a window, and return what it changes in the target's index."""
    entries = [pair.source for pair in window if pair.action == "copy" and pair.source is not None]
    come: dict[str, Entry] = {}
    failed: list[Failure] = []
    for entry, result in copy_all(source, target, entries, age):
        if isinstance(result, Failure):
            failed.append(result)
        else:
            come[entry.path] = result.entry
            made.copied += result.sent
            made.bytes += entry.size if result.sent else 0
        progress.advance(files=1, bytes=entry.size)
    made.failures += len(failed)
    made.failed += failed[: MOST_FAILED - len(made.failed)]
    held = Held.of(failed)
    return {
        pair.path: come.get(pair.path) if pair.action == "copy" else pair.settled
        for pair in window
        if not held.back(pair.path)
    }


class Held(Struct, frozen=True):
    """What stays as the target has it, since something of it could not be copied: a version changes whole or not."""

    paths: frozenset[str]
    units: frozenset[str]

    @classmethod
    def of(cls, failed: Sequence[Failure]) -> Held:
        units = (version_dir(one.path) for one in failed)
        return cls(frozenset(one.path for one in failed), frozenset(unit for unit in units if unit is not None))

    def back(self, path: str) -> bool:
        return path in self.paths or (bool(self.units) and version_dir(path) in self.units)
