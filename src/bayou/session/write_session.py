"""`write_session`: every command that writes runs in one. Lease, pull, block, exactly one push, release.

Only this module pulls before a change and pushes after it, so no command can forget either, or do it twice. It also
decides whether the work waits here or fails if the store cannot be reached (V22).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bayou.core.deadline import Deadline
from bayou.core.errors import (
    OUTAGES,
    BayouError,
    IndexDamaged,
    NotPushed,
    ParserFailed,
    StoreError,
    SyncError,
    error_codes,
)
from bayou.core.progress import NoProgress, Progress
from bayou.data.engine import CatalogEngine, Choice
from bayou.data.sync_hooks import finish_pending_changesets, renumber
from bayou.leases import STORE, LeaseGroup, model_key, open_leases
from bayou.repo import Repo
from bayou.state.connection import Connection, connected
from bayou.state.freshness import pending_inputs
from bayou.sync import service
from bayou.sync.plan.policy import ModelRef, ModelScope
from bayou.sync.report import SyncOptions, SyncReport

if TYPE_CHECKING:
    from bayou.data.records import Records
    from bayou.models.types.sql import SqlRunner

_UNFIT = (SyncError, IndexDamaged, ParserFailed)
"""Errors after which a person must decide before this repo can sync with its store again."""


class Session(Struct):
    """The open records and leases of a block. `pulled` and `pushed` are the reports of its syncs (None: not tried)."""

    records: Records
    leases: LeaseGroup
    pulled: SyncReport | None = None
    pushed: SyncReport | None = None
    remarks: list[str] = field(default_factory=list)
    """Sentences about inputs that earlier commands left here and that this session used (V22)."""

    @property
    def alone(self) -> bool:
        """Whether the store has not been asked for its latest state: offline, or because it cannot be had."""
        return self.pulled is None and self.records.repo.config.datastore.url is not None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which a child process works under this session's leases (F089)."""
        return self.leases.environment()

    @property
    def sql_runner(self) -> SqlRunner:
        """Spark's runner of queries, for methods of `spark/sql`; importing it takes two seconds."""
        from bayou.spark.sql.query import save_result  # noqa: PLC0415  (pyarrow, grpc, pyspark)

        return partial(save_result, connection=self.records.connection)


@contextmanager
def write_session(
    repo: Repo,
    *,
    models: Sequence[ModelRef] | None = (),
    timeout: float | None = None,
    progress: Progress | None = None,
    on_wait: Callable[[str], None] | None = None,
    allow_mass_delete: bool = False,
    engine: Choice = "auto",
    connection: Connection | None = None,
    alone: bool = False,
    wait_s: float | None = None,
) -> Iterator[Session]:
    """Hold the leases of the models (None: of the whole store), pull their data, run the block, push once.

    If the store cannot be had at the beginning, the block does not run, unless it may work `alone`: then it runs
    without lease and pull, and sync later renumbers a version whose number another machine took. If the store cannot
    be had at the end, or the block ran alone, `NotPushed` says so: the work is done and journaled.

    The session pushes even if the block raises: peers need the records of a failed run, too. The block's error stays
    first, and a failure of the push becomes a note on it. After a signal, or once a lease is lost, nothing is pushed,
    and changes stay journaled. Offline there is no lease, pull or push; a datastore that is a directory has leases
    only. `timeout` limits the pull, and again the push; `wait_s` the wait for a lease, whose holder `on_wait` is
    called with; `allow_mass_delete` is for a block whose deletes the user has confirmed; `engine` chooses who runs
    jobs. Leases, pull, records and push share one open datastore: the caller's, which stays open, or the session's.
    """
    with ExitStack() as open_now:
        opened = open_now.enter_context(connected(repo, connection))
        exchange = _Exchange(opened, timeout, progress, allow_mass_delete, engine)
        pulled, obstacle = None, None
        try:
            # V14: entered first, so released last, on every exit. V13: held before the block's data is read.
            leases = open_now.enter_context(_leases(opened, models, timeout, wait_s, on_wait))
            finish_pending_changesets(opened)  # of killed processes, before the pull changes the tree
            pulled = exchange.pull(ModelScope.of(models) if models else None)
        except (*OUTAGES, *_UNFIT) as error:
            if not alone:
                raise
            leases, obstacle = LeaseGroup([]), error
            finish_pending_changesets(opened)
        records = open_now.enter_context(_records(opened, leases, CatalogEngine(engine, progress or NoProgress())))
        records.catalog.refresh()
        session = Session(records, leases, pulled)
        if pending_inputs(repo):
            from bayou.session.inputs import use_abandoned  # noqa: PLC0415  (hardly ever needed)

            synced = obstacle is None and not repo.offline
            session.remarks = use_abandoned(records, models, appends=synced)
        try:
            yield session
        except Exception as error:
            try:
                exchange.push(session, obstacle)
            except BayouError as second:
                if error not in (second, getattr(second, "cause", None)):  # a lost lease is the block's error already
                    error.add_note(f"{second.message} ({second.hint})")
            raise
        exchange.push(session, obstacle)


class _Exchange(Struct, frozen=True):
    """Pulls and pushes for one session; offline, and for a directory, it does neither."""

    connection: Connection
    timeout: float | None
    progress: Progress | None
    allow_mass_delete: bool
    engine: Choice

    def pull(self, scope: ModelScope | None) -> SyncReport | None:
        options = SyncOptions("pull", engine=self.engine, walk=False, scope=scope, renumber=renumber, reuse_head=True)
        return self._sync(options)

    def push(self, session: Session, obstacle: BayouError | None) -> None:
        """Push the journaled changes; an error says that they could not be pushed (F100), or why no push was tried."""
        if obstacle is not None:
            raise NotPushed.of(obstacle)
        options = SyncOptions(
            "push",
            engine=self.engine,
            walk=False,
            renumber=renumber,
            allow_mass_delete=self.allow_mass_delete,
            reuse_head=True,
        )
        try:
            session.leases.check()
            session.pushed = self._sync(options)
            _check_pushed(session.pushed)
        except BayouError as error:
            raise NotPushed.of(error) from None

    def _sync(self, options: SyncOptions) -> SyncReport | None:
        repo = self.connection.repo
        if repo.offline or repo.config.datastore.url is None:
            return None
        return service.sync(self.connection, options, timeout=self.timeout, progress=self.progress)


def _check_pushed(report: SyncReport | None) -> None:
    """Raise if the store refused or lost every file that failed: all are whole here, and a later push has them."""
    failed = report.failed if report is not None else []
    if failed and all(failure.code in error_codes(StoreError) for failure in failed):
        more = f" (and {len(failed) - 1:,} more)" if failed[1:] else ""
        raise StoreError(f"{failed[0].path}{more}: {failed[0].message}")


def _leases(
    connection: Connection,
    models: Sequence[ModelRef] | None,
    timeout: float | None,
    wait_s: float | None,
    on_wait: Callable[[str], None] | None,
) -> LeaseGroup:
    repo = connection.repo
    if repo.offline:
        return LeaseGroup([])
    keys = [STORE] if models is None else [model_key(model.type, model.id) for model in models]
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    if repo.config.datastore.url is None:
        return open_leases(repo).acquire_all(keys, wait_s=wait_s, on_wait=on_wait, deadline=deadline)
    leases = open_leases(repo, connection.store(), connection)
    # The pull needs the head, and the check of the lease `store` does not: both requests are sent at once.
    return leases.acquire_all(
        keys,
        wait_s=wait_s,
        on_wait=on_wait,
        deadline=deadline,
        on_taken=lambda: connection.prefetch_head(deadline),
    )


def _records(connection: Connection, leases: LeaseGroup, engine: CatalogEngine) -> Records:
    from bayou.data.records import Records  # noqa: PLC0415  (only once the lease is held)

    # V13: the tree checks the leases before every change, and no repository can bypass the tree.
    return Records(connection.repo, guard=leases.check, engine=engine, connection=connection)
