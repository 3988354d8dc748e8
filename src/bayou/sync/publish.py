"""Upload and commit what this machine has to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayou.index.entry import Entry
from bayou.index.head import HeadSeen
from bayou.sync import base, commit, files, journal, push, steps
from bayou.sync.context import Context
from bayou.sync.plan import Action, decide
from bayou.sync.report import CommitId
from bayou.sync.steps import Step


@dataclass(slots=True)
class _Carry:
    """What a push carries: each path's step, and the entry that it gets (None: it is deleted)."""

    steps: dict[str, Step]
    entries: dict[str, Entry | None]
    gc: int


def publish(context: Context, pushes: Sequence[Step], seen: HeadSeen) -> tuple[set[str], HeadSeen]:
    """Upload and commit; return the paths that turned out to need another decision, and the newest head."""
    gc = seen.head.gc
    uploads = [one.observed for one in pushes if one.action is not Action.DELETE_REMOTE]
    uploaded = push.upload(context, uploads, gc)
    carry = _Carry({one.path: one for one in pushes}, dict(uploaded), gc.count)
    carry.entries.update({one.path: None for one in pushes if one.action is Action.DELETE_REMOTE})
    deletes = sum(one.action is Action.DELETE_REMOTE for one in pushes)
    entries = seen.head.root.entries if seen.head.root else 0
    leftover: set[str] = set()

    def choose(head: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        leftover.clear()
        if head.head.gc.count != carry.gc:
            _make_again(context, carry, head)
        changes: dict[str, Entry | None] = {}
        for path, entry in carry.entries.items():
            one, there = carry.steps[path], remote.get(path)
            if there == one.remote or decide(one.base, one.observed.state, there).pushes:
                changes[path] = entry
            else:
                leftover.add(path)
        return changes

    done = commit.commit(
        context.store,
        context.cache,
        context.database,
        context.place,
        seen,
        list(carry.entries),
        choose,
        by=context.by,
        deadline=context.deadline,
        mass_delete=context.options.allow_mass_delete and steps.is_mass(deletes, entries),
    )
    if done is None:
        return leftover, seen
    _finish(context, done, carry)
    context.report.commit = CommitId(done.seq, done.commit)
    return leftover, done.seen


def _make_again(context: Context, carry: _Carry, head: HeadSeen) -> None:
    """A collection ran since: what it may have taken is uploaded again, under a new id (T13)."""
    gc = head.head.gc
    lost = push.recheck(context, [entry for entry in carry.entries.values() if entry is not None], gc)
    again = push.upload(context, [carry.steps[path].observed for path in lost], gc)
    for path in lost:
        if path in again:
            carry.entries[path] = again[path]
        else:
            del carry.entries[path]
    carry.gc = gc.count


def _finish(context: Context, done: commit.Committed, carry: _Carry) -> None:
    """Make base what was committed, whatever the disk holds by now (T6), and drop the journal rows it carried."""
    report = context.report
    with context.database.transaction() as db:
        for path, entry in done.changes.items():
            base.take(db, context.place, path, entry)
            db.execute("DELETE FROM upload WHERE place = ? AND path = ?", (context.place, path))
            one = carry.steps.get(path)
            still = one is not None and context.unmoved(one.observed)
            if entry is None:
                files.forget(db, path)
                report.pushed.deleted += 1
            else:
                report.pushed.files += 1
                if still and one is not None and one.observed.content is not None:
                    files.remember(db, path, one.observed.content, one.observed.looked, context.place)
                else:
                    files.expect(db, path, context.place)
            # Closed when the bytes were read, the newest still, and the disk has those bytes still.
            if one is not None and still:
                journal.drop(db, context.place, path, one.observed.through)
        db.execute(commit.FORGET, (context.place,))
