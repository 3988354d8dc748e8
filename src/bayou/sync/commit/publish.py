"""Push: upload the files that the plan wants in the store, then commit their entries.

`begin` starts the uploads and `finish` waits for them and commits, so that a sync of many windows can plan the next
window in between. The commit is merged into whatever head the store has by then: a path, or a version directory, that
another client has changed since the plan was made is left out and planned again.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import kept
from bayou.core.errors import BayouError, NodeMissing
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen
from bayou.index.key_range import KeyRange, KeyRanges
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, diff
from bayou.state import base, file_stats, journal
from bayou.state.database import dump_entry
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext
from bayou.sync.plan import steps
from bayou.sync.plan.decision_table import Action, decide
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.steps import PathAction
from bayou.sync.report import CommitId
from bayou.sync.transfer import push

_UPLOADED = (Action.PUSH, Action.PUSH_BACK)


class PushBatch(Struct):
    """The paths of one push: each path's planned step, and its new entry (None: the path is deleted).

    `files` are the uploaded files as the scanner read them; `gc` is the store's count of collections at that time.
    """

    steps: dict[str, PathAction]
    entries: dict[str, Entry | None]
    files: Mapping[str, ObservedPath]
    gc: int

    def observed(self, path: str) -> ObservedPath:
        return self.files.get(path) or self.steps[path].observed

    def hold_back(self, lost: Iterable[str]) -> None:
        """Leave out paths that could not be uploaded, and with each path the whole version that it belongs to."""
        lost = set(lost)
        versions = {version_dir(path) for path in lost} - {None}
        self.entries = {
            path: entry
            for path, entry in self.entries.items()
            if path not in lost and (not versions or version_dir(path) not in versions)
        }

    @property
    def versions(self) -> set[str]:
        return {version for path in self.entries if (version := version_dir(path)) is not None}


class StartedPush(Struct, frozen=True):
    """A push whose uploads have started: the steps, the head that they were `planned` for, and the uploads."""

    pushes: Sequence[PathAction]
    planned: HeadSeen
    uploads: push.StartedUploads


def begin(context: SyncContext, pushes: Sequence[PathAction], planned: HeadSeen) -> StartedPush:
    """Start the uploads of a push."""
    uploads = [step.observed for step in pushes if step.action in _UPLOADED]
    return StartedPush(pushes, planned, push.begin(context, uploads, planned.head.gc))


def finish(context: SyncContext, started: StartedPush, newest: HeadSeen) -> tuple[set[str], HeadSeen]:
    """Wait for the uploads and commit them on top of the newest known head; return the paths that must be planned
    again, and the newest head since.

    A step that pushes nothing is committed with the store's own entry: a pending commit to that path then fails.
    """
    pushes, seen = started.pushes, started.planned
    uploaded = push.collect(context, started.uploads)
    files = started.uploads.files
    batch = PushBatch({step.path: step for step in pushes}, dict(uploaded), files, seen.head.gc.count)
    batch.entries.update({step.path: None for step in pushes if step.action is Action.DELETE_REMOTE})
    batch.entries.update({step.path: step.remote for step in pushes if not step.action.pushes})
    lost = {step.path for step in pushes if step.action in _UPLOADED} - uploaded.keys()
    batch.hold_back(lost)
    deletes = sum(step.action is Action.DELETE_REMOTE for step in pushes)
    entries = seen.head.root.entries if seen.head.root else 0
    leftover: set[str] = set()
    committing = False

    def acknowledged() -> bool:
        """Wait for packs that are still on their way; whether all files have arrived that the commit names (V11)."""
        nonlocal committing
        failed = push.acknowledge(context, started.uploads)
        if not committing:
            committing = True
            context.progress.begin("committing", None, None)
        lost.update(failed)
        batch.hold_back(failed)
        return not failed

    def choose(head: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        leftover.clear()
        if head.head.gc.count != batch.gc:
            acknowledged()
            lost.update(_renew_uploads(context, batch, head))
        torn = _changed_versions(context, batch, seen, head)
        changes: dict[str, Entry | None] = {}
        for path, entry in batch.entries.items():
            step, there = batch.steps[path], remote.get(path)
            same = there == step.remote or decide(step.base, batch.observed(path).state, there).pushes
            if same and not (torn and version_dir(path) in torn):
                changes[path] = entry
            else:
                leftover.add(path)
        return changes

    try:
        done = commit.commit(
            context.committer,
            newest,
            list(batch.entries),
            choose,
            before_swap=acknowledged,
            mass_delete=context.options.allow_mass_delete
            and (steps.is_mass(deletes, entries) or (context.state.mass_delete and deletes > 0)),
        )
    except BayouError:
        with suppress(BayouError):
            acknowledged()  # the next push does not send again what has arrived
        raise
    acknowledged()  # also if there is nothing to commit: the next pass finds the files that have arrived
    context.progress.end()
    # The report names what failed; what changed while it was read is planned again.
    failed = lost & {failure.path for failure in context.report.failed}
    leftover |= lost - failed
    _report_held_back(context, pushes, failed)
    if done is None:
        return leftover, newest
    if context.base.remote.seq != done.seq - 1:
        from bayou.sync.run import record_compared  # noqa: PLC0415  (most pushes follow the head that they planned for)

        record_compared(context, done)
    _record_commit(context, done, batch)
    context.report.commit = CommitId(done.seq, done.commit)
    return leftover, done.seen


def _report_held_back(context: SyncContext, pushes: Sequence[PathAction], failed: Set[str]) -> None:
    """Say which versions have other changes that wait for a failed file, and stay journaled (V17)."""
    cause = {version: path for path in sorted(failed) if (version := version_dir(path)) is not None}
    waiting = Counter(
        version
        for step in pushes
        if step.action.pushes and step.path not in failed and (version := version_dir(step.path)) in cause
    )
    for version, number in waiting.items():
        changes = "1 other change" if number == 1 else f"{number:,} other changes"
        context.report.warn(f"{version}: {changes} of this version not pushed either, because of {cause[version]}")


def _renew_uploads(context: SyncContext, batch: PushBatch, head: HeadSeen) -> set[str]:
    """Upload again, under a new id, what a later collection may have deleted (T13); return the paths that failed."""
    gc = head.head.gc
    ours = {path: entry for path, entry in batch.entries.items() if entry != batch.steps[path].remote}
    uploads = {path: entry for path, entry in ours.items() if entry is not None}
    files_of = {path: batch.observed(path) for path in uploads}
    renewed = push.renew(context, uploads, files_of, gc)
    batch.entries.update(renewed)
    batch.gc = gc.count
    lost = uploads.keys() - renewed.keys()
    batch.hold_back(lost)
    return lost


def _changed_versions(context: SyncContext, batch: PushBatch, planned: HeadSeen, head: HeadSeen) -> set[str]:
    """Return the versions that another client has changed since the planned head: they must not be mixed."""
    versions = batch.versions if planned.head.commit != head.head.commit else set()
    if not versions:
        return set()
    source = StoreNodes(context.store, context.cache)
    try:
        within = KeyRanges(KeyRange.under(f"{version}/") for version in versions)
        changes = diff(IndexTree(source, planned.head.root), IndexTree(source, head.head.root), within)
        return versions & {
            version for change in changes if not change.moved and (version := version_dir(change.path)) is not None
        }
    except NodeMissing:
        return versions  # gc deleted the older root, so what changed since is unknown


def _update_base(context: SyncContext, db: sqlite3.Connection, done: commit.Committed) -> None:
    """Update base to the commit: as a whole if base was equal to the replaced head, otherwise row by row."""
    old, new = done.replaced, done.seen.head
    if old is not None and context.base.can_replace_root(old.root, new.root):
        base.replace_root(db, context.remote_id, new.root, done.changes)
    else:
        base.record_entries(db, context.remote_id, {path: dump_entry(entry) for path, entry in done.changes.items()})


def _record_commit(context: SyncContext, done: commit.Committed, batch: PushBatch) -> None:
    """Update base to the commit, whatever the disk holds by now (T6), and drop the journal rows that it covers."""
    report = context.report
    before = replace(report.pushed)
    expected: list[str] = []
    stats: list[file_stats.Row] = []
    unchanged_through: dict[str, int] = {}
    with context.database.transaction() as db:
        for path, entry in done.changes.items():
            observed = batch.observed(path) if path in batch.steps else None
            unchanged = observed is not None and context.is_unchanged(observed)
            changed = observed is None or entry != batch.steps[path].remote
            if entry is None:
                file_stats.delete(db, path)
                report.pushed.deleted += changed
            else:
                # V17: files and bytes of what this run committed, also of what a killed push had uploaded.
                report.pushed.files += changed
                report.pushed.bytes += entry.size if changed else 0
                if unchanged and observed is not None and observed.content is not None:
                    stats.append(file_stats.make_row(path, observed.content, observed.scanned_at, context.remote_id))
                else:
                    expected.append(path)
            if unchanged and observed is not None:
                unchanged_through[path] = observed.through
        _update_base(context, db, done)
        file_stats.save_many(db, stats)
        for path in expected:
            file_stats.save_unhashed(db, path, context.remote_id)
        push.forget(db, context.remote_id, done.changes.keys())
        if not journal.is_empty(db, context.remote_id):
            # V7: the row was closed when the bytes were read, is still the newest, and the disk still has those bytes.
            for path, through in unchanged_through.items():
                journal.drop_rows(db, context.remote_id, path, through)
        commit.forget_pending(db, context.remote_id, done)
    kept.pushed(report.pushed.files - before.files, report.pushed.bytes - before.bytes)
