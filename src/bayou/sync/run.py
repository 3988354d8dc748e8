"""One sync: passes of scan, plan, transfer and commit, until nothing is left to do.

A pass scans the tree, reads the store's head, plans every path that differs, transfers files and commits. Paths that
changed during the pass, in the tree or in the store, are planned again by another pass. The client records "in sync"
only if base's root is the head's root (V3).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from bayou.core import paths
from bayou.core.errors import NotFound
from bayou.core.text import count
from bayou.engine.job import Needs
from bayou.engine.select import TRANSFER
from bayou.index.head import HeadSeen
from bayou.index.key_range import EVERYTHING
from bayou.state import base, journal
from bayou.state.base import BaseLost
from bayou.state.freshness import record_seen
from bayou.state.journal import JournalRow
from bayou.sync.commit import commit
from bayou.sync.commit.commit import Committed
from bayou.sync.context import SyncContext
from bayou.sync.plan import remote_snapshot
from bayou.sync.plan.local_scanner import LocalScanner, ScanResult, TooManyPaths
from bayou.sync.plan.remote_snapshot import RemoteSnapshot
from bayou.sync.prune_cache import prune_cache, sweep_tree
from bayou.sync.report import CommitId, SyncReport
from bayou.sync.transfer.intents import ProofLost, recover_intents

if TYPE_CHECKING:
    from bayou.engine.job import Executor

MOST_HELD = 250_000
"""Paths of a sync that this process holds in memory at once; a larger sync is made in windows, by either engine."""

PASSES = 5
"""Passes of one sync, at most; the next sync goes on with files that keep changing."""


def run(context: SyncContext) -> SyncReport:
    """Reconcile the tree with the store as the options say."""
    begin, before = time.monotonic(), context.store.requests
    report = context.report
    try:
        if not context.options.dry_run:
            recover_intents(context)
        for _ in range(PASSES):
            if not _pass_or_forget_base(context):
                break
        else:
            report.warn("some files kept changing meanwhile, here or in the store; the next sync goes on with them")
    except ProofLost as error:
        report.warn(f"what was pulled is here, but the proof could not be kept: {error}")
    finally:
        report.refused = list({refusal.path: refusal for refusal in report.refused}.values())
        report.requests = context.store.requests - before
        report.seconds = round(time.monotonic() - begin, 3)
    return report


def _pass_or_forget_base(context: SyncContext) -> bool:
    """Make a pass; if base turns out to be damaged, forget it, so that the next pass compares everything (V3)."""
    try:
        return _pass(context)
    except BaseLost as lost:
        if context.options.dry_run:
            raise
        context.base.forget()
        context.report.warn(f"{lost.message}; tree and store were compared anew")
        return True


def _pass(context: SyncContext) -> bool:
    """Make one pass; return whether something changed meanwhile and another pass is needed.

    The scan starts in this process. If it finds more paths than the engine's limit, the pass is made in windows, by the
    engine that the selector chooses. A pull of some models is never that large.
    """
    if context.options.scope is not None:
        return _pass_here(context, None)
    engines = context.engines
    limit = engines.selector.limit(TRANSFER)
    limit = MOST_HELD if limit is None else min(limit, MOST_HELD)
    snapshots: list[RemoteSnapshot] = []
    if not engines.selector.spark_required:
        try:
            return _pass_here(context, limit, snapshots)
        except TooManyPaths:
            pass
    # One thread: comparing small files is work for the interpreter, of which there is one.
    return engines.run(
        Needs((context.handle,)),
        partial(_pass_in_windows, context, snapshots),
        what="tree and store were compared",
        cost=TRANSFER,
        files=limit + 1,
        threads=1,
    )


def _pass_in_windows(context: SyncContext, snapshots: list[RemoteSnapshot], executor: Executor) -> bool:
    from bayou.sync.bulk_pass import large_pass  # noqa: PLC0415

    # Only the first engine that tries can use the snapshot: it may have committed some windows before it failed.
    return large_pass(context, executor, snapshots.pop() if snapshots else None)


def _pass_here(context: SyncContext, limit: int | None, snapshots: list[RemoteSnapshot] | None = None) -> bool:
    """Make a pass in this process; `TooManyPaths`, before anything is changed, if it has more than `limit` paths.

    The function appends the snapshot of the store to `snapshots`, so that a pass in windows need not read it again.
    """
    report = context.report
    remote_state = context.base.remote
    scanner = LocalScanner(
        context.root,
        context.database,
        context.remote_id,
        context.policy,
        adopt=context.options.adopt,
        absent=context.absent(),
        deadline=context.deadline,
        pushes=context.options.mode != "pull" and not context.options.dry_run,
        progress=context.progress,
    )
    scope = context.options.scope
    walk = scope is None and (context.options.walk or not context.base.known)
    observation = scanner.scan(context.journal.rows(), walk=walk, scope=scope, limit=limit)
    if not context.options.dry_run:
        sweep_tree(context.root, context.repo.state, context.journal, observation.temporaries)
    nothing_to_plan = _nothing_to_plan(context, observation)
    ours = any(observed.state.ours or observed.state.deleted for observed in observation.paths.values())
    context.progress.begin("reading the store's index", None, None)
    snapshot = read_remote(context, ours=ours, etag=remote_state.etag if nothing_to_plan and _proved(context) else None)
    context.progress.end()
    report_scan(report, observation)
    if snapshot is None:
        report.untracked = sorted(observation.paths)
        return False
    if resolve_pending(context, snapshot):
        return True
    if snapshots is not None:
        snapshots.append(snapshot)
    from bayou.sync.plan.planner import plan  # noqa: PLC0415
    from bayou.sync.transfer.apply import apply_plan, planned_actions  # noqa: PLC0415  (most syncs end above)

    steps = plan(context, scanner, observation, snapshot, limit=limit)
    report.failed = list(observation.failed)
    if context.options.dry_run:
        report.engine = "point"
        report.actions = planned_actions(steps, context.options.mode)
        return False
    record_compared(context, snapshot)
    walked = EVERYTHING if observation.walked else None
    again, seen = apply_plan(context, steps, snapshot, through=observation.journaled.through, walked=walked)
    record_in_sync(context, seen, observation.journaled.marks, clean=not again)
    return again


def _nothing_to_plan(context: SyncContext, observation: ScanResult) -> bool:
    """Return whether the tree has nothing to plan: then an unchanged head ends the pass."""
    listed = {
        path for (path,) in context.database.rows("SELECT path FROM untracked WHERE place = ?", (context.remote_id,))
    }
    untracked = all(
        observed.path in listed and observed.content is not None and not observed.state.ours
        for observed in observation.paths.values()
    )
    return untracked and not observation.journaled.last and not observation.journaled.marks


def _proved(context: SyncContext) -> bool:
    """Return whether base equals a whole head under the current policy, and no commit is pending (V3)."""
    same_policy = context.base.remote.policy == context.policy.text
    return same_policy and not context.base.dirty() and not commit.pending(context.database, context.remote_id)


def read_remote(context: SyncContext, *, ours: bool, etag: str | None) -> RemoteSnapshot | None:
    """Read the store's index; None if its head has this ETag. `ours`: the tree has something to push.

    A store without a head gets its first index if this sync may push; otherwise the client only discovers its objects.
    """
    found = _read_remote(context, ours=ours, etag=etag)
    if not context.options.dry_run:
        head = found.head if found is not None else None
        record_seen(context.database, context.remote_id, head.store if head is not None else None)
    context.state.unindexed = frozenset()
    if found is not None and found.head is not None and context.base.remote.commit is None:
        from bayou.sync.plan.planner import forget_unindexed  # noqa: PLC0415  (only the first head needs it)

        context.state.unindexed = forget_unindexed(context, found.tree, found.head)
    return found


def _read_remote(context: SyncContext, *, ours: bool, etag: str | None) -> RemoteSnapshot | None:
    remote_state = context.base.remote
    seen = context.take_head()
    try:
        return remote_snapshot.read_snapshot(
            context.store, context.cache, remote_state, context.repo.config.datastore, etag=etag, seen=seen
        )
    except NotFound:
        pushes = context.options.mode == "push" or ours
        if context.options.mode == "pull" or context.options.dry_run or not pushes:
            return remote_snapshot.discover_snapshot(context.handle, context.engines, context.nodes, context.cache)
        return remote_snapshot.create_index(context.handle, context.engines, context.cache, context.by)


def report_scan(report: SyncReport, observation: ScanResult) -> None:
    """Add the findings of a scan to the report; a later pass tries failed paths again."""
    report.refused += observation.refused
    report.failed = list(observation.failed)
    if observation.foreign:
        names = ", ".join(sorted(observation.foreign)[:5]) + (" …" if len(observation.foreign) > 5 else "")
        number = len(observation.foreign)
        stay = "is not payload and stays here" if number == 1 else "are not payload and stay here"
        report.warn(
            f"{count(number, 'name')} in the tree {stay}: {names} "
            f"(payload lies below {', '.join(sorted(paths.PAYLOAD_ROOTS))})"
        )


def resolve_pending(context: SyncContext, snapshot: RemoteSnapshot) -> bool:
    """Update base to an own commit whose response was lost (T5); return whether there was one."""
    if snapshot.seen is None or context.options.dry_run:
        return False
    done = commit.resolve(context.store, context.database, context.remote_id, snapshot.seen)
    if done is None:
        return False
    record_compared(context, snapshot)
    commit.apply_to_base(context.database, context.remote_id, done)
    context.report.commit = CommitId(done.seq, done.commit)
    return True


def record_compared(context: SyncContext, compared: RemoteSnapshot | Committed) -> None:
    """Record a head before base takes rows of it, so that base is of no later commit than the recorded one.

    If this sync is killed, and the store is then restored from a backup that is older than this head, the next sync
    finds that out, and does not take what the backup lacks for deleted. The policy is recorded when the sync ends.
    """
    known, seen = context.base.remote, compared.seen
    if seen is not None and known.commit != seen.head.commit:
        _record_head(context, known, seen, known.policy)


def record_in_sync(context: SyncContext, seen: HeadSeen | None, marks: Iterable[JournalRow], *, clean: bool) -> None:
    """Fold base and record the head that it was compared with.

    A pass without leftovers (`clean`) also drops the journal's closed marks, whose files are all committed, and prunes
    the node cache.
    """
    from bayou.sync.plan.planner import newly_wanted  # noqa: PLC0415

    remote_state = context.base.fold(context.nodes)
    # Paths that were absent under the old policy may still have to be pulled (F015).
    wanted = newly_wanted(context.base, context.policy, remote_state.policy)
    _record_head(context, remote_state, seen, remote_state.policy if wanted else context.policy.text)
    if clean and not context.report.failed and context.options.mode != "pull":
        with context.database.transaction() as db:
            # A mark that was open during the scan may cover later changes, although it is closed by now (T7).
            closed = [row.id for row in marks if row.state != "open"]
            journal.drop_marks(db, context.remote_id, closed)
    if clean:
        prune_cache(context.repo.state, context.database, context.nodes)


def _record_head(context: SyncContext, remote_state: base.RemoteState, seen: HeadSeen | None, policy: str) -> None:
    """Record a head, with its ETag only if base's root is that head's root: this proves "in sync" (V3).

    A base that differs from the head is not moved past an allowed mass delete: a later pull must still find that the
    mass delete was allowed.
    """
    if seen is None:
        return
    mine = remote_state.root.digest if remote_state.root else None
    theirs = seen.head.root.digest if seen.head.root else None
    ahead = remote_state.seq is not None and any(
        row.mass_delete and row.seq > remote_state.seq for row in seen.head.log
    )
    if mine != theirs and ahead:
        return
    if mine != theirs:
        from bayou.sync.plan.forgotten import learn_forgotten  # noqa: PLC0415  (most syncs end equal)

        learn_forgotten(context, seen.head)
    with context.database.transaction() as db:
        base.record_head(
            db,
            context.remote_id,
            seen.head.store,
            seen.head.seq,
            seen.head.commit,
            seen.etag if mine == theirs else None,
            policy,
        )
        if mine == theirs:
            base.clear_forgotten(db, context.remote_id)
