"""What `verify --repair` does to an index that is whole: it only adds, and never drops an entry (T4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from bayou.core.errors import NotFound
from bayou.index.discovery import entry_of
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.state import base
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import same_object
from bayou.sync.rescue import rescued
from bayou.sync.transfer import push


def settle_pending(context: SyncContext, seen: HeadSeen) -> None:
    """Bring base up to a commit of ours whose answer was lost, before anything is planned (T5)."""
    done = commit.resolve(context.store, context.database, context.place, seen)
    if done is not None:
        commit.settle(context.database, context.place, done)


def mend(
    context: SyncContext,
    seen: HeadSeen,
    gone: Sequence[Entry],
    unindexed: Sequence[str],
    hashed: Mapping[str, Entry],
) -> int:
    """Give back what is gone, adopt what nobody indexed, record hashes; return how many entries that made."""
    offered = {one.path: one for one in rescued(context, gone)}
    uploads = push.upload(context, list(offered.values()), seen.head.gc)
    adopted = _anew(context, seen, unindexed)
    missing = {entry.path: entry for entry in gone}
    wanted = [*uploads, *adopted, *hashed]
    # Base follows where it was about this very object; of others the next sync learns.
    known = context.base.lookup(wanted)
    here = {
        path
        for path, entry in known.items()
        if entry == missing.get(path) or (path in hashed and same_object(entry, hashed[path]))
    }
    met = seen

    def choose(head: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        # Only where the index still says what it said when we looked: a commit since then knows better.
        nonlocal met, uploads, adopted
        if head.head.gc.count != met.head.gc.count:
            uploads = push.renew(context, uploads, offered, head.head.gc)
        if head.head.commit != met.head.commit:
            adopted = _anew(context, head, unindexed)
        met = head
        return {
            **{path: entry for path, entry in adopted.items() if path not in remote},
            **{path: entry for path, entry in hashed.items() if remote.get(path) == _unhashed(entry)},
            **{path: entry for path, entry in uploads.items() if remote.get(path) == missing[path]},
        }

    done = commit.commit(
        context.store,
        context.cache,
        context.database,
        context.place,
        seen,
        wanted,
        choose,
        by=context.by,
        deadline=context.deadline,
        here=here,
    )
    if done is None:
        return 0
    with context.database.transaction() as db:
        for path, entry in done.changes.items():
            db.execute("DELETE FROM upload WHERE place = ? AND path = ?", (context.place, path))
            if path in here:
                base.restate(db, context.place, path, entry)
        db.execute(commit.FORGET, (context.place,))
    context.base.fold(context.nodes)
    return len(done.changes)


def _anew(context: SyncContext, head: HeadSeen, unindexed: Sequence[str]) -> dict[str, Entry]:
    """Look at each object once more: a listing is old by the time it is used (F007).

    What somebody has indexed and deleted since is gone, or in the trash: it must not come back (T4).
    """
    trash = find_many(IndexTree(StoreNodes(context.store), head.head.trash), unindexed)
    found = context.store.map(partial(_now, context.store), [path for path in unindexed if path not in trash])
    return {entry.path: entry for entry in found if entry is not None}


def _now(store: Store, path: str) -> Entry | None:
    try:
        return entry_of(replace(store.head(keys.payload(path, None)), key=path))
    except NotFound:
        return None


def _unhashed(entry: Entry) -> Entry:
    return replace(entry, sha256=None)
