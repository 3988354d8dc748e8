"""A sync pass over more paths than one process can hold.

A job compares tree, base and store (`plan.compare_job`), on Spark or in this process. Then this process plans,
transfers and commits window after window (`plan.windows`), each like a small sync, and has few windows in memory. Each
window has its own commit, so a pass that is killed leaves the same as any interrupted sync, and the next sync goes on
from there. Checks that concern the sync as a whole, such as the guard against mass deletes, run before the first
window.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from bayou.core.errors import IndexDamaged, SparkFailed
from bayou.core.progress import CombinedProgress
from bayou.engine.job import Executor
from bayou.index.tree import IndexTree, diff, scan
from bayou.objectstore.spec import StoreSpec
from bayou.state import file_stats
from bayou.state.journal import JournalSnapshot
from bayou.sync.context import SyncContext
from bayou.sync.plan import remote_snapshot, windows
from bayou.sync.plan.compare_job import compare
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.local_scanner import LocalScanner, ScanResult
from bayou.sync.plan.planner import forget_unconfirmed, guard, plan, report_discovery
from bayou.sync.plan.remote_snapshot import RemoteSnapshot
from bayou.sync.plan.steps import MASS_COUNT, PathAction
from bayou.sync.plan.windows import Candidate, Comparison, Window, divide_into_windows
from bayou.sync.prune_cache import LARGE, sweep_tree
from bayou.sync.report import Failure, PlannedAction, Refusal, SyncReport
from bayou.sync.run import read_remote, record_compared, record_in_sync, report_scan, resolve_pending
from bayou.sync.transfer.apply import StartedPlan, begin, finish, planned_actions, refuse_conflicts
from bayou.sync.transfer.executor import BulkTransferExecutor
from bayou.sync.transfer.pull import IncomingFile, downloads

_NAMED = 3
"""Conflicts that an error message names."""


@runtime_checkable
class BulkExecutor(Protocol):
    """An executor whose workers also transfer files."""

    def transfer_executor(self, spec: StoreSpec, context: SyncContext) -> BulkTransferExecutor:
        """Return what transfers the files of a sync.

        `SparkNotShared` if workers cannot see the tree or the staging directory.
        """


def large_pass(context: SyncContext, executor: Executor, store_view: RemoteSnapshot | None = None) -> bool:
    """Run a pass in windows; return whether something changed meanwhile, so that another pass is needed.

    `store_view` is the snapshot that this process read before it found that the sync is so large.
    """
    report = context.report
    if executor.engine == "spark":
        report.engine = "spark"
    elif context.options.dry_run:
        report.engine = "point"
    elif report.engine == "spark":
        report.engine = "fast"  # until this process transfers something
    if store_view is None:
        ours = context.options.adopt or context.journal.counts()[0] > 0
        store_view = read_remote(context, ours=ours, etag=None)
    assert store_view is not None  # without an ETag the read is unconditional
    if resolve_pending(context, store_view):
        return True
    if not context.options.dry_run:
        context.base.fold(context.nodes)
    _forget_before_rebuild(context, store_view)
    with (
        _empty_directory(context.repo.state / LARGE) as folder,
        _bulk_transfer(context, executor) as transfer,
        closing(_compare(context, executor, store_view, folder)) as planned,
    ):
        bulk = _BulkPass(
            context if transfer is None else replace(context, executor=transfer), planned, store_view, transfer
        )
        bulk.report_findings()
        if context.options.dry_run:
            bulk.report_actions()
            return False
        bulk.check()
        record_compared(context, store_view)
        return bulk.apply()


@contextmanager
def _empty_directory(path: Path) -> Iterator[Path]:
    """Create an empty directory, and remove it at the end (V14).

    One process at a time syncs a repo, so an existing directory is left from a sync that was killed.
    """
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700, parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _bulk_transfer(context: SyncContext, executor: Executor) -> Iterator[BulkTransferExecutor | None]:
    """Yield the transfer of files by the executor's workers, who must see the tree and the local state.

    None: the threads of this process transfer files, as in a small sync.
    """
    if not isinstance(executor, BulkExecutor):
        yield None
        return
    transfer = executor.transfer_executor(context.handle.spec(), context)
    try:
        yield transfer
    finally:
        transfer.close()


def _compare(context: SyncContext, executor: Executor, store_view: RemoteSnapshot, folder: Path) -> Comparison:
    """Find the paths that need a decision; if a worker fails because a node is damaged, raise that error."""
    if not context.options.dry_run:
        context.base.fold(context.nodes)
    try:
        return compare(context, executor, store_view.tree, folder)
    except (SparkFailed, IndexDamaged):
        for tree in (context.base.tree(), store_view.tree):
            for _ in scan(tree):
                pass
        raise


def _forget_before_rebuild(context: SyncContext, store_view: RemoteSnapshot) -> None:
    """Drop from base what a rebuilt index does not have any more, before anything is compared with it."""
    head, remote = store_view.head, context.base.remote
    if head is not None and remote_snapshot.rebuilt_since(remote, head):
        base = IndexTree(context.nodes, remote.root)
        forget_unconfirmed(context, diff(base, store_view.tree), head)


class _BulkPass:
    """One pass: the result of the comparison, and the store's snapshot as of the last committed window."""

    def __init__(
        self,
        context: SyncContext,
        planned: Comparison,
        store_view: RemoteSnapshot,
        transfer: BulkTransferExecutor | None,
    ) -> None:
        self._context = context
        self._planned = planned
        self._view = store_view
        self._transfer = transfer
        self._unreadable = tuple(f"{note.path}/" for note in planned.notes if note.what == "unreadable")

    def report_findings(self) -> None:
        """Report what the scan of the tree found besides payload, and remove old temporary files."""
        found = ScanResult(JournalSnapshot(), walked=True)
        for note in self._planned.notes:
            match note.what:
                case "foreign":
                    found.foreign.append(note.path)
                case "refused":
                    found.refused.append(Refusal(note.path, note.text))
                case "temporary":
                    found.temporaries.append(note.path)
                case _:
                    found.failed.append(Failure(note.path, note.what, note.text))
        report_scan(self._context.report, found)
        report_discovery(self._context, self._view)
        if not self._context.options.dry_run:
            context = self._context
            sweep_tree(context.root, context.repo.state, context.journal, found.temporaries)

    def report_actions(self) -> None:
        """Report what a sync would do, for a dry run."""
        actions: list[PlannedAction] = []
        counts: Counter[Action] = Counter()
        for _, todo in self._plan_windows(self._context):
            counts.update(step.action for step in todo)
            actions += planned_actions(todo, self._context.options.mode)
        guard(self._context, counts, self._view)
        self._context.report.actions = actions

    def check(self) -> None:
        """Raise before anything is changed if too much would be deleted, or if conflicts shall fail the sync.

        Planning version directories as a whole turns some deletes into other actions and never the reverse, so the
        counts of single paths are an upper bound. If they are suspect, or if conflicts shall fail the sync, every
        window is planned once without acting.
        """
        context, counts = self._context, self._planned.counts
        fails = context.options.on_conflict == "fail"
        if not fails and not is_suspect(counts):
            return
        conflicts: list[str] = []
        counts = Counter()
        unreported = replace(context, report=SyncReport(mode=context.report.mode))  # windows are planned again
        for _, todo in self._plan_windows(unreported):
            counts.update(step.action for step in todo)
            conflicts += [step.path for step in todo if step.action is Action.CONFLICT][: _NAMED - len(conflicts)]
        guard(context, counts, self._view)
        if fails and conflicts:
            raise refuse_conflicts(conflicts)

    def apply(self) -> bool:
        """Carry out every window; return whether another pass is needed.

        Transfers overlap with planning, so that the store never waits for this process: a window's uploads run while
        the next window is planned and while the window before is committed, and a pull downloads the next window while
        it moves the files of this one into the tree. Windows have no paths in common, so planning a window does not
        depend on the commit of the window before.
        """
        again = False
        before = begun = StartedPlan()
        try:
            with self._one_stage() as context:
                for window, todo in self._prefetched_windows(context):
                    begun = begin(context, todo, self._view, through=self._planned.through, walked=window.span)
                    again |= self._finish(context, before)
                    before = begun
                again |= self._finish(context, before)
        finally:
            before.abandon()
            begun.abandon()
        record_in_sync(self._context, self._view.seen, self._planned.marks, clean=not again)
        return again

    def _finish(self, context: SyncContext, begun: StartedPlan) -> bool:
        """Commit a window; return whether another pass is needed."""
        again, seen = finish(context, begun, self._view.seen)
        if seen is not None:
            self._view = remote_snapshot.with_head(self._view, context.store, context.cache, seen)
        return again

    @contextmanager
    def _one_stage(self) -> Iterator[SyncContext]:
        """Yield a context that shows all windows as one stage; the comparison has counted its files and bytes."""
        context, mode, planned = self._context, self._context.options.mode, self._planned
        moving = [
            action for action in Action if (action.pushes and mode != "pull") or (action.pulls and mode != "push")
        ]
        whole = context.progress
        whole.begin(
            {"push": "pushing", "pull": "pulling", "sync": "syncing"}[mode],
            sum(planned.counts[action] for action in moving),
            sum(planned.bytes[action] for action in moving),
        )
        try:
            yield replace(context, progress=CombinedProgress(whole))
        finally:
            whole.end()

    def _prefetched_windows(self, context: SyncContext) -> Iterator[tuple[Window, list[PathAction]]]:
        """Yield each window with its actions; in a pull, after the downloads of the next window have started."""
        if context.options.mode != "pull" or self._transfer is None:
            yield from self._plan_windows(context)
            return
        before: list[tuple[Window, list[PathAction]]] = []
        for window, todo in self._plan_windows(context):
            arriving = [IncomingFile(step.path, step.remote, step.observed) for step in todo if step.action.pulls]
            self._transfer.expect(downloads(context.policy, arriving))
            yield from before
            before = [(window, todo)]
        yield from before

    def _plan_windows(self, context: SyncContext) -> Iterator[tuple[Window, list[PathAction]]]:
        """Yield each window with its actions, planned against the newest snapshot of the store."""
        # A small first window starts the transfers sooner; but a push that fits into one commit stays one commit.
        soon = context.options.mode == "pull" or self._planned.counts.total() > windows.WINDOW
        for window in divide_into_windows(self._rows(), soon=soon):
            context.deadline.remaining()
            journal = JournalSnapshot.of(
                [*self._planned.marks, *context.journal.rows_within(window.span, self._planned.through)]
            )
            journal.through = self._planned.through
            paths = {row.observed.path: row.observed for row in window.rows}
            observation = ScanResult(journal, paths, walked=True, within=window.span)
            with context.database.transaction() as db:
                file_stats.save_many(db, [row.hash_row for row in window.rows if row.hash_row is not None])
            scanner = LocalScanner(
                context.root,
                context.database,
                context.remote_id,
                context.policy,
                adopt=context.options.adopt,
                absent=context.absent(window.span),
                deadline=context.deadline,
                within=window.span,
            )
            todo = plan(context, scanner, observation, self._view)
            context.report.failed += observation.failed
            yield window, todo

    def _rows(self) -> Iterator[Candidate]:
        """Yield the compared paths, without those that only seem deleted since their directory is unreadable (V5)."""
        for row in self._planned.rows():
            observed = row.observed
            if row.named or observed.content is not None or not f"{observed.path}/".startswith(self._unreadable):
                yield row


def is_suspect(counts: Mapping[Action, int]) -> bool:
    """Return whether the deletes of single paths are enough for a mass delete."""
    return any(counts.get(action, 0) > MASS_COUNT for action in (Action.DELETE_REMOTE, Action.DELETE_LOCAL))
