"""Carry out a plan: record what both sides agree on, keep conflict copies, pull, and push.

The order matters. Unfinished deletes and renumbered versions come first, then base records the paths that are equal on
both sides, then files are pulled, and at last uploads start and are committed. A path that changed since the scan is
left alone, and the caller makes another pass.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import ConflictRefused
from bayou.index.head import HeadSeen
from bayou.index.key_range import KeyRange
from bayou.state import base, file_stats, journal
from bayou.state.database import IN_RANGE
from bayou.sync.commit import commit, publish
from bayou.sync.commit.publish import StartedPush
from bayou.sync.conflicts.copies import Conflicts
from bayou.sync.conflicts.renumber import Renumbering
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.remote_snapshot import RemoteSnapshot
from bayou.sync.plan.steps import PathAction
from bayou.sync.report import Conflict, Mode, PlannedAction
from bayou.sync.transfer.pull import IncomingFile, SiblingFiles, journal_unchanged, pull

_NAMED = 20
"""How many forgotten files a report names."""


class StartedPlan(Struct, frozen=True):
    """A plan that is carried out except for its push, which has started. `again`: another pass is needed."""

    again: bool = False
    push: StartedPush | None = None

    def abandon(self) -> None:
        """Stop unfinished uploads; the next push finds those that have arrived."""
        if self.push is not None:
            self.push.uploads.results.close()


def apply_plan(
    context: SyncContext,
    steps: Sequence[PathAction],
    snapshot: RemoteSnapshot,
    *,
    through: int,
    walked: KeyRange | None,
) -> tuple[bool, HeadSeen | None]:
    """Carry out a plan (`begin`), wait for its push and commit it (`finish`)."""
    return finish(context, begin(context, steps, snapshot, through=through, walked=walked), snapshot.seen)


def finish(context: SyncContext, started: StartedPlan, newest: HeadSeen | None) -> tuple[bool, HeadSeen | None]:
    """Commit the push of a plan on top of the newest known head; return whether another pass is needed, and the newest
    head since, with which base can be compared."""
    if started.push is None or newest is None:
        return started.again, newest
    leftover, seen = publish.finish(context, started.push, newest)
    return bool(started.again or leftover), seen


def begin(
    context: SyncContext,
    steps: Sequence[PathAction],
    snapshot: RemoteSnapshot,
    *,
    through: int,
    walked: KeyRange | None,
) -> StartedPlan:
    """Carry out the local part of a plan, and start its uploads.

    `through` is the newest journal row that the scan has read; `walked` is the range of paths that the scan has walked,
    if any.
    """
    report, mode = context.report, context.options.mode
    conflicts = [step for step in steps if step.action is Action.CONFLICT]
    if context.options.on_conflict == "fail" and conflicts:
        raise refuse_conflicts([step.path for step in conflicts[:3]])
    if context.state.compared_seq is None and snapshot.head is not None:
        context.state.compared_seq = snapshot.head.seq
    steps, touched = _finish_deletes(context, steps)
    to_renumber = [step for step in steps if step.action is Action.RENUMBER]
    renumbering = Renumbering(context, to_renumber, snapshot.tree) if to_renumber else None
    replacing, changed = renumbering.copy() if renumbering is not None else ([], set())
    uncertain = commit.uncertain_paths(context.database, context.remote_id)
    agreed = [step for step in steps if step.action in (Action.NOTHING, Action.RECORD)]
    _record(context, agreed, uncertain)
    _list_untracked(context, steps, walked=walked)
    pushes = [step for step in steps if step.action.pushes] if mode != "pull" else []
    pulls = _pulls(steps, mode)
    aside = _forgotten(context, pulls, snapshot)
    incoming = [IncomingFile(step.path, step.remote, step.observed) for step in pulls if step.path not in aside]
    kept, ours, vanished = _resolve_conflicts(context, conflicts) if conflicts else ([], [], set())
    forgotten = _keep_forgotten(context, [step for step in pulls if step.path in aside], vanished) if aside else []
    kept += forgotten
    pushes += ours if mode != "pull" else []
    torn = _torn_versions(context, steps, pushes, through)
    if mode != "pull":
        # Committing the store's own entry resolves a pending commit: its late swap then fails.
        pushes += [step for step in agreed if step.path in uncertain]
    pushes = [step for step in pushes if version_dir(step.path) not in torn] if torn else pushes
    for step in steps:
        if step.action is Action.KEEP_REMOTE:
            report.warn(f"{step.path} was deleted here and changed in the store: it was kept")
        elif step.action is Action.PUSH_BACK and mode != "pull":
            report.warn(f"{step.path} was deleted in the store and changed here: it was pushed back")
    if report.engine == "fast" and (pushes or incoming or kept or replacing):
        report.engine = "point"
    arriving = [*incoming, *kept, *replacing]
    moved = touched | vanished | changed
    if arriving:
        whole = renumbering.versions if renumbering is not None else ()
        moved |= pull(context, arriving, _siblings(steps, arriving), whole)
    if renumbering is not None:
        renumbering.finish(moved)
    if mode != "pull":
        moved |= uncertain & {file.path for file in incoming}
    if kept:
        _drop_copies(Conflicts(context.repo.conflicts), [file for file in kept if file.path in moved])
    if forgotten:
        _report_forgotten(context, [file for file in forgotten if file.path not in moved])
    report.conflicts = [conflict for conflict in report.conflicts if conflict.path not in moved]
    # A renumbered version is a local change since the scan; the next pass pushes it.
    again = bool(moved or torn or (replacing and mode != "pull"))
    if not pushes or snapshot.seen is None:
        return StartedPlan(again)
    return StartedPlan(again, publish.begin(context, pushes, snapshot.seen))


def _torn_versions(
    context: SyncContext, steps: Sequence[PathAction], pushes: Sequence[PathAction], through: int
) -> set[str]:
    """Return the versions that a program has written since the journal was read, in a file that is not read again.

    The scanner may have read one file of such a version before the write and another after it: the tree never had the
    two at the same time. This check comes after the last read, so a file that is unchanged now was unchanged then. An
    upload reads and checks its file by itself; that file may grow meanwhile (F038).
    """
    versions = {version for step in pushes if (version := version_dir(step.path)) is not None}
    if not versions:
        return set()
    read_again = {step.path for step in pushes if step.action in (Action.PUSH, Action.PUSH_BACK)}
    others = {
        step.path: step.observed for step in steps if step.path not in read_again and version_dir(step.path) in versions
    }
    torn: set[str] = set()
    # A range, since a large sync asks this for each of its windows.
    around = min(versions), max(f"{version}0" for version in versions)  # 0 comes right after the slash
    with context.database.snapshot() as db:
        newest = (
            "SELECT path, MAX(id) FROM journal WHERE place = ? AND kind != 'tree' AND path > ? AND path < ?"
            " GROUP BY path"
        )
        for path, number in db.execute(newest, (context.remote_id, *around)):
            version = version_dir(path)
            if version in versions and path not in read_again and (path not in others or number > through):
                torn.add(version)
    for path, observed in others.items():
        version = version_dir(path)
        if version is not None and version not in torn and not context.is_unchanged(observed):
            torn.add(version)
    return torn


def refuse_conflicts(paths: Sequence[str]) -> ConflictRefused:
    return ConflictRefused(
        f"conflict in {', '.join(paths)}; nothing was changed", hint="bayou datastore sync keeps both sides"
    )


def planned_actions(steps: Sequence[PathAction], mode: Mode) -> list[PlannedAction]:
    """Return what a sync of this mode would do, for a dry run: `begin` without the work."""
    pulled = {step.path for step in _pulls(steps, mode)}
    return [
        PlannedAction(step.path, step.action.value)
        for step in steps
        if step.is_change
        and (mode != "pull" or not step.action.pushes)
        and (step.path in pulled or not step.action.pulls)
    ]


def _pulls(steps: Sequence[PathAction], mode: Mode) -> list[PathAction]:
    wanted = _restored_by_push(steps) if mode == "push" else {step.path for step in steps}
    return [step for step in steps if step.action.pulls and step.path in wanted]


def _restored_by_push(steps: Sequence[PathAction]) -> set[str]:
    """Return the paths that even a push pulls: those deleted here and changed in the store, by whole versions."""
    kept = {step.path for step in steps if step.action is Action.KEEP_REMOTE}
    versions = {version_dir(path) for path in kept} - {None}
    return kept | {step.path for step in steps if versions and version_dir(step.path) in versions}


def _siblings(steps: Sequence[PathAction], arriving: Iterable[IncomingFile]) -> SiblingFiles:
    """Return the scanned state of the other files of each version in which a file arrives."""
    coming = {file.path for file in arriving}
    others = [
        (version, step) for step in steps if step.path not in coming and (version := version_dir(step.path)) is not None
    ]
    versions = {version_dir(path) for path in coming} if others else set()
    siblings: dict[str, list[ObservedPath]] = defaultdict(list)
    for version, step in others:
        if version in versions:
            siblings[version].append(step.observed)
    return SiblingFiles(siblings, {step.path for step in steps})


def _finish_deletes(context: SyncContext, steps: Sequence[PathAction]) -> tuple[list[PathAction], set[str]]:
    """Remove files whose journaled delete a crash left undone, unless a program has written them since.

    Return the steps without the files that were written since, and the paths of these.
    """
    undone = [step for step in steps if step.observed.finish_delete]
    if not undone:
        return list(steps), set()
    moved: set[str] = set()
    with context.database.transaction() as db:
        marks = _tree_marks(db, context.remote_id)
        for step in undone:
            written = not journal_unchanged(db, context.remote_id, step.observed) or _is_marked_since(
                step.observed, marks
            )
            if not written and context.is_unchanged(step.observed):
                context.incoming.remove(step.path)
            else:
                moved.add(step.path)
    context.incoming.sync_directories()  # V3: the removal is durable before base records it
    removed = {
        step.path: replace(step, observed=replace(step.observed, content=None, finish_delete=False)) for step in undone
    }
    return [removed.get(step.path, step) for step in steps if step.path not in moved], moved


def _record(context: SyncContext, agreed: Iterable[PathAction], uncertain: Container[str]) -> None:
    """Record in base what both sides agree on, and drop journal rows that are equal to it (V7)."""
    with context.database.transaction() as db:
        for step in agreed:
            seen = step.observed
            if step.action is Action.RECORD:
                base.record_entry(db, context.remote_id, step.path, step.remote)
                if (
                    step.remote is not None
                    and step.remote.sha256 is None
                    and seen.content is not None
                    and step.absent is None
                ):
                    base.record_hash(db, context.remote_id, step.remote, seen.content.sha256)
            absent = step.absent or ("lazy" if seen.state.absent else None)
            if step.remote is not None and absent is not None and step.action is Action.RECORD:
                base.record_absent(db, context.remote_id, step.path, absent)
            if seen.content is not None and step.remote is not None and step.absent is None:
                file_stats.save(db, step.path, seen.content, seen.scanned_at, context.remote_id)
            elif step.remote is None and step.action is Action.RECORD:
                file_stats.delete(db, step.path)
            if step.path not in uncertain:
                journal.drop_rows(db, context.remote_id, step.path, seen.through)


def _list_untracked(context: SyncContext, steps: Sequence[PathAction], *, walked: KeyRange | None) -> None:
    """Record files that neither base nor the journal names as untracked: they are reported, and stay (T11).

    A file that this sync adopts stays in the record, unreported, until a commit has it: the sync may be interrupted.
    Without a walk, the recorded list of other files stays as it is.
    """
    untracked = [step for step in steps if step.action is Action.UNTRACKED]
    elsewhere = [path for path in context.report.untracked if walked is not None and not walked.holds(path)]
    context.report.untracked = elsewhere + sorted(step.path for step in untracked)
    adopted = [step for step in steps if step.action is Action.PUSH and step.base is None]
    adopted = adopted if context.options.adopt else []
    if not (untracked or adopted) and walked is None:
        return
    with context.database.transaction() as db:
        marks = _tree_marks(db, context.remote_id)
        adopted = _unnamed(db, context.remote_id, adopted, marks) if adopted else []
        if walked is not None:
            db.execute(f"DELETE FROM untracked WHERE place = ? AND {IN_RANGE}", (context.remote_id, *walked.bounds))
        db.executemany(
            "INSERT OR REPLACE INTO untracked VALUES (?, ?, ?, ?)",
            [
                (context.remote_id, step.path, step.observed.stat.size, step.observed.stat.mtime_ns)
                for step in (*untracked, *adopted)
                if step.observed.stat is not None and not _is_marked_since(step.observed, marks)
            ],
        )


def _unnamed(
    db: sqlite3.Connection, remote_id: int, steps: Sequence[PathAction], marks: Sequence[tuple[int, str]]
) -> list[PathAction]:
    """Return the files that no row of the journal names; a mark does not name what was known as untracked (T11)."""
    rows = db.execute("SELECT DISTINCT path FROM journal WHERE place = ? AND kind != 'tree'", (remote_id,))
    named = {path for (path,) in rows}
    listed = {
        path: (size, mtime)
        for path, size, mtime in db.execute("SELECT path, size, mtime FROM untracked WHERE place = ?", (remote_id,))
    }

    def is_unnamed(seen: ObservedPath) -> bool:
        if seen.path in named or seen.stat is None:
            return False
        return listed.get(seen.path) == (seen.stat.size, seen.stat.mtime_ns) or not _is_below(seen.path, marks)

    return [step for step in steps if is_unnamed(step.observed)]


def _tree_marks(db: sqlite3.Connection, remote_id: int) -> list[tuple[int, str]]:
    return db.execute("SELECT id, path FROM journal WHERE place = ? AND kind = 'tree'", (remote_id,)).fetchall()


def _is_marked_since(observed: ObservedPath, marks: Iterable[tuple[int, str]]) -> bool:
    """Whether a program has marked a directory around the path since the scan: the file may be that program's."""
    return _is_below(observed.path, [mark for mark in marks if mark[0] > observed.through])


def _is_below(path: str, marks: Iterable[tuple[int, str]]) -> bool:
    return any(not around or f"{path}/".startswith(f"{around}/") for _, around in marks)


def _resolve_conflicts(
    context: SyncContext, conflicts: Sequence[PathAction]
) -> tuple[list[IncomingFile], list[PathAction], set[str]]:
    """Prepare conflicts: keep copies of files that the store's side will replace, or choose the local side for a push.

    Return the files to pull, the steps to push, and the paths whose file has vanished since and must be planned again.
    """
    kept: list[IncomingFile] = []
    ours: list[PathAction] = []
    vanished: set[str] = set()
    folder = Conflicts(context.repo.conflicts)
    for step in conflicts:
        if context.options.on_conflict == "ours" and _has_local_side(step):
            # With the store's entry as base, the local side is a plain change.
            action = Action.PUSH if step.observed.state.present else Action.DELETE_REMOTE
            ours.append(replace(step, action=action, base=step.remote))
            context.report.conflicts.append(Conflict(step.path, "local", None))
        elif not step.observed.state.present:
            # Part of a version in conflict, without a local file to keep.
            kept.append(IncomingFile(step.path, step.remote, step.observed))
        else:
            copy: Path | None = None
            if context.options.on_conflict == "keep":
                try:
                    copy = folder.keep(context.root / step.path, step.path)
                except FileNotFoundError:
                    vanished.add(step.path)
                    continue
            kept.append(IncomingFile(step.path, step.remote, step.observed, copy))
            context.report.conflicts.append(Conflict(step.path, "remote", str(copy) if copy else None))
    return kept, ours, vanished


def _forgotten(context: SyncContext, pulls: Sequence[PathAction], snapshot: RemoteSnapshot) -> set[str]:
    """Return which files that a pull would delete were forgotten by another client, and not deleted."""
    deletes = [step.path for step in pulls if step.action is Action.DELETE_LOCAL and step.observed.content is not None]
    if not deletes or snapshot.head is None:
        return set()
    from bayou.sync.plan.forgotten import learn_forgotten  # noqa: PLC0415  (most pulls delete nothing)

    learn_forgotten(context, snapshot.head)
    forgotten = context.base.forgotten()
    return set(deletes) if forgotten is None else forgotten.intersection(deletes)


def _keep_forgotten(context: SyncContext, steps: Sequence[PathAction], vanished: set[str]) -> list[IncomingFile]:
    """Copy forgotten files aside, durably, before they leave the tree; add those that are gone to `vanished`."""
    kept: list[IncomingFile] = []
    folder = Conflicts(context.repo.conflicts)
    for step in steps:
        try:
            kept.append(IncomingFile(step.path, None, step.observed, folder.keep(context.root / step.path, step.path)))
        except FileNotFoundError:
            vanished.add(step.path)
    return kept


def _report_forgotten(context: SyncContext, kept: Sequence[IncomingFile]) -> None:
    for file in kept[:_NAMED]:
        context.report.warn(
            f"{file.path} was forgotten by another client, and the file of this tree is kept: {file.copied}"
        )
    if len(kept) > _NAMED:
        context.report.warn(
            f"{len(kept)} files were forgotten by another client; `bayou datastore conflicts` lists what was kept"
        )


def _drop_copies(folder: Conflicts, moved: Iterable[IncomingFile]) -> None:
    """Drop the copies of files that were not replaced because a program wrote them again; the next pass decides."""
    for file in moved:
        if file.copied is not None:
            folder.drop(file.copied)


def _has_local_side(step: PathAction) -> bool:
    """Whether this machine has its own side of a conflict: a file, a journaled delete, or a version without that file.

    A path that is merely absent, by policy or because the file was lost, is no side (V5).
    """
    state = step.observed.state
    return state.present or state.deleted or (step.base is None and not state.absent)
