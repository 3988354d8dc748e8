"""The repairs of `verify --repair` and `--forget` on an index that can be read.

A repair only adds and never drops an entry (T4): where this tree has the bytes of an object or of a pack's member that
is missing or was changed by others, it uploads them again and changes the entry's location (P4, P8); it adopts
unindexed objects, and records learned hashes. Only unsafe rows, which clients ignore (V25), are dropped; their objects,
if any, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import NotFound, PreconditionFailed, StoreError
from bayou.core.ids import ulid
from bayou.index.discovery import entry_of, trash_refusal
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, advance, swap_head
from bayou.index.log import Kind, Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, find_many
from bayou.maintenance.relocate import Relocation, local_files_of
from bayou.maintenance.verify_rules import RepairBatch
from bayou.objectstore import keys
from bayou.objectstore.retry import SWAP_BACKOFF
from bayou.objectstore.store import Store
from bayou.state import base
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import same_object
from bayou.sync.run import record_compared
from bayou.sync.transfer import push

Read = Callable[[], HeadSeen]


def drop_rows(
    context: SyncContext, read: Read, wanted: Collection[str], trash: Collection[str], kind: Kind
) -> list[str]:
    """Drop the unsafe ones of these rows of the index and of its trash; return the paths of the dropped rows.

    `read` returns the current head. No file and no object is changed, and the next sync updates base. Dropping twice is
    harmless.
    """
    attempt = 0
    while True:
        seen = read()
        source = StoreNodes(context.store, context.cache)
        index, trash_tree = IndexTree(source, seen.head.root), IndexTree(source, seen.head.trash)
        bad = [path for path, entry in find_many(index, wanted).items() if entry.refusal() is not None]
        bad_trash = [path for path, entry in find_many(trash_tree, trash).items() if trash_refusal(entry) is not None]
        if not bad and not bad_trash:
            return []
        number = ulid()
        sink = StoreSink(context.store, number, context.cache, durable=True)
        new, page = advance(
            seen.head,
            commit=number,
            at=now(),
            by=f"{context.by} (dropped unsafe rows)",
            root=merge(index, dict.fromkeys(bad), sink),
            trash=merge(trash_tree, dict.fromkeys(bad_trash), sink),
            tally=Tally(deleted=len(bad)),
            kind=kind,
        )
        sink.flush()
        try:
            swap_head(context.store, new, seen.match, page)
            return [*bad, *bad_trash]
        except PreconditionFailed:
            pass
        except StoreError as error:
            if not error.ambiguous:
                raise
        attempt += 1
        context.deadline.sleep(SWAP_BACKOFF.backoff(attempt))


def resolve_pending(context: SyncContext, seen: HeadSeen) -> None:
    """Update base to an own commit whose response was lost, before anything is planned (T5)."""
    done = commit.resolve(context.store, context.database, context.remote_id, seen)
    if done is not None:
        record_compared(context, done)
        commit.apply_to_base(context.database, context.remote_id, done)


def repair_entries(context: SyncContext, seen: HeadSeen, batch: RepairBatch) -> int:
    """Upload lost bytes again, adopt unindexed objects, record hashes; return the number of changed entries."""
    lost, hashed, gc = {entry.path: entry for entry in batch.lost}, batch.hashed, seen.head.gc
    files = {file.path: file for file in local_files_of(context, batch.lost)}
    pushed = [lost[path] for path in files if lost[path].push is not None]
    moved = Relocation(context, pushed, files, gc)
    # A discovered object has no push whose content could move: its file becomes a push of this client.
    uploads = push.upload(context, [file for path, file in files.items() if lost[path].push is None], gc)
    adopted = _adoptable(context, seen, batch.unindexed)
    wanted = [*moved.rows, *uploads, *adopted, *hashed]
    # Base changes with the commit where it has this very object; the next sync updates the others.
    known = context.base.lookup(wanted)
    here = {
        path
        for path, entry in known.items()
        if entry == lost.get(path) or (path in hashed and same_object(entry, hashed[path]))
    }
    last_head = seen

    def choose(head: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        # Only where the index is as the comparison read it: a later commit takes precedence (P4).
        nonlocal last_head, uploads, adopted
        if head.head.gc.count != last_head.head.gc.count:
            uploads = push.renew(context, uploads, files, head.head.gc)
            moved.renew(head.head.gc)
        if head.head.commit != last_head.head.commit:
            adopted = _adoptable(context, head, batch.unindexed)
        last_head = head
        return {
            **{path: entry for path, entry in adopted.items() if path not in remote},
            **{path: entry for path, entry in hashed.items() if remote.get(path) == _unhashed(entry)},
            **{path: entry for path, entry in {**uploads, **moved.rows}.items() if remote.get(path) == lost[path]},
        }

    done = commit.commit(context.committer, seen, wanted, choose, kind="repair", base_paths=here)
    if done is None:
        return 0
    with context.database.transaction() as db:
        for path, entry in done.changes.items():
            if path in uploads:
                db.execute("DELETE FROM upload WHERE place = ? AND path = ?", (context.remote_id, path))
            if path in here:
                base.update_entry(db, context.remote_id, path, entry)
        commit.forget_pending(db, context.remote_id, done)
    context.base.fold(context.nodes)
    return len(done.changes)


def _adoptable(context: SyncContext, head: HeadSeen, unindexed: Sequence[str]) -> dict[str, Entry]:
    """Return an entry for each object that still exists: the listing may be outdated by now (F007).

    An object that another client has indexed and deleted since is gone or in the trash: it must not come back (T4).
    """
    trash = find_many(IndexTree(StoreNodes(context.store), head.head.trash), unindexed)
    found = context.store.map(partial(_current_entry, context.store), [path for path in unindexed if path not in trash])
    return {entry.path: entry for entry in found if entry is not None}


def _current_entry(store: Store, path: str) -> Entry | None:
    try:
        return entry_of(replace(store.head(keys.payload(path, None)), key=path))
    except NotFound:
        return None


def _unhashed(entry: Entry) -> Entry:
    return replace(entry, sha256=None)
