"""Upload and commit what this machine has to give."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from bayou.core.errors import NodeMissing
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen
from bayou.index.key_range import KeyRange, KeyRanges
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, diff
from bayou.state import base, file_stats, journal
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext
from bayou.sync.plan import steps
from bayou.sync.plan.decision_table import Action, decide
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.steps import PathAction
from bayou.sync.report import CommitId
from bayou.sync.transfer import push

_UPLOADED = (Action.PUSH, Action.PUSH_BACK)


class PushBatch(Struct):
    """What a push carries: each path's step, and the entry that it gets (None: it is deleted).

    `files` are those that were uploaded, as they were when they were read.
    """

    steps: dict[str, PathAction]
    entries: dict[str, Entry | None]
    files: Mapping[str, Observed]
    gc: int

    def observed(self, path: str) -> Observed:
        return self.files.get(path) or self.steps[path].observed

    def hold_back(self, lost: Iterable[str]) -> None:
        """Leave out files that could not be uploaded, and with each the version that it belongs to."""
        lost = set(lost)
        units = {version_dir(path) for path in lost} - {None}
        self.entries = {
            path: entry
            for path, entry in self.entries.items()
            if path not in lost and (not units or version_dir(path) not in units)
        }

    @property
    def units(self) -> set[str]:
        return {unit for path in self.entries if (unit := version_dir(path)) is not None}


class Publishing(Struct, frozen=True):
    """What is on its way to the store: steps that were decided for the head `planned`, and their uploads."""

    pushes: Sequence[PathAction]
    planned: HeadSeen
    uploads: push.Underway


def begin(context: SyncContext, pushes: Sequence[PathAction], planned: HeadSeen) -> Publishing:
    """Begin to upload."""
    uploads = [one.observed for one in pushes if one.action in _UPLOADED]
    return Publishing(pushes, planned, push.begin(context, uploads, planned.head.gc))


def finish(context: SyncContext, publishing: Publishing, newest: HeadSeen) -> tuple[set[str], HeadSeen]:
    """Wait for the uploads and commit them, on top of the newest head that is known; return the paths that
    turned out to need another decision, and the newest head since.

    A step that pushes nothing is committed as the store has it: whatever was on its way there comes too late then.
    """
    pushes, seen = publishing.pushes, publishing.planned
    uploaded = push.finish(context, publishing.uploads)
    carry = PushBatch({one.path: one for one in pushes}, dict(uploaded), publishing.uploads.files, seen.head.gc.count)
    carry.entries.update({one.path: None for one in pushes if one.action is Action.DELETE_REMOTE})
    carry.entries.update({one.path: one.remote for one in pushes if not one.action.pushes})
    lost = {one.path for one in pushes if one.action in _UPLOADED} - uploaded.keys()
    carry.hold_back(lost)
    deletes = sum(one.action is Action.DELETE_REMOTE for one in pushes)
    entries = seen.head.root.entries if seen.head.root else 0
    leftover: set[str] = set()

    def choose(head: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        leftover.clear()
        if head.head.gc.count != carry.gc:
            lost.update(_make_again(context, carry, head))
        torn = _changed_units(context, carry, seen, head)
        changes: dict[str, Entry | None] = {}
        for path, entry in carry.entries.items():
            one, there = carry.steps[path], remote.get(path)
            same = there == one.remote or decide(one.base, carry.observed(path).state, there).pushes
            if same and not (torn and version_dir(path) in torn):
                changes[path] = entry
            else:
                leftover.add(path)
        return changes

    done = commit.commit(
        context.store,
        context.cache,
        context.database,
        context.place,
        newest,
        list(carry.entries),
        choose,
        by=context.by,
        deadline=context.deadline,
        mass_delete=context.options.allow_mass_delete
        and (steps.is_mass(deletes, entries) or (context.mass_delete and deletes > 0)),
    )
    # What failed is told; what changed while it was read is looked at again.
    leftover |= lost - {one.path for one in context.report.failed}
    if done is None:
        return leftover, newest
    _finish(context, done, carry)
    context.report.commit = CommitId(done.seq, done.commit)
    return leftover, done.seen


def _make_again(context: SyncContext, carry: PushBatch, head: HeadSeen) -> set[str]:
    """A collection ran since: what it may have taken is uploaded again, under a new id (T13). Return what could not."""
    gc = head.head.gc
    ours = {path: entry for path, entry in carry.entries.items() if entry != carry.steps[path].remote}
    uploads = {path: entry for path, entry in ours.items() if entry is not None}
    files_of = {path: carry.observed(path) for path in uploads}
    renewed = push.renew(context, uploads, files_of, gc)
    carry.entries.update(renewed)
    carry.gc = gc.count
    lost = uploads.keys() - renewed.keys()
    carry.hold_back(lost)
    return lost


def _changed_units(context: SyncContext, carry: PushBatch, planned: HeadSeen, head: HeadSeen) -> set[str]:
    """Return the versions of which any file has changed since the head that was planned for: they must not be torn."""
    units = carry.units if planned.head.commit != head.head.commit else set()
    if not units:
        return set()
    source = StoreNodes(context.store, context.cache)
    try:
        within = KeyRanges(KeyRange.under(f"{unit}/") for unit in units)
        changes = diff(IndexTree(source, planned.head.root), IndexTree(source, head.head.root), within)
        return units & {unit for change in changes if (unit := version_dir(change.path)) is not None}
    except NodeMissing:
        return units  # the older root was collected: nobody can tell


def _take(context: SyncContext, db: sqlite3.Connection, done: commit.Committed) -> None:
    """Make base what was committed: at once, where it was all of the head that the commit replaced; else row by row."""
    old, new = done.replaced, done.seen.head
    if old is not None and context.base.can_replace_root(old.root, new.root):
        base.replace_root(db, context.place, new.root, done.changes)
    else:
        base.record_entries(db, context.place, done.changes)


def _finish(context: SyncContext, done: commit.Committed, carry: PushBatch) -> None:
    """Make base what was committed, whatever the disk holds by now (T6), and drop the journal rows it carried."""
    report = context.report
    expected: list[str] = []
    kept: list[file_stats.Row] = []
    still: dict[str, int] = {}
    with context.database.transaction() as db:
        for path, entry in done.changes.items():
            one = carry.observed(path) if path in carry.steps else None
            unmoved = one is not None and context.unmoved(one)
            changed = one is None or entry != carry.steps[path].remote
            if entry is None:
                file_stats.delete(db, path)
                report.pushed.deleted += changed
            else:
                # V17: files and bytes of what this run committed, also of what a killed push had uploaded.
                report.pushed.files += changed
                report.pushed.bytes += entry.size if changed else 0
                if unmoved and one is not None and one.content is not None:
                    kept.append(file_stats.make_row(path, one.content, one.looked, context.place))
                else:
                    expected.append(path)
            if unmoved and one is not None:
                still[path] = one.through
        _take(context, db, done)
        file_stats.save_many(db, kept)
        for path in expected:
            file_stats.save_unhashed(db, path, context.place)
        push.forget(db, context.place, done.changes.keys())
        if not journal.is_empty(db, context.place):
            # Closed when the bytes were read, the newest still, and the disk has those bytes still.
            for path, through in still.items():
                journal.drop_rows(db, context.place, path, through)
        db.execute(commit.FORGET, (context.place,))
