"""What one sync works with: one place where everything that has a lifetime is made and closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from stat import S_ISREG

from msgspec import Struct

from bayou.core import paths
from bayou.core.deadline import Deadline
from bayou.core.errors import AlreadySyncing, DeadlinePassed, PathRefused
from bayou.core.file_lock import FileLock
from bayou.core.ids import ulid
from bayou.core.progress import NoProgress, Progress
from bayou.engine.handle import StoreHandle
from bayou.engine.select import Engines
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.state.base import BaseNodes, SyncBase, Why, repo_remote_url
from bayou.state.connection import Connection, connected
from bayou.state.database import Database
from bayou.state.file_stats import file_stat
from bayou.state.journal import Journal
from bayou.sync.bulk import Bulk, store_handle
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.plan.policy import Policy
from bayou.sync.report import SyncOptions, SyncReport
from bayou.sync.transfer.executor import ThreadTransfer, TransferExecutor
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import SafeRoot
from bayou.worktree.staging import StagingArea

_TURN_S = 0.01
"""How soon to look again whether whoever syncs this repo is done: another process, or another step of a workflow."""


class SyncContext(Struct):
    """One sync of one repo with one store."""

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
    mover: TransferExecutor
    options: SyncOptions
    report: SyncReport
    progress: Progress
    mass_delete: bool = False
    """Whether what is committed is part of deletes that, taken together, were allowed as a mass delete."""

    @property
    def place(self) -> int:
        return self.base.remote_id

    @property
    def by(self) -> str:
        """Who writes, for the log."""
        return identity()

    @property
    def bulk(self) -> Bulk | None:
        """How to use Spark for what is too much for this process; None if nothing is."""
        return Bulk.of(self.repo.config, self.options.engine, self.deadline, self.report.warn, self.progress)

    @property
    def engines(self) -> Engines:
        """How jobs over the whole store are run."""
        return Engines.of(self.repo.config, self.options.engine, self.deadline, self.report.warn, self.progress)

    @property
    def handle(self) -> StoreHandle:
        """The store, as a job holds it."""
        return store_handle(self.repo.config, self.store, self.deadline)

    def stat(self, path: str) -> FileStat | None:
        """Return the stat of a file in the tree; None if there is none, or something that is no file."""
        return file_stat(self.root, path)

    def unmoved(self, observed: Observed) -> bool:
        """Whether the file is still the one that was looked at, or still missing; something that is no file is none.

        Hot, and safe with a plain look: a file that a link leads to has another inode than the one that was seen.
        """
        seen = observed.stat
        try:
            found = os.lstat(f"{self.root}/{observed.path}")
        except (FileNotFoundError, NotADirectoryError):
            return seen is None
        if not S_ISREG(found.st_mode):
            return seen is None
        return seen == (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def absent(self, within: KeyRange = EVERYTHING) -> set[str]:
        """Return what is not here on purpose, under today's policy; what something stood in the way of may come now."""
        found = self.base.absent(within).items()
        return {path for path, why in found if stays_away(self.root, self.policy, path, why)}


def stays_away(root: Path, policy: Policy, path: str, why: Why) -> bool:
    """Whether what was left out for a reason is to be left out still: by policy, or since it cannot be there (V21)."""
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
    progress: Progress | None = None,
    store: Store | None = None,
    policy: Policy | None = None,
    connection: Connection | None = None,
) -> Iterator[SyncContext]:
    """Prepare one sync of a repo with its store, or with `store`; one process at a time. The connection stays open."""
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    with ExitStack() as held:
        opened = held.enter_context(connected(repo, connection))
        bounded = opened.store(deadline) if store is None else store.within(deadline)
        repo.tree_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = opened.database
        held.enter_context(_alone(repo.state / "sync.lock", deadline))
        cache = NodeFiles(repo.state / "nodes")
        nodes = BaseNodes(cache, ulid())
        base = SyncBase(database, repo_remote_url(repo, bounded), bounded.namespace, nodes)
        journal = Journal(database, base.remote_id)
        held.callback(journal.release)
        incoming = StagingArea(repo.tree_root, repo.state / "incoming")
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
            mover=ThreadTransfer(bounded, repo.tree_root, incoming),
            options=options,
            report=SyncReport(mode=options.mode, dry_run=options.dry_run),
            progress=progress or NoProgress(),
        )


@contextmanager
def _alone(path: Path, deadline: Deadline) -> Iterator[None]:
    lock = FileLock(path)
    while not lock.acquire():
        try:
            deadline.sleep(_TURN_S)  # V12: whoever waits for its turn can be told to stop
        except DeadlinePassed:
            raise AlreadySyncing(
                "another process is syncing this repo", hint="wait for it: it works on the same tree"
            ) from None
    try:
        yield
    finally:
        lock.release()


def identity() -> str:
    """Who writes, for the log: user and host."""
    import getpass  # noqa: PLC0415  (whoever commits nothing does without)
    import socket  # noqa: PLC0415

    return f"{getpass.getuser()}@{socket.gethostname()}"
