"""Replicate in this process: windows of pairs, copied by many threads, merged into the target's tree one by one.

Publish what was copied: one compare-and-swap of the target's head (V1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import BadAnswer, PreconditionFailed, StoreError
from bayou.core.progress import Progress
from bayou.index.entry import Entry
from bayou.index.head import Head, Replica, advance, iter_log, read_head, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node import Root
from bayou.index.node_store import StagingSink, StoreNodes
from bayou.index.tree import IndexTree, diff
from bayou.maintenance.replica.copy import Age, Pair, copy_all
from bayou.maintenance.replica.plan import Counts, Plan, windows
from bayou.maintenance.replica.target import Target
from bayou.objectstore.store import Store
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.steps import is_mass
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


def replicate(source: Store, target: Target, plan: Plan, age: Age, sink: StagingSink, progress: Progress) -> Made:
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
    held = PendingCopies.of(failed)
    return {
        pair.path: come.get(pair.path) if pair.action == "copy" else pair.settled
        for pair in window
        if not held.back(pair.path)
    }


class PendingCopies(Struct, frozen=True):
    """What stays as the target has it, since something of it could not be copied: a version changes whole or not."""

    paths: frozenset[str]
    units: frozenset[str]

    @classmethod
    def of(cls, failed: Sequence[Failure]) -> PendingCopies:
        units = (version_dir(one.path) for one in failed)
        return cls(frozenset(one.path for one in failed), frozenset(unit for unit in units if unit is not None))

    def back(self, path: str) -> bool:
        return path in self.paths or (bool(self.units) and version_dir(path) in self.units)


def tally_of(target: Target, made: Made, counts: Counts) -> Tally:
    """Return what the new tree changes: what was planned, or, where not all of that came to be, what is different."""
    if not made.failures:
        return counts.tally
    added = changed = deleted = size = 0
    for change in diff(target.tree, IndexTree(target.tree.source, made.root)):
        added += change.old is None
        deleted += change.new is None
        changed += change.old is not None and change.new is not None
        if change.new is not None and (change.old is None or change.old.push != change.new.push):
            size += change.new.size
    return Tally(added, changed, deleted, size)


def swap(target: Target, source: Head, number: str, made: Made, tally: Tally, by: str) -> bool:
    """Put the new tree, of the commit `number`, in the place of exactly the head that was looked at.

    False if that is not the head any more: then nothing has changed that anybody can see (V11).
    """
    assert target.seen is not None
    head, whole = target.seen.head, made.failures == 0
    replica = Replica(
        source.store, source.seq, source.commit, source.rebuilt, source.root if whole else None, made.root, whole
    )
    new, page = advance(
        head,
        commit=number,
        at=now(),
        by=by,
        root=made.root,
        trash=head.trash,
        tally=tally,
        mass_delete=is_mass(tally.deleted, head.root.entries if head.root is not None else 0),
    )
    try:
        swap_head(target.store, replace(new, replica=replica), target.seen.match, page)
    except PreconditionFailed:
        return False
    except StoreError as error:
        if not error.ambiguous:
            raise
        return _landed(target.store, number, head.seq)
    return True


def _landed(target: Store, number: str, after: int) -> bool:
    """Find out whether a swap without an answer came through."""
    seen = read_head(target)
    if seen is None:
        raise BadAnswer(f"{target.url} says that its head is not modified, and nobody asked that")
    for row in iter_log(target, seen.head):
        if row.seq <= after:
            break
        if row.commit == number:
            return True
    return False
