"""`datastore status` and `datastore log`: the state of the cache and of the store, and the newest commits.

Both only read: they take no lease and change nothing (V15).
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from itertools import islice

from msgspec.structs import replace

from bayou.config.settings import DatastoreConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, HeadLost, NodeDamaged, NodeMissing, NotFound
from bayou.core.text import count
from bayou.index.head import iter_log, read_head
from bayou.index.log import LogRow
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.url import parse_url
from bayou.repo import Repo
from bayou.state.base import RemoteState, SyncBase, repo_remote_url
from bayou.state.connection import Connection, connected
from bayou.state.database import Database, remote_of, remote_url
from bayou.state.freshness import count_untracked, freshness, pending_inputs, record_seen
from bayou.state.journal import Journal
from bayou.sync.plan.policy import Policy
from bayou.sync.report import IndexStatus, PackStatus, Status

_STATUS_TIMEOUT_S = 10.0

COUNT_PACKS_UP_TO = 20_000
"""Entries of base up to which packs are counted without being asked for: a tenth of a second."""


def status(connection: Connection, *, packs: bool = False, timeout: float | None = None) -> Status:
    """Return the status of a repo's datastore, with one request to the store (offline: none).

    Where base is more than 50 commits behind, pages of the log take further requests, as in a sync.

    `packs`: count packs however many entries base has; they are counted in base, without a request.
    """
    repo = connection.repo
    config = repo.config.datastore
    if config.url is None:
        there = config.path is None or repo.tree_root.is_dir()
        message = "a directory: nothing to sync" if there else "there is no such directory: mount or create it"
        return Status(
            str(repo.tree_root), None, there, None, message, None, True, None, 0, False,
            config.hydrate, str(repo.tree_root), waiting=freshness(connection).waiting,
        )  # fmt: skip
    database = connection.database
    found = _offline(repo, database, packs=packs) if repo.offline else _online(repo, connection, timeout, packs=packs)
    fresh = freshness(connection)
    untracked = count_untracked(database, remote_of(database, repo))
    return replace(found, seen_ms=fresh.seen_ms, age_s=fresh.age_s, waiting=fresh.waiting, untracked=untracked)


def _online(repo: Repo, connection: Connection, timeout: float | None, *, packs: bool) -> Status:
    config = repo.config.datastore
    store = connection.store(Deadline.after(timeout or _STATUS_TIMEOUT_S))
    begin = time.monotonic()
    healthy, message, index, etag = True, "", None, None
    base = _base(repo, store, connection.database)
    known = base.remote
    try:
        seen = read_head(store)
        record_seen(connection.database, remote_of(connection.database, repo))
        if seen is not None:
            root, etag = seen.head.root, seen.etag
            index = IndexStatus(
                seen.head.seq,
                seen.head.commit,
                root.entries if root else 0,
                root.bytes if root else 0,
                root.digest.hex() if root else None,
            )
            if etag != known.etag:
                from bayou.sync.plan.remote_snapshot import check_history  # noqa: PLC0415

                check_history(store, known, seen.head, config)
    except NotFound:
        lost = _lost_head(store, known, config)
        healthy, message = lost is None, _explained(lost) if lost is not None else "the store has no index yet"
    except BayouError as error:
        healthy, message = False, _explained(error)
    latency = round((time.monotonic() - begin) * 1000)
    paths, bulk = Journal(connection.database, base.remote_id).counts()
    policy = Policy.of(config.hydrate, config.exclude)
    proved = known.etag is not None and known.policy == policy.text and not base.dirty()
    in_sync = proved and etag == known.etag and not paths
    message = message or _message(in_sync, paths, len(pending_inputs(repo)))
    return Status(
        store.url, config.namespace, healthy, latency, message, index, in_sync, known.seq,
        paths, bulk, config.hydrate, str(repo.tree_root), _packs(repo, base, asked=packs),
    )  # fmt: skip


def _offline(repo: Repo, database: Database, *, packs: bool) -> Status:
    """Return the status from local state alone."""
    config = repo.config.datastore
    assert config.url is not None
    nodes = LocalNodes(NodeFiles(repo.state / "nodes"), "status")
    base = SyncBase(database, remote_url(config.url, config.namespace), config.namespace, nodes)
    paths, bulk = Journal(database, base.remote_id).counts()
    seq = base.remote.seq
    return Status(
        str(parse_url(config.url)), config.namespace, None, None, "offline: the store was not asked", None, False, seq,
        paths, bulk, config.hydrate, str(repo.tree_root), _packs(repo, base, asked=packs),
    )  # fmt: skip


def _packs(repo: Repo, base: SyncBase, *, asked: bool) -> PackStatus | None:
    """Count the packs that base names, from nodes on this machine; None if part of base is lost, or that takes long."""
    root = base.remote.root
    if root is None:
        return PackStatus(0, 0, 0, 0)
    if root.entries > COUNT_PACKS_UP_TO and not asked:
        return None
    from bayou.engine.spool import SortedSpool  # noqa: PLC0415
    from bayou.index.tree import scan  # noqa: PLC0415
    from bayou.packs.usage import NamedMember, is_small, named_member, pack_uses  # noqa: PLC0415

    with closing(SortedSpool(2)) as spool:
        try:
            members = (named_member(entry) for entry in scan(base.tree()))
            spool.add(member for member in members if member is not None)
        except (NodeMissing, NodeDamaged):
            return None
        count = small = size = dead = 0
        for use in pack_uses(map(NamedMember._make, spool)):
            count, size, dead = count + 1, size + use.size, dead + use.dead
            small += is_small(use.size, repo.config.sync.pack_size)
    return PackStatus(count, small, size, dead)


def _lost_head(store: Store, known: RemoteState, config: DatastoreConfig) -> BayouError | None:
    """Return the error of a store that has lost its head: base knows a commit, or objects of commits are there (P9)."""
    if known.commit is not None:
        from bayou.sync.plan.remote_snapshot import store_emptied  # noqa: PLC0415

        return store_emptied(store, known, config)
    from bayou.index.discovery import head_lost  # noqa: PLC0415

    try:
        for directory in (keys.PACKS, keys.LOGS):
            for page in store.list(directory):
                if page:
                    found = head_lost(store, page[0].key)
                    return found if isinstance(found, HeadLost) else None
    except BayouError as error:
        return error
    return None


def _explained(error: BayouError) -> str:
    return error.message + (f" ({error.hint})" if error.hint else "")


def _base(repo: Repo, store: Store, database: Database) -> SyncBase:
    return SyncBase(
        database, repo_remote_url(repo, store), store.namespace, LocalNodes(NodeFiles(repo.state / "nodes"), "status")
    )


def _message(in_sync: bool, paths: int, inputs: int) -> str:
    if in_sync:
        return f"in sync but for {count(inputs, 'kept input')}" if inputs else "in sync"
    return f"{paths} changed paths wait to be pushed" if paths else "not compared with this index yet"


def log(repo: Repo, n: int) -> list[LogRow]:
    """Return the newest rows of the store's log; none if the store has no head yet, an error if it has lost it."""
    store = repo.store().within(Deadline.after(repo.config.sync.timeout))
    try:
        seen = read_head(store)
    except NotFound:
        with connected(repo, None) as opened:
            lost = _lost_head(store, _base(repo, store, opened.database).remote, repo.config.datastore)
        if lost is not None:
            raise lost from None
        return []
    return list(islice(iter_log(store, seen.head), min(n, sys.maxsize)))
