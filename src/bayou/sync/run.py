"""One sync, from the first look to the proof at its end.

A pass looks at both sides, decides, moves data and commits. What moved under it, here or there, is decided again in
another pass. "In sync" is recorded only where base's root is the head's root (V3).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bayou.core.errors import NotFound
from bayou.index.head import HeadSeen
from bayou.index.key_range import EVERYTHING
from bayou.objectstore.spec import StoreSpec
from bayou.state import base, journal
from bayou.state.base import BaseLost
from bayou.state.journal import JournalRow
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext
from bayou.sync.plan import remote_snapshot
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.local_scanner import LocalScanner, Observation, TooMany
from bayou.sync.plan.remote_snapshot import RemoteSnapshot
from bayou.sync.prune_cache import prune_cache, sweep_tree
from bayou.sync.report import CommitId, PlannedAction, SyncReport
from bayou.sync.transfer.pull import ProofLost, settle_intents

if TYPE_CHECKING:
    from bayou.spark.session import Session

_PASSES = 5


def run(context: SyncContext) -> SyncReport:
    """Reconcile the tree with the store as the options say."""
    begin, before = time.monotonic(), context.store.requests
    report = context.report
    try:
        if not context.options.dry_run:
            settle_intents(context)
        for _ in range(_PASSES):
            if not _whole_pass(context):
                break
        else:
            report.warn("some files kept changing meanwhile, here or in the store; the next sync goes on with them")
    except ProofLost as error:
        report.warn(f"what was pulled is here, but the proof could not be kept: {error}")
    finally:
        report.refused = list({one.path: one for one in report.refused}.values())
        report.requests = context.store.requests - before
        report.seconds = round(time.monotonic() - begin, 3)
    return report


def _whole_pass(context: SyncContext) -> bool:
    """Make a pass; if base turns out to be damaged, forget it, so that the next one compares everything anew (V3)."""
    try:
        return _pass(context)
    except BaseLost as lost:
        if context.options.dry_run:
            raise
        context.base.forget()
        context.report.warn(f"{lost.message}; tree and store were compared anew")
        return True


def _pass(context: SyncContext) -> bool:
    """Look, decide and act once; return whether something moved meanwhile and must be decided again.

    The look starts in this process; if more than `point_limit` paths turn out to need a decision, all of it is done by
    Spark. What is narrowed to some models is always done here.
    """
    bulk = context.bulk if context.options.scope is None else None
    if bulk is None:
        return _pass_here(context, None)
    seen: list[RemoteSnapshot] = []
    if not bulk.must:
        try:
            return _pass_here(context, bulk.limit, seen)
        except TooMany:
            pass
    again = bulk.run("tree and store were compared", partial(_pass_there, context, seen))
    if again is not None:
        return again
    context.report.engine = "fast"
    return _pass_here(context, None)


def _pass_there(context: SyncContext, seen: Sequence[RemoteSnapshot], spark: Session, recipe: StoreSpec) -> bool:
    from bayou.sync.bulk_pass import large_pass  # noqa: PLC0415

    return large_pass(context, spark, recipe, seen[0] if seen else None)


def _pass_here(context: SyncContext, limit: int | None, looked: list[RemoteSnapshot] | None = None) -> bool:
    """Make a pass in this process; `TooMany` if it is about more than `limit` paths: then nothing was changed yet.

    `looked` is given the view of the store, once there is one: a discovery need not be made again.
    """
    report = context.report
    place = context.base.remote
    observer = LocalScanner(
        context.root,
        context.database,
        context.place,
        context.policy,
        adopt=context.options.adopt,
        absent=context.absent(),
        deadline=context.deadline,
        pushes=context.options.mode != "pull" and not context.options.dry_run,
        progress=context.progress,
    )
    scope = context.options.scope
    walk = scope is None and (context.options.walk or not context.base.known)
    observation = observer.look(context.journal.rows(), walk=walk, scope=scope, limit=limit)
    if not context.options.dry_run:
        sweep_tree(context, observation.temporaries)
    quiet = _quiet(context, observation)
    ours = any(one.state.ours or one.state.deleted for one in observation.paths.values())
    store_view = see_store(context, ours=ours, etag=place.etag if quiet and _proved(context) else None)
    tell_looked(report, observation)
    if store_view is None:
        report.untracked = sorted(observation.paths)
        return False
    if settle_pending(context, store_view):
        return True
    if looked is not None:
        looked.append(store_view)
    from bayou.sync.plan.planner import plan  # noqa: PLC0415
    from bayou.sync.transfer.apply import apply_plan  # noqa: PLC0415  (with all that moves data: most syncs end above)

    todo = plan(context, observer, observation, store_view, limit=limit)
    report.failed = list(observation.failed)
    if context.options.dry_run:
        report.engine = "point"
        report.actions = [PlannedAction(one.path, one.action.value) for one in todo if one.action is not Action.NOTHING]
        return False
    walked = EVERYTHING if observation.walked else None
    again, seen = apply_plan(context, todo, store_view, through=observation.journaled.through, walked=walked)
    record_in_sync(context, seen, observation.journaled.marks, clean=not again)
    return again


def _quiet(context: SyncContext, observation: Observation) -> bool:
    """Whether nothing here asks for a decision: then a head that has not changed ends the matter."""
    listed = {path for (path,) in context.database.rows("SELECT path FROM untracked WHERE place = ?", (context.place,))}
    untracked = all(
        one.path in listed and one.content is not None and not one.state.ours for one in observation.paths.values()
    )
    return untracked and not observation.journaled.last and not observation.journaled.marks


def _proved(context: SyncContext) -> bool:
    """Whether base is known to be all of a head, under today's policy, with nothing unresolved (V3)."""
    same_policy = context.base.remote.policy == context.policy.text
    return same_policy and not context.base.dirty() and not commit.pending(context.database, context.place)


def see_store(context: SyncContext, *, ours: bool, etag: str | None) -> RemoteSnapshot | None:
    """Look at the store; None if its head is the one with this ETag. `ours`: there is something that it shall get."""
    place = context.base.remote
    try:
        return remote_snapshot.look(context.store, context.cache, place, etag=etag)
    except NotFound:
        pushes = context.options.mode == "push" or ours
        if context.options.mode == "pull" or context.options.dry_run or not pushes:
            return remote_snapshot.find(context.store, context.nodes, context.cache, context.bulk)
        return remote_snapshot.create(context.store, context.cache, context.by, bulk=context.bulk)


def tell_looked(report: SyncReport, observation: Observation) -> None:
    """Put into the report what the look at the tree brought; what failed is tried again by a later pass."""
    report.refused += observation.refused
    report.failed = list(observation.failed)
    if observation.foreign:
        names = ", ".join(sorted(observation.foreign)[:5]) + (" …" if len(observation.foreign) > 5 else "")
        report.warn(f"{len(observation.foreign)} names in the tree are not payload and stay here: {names}")


def settle_pending(context: SyncContext, store_view: RemoteSnapshot) -> bool:
    """Bring base up to a commit of ours whose answer was lost (T5)."""
    if store_view.seen is None or context.options.dry_run:
        return False
    done = commit.resolve(context.store, context.database, context.place, store_view.seen)
    if done is None:
        return False
    commit.settle(context.database, context.place, done)
    context.report.commit = CommitId(done.seq, done.commit)
    return True


def record_in_sync(context: SyncContext, seen: HeadSeen | None, marks: Iterable[JournalRow], *, clean: bool) -> None:
    """Fold base, note the head that it was compared with, and end a pass that was clean: drop marks, since their files
    are all settled, and tidy up."""
    place = context.base.fold(context.nodes)
    _settle_head(context, place, seen)
    if clean and not context.report.failed and context.options.mode != "pull":
        with context.database.transaction() as db:
            # What was open when we looked may have covered changes since, although it is closed by now (T7).
            closed = [row.id for row in marks if row.state != "open"]
            journal.drop_marks(db, context.place, closed)
    if clean:
        prune_cache(context)


def _settle_head(context: SyncContext, place: base.RemoteState, seen: HeadSeen | None) -> None:
    """Note a head; with its ETag only if base's root is that head's root: that is the proof (V3).

    Otherwise base stays behind an allowed mass delete: whoever pulls it must still find that it was allowed.
    """
    if seen is None:
        return
    mine = place.root.digest if place.root else None
    theirs = seen.head.root.digest if seen.head.root else None
    ahead = place.seq is not None and any(row.mass_delete and row.seq > place.seq for row in seen.head.log)
    if mine != theirs and ahead:
        return
    from bayou.sync.plan.planner import returning  # noqa: PLC0415

    # What was left out under another policy may still have to come (F015).
    policy = place.policy if returning(context, place.policy) else context.policy.text
    with context.database.transaction() as db:
        base.record_head(
            db,
            context.place,
            seen.head.store,
            seen.head.seq,
            seen.head.commit,
            seen.etag if mine == theirs else None,
            policy,
        )
