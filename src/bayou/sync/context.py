"""The open state of one sync: store, database, base, journal, staging area, options and report.

`open_context` opens everything that must be closed again, under the repo's sync lock, and yields a `SyncContext`.
Functions that need only two or three of its fields take those instead of the context.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from stat import S_ISREG

from msgspec import Struct, field

from bayou.core import activity, paths
from bayou.core.deadline import Deadline
from bayou.core.errors import AlreadySyncing, DeadlinePassed, PathRefused
from bayou.core.file_lock import FileLock
from bayou.core.ids import ulid, user_name
from bayou.core.progress import Progress, serial
from bayou.engine.handle import StoreHandle
from bayou.engine.select import Engines
from bayou.index.head import HeadSeen
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.state.base import BaseNodes, SyncBase, Why, repo_remote_url
from bayou.state.connection import Connection, connected
from bayou.state.database import Database
from bayou.state.file_stats import file_stat
from bayou.state.journal import Journal
from bayou.state.part_log import PartLogs
from bayou.sync.commit.commit import Committer
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import Policy
from bayou.sync.report import SyncOptions, SyncReport
from bayou.sync.transfer.executor import ThreadTransfer, TransferExecutor
from bayou.sync.transfer.meter import Meter
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import SafeRoot
from bayou.worktree.staging import StagingArea

_LOCK_POLL_S = 0.01
"""How often a sync tries to take the lock that another process, or another step of a workflow, holds."""

_LOCK_WAIT_S = 300.0
"""How long a sync without a deadline waits for that lock (V12): another process may transfer for hours."""


class SyncState(Struct):
    """What the passes of one sync learn and pass on to the next."""

    mass_delete: bool = False
    """Whether the commits of this sync are parts of a mass delete that the user allowed."""
    unindexed: frozenset[str] = frozenset()
    """Paths that a discovery of the store found and its first head lacks (`planner.forget_unindexed`)."""
    compared_seq: int | None = None
    """The seq of the oldest head that base may be compared with, if base has none recorded; None: base is empty."""


class SyncContext(Struct, frozen=True):
    """One sync of one repo with one store. A pass that works otherwise (on Spark, unreported) gets a changed copy."""

    repo: Repo
    root: Path
    store: Store
    deadline: Deadline
    database: Database
    base: SyncBase
    nodes: LocalNodes
    cache: NodeFiles
    journal: Journal
    policy: Policy
    incoming: StagingArea
    executor: TransferExecutor
    options: SyncOptions
    report: SyncReport
    progress: Progress
    meter: Meter
    """Bytes of files that are still being transferred, as `progress` shows them."""
    connection: Connection | None = None
    """The open datastore; it may have a head that the caller's session has just read."""
    pack_below: int = 0
    """Files of less than so many bytes are pushed in packs."""
    state: SyncState = field(default_factory=SyncState)

    @property
    def remote_id(self) -> int:
        """The number of the synced remote in `sync.db`, which keeps the state of each remote apart."""
        return self.base.remote_id

    @property
    def committer(self) -> Committer:
        from bayou.sync.run import record_compared  # noqa: PLC0415  (that module imports this one)

        record = partial(record_compared, self)
        return Committer(self.store, self.cache, self.database, self.remote_id, self.by, self.deadline, record)

    @property
    def by(self) -> str:
        """The author of commits, for the log."""
        return identity()

    @property
    def engines(self) -> Engines:
        """How jobs over the whole store run."""
        return Engines.of(self.repo.config, self.options.engine, self.deadline, self.report.warn, self.progress)

    @property
    def handle(self) -> StoreHandle:
        """The store as a job holds it: picklable, and opened again in a worker."""
        return StoreHandle.of(self.repo.config, self.store, self.deadline)

    def take_head(self) -> HeadSeen | None:
        """Return the head that this session has just read, if the options allow to use it; a pull keeps it for a push.

        The request that read it is counted with this sync (V17).
        """
        taken = self.connection.take_head() if self.connection is not None and self.options.reuse_head else None
        if taken is None or self.connection is None:
            return None
        if taken.requests is not None:
            self.store.add_requests(taken.requests)
        if self.options.mode == "pull":
            self.connection.keep_head(taken.seen)
        return taken.seen

    def stat(self, path: str) -> FileStat | None:
        """Return the stat of a regular file in the tree; None if the path is missing or is not a regular file."""
        return file_stat(self.root, path)

    def is_unchanged(self, observed: ObservedPath) -> bool:
        """Return whether the file is the one that the scanner saw, or is still missing.

        Anything but a regular file counts as missing. This is called often, and a plain `lstat` is safe: a file that a
        link leads to has another inode.
        """
        seen = observed.stat
        try:
            found = os.lstat(f"{self.root}/{observed.path}")
        except (FileNotFoundError, NotADirectoryError):
            return seen is None
        if not S_ISREG(found.st_mode):
            return seen is None
        return seen == FileStat.of(found)

    def absent(self, within: KeyRange = EVERYTHING) -> set[str]:
        """Return the paths that are absent on purpose under the current policy.

        A path that was refused because something blocked it is no longer among them once the obstacle is gone.
        """
        found = self.base.absent(within).items()
        return {path for path, why in found if still_absent(self.root, self.policy, path, why)}


def still_absent(root: Path, policy: Policy, path: str, why: Why) -> bool:
    """Return whether a path that was left out stays absent: by policy, or because it cannot exist here (V21)."""
    if why != "refused":
        return policy.still(path, why)
    if paths.refusal(path) is not None:
        return True
    try:
        SafeRoot(root).check_free(path)
    except (PathRefused, OSError):
        return True
    return False


@contextmanager
def open_context(
    repo: Repo,
    options: SyncOptions,
    *,
    timeout: float | None = None,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
    policy: Policy | None = None,
    connection: Connection | None = None,
) -> Iterator[SyncContext]:
    """Open one sync of a repo with its store, or with `store`. Only one process at a time can sync a repo.

    `AlreadySyncing` if another process still syncs at the deadline. A `connection` that the caller passes stays open.
    A command that has begun already passes its `deadline`, whose error names the whole time; it goes before `timeout`.
    """
    deadline = deadline or Deadline.after(timeout or repo.config.sync.timeout)
    with ExitStack() as held:
        opened = held.enter_context(connected(repo, connection))
        bounded = opened.store(deadline) if store is None else store.within(deadline)
        repo.tree_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = opened.database
        held.enter_context(_sync_lock(repo.state / "sync.lock", deadline))
        cache = NodeFiles(repo.state / "nodes")
        nodes = BaseNodes(cache, ulid())
        base = SyncBase(database, repo_remote_url(repo, bounded), bounded.namespace, nodes)
        journal = Journal(database, base.remote_id)
        held.callback(journal.release)
        incoming = StagingArea(repo.tree_root, repo.state / "incoming", whole=True)
        shown = serial(progress or activity.current())
        meter = Meter(shown)
        yield SyncContext(
            repo=repo,
            root=repo.tree_root,
            store=bounded,
            deadline=deadline,
            database=database,
            base=base,
            nodes=nodes,
            cache=cache,
            journal=journal,
            policy=policy or Policy.of(repo.config.datastore.hydrate, repo.config.datastore.exclude),
            incoming=incoming,
            executor=ThreadTransfer(
                bounded, repo.tree_root, incoming, repo.config.sync.pack_size, meter, PartLogs(database, base.remote_id)
            ),
            meter=meter,
            connection=opened,
            pack_below=repo.config.sync.pack_below,
            options=options,
            report=SyncReport(mode=options.mode, dry_run=options.dry_run),
            progress=shown,
            # Entries without a head were discovered, before the first commit.
            state=SyncState(
                compared_seq=0 if base.remote.seq is None and (base.remote.root is not None or base.dirty()) else None
            ),
        )


@contextmanager
def _sync_lock(path: Path, deadline: Deadline) -> Iterator[None]:
    lock = FileLock(path)
    if not lock.acquire():
        with activity.waiting("waiting for another process that syncs this repo"):
            _wait_for(lock, deadline)
    try:
        yield
    finally:
        lock.release()


def _wait_for(lock: FileLock, deadline: Deadline) -> None:
    limit = deadline if math.isfinite(deadline.seconds) else Deadline.after(_LOCK_WAIT_S, deadline.cancelled)
    while not lock.acquire():
        try:
            limit.sleep(_LOCK_POLL_S)  # V12: the wait can be cancelled
        except DeadlinePassed:
            raise AlreadySyncing(
                "another process is syncing this repo", hint="wait for it: it works on the same tree"
            ) from None


def identity() -> str:
    """Return user and host, as the author of commits in the log."""
    import socket  # noqa: PLC0415  (only a commit needs it)

    return f"{user_name()}@{socket.gethostname()}"
