"""What commands and programs call: one function for each thing that can be done with a datastore."""

from __future__ import annotations

import time
from itertools import islice

from bayou.deadline import Deadline
from bayou.errors import BayouError, NotFound, StoreError
from bayou.index.head import iter_log, read_head
from bayou.index.local import LocalNodes, NodeFiles
from bayou.index.log import LogRow
from bayou.repo import Repo
from bayou.store.store import Store
from bayou.sync.base import Base
from bayou.sync.collect import collect
from bayou.sync.conflict import Conflicts
from bayou.sync.context import open_context
from bayou.sync.database import Database
from bayou.sync.hydrate import hydrate
from bayou.sync.journal import Journal
from bayou.sync.policy import Policy
from bayou.sync.presence import open_journal
from bayou.sync.progress import Progress
from bayou.sync.report import IndexStatus, KeptCopy, Status, SyncOptions, SyncReport
from bayou.sync.run import run
from bayou.sync.setup import setup
from bayou.sync.verify import verify
from bayou.tree.tree import Tree

__all__ = [
    "collect",
    "conflicts",
    "drop_conflict",
    "hydrate",
    "log",
    "setup",
    "status",
    "sync",
    "take_conflict",
    "verify",
]

_STATUS_TIMEOUT_S = 10.0


def sync(
    repo: Repo, options: SyncOptions, *, timeout: float | None = None, progress: Progress | None = None
) -> SyncReport:
    """Reconcile the tree with the store. A datastore that is a directory has nothing to reconcile."""
    if repo.config.datastore.url is None or repo.offline:
        report = SyncReport(mode=options.mode, dry_run=options.dry_run)
        if repo.offline:
            report.warnings.append("offline: nothing was pulled or pushed; the journal keeps what is to be pushed")
        return report
    with open_context(repo, options, timeout=timeout, progress=progress) as context:
        return run(context)


def status(repo: Repo, *, timeout: float | None = None) -> Status:
    """Tell how things stand, with one request to the store and no change anywhere (V15)."""
    config = repo.config.datastore
    if config.url is None:
        return Status(
            str(repo.tree_root), None, True, None, "a directory: nothing to sync", None, True, None, 0, False,
            config.hydrate, str(repo.tree_root),
        )  # fmt: skip
    store = repo.store().within(Deadline.after(timeout or _STATUS_TIMEOUT_S))
    begin = time.monotonic()
    healthy, message, index, etag = True, "", None, None
    try:
        seen = read_head(store)
        if seen is not None:
            root, etag = seen.head.root, seen.etag
            index = IndexStatus(
                seen.head.seq,
                seen.head.commit,
                root.entries if root else 0,
                root.bytes if root else 0,
                root.digest.hex() if root else None,
            )
    except NotFound:
        message = "the store has no index yet"
    except BayouError as error:
        healthy, message = False, f"{error.message}" + (f" ({error.hint})" if error.hint else "")
    latency = round((time.monotonic() - begin) * 1000)
    with Database(repo.state / "sync.db") as database:
        base = _base(repo, store, database)
        place = base.place
        paths, bulk = Journal(database, base.place_id).counts()
        policy = Policy.of(config.hydrate, config.exclude)
        proved = place.etag is not None and place.policy == policy.text and not base.dirty()
    in_sync = proved and etag == place.etag and not paths
    return Status(
        store.url, config.namespace, healthy, latency, message or _how(in_sync, paths), index, in_sync, place.seq,
        paths, bulk, config.hydrate, str(repo.tree_root),
    )  # fmt: skip


def log(repo: Repo, n: int) -> list[LogRow]:
    """Return the newest rows of the store's log."""
    store = repo.store().within(Deadline.after(repo.config.sync.timeout))
    try:
        seen = read_head(store)
    except NotFound:
        return []
    if seen is None:
        raise StoreError(f"{store.url} says that its head is not modified, and nobody asked that")
    return list(islice(iter_log(store, seen.head), n))


def conflicts(repo: Repo) -> list[KeptCopy]:
    """List the copies that conflicts left behind."""
    return Conflicts(repo.conflicts).list()


def take_conflict(repo: Repo, path: str) -> KeptCopy:
    """Give a path the bytes of its kept copy, as a change of ours, and drop the copy."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    with open_journal(repo) as journal, open(kept.copy, "rb") as source:
        Tree(repo.tree_root, journal).write(kept.path, source)
    folder.drop(kept)
    return kept


def drop_conflict(repo: Repo, path: str) -> KeptCopy:
    """Drop a kept copy: the store's side was right."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    folder.drop(kept)
    return kept


def _base(repo: Repo, store: Store, database: Database) -> Base:
    return Base(database, store.url, store.namespace, LocalNodes(NodeFiles(repo.state / "nodes"), "status"))


def _how(in_sync: bool, paths: int) -> str:
    if in_sync:
        return "in sync"
    return f"{paths} changed paths wait to be pushed" if paths else "not compared with this index yet"
