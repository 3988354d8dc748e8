"""The repairs of `verify --repair` and `--forget` on an index that can be read.

A repair only adds and never drops an entry (T4): it uploads the files of missing objects again if this tree has the
same bytes, adopts unindexed objects, and records learned hashes. Only unsafe rows, which clients ignore (V25), are
dropped; their objects, if any, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import NotFound, PreconditionFailed, StoreError
from bayou.core.ids import ulid
from bayou.index.discovery import entry_of, trash_refusal
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, advance, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, find_many
from bayou.objectstore import keys
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.state import base
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import LocalState, same_object
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.transfer import push
from bayou.worktree.hashing import read_content

_BACKOFF = RetryPolicy(base_s=0.05, cap_s=2.0)

Read = Callable[[], HeadSeen]


def drop_rows(context: SyncContext, read: Read, wanted: Collection[str], trash: Collection[str] = ()) -> list[str]:
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
        context.deadline.sleep(_BACKOFF.backoff(attempt))


def local_files_of(context: SyncContext, missing: Sequence[Entry]) -> Iterator[Observed]:
    """Yield the files of this tree that have the bytes of a missing object, by their hash (V6)."""
    known = context.base.hashes(missing)
    for entry in missing:
        if context.stat(entry.path) is None:
            continue
        content = read_content(context.root / entry.path, context.deadline)
        if content.sha256 == known.get(entry.path, entry).sha256:
            state = LocalState(content.sha256, content.size)
            yield Observed(entry.path, state, content, context.journal.newest())


def resolve_pending(context: SyncContext, seen: HeadSeen) -> None:
    """Update base to an own commit whose response was lost, before anything is planned (T5)."""
    done = commit.resolve(context.store, context.database, context.remote_id, seen)
    if done is not None:
        commit.apply_to_base(context.database, context.remote_id, done)


def repair_entries(
    context: SyncContext,
    seen: HeadSeen,
    gone: Sequence[Entry],
    unindexed: Sequence[str],
    hashed: Mapping[str, Entry],
) -> int:
    """Upload missing objects again, adopt unindexed objects, record hashes; return the number of changed entries."""
    offered = {file.path: file for file in local_files_of(context, gone)}
    uploads = push.upload(context, list(offered.values()), seen.head.gc)
    adopted = _adoptable(context, seen, unindexed)
    missing = {entry.path: entry for entry in gone}
    wanted = [*uploads, *adopted, *hashed]
    # Base changes with the commit where it has this very object; the next sync updates the others.
    known = context.base.lookup(wanted)
    here = {
        path
        for path, entry in known.items()
        if entry == missing.get(path) or (path in hashed and same_object(entry, hashed[path]))
    }
    last_head = seen

    def choose(head: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        # Only where the index is as the comparison read it: a later commit takes precedence.
        nonlocal last_head, uploads, adopted
        if head.head.gc.count != last_head.head.gc.count:
            uploads = push.renew(context, uploads, offered, head.head.gc)
        if head.head.commit != last_head.head.commit:
            adopted = _adoptable(context, head, unindexed)
        last_head = head
        return {
            **{path: entry for path, entry in adopted.items() if path not in remote},
            **{path: entry for path, entry in hashed.items() if remote.get(path) == _unhashed(entry)},
            **{path: entry for path, entry in uploads.items() if remote.get(path) == missing[path]},
        }

    done = commit.commit(context.committer, seen, wanted, choose, base_paths=here)
    if done is None:
        return 0
    with context.database.transaction() as db:
        for path, entry in done.changes.items():
            db.execute("DELETE FROM upload WHERE place = ? AND path = ?", (context.remote_id, path))
            if path in here:
                base.update_entry(db, context.remote_id, path, entry)
        db.execute(commit.FORGET_PENDING, (context.remote_id,))
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
