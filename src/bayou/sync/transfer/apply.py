"""Carry out a plan: record, list, keep copies, pull, push."""

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
from bayou.sync.commit.publish import Publishing
from bayou.sync.conflicts.copies import Conflicts
from bayou.sync.conflicts.renumber import Renumbering
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.remote_snapshot import RemoteSnapshot
from bayou.sync.plan.steps import PathAction
from bayou.sync.report import Conflict
from bayou.sync.transfer.pull import IncomingFile, SiblingFiles, journal_unchanged, pull


class Begun(Struct, frozen=True):
    """A plan that is carried out, but for what goes to the store: that is on its way. `again`: make another pass."""

    again: bool = False
    publishing: Publishing | None = None

    def abandon(self) -> None:
        """End what is on its way and not finished; what has arrived by then is found by the next push."""
        if self.publishing is not None:
            self.publishing.uploads.results.close()


def apply_plan(
    context: SyncContext,
    todo: Sequence[PathAction],
    store_view: RemoteSnapshot,
    *,
    through: int,
    walked: KeyRange | None,
) -> tuple[bool, HeadSeen | None]:
    """Carry out a plan, as `begin` says; return what `finish` does."""
    return finish(context, begin(context, todo, store_view, through=through, walked=walked), store_view.seen)


def finish(context: SyncContext, begun: Begun, newest: HeadSeen | None) -> tuple[bool, HeadSeen | None]:
    """Commit what is on its way, on top of the newest head that is known; return whether another pass is needed, and
    the newest head since, which base can be compared with."""
    if begun.publishing is None or newest is None:
        return begun.again, newest
    leftover, seen = publish.finish(context, begun.publishing, newest)
    return bool(begun.again or leftover), seen


def begin(
    context: SyncContext,
    todo: Sequence[PathAction],
    store_view: RemoteSnapshot,
    *,
    through: int,
    walked: KeyRange | None,
) -> Begun:
    """Carry out a plan as far as this machine is concerned, and begin to upload.

    `through` is the newest row of the journal that the plan is made of, `walked` the range of paths in which everything
    was looked at, if there is one.
    """
    report, mode = context.report, context.options.mode
    conflicts = [one for one in todo if one.action is Action.CONFLICT]
    if context.options.on_conflict == "fail" and conflicts:
        raise conflict_refused([one.path for one in conflicts[:3]])
    todo, touched = _finish_deletes(context, todo)
    renumbering = Renumbering(context, [one for one in todo if one.action is Action.RENUMBER], store_view.tree)
    replacing, changed = renumbering.copy()
    doubt = commit.doubtful(context.database, context.place)
    settled = [one for one in todo if one.action in (Action.NOTHING, Action.RECORD)]
    _record(context, settled, doubt)
    _list_untracked(context, todo, walked=walked)
    pushes = [one for one in todo if one.action.pushes] if mode != "pull" else []
    wanted = _returning(todo) if mode == "push" else {one.path for one in todo}
    pulls = [one for one in todo if one.action.pulls and one.path in wanted]
    incoming = [IncomingFile(one.path, one.remote, one.observed) for one in pulls]
    kept, ours, vanished = _meet(context, conflicts) if conflicts else ([], [], set())
    pushes += ours if mode != "pull" else []
    torn = _torn(context, todo, pushes, through)
    if mode != "pull":
        # To commit what the head says anyway ends the doubt: an earlier swap that is still on its way comes too late.
        pushes += [one for one in settled if one.path in doubt]
    pushes = [one for one in pushes if version_dir(one.path) not in torn] if torn else pushes
    for one in todo:
        if one.action is Action.KEEP_REMOTE:
            report.warn(f"{one.path} was deleted here and changed in the store: it was kept")
        elif one.action is Action.PUSH_BACK and mode != "pull":
            report.warn(f"{one.path} was deleted in the store and changed here: it was pushed back")
    if report.engine == "fast" and (pushes or incoming or kept or replacing):
        report.engine = "point"
    arriving = [*incoming, *kept, *replacing]
    moved = touched | vanished | changed
    if arriving:
        moved |= pull(context, arriving, _beside(todo, arriving))
    renumbering.settle(moved)
    if mode != "pull":
        moved |= doubt & {one.path for one in incoming}
    if kept:
        _forget_copies(context, [one for one in kept if one.path in moved])
    report.conflicts = [one for one in report.conflicts if one.path not in moved]
    # What was renumbered is a change of ours since we looked, and goes up with the next pass.
    again = bool(moved or torn or (replacing and mode != "pull"))
    if not pushes or store_view.seen is None:
        return Begun(again)
    return Begun(again, publish.begin(context, pushes, store_view.seen))


def _torn(context: SyncContext, todo: Sequence[PathAction], pushes: Sequence[PathAction], through: int) -> set[str]:
    """Return the versions of which a file that nobody will read again was written since the journal was read.

    One file of such a version may have been looked at before, and another after that: what was seen was never there at
    one time. This is after the last look, so what is as it was seen now was so then. A file that is uploaded is proved
    by that; it may grow meanwhile (F038).
    """
    units = {unit for one in pushes if (unit := version_dir(one.path)) is not None}
    if not units:
        return set()
    read_again = {one.path for one in pushes if one.action in (Action.PUSH, Action.PUSH_BACK)}
    others = {one.path: one.observed for one in todo if one.path not in read_again and version_dir(one.path) in units}
    torn: set[str] = set()
    with context.database.snapshot() as db:
        newest = "SELECT path, MAX(id) FROM journal WHERE place = ? AND kind != 'tree' GROUP BY path"
        for path, number in db.execute(newest, (context.place,)):
            unit = version_dir(path)
            if unit in units and path not in read_again and (path not in others or number > through):
                torn.add(unit)
    for path, observed in others.items():
        unit = version_dir(path)
        if unit is not None and unit not in torn and not context.unmoved(observed):
            torn.add(unit)
    return torn


def conflict_refused(paths: Sequence[str]) -> ConflictRefused:
    return ConflictRefused(
        f"conflict in {', '.join(paths)}; nothing was changed", hint="bayou datastore sync keeps both sides"
    )


def _returning(todo: Sequence[PathAction]) -> set[str]:
    """Return what comes back although this is a push: the store's word on what we deleted, by whole versions."""
    kept = {one.path for one in todo if one.action is Action.KEEP_REMOTE}
    units = {version_dir(path) for path in kept} - {None}
    return kept | {one.path for one in todo if units and version_dir(one.path) in units}


def _beside(todo: Sequence[PathAction], arriving: Iterable[IncomingFile]) -> SiblingFiles:
    """Return what was decided of the other files of each version that something arrives in."""
    coming = {one.path for one in arriving}
    others = [(unit, one) for one in todo if one.path not in coming and (unit := version_dir(one.path)) is not None]
    units = {version_dir(path) for path in coming} if others else set()
    beside: dict[str, list[Observed]] = defaultdict(list)
    for unit, one in others:
        if unit in units:
            beside[unit].append(one.observed)
    return SiblingFiles(beside, {one.path for one in todo})


def _finish_deletes(context: SyncContext, todo: Sequence[PathAction]) -> tuple[list[PathAction], set[str]]:
    """Remove files whose delete a crash left undone, unless somebody has written there since; return the plan without
    those that were, and their paths."""
    undone = [one for one in todo if one.observed.finish_delete]
    if not undone:
        return list(todo), set()
    moved: set[str] = set()
    with context.database.transaction() as db:
        marks = _marks(context, db)
        for one in undone:
            written = not journal_unchanged(context, db, one.observed) or _is_marked_since(one.observed, marks)
            if not written and context.unmoved(one.observed):
                context.incoming.remove(one.path)
            else:
                moved.add(one.path)
    context.incoming.sync_directories()  # V3: what is gone is gone durably before base says so
    removed = {
        one.path: replace(one, observed=replace(one.observed, content=None, finish_delete=False)) for one in undone
    }
    return [removed.get(one.path, one) for one in todo if one.path not in moved], moved


def _record(context: SyncContext, settled: Iterable[PathAction], doubt: Container[str]) -> None:
    """Make base say what both sides agree on, and drop journal rows that are equal to it (V7)."""
    with context.database.transaction() as db:
        for one in settled:
            seen = one.observed
            if one.action is Action.RECORD:
                base.record_entry(db, context.place, one.path, one.remote)
                if (
                    one.remote is not None
                    and one.remote.sha256 is None
                    and seen.content is not None
                    and one.absent is None
                ):
                    base.record_hash(db, context.place, one.remote, seen.content.sha256)
            absent = one.absent or ("lazy" if seen.state.absent else None)
            if one.remote is not None and absent is not None and one.action is Action.RECORD:
                base.record_absent(db, context.place, one.path, absent)
            if seen.content is not None and one.remote is not None and one.absent is None:
                file_stats.save(db, one.path, seen.content, seen.looked, context.place)
            elif one.remote is None and one.action is Action.RECORD:
                file_stats.delete(db, one.path)
            if one.path not in doubt:
                journal.drop_rows(db, context.place, one.path, seen.through)


def _list_untracked(context: SyncContext, todo: Sequence[PathAction], *, walked: KeyRange | None) -> None:
    """Note files that neither base nor the journal names: they are listed, and stay (T11).

    Whoever has not looked at the whole tree knows nothing new of the others.
    """
    untracked = [one for one in todo if one.action is Action.UNTRACKED]
    elsewhere = [path for path in context.report.untracked if walked is not None and not walked.holds(path)]
    context.report.untracked = elsewhere + sorted(one.path for one in untracked)
    if not untracked and walked is None:
        return
    with context.database.transaction() as db:
        marks = _marks(context, db)
        if walked is not None:
            db.execute(f"DELETE FROM untracked WHERE place = ? AND {IN_RANGE}", (context.place, *walked.bounds))
        db.executemany(
            "INSERT OR REPLACE INTO untracked VALUES (?, ?, ?, ?)",
            [
                (context.place, one.path, one.observed.content.stat.size, one.observed.content.stat.mtime_ns)
                for one in untracked
                if one.observed.content is not None and not _is_marked_since(one.observed, marks)
            ],
        )


def _marks(context: SyncContext, db: sqlite3.Connection) -> list[tuple[int, str]]:
    return db.execute("SELECT id, path FROM journal WHERE place = ? AND kind = 'tree'", (context.place,)).fetchall()


def _is_marked_since(observed: Observed, marks: Iterable[tuple[int, str]]) -> bool:
    """Whether a program has said since the look that it writes there: the file may be its work, and not untracked."""
    around = (path for number, path in marks if number > observed.through)
    return any(not path or f"{observed.path}/".startswith(f"{path}/") for path in around)


def _meet(
    context: SyncContext, conflicts: Sequence[PathAction]
) -> tuple[list[IncomingFile], list[PathAction], set[str]]:
    """Prepare conflicts: keep copies of what the store's side will replace, or choose ours for a push.

    Return also the paths whose file has vanished since: they must be decided again.
    """
    kept: list[IncomingFile] = []
    ours: list[PathAction] = []
    vanished: set[str] = set()
    folder = Conflicts(context.repo.conflicts)
    for one in conflicts:
        if context.options.on_conflict == "ours" and _has_ours(one):
            # As if we had known the store's side all along: then ours is the change.
            action = Action.PUSH if one.observed.state.present else Action.DELETE_REMOTE
            ours.append(replace(one, action=action, base=one.remote))
            context.report.conflicts.append(Conflict(one.path, "local", None))
        elif not one.observed.state.present:
            # Part of a version that is in conflict, and nothing of ours to keep.
            kept.append(IncomingFile(one.path, one.remote, one.observed))
        else:
            copy: Path | None = None
            if context.options.on_conflict == "keep":
                try:
                    copy = folder.keep(context.root / one.path, one.path)
                except FileNotFoundError:
                    vanished.add(one.path)
                    continue
            kept.append(IncomingFile(one.path, one.remote, one.observed, copy))
            context.report.conflicts.append(Conflict(one.path, "remote", str(copy) if copy else None))
    return kept, ours, vanished


def _forget_copies(context: SyncContext, moved: Iterable[IncomingFile]) -> None:
    """Drop copies of files that were not replaced after all, since somebody wrote them anew: those are met again."""
    folder = Conflicts(context.repo.conflicts)
    for one in moved:
        if one.copied is not None:
            folder.drop(one.copied)


def _has_ours(one: PathAction) -> bool:
    """Whether this machine has a side of its own: a file, a journaled delete, or a version without that file.

    What is merely not here, by policy or because it was lost, says nothing (V5).
    """
    state = one.observed.state
    return state.present or state.deleted or (one.base is None and not state.absent)
