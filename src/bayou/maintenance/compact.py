"""`datastore compact`: move small files together, and away from deleted ones, into new packs.

The compactor reads the index and decides which packs to rewrite (`compact_plan`): those of which the index names less
than half, small ones, and those with files that no retained root names any more. Small objects that Bayou wrote go
along; discovered objects stay (P4). A job (`compact_move`) copies the files in order of path, so that files that are
read together lie together. The driver commits some thousand rows at a time.

A commit changes only the location of a file, and only where the head's row is exactly the row that was copied (P4):
what another client has deleted or replaced meanwhile stays so. The old packs and objects stay for readers of earlier
roots; `datastore gc` deletes them after the grace. A compaction that ends early has changed nothing but what it has
committed, and the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import compress
from typing import Literal

from msgspec import Struct, field

from bayou.core import kept
from bayou.core.clock import now, now_ms
from bayou.core.deadline import Deadline
from bayou.core.errors import AlreadySyncing, PreconditionFailed, StateError, StoreError, SyncError
from bayou.core.ids import ulid
from bayou.core.iterators import batched
from bayou.core.progress import Progress
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.select import SCAN, TRANSFER, Engines
from bayou.index.entry import Entry
from bayou.index.head import Gc, Head, HeadSeen, advance, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, diff, find_many
from bayou.maintenance.compact_move import MoveJob, MoveRow, Unmoved
from bayou.maintenance.compact_plan import CompactionPlan, Planner
from bayou.maintenance.gc import GRACE_S, ReadHead, require_head
from bayou.maintenance.repair import resolve_pending
from bayou.objectstore import keys
from bayou.objectstore.retry import SWAP_BACKOFF
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.state import base
from bayou.sync.commit.commit import LOSSES_BEFORE_LEASE, commit_lease
from bayou.sync.context import identity, open_context
from bayou.sync.plan.remote_snapshot import read_snapshot
from bayou.sync.report import CompactReport, SyncOptions
from bayou.sync.run import record_in_sync
from bayou.sync.transfer.push import is_collected

_BASE_ROWS = 25_000
"""Rows that base takes in one transaction."""


def compact(
    repo: Repo,
    *,
    dry_run: bool,
    grace_s: float = GRACE_S,
    timeout: float | None = None,
    engine: Literal["auto", "point", "spark"] = "auto",
    progress: Progress | None = None,
) -> CompactReport:
    """Rewrite packs that are small or hold deleted files, and pack small objects; in a dry run, only count.

    `grace_s` is the age from which a root counts as history that readers have left, as for a collection.
    """
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    report = CompactReport(dry_run=dry_run)
    store = repo.store().within(deadline)
    handle = StoreHandle.of(repo.config, store, deadline)
    engines = Engines.of(repo.config, engine, deadline, report.warn, progress)
    planner = Planner(handle, repo.config.sync, now_ms() - round(grace_s * 1000))
    read = partial(require_head, handle, engines, "compacted")
    seen = read()
    plan = engines.run(
        Needs((handle,)),
        lambda executor: planner.plan(executor, seen),
        what="the index was read",
        cost=SCAN,
        files=seen.head.root.entries if seen.head.root is not None else 0,
    )
    report.packs_before = report.packs_after = plan.packs
    if plan.moving is None:
        return report
    if dry_run:
        report.packs_after, report.files, report.objects = plan.packs_after, plan.moving.files, plan.objects
        report.bytes, report.freed = plan.moving.size, plan.freed
        return report
    plans = [plan]

    def work(executor: Executor) -> None:
        # A second executor decides again: the first may have committed something.
        now = plans.pop() if plans else planner.plan(executor, read())
        if now.moving is not None:
            moves = _Moves(store, read, now, deadline, report)
            moves.report_failures(executor.run(MoveJob(handle, now.moving, moves.commit)))

    engines.run(
        Needs((handle,), written=(handle,)),
        work,
        what="packs were rewritten",
        cost=TRANSFER,
        files=plan.moving.files,
        size=plan.moving.size,
        threads=1,  # one part reads and writes as much at once as memory allows
    )
    if report.files:
        try:
            _record_moves(repo, store, deadline)
        except (SyncError, StoreError, StateError) as error:
            report.warn(f"the files were moved, but this clone does not know it yet: {error.message}")
    return report


class _Moves:
    """The commits of one compaction, and the account of what they did."""

    def __init__(
        self, store: Store, read: ReadHead, plan: CompactionPlan, deadline: Deadline, report: CompactReport
    ) -> None:
        self._store = store
        self._read_head = read
        self._gc = plan.seen.head.gc.count
        """The count of collections before any new pack was written."""
        self._left = dict(plan.chosen)
        self._written: set[str] = set()
        self._deadline = deadline
        self._report = report

    def commit(self, rows: Sequence[MoveRow]) -> None:
        """Commit the new places of these files, where the head still has the rows that were copied (P4).

        After a lost response the head itself says what is done: no other commit can have made a row with such a place.
        """
        batch = _Batch({row.path: row for row in rows}, self._gc)
        lost = 0
        with ExitStack() as lease:
            while True:
                seen = self._read_head()
                tree = IndexTree(StoreNodes(self._store), seen.head.root)
                current = find_many(tree, list(batch.rows))
                changes = self._choose(batch, seen.head, current)
                if not changes:
                    break
                try:
                    self._swap(seen, tree, changes)
                except PreconditionFailed:
                    pass
                except StoreError as error:
                    if not error.ambiguous:
                        raise
                else:
                    current |= changes
                    break
                lost += 1
                if lost == LOSSES_BEFORE_LEASE:
                    lease.enter_context(commit_lease(self._store, self._deadline))
                self._deadline.sleep(SWAP_BACKOFF.backoff(1 if lost > LOSSES_BEFORE_LEASE else lost))
        self._account(batch, current, len(rows))

    def report_failures(self, unmoved: Unmoved) -> None:
        """Report files that could not be copied, unless the head has another row for them by now (P7)."""
        if not unmoved.rows:
            return
        head = self._read_head().head
        current = find_many(IndexTree(StoreNodes(self._store), head.root), [row.path for row in unmoved.rows])
        failed = [row.failure for row in unmoved.rows if current.get(row.path) == row.old and row.failure is not None]
        self._report.skipped += len(unmoved.rows) - len(failed)
        self._report.failed += failed
        self._report.failures += len(failed) + unmoved.more

    def _choose(self, batch: _Batch, head: Head, current: Mapping[str, Entry]) -> dict[str, Entry]:
        if head.gc.count != batch.gc:
            batch.drop(self._collected(batch, head.gc))
            batch.gc = head.gc.count
        return {path: row.new for path, row in batch.rows.items() if current.get(path) == row.old}

    def _collected(self, batch: _Batch, gc: Gc) -> set[str]:
        """Return the packs that a collection since their upload has deleted, or may yet delete (P6).

        The files of such a pack stay where they are. A pack that more than one request has written may have been
        listed, deleted and written again; its time says nothing then.
        """
        packs = {row.new_pack: row.repeated for row in batch.rows.values() if row.new_pack is not None}
        sure = [pack for pack, repeated in packs.items() if not repeated]
        gone = self._store.map(lambda pack: is_collected(self._store, keys.pack(pack), gc), sure)
        return {*(pack for pack, repeated in packs.items() if repeated), *compress(sure, gone)}

    def _swap(self, seen: HeadSeen, tree: IndexTree, changes: Mapping[str, Entry]) -> None:
        """Try once to swap in a head with these changes, under a commit id and with nodes of its own."""
        head, number = seen.head, ulid()
        sink = StoreSink(self._store, number)
        new, page = advance(
            head,
            commit=number,
            at=now(),
            by=identity(),
            root=merge(tree, changes, sink),
            trash=head.trash,
            tally=Tally(),
            kind="compact",
        )
        sink.flush()
        swap_head(self._store, new, seen.match, page)
        kept.now("files that were moved stay where they are now")

    def _account(self, batch: _Batch, current: Mapping[str, Entry], rows: int) -> None:
        """Add what was moved to the report."""
        report = self._report
        moved = [row for path, row in batch.rows.items() if current.get(path) == row.new]
        report.skipped += rows - len(moved)
        report.files += len(moved)
        for row in moved:
            report.bytes += row.size if row.stored is None else row.stored
            if row.pack is None:
                report.objects += 1
                report.freed += row.size
                continue
            self._left[row.pack] -= 1
            if not self._left[row.pack]:
                report.freed += keys.pack_bytes(row.pack) or 0
                report.packs_after -= 1
        written = {row.new_pack for row in moved if row.new_pack is not None} - self._written
        self._written |= written
        report.packs_after += len(written)


class _Batch(Struct):
    """Rows to commit, and the count of collections under which their packs are known to stay."""

    rows: dict[str, MoveRow] = field(default_factory=dict)
    gc: int = 0

    def drop(self, packs: set[str]) -> None:
        """Leave the files of these packs where they are."""
        self.rows = {path: row for path, row in self.rows.items() if row.new_pack not in packs}


def _record_moves(repo: Repo, store: Store, deadline: Deadline) -> None:
    """Let base take the new places of the files that it has, so that the next sync here has nothing to do (P5).

    Where base differs from the head otherwise, it stays as it is. If another process syncs this repo all the time that
    is left, the next sync does the same.
    """
    options = SyncOptions(mode="push", walk=False)
    try:
        with open_context(repo, options, deadline=deadline, store=store) as context:
            known = context.base.remote
            if not context.base.known:
                return
            snapshot = read_snapshot(context.store, context.cache, known, context.repo.config.datastore, etag=None)
            assert snapshot is not None  # the request had no ETag
            assert snapshot.seen is not None
            resolve_pending(context, snapshot.seen)
            context.base.fold(context.nodes)
            for batch in batched(_moved_rows(context.base.tree(), snapshot.tree), _BASE_ROWS):
                with context.database.transaction() as db:
                    for entry in batch:
                        base.update_entry(db, context.remote_id, entry.path, entry)
                context.base.fold(context.nodes)
            record_in_sync(context, snapshot.seen, (), clean=False)
    except AlreadySyncing:
        return


def _moved_rows(mine: IndexTree, theirs: IndexTree) -> Iterator[Entry]:
    changes: Iterable[Entry | None] = (change.new for change in diff(mine, theirs) if change.moved)
    return (entry for entry in changes if entry is not None)
