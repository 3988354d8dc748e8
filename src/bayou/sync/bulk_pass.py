"""A pass over more paths than one process takes on: Spark compares tree, base and store; then window after window is
decided, moved and committed like a small sync.

This process holds one window at a time. Each commits by itself, so whoever is killed in between leaves what any sync
leaves that was cut short, and the next one goes on. Only what must be judged as a whole is judged before the first.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bayou.core.errors import IndexDamaged, SparkFailed
from bayou.core.progress import CombinedProgress
from bayou.index.tree import IndexTree, diff, scan
from bayou.objectstore.spec import StoreSpec
from bayou.state import file_stats
from bayou.state.journal import JournalSnapshot
from bayou.sync.context import SyncContext
from bayou.sync.plan import remote_snapshot, windows
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.local_scanner import LocalScanner, Observation
from bayou.sync.plan.planner import distrust, guard, plan, tell_found
from bayou.sync.plan.remote_snapshot import RemoteSnapshot
from bayou.sync.plan.steps import MASS_COUNT, PathAction
from bayou.sync.plan.windows import Looked, Window, cut
from bayou.sync.prune_cache import LARGE, sweep_tree
from bayou.sync.report import Failure, PlannedAction, Refusal, SyncReport
from bayou.sync.run import record_in_sync, see_store, settle_pending, tell_looked
from bayou.sync.transfer.apply import Begun, begin, conflict_refused, finish
from bayou.sync.transfer.pull import IncomingFile, downloads

if TYPE_CHECKING:
    from bayou.spark.plan import Planned
    from bayou.spark.session import Session
    from bayou.spark.transfer import SparkTransfer

_NAMED = 3


def large_pass(
    context: SyncContext, spark: Session, recipe: StoreSpec, store_view: RemoteSnapshot | None = None
) -> bool:
    """Make a pass on Spark; return whether something moved meanwhile and must be decided again.

    `store_view`: the store as it was seen a moment ago, by somebody who found that this is too much for one process.
    """
    context.report.engine = "spark"
    if store_view is None:
        ours = context.options.adopt or context.journal.counts()[0] > 0
        store_view = see_store(context, ours=ours, etag=None)
    assert store_view is not None  # nobody asked whether it is modified
    if settle_pending(context, store_view):
        return True
    if not context.options.dry_run:
        context.base.fold(context.nodes)
    _meet_rebuilt(context, store_view)
    with _folder(context.repo.state / LARGE) as folder, _moving(context, spark, recipe) as mover:
        large = _Large(context, _compare(context, spark, recipe, store_view, folder), store_view, mover)
        large.tell()
        if context.options.dry_run:
            large.rehearse()
            return False
        large.judge()
        return large.act()


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """Give an empty directory, and leave none (V14). One process at a time syncs a repo: what is there is nobody's."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700, parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _moving(context: SyncContext, spark: Session, recipe: StoreSpec) -> Iterator[SparkTransfer]:
    """Let Spark's workers do the work on single files. They must see the tree and the local state, and are asked."""
    from bayou.spark.transfer import SparkTransfer  # noqa: PLC0415

    before = context.mover
    mover = SparkTransfer(
        spark, recipe, context.store, context.root, context.incoming.staging, deadline=context.deadline
    )
    context.mover = mover
    try:
        yield mover
    finally:
        context.mover = before
        mover.close()


def _compare(
    context: SyncContext, spark: Session, recipe: StoreSpec, store_view: RemoteSnapshot, folder: Path
) -> Planned:
    """Have Spark find the paths that need a decision; if it failed for a node that is bad, say that instead."""
    from bayou.spark import plan as job  # noqa: PLC0415
    from bayou.spark.session import log_of, spark_errors  # noqa: PLC0415

    if not context.options.dry_run:
        context.base.fold(context.nodes)
    try:
        with spark_errors(log_of(spark)):
            return job.plan(spark, recipe, context, store_view.tree, folder)
    except (SparkFailed, IndexDamaged):
        for tree in (context.base.tree(), store_view.tree):
            for _ in scan(tree):
                pass
        raise


def _meet_rebuilt(context: SyncContext, store_view: RemoteSnapshot) -> None:
    """Forget what a rebuilt index does not say any more, before anything is compared with it."""
    head, place = store_view.head, context.base.place
    if head is not None and remote_snapshot.rebuilt_since(place, head):
        mine = IndexTree(context.nodes, place.root)
        distrust(context, diff(mine, store_view.tree), head)


class _Large:
    """One pass: what was found, and the store as of the window that was last committed."""

    def __init__(
        self, context: SyncContext, planned: Planned, store_view: RemoteSnapshot, mover: SparkTransfer
    ) -> None:
        self._context = context
        self._planned = planned
        self._view = store_view
        self._mover = mover
        self._unreadable = tuple(f"{one.path}/" for one in planned.notes if one.what == "unreadable")

    def tell(self) -> None:
        """Put into the report what the look at the tree brought, and sweep it."""
        found = Observation(JournalSnapshot(), walked=True)
        for one in self._planned.notes:
            match one.what:
                case "foreign":
                    found.foreign.append(one.path)
                case "refused":
                    found.refused.append(Refusal(one.path, one.text))
                case "temporary":
                    found.temporaries.append(one.path)
                case _:
                    found.failed.append(Failure(one.path, one.what, one.text))
        tell_looked(self._context.report, found)
        tell_found(self._context, self._view)
        if not self._context.options.dry_run:
            sweep_tree(self._context, found.temporaries)

    def rehearse(self) -> None:
        """Say what would be done."""
        actions: list[PlannedAction] = []
        counts: Counter[Action] = Counter()
        for _, todo in self._decided():
            counts.update(one.action for one in todo)
            actions += [PlannedAction(one.path, one.action.value) for one in todo if one.action is not Action.NOTHING]
        guard(self._context, counts, self._view)
        self._context.report.actions = actions

    def judge(self) -> None:
        """Stop before anything is changed if too much would be deleted, or if conflicts are not to be resolved.

        Deciding versions whole turns deletes into other things and never the other way round, so the counts of single
        paths settle most; else every window is decided once without acting.
        """
        context, counts = self._context, self._planned.counts
        fails = context.options.on_conflict == "fail"
        if not fails and not is_suspect(counts):
            return
        conflicts: list[str] = []
        counts = Counter()
        with _unreported(context):
            for _, todo in self._decided():
                counts.update(one.action for one in todo)
                conflicts += [one.path for one in todo if one.action is Action.CONFLICT][: _NAMED - len(conflicts)]
        guard(context, counts, self._view)
        if fails and conflicts:
            raise conflict_refused(conflicts)

    def act(self) -> bool:
        """Carry out every window; return whether another pass is needed.

        What one window sends is on its way while the next is decided, and the next one's while this one is committed;
        what a window of a pull brings is, while the one before is put in place. So the store never waits for this
        process. To decide a window nobody needs the commit of the one before, which is of other paths.
        """
        again = False
        before = begun = Begun()
        try:
            with self._told_as_one():
                for window, todo in self._under_way():
                    begun = begin(self._context, todo, self._view, through=self._planned.through, walked=window.span)
                    again |= self._finish(before)
                    before = begun
                again |= self._finish(before)
        finally:
            before.abandon()
            begun.abandon()
        record_in_sync(self._context, self._view.seen, self._planned.marks, clean=not again)
        return again

    def _finish(self, begun: Begun) -> bool:
        """Commit a window; return whether another pass is needed."""
        context = self._context
        again, seen = finish(context, begun, self._view.seen)
        if seen is not None:
            self._view = remote_snapshot.later(self._view, context.store, context.cache, seen)
        return again

    @contextmanager
    def _told_as_one(self) -> Iterator[None]:
        """Show one stage for all windows: how much they move is known, from single paths."""
        context, mode, planned = self._context, self._context.options.mode, self._planned
        moving = [one for one in Action if (one.pushes and mode != "pull") or (one.pulls and mode != "push")]
        whole = context.progress
        whole.begin(
            {"push": "pushing", "pull": "pulling", "sync": "syncing"}[mode],
            sum(planned.counts[one] for one in moving),
            sum(planned.bytes[one] for one in moving),
        )
        context.progress = CombinedProgress(whole)
        try:
            yield
        finally:
            context.progress = whole
            whole.end()

    def _under_way(self) -> Iterator[tuple[Window, list[PathAction]]]:
        """Yield each window with what is to be done in it; of a pull, once the downloads of the next have begun."""
        context = self._context
        if context.options.mode != "pull":
            yield from self._decided()
            return
        before: list[tuple[Window, list[PathAction]]] = []
        for window, todo in self._decided():
            arriving = [IncomingFile(one.path, one.remote, one.observed) for one in todo if one.action.pulls]
            self._mover.expect(downloads(context, arriving))
            yield from before
            before = [(window, todo)]
        yield from before

    def _decided(self) -> Iterator[tuple[Window, list[PathAction]]]:
        """Yield each window with what is to be done in it, decided against the store as it is known by then."""
        context = self._context
        # The sooner the first is on its way, the better; but what one commit can carry shall be one.
        soon = context.options.mode == "pull" or self._planned.counts.total() > windows.WINDOW
        for window in cut(self._rows(), soon=soon):
            context.deadline.remaining()
            told = JournalSnapshot.of(
                [*self._planned.marks, *context.journal.rows_within(window.span, self._planned.through)]
            )
            told.through = self._planned.through
            paths = {one.observed.path: one.observed for one in window.rows}
            observation = Observation(told, paths, walked=True, within=window.span)
            with context.database.transaction() as db:
                file_stats.remember_many(db, [one.kept for one in window.rows if one.kept is not None])
            observer = LocalScanner(
                context.root,
                context.database,
                context.place,
                context.policy,
                adopt=context.options.adopt,
                absent=context.absent(window.span),
                deadline=context.deadline,
                within=window.span,
            )
            todo = plan(context, observer, observation, self._view)
            context.report.failed += observation.failed
            yield window, todo

    def _rows(self) -> Iterator[Looked]:
        """Yield what was looked at, but for what only seems to be gone: its directory could not be read (V5)."""
        for row in self._planned.rows():
            one = row.observed
            if row.named or one.content is not None or not f"{one.path}/".startswith(self._unreadable):
                yield row


def is_suspect(counts: Mapping[Action, int]) -> bool:
    """Whether so many single deletes may be a mass delete, of however few entries."""
    return any(counts.get(action, 0) > MASS_COUNT for action in (Action.DELETE_REMOTE, Action.DELETE_LOCAL))


@contextmanager
def _unreported(context: SyncContext) -> Iterator[None]:
    """Decide without telling: it will be decided again."""
    report = context.report
    context.report = SyncReport(mode=report.mode)
    try:
        yield
    finally:
        context.report = report
