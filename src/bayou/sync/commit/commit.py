"""Commit: merge local changes into the root that was read, write the new nodes, swap the head (V1, V11).

Every attempt has its own commit id, which the client records in `sync.db` before the swap. When the store refuses the
swap, or its response is lost, the client reads the head again: if the head's log has one of the recorded ids, that
attempt succeeded (T5); otherwise the client merges into the new head and tries again.

A store may allow only one write a second to the head, and a slow client must not starve. So a client that has lost
several races takes the `commit` lease for a while, and the others let it go first (V13). Correctness does not depend on
the lease: a client that cannot get it in time commits without it, by compare-and-swap as always.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.deadline import Deadline
from bayou.core.errors import LeaseError, PreconditionFailed, StoreError
from bayou.core.ids import ulid
from bayou.index.discovery import trash_changes
from bayou.index.entry import Entry
from bayou.index.head import Head, HeadSeen, advance, iter_log, read_head, swap_head
from bayou.index.log import Kind, Page, Tally
from bayou.index.merge import merge
from bayou.index.node_store import NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import Change, IndexTree, find_many
from bayou.objectstore.retry import SWAP_BACKOFF
from bayou.objectstore.store import Store
from bayou.state import base, file_stats
from bayou.state.database import Database, dump_entry, load_entry

LEASE_WAIT_S = 10.0

LOSSES_BEFORE_LEASE = 3
"""Lost races after which a client takes the `commit` lease."""

_OVERTAKEN = ""
"""The key of `Pending.overtaken` among the paths of a recorded commit; no path is empty."""

Choose = Callable[[HeadSeen, Mapping[str, Entry]], Mapping[str, Entry | None]]
"""Given a head and its entries for our paths, return what to change in it; called again for every newer head."""


class Committer(Struct, frozen=True):
    """Commits for one sync: it has the store, the local state of this remote, and the author for the log.

    `record_compared` records a head before base takes rows of a commit of an earlier run that this head has.
    """

    store: Store
    cache: NodeFiles
    database: Database
    remote_id: int
    by: str
    deadline: Deadline
    record_compared: Callable[[Committed], object]


class Pending(Struct, frozen=True):
    """A commit whose outcome is not known yet: its id, the seq of the head it replaces, and its changes to base.

    `overtaken` are paths that a pull has written since: base already has a newer entry for them.
    """

    commit: str
    parent_seq: int
    changes: Mapping[str, Entry | None]
    overtaken: frozenset[str] = frozenset()


class Committed(Struct, frozen=True):
    """A commit that is in the log, and the newest head that is known since.

    `replaced` is the head that the commit was merged into, if `seen` is the head that this commit made.
    """

    commit: str
    seq: int
    changes: Mapping[str, Entry | None]
    seen: HeadSeen
    overtaken: frozenset[str] = frozenset()
    replaced: Head | None = None


def commit(
    committer: Committer,
    seen: HeadSeen,
    paths: Sequence[str],
    choose: Choose,
    *,
    before_swap: Callable[[], bool] | None = None,
    kind: Kind = "push",
    mass_delete: bool = False,
    base_paths: Container[str] | None = None,
) -> Committed | None:
    """Commit what `choose` returns for `paths`, and retry until it succeeds; None if there is nothing left to commit.

    `choose` may leave out paths that conflict with a newer head. `before_swap` is called once the nodes are stored; if
    it returns False, `choose` decides again. `base_paths` are the paths whose entries the commit also changes in base
    (None: all of them). `DeadlinePassed` if the deadline passes first.
    """
    store, database, remote_id = committer.store, committer.database, committer.remote_id
    attempts: dict[str, Mapping[str, Entry | None]] = {}
    has_lease = False
    with ExitStack() as lease:
        while True:
            tree = IndexTree(StoreNodes(store, committer.cache), seen.head.root)
            changes = choose(seen, find_many(tree, paths))
            if not changes:
                return None
            number = ulid()
            base_changes = {path: entry for path, entry in changes.items() if base_paths is None or path in base_paths}
            new, page = _write_nodes(committer, seen, tree, changes, number, kind, mass_delete=mass_delete)
            if before_swap is not None and not before_swap():
                continue
            attempts[number] = changes
            made = _swap(committer, seen, new, page, changes, Pending(number, seen.head.seq, base_changes))
            if made is not None:
                return made
            if len(attempts) == LOSSES_BEFORE_LEASE:
                has_lease = lease.enter_context(commit_lease(store, committer.deadline))
            newer = read_head(store)
            done = resolve(store, database, remote_id, newer)
            if done is not None and done.commit in attempts:
                return replace(done, changes=attempts[done.commit])
            if done is not None:
                # A commit of an earlier run: it is part of the head that this one is merged into.
                committer.record_compared(done)
                apply_to_base(database, remote_id, done)
            seen = newer
            committer.deadline.sleep(SWAP_BACKOFF.backoff(1 if has_lease else len(attempts)))


@contextmanager
def commit_lease(store: Store, deadline: Deadline) -> Iterator[bool]:
    """Hold the `commit` lease if it can be acquired in time; yield whether it is held."""
    from bayou.leases import COMMIT, Leases  # noqa: PLC0415  (rarely needed)

    try:
        lease = Leases(store, inherited={}).acquire(COMMIT, wait_s=LEASE_WAIT_S, deadline=deadline)
    except (LeaseError, StoreError):
        yield False
        return
    with lease:
        yield True


def _write_nodes(
    committer: Committer,
    seen: HeadSeen,
    tree: IndexTree,
    changes: Mapping[str, Entry | None],
    number: str,
    kind: Kind,
    *,
    mass_delete: bool,
) -> tuple[Head, Page | None]:
    """Merge the changes and store the new nodes; return the head of this attempt, and the log page that it needs."""
    head, store = seen.head, committer.store
    old = find_many(tree, changes)
    sink = StoreSink(store, number, committer.cache, durable=True)  # base may soon consist of these nodes
    root = merge(tree, changes, sink)
    trash = trash_changes(Change(path, old.get(path), entry) for path, entry in changes.items())
    trash_tree = IndexTree(tree.source, head.trash)
    trashed = find_many(trash_tree, trash) if head.trash is not None else {}
    trash = {path: entry for path, entry in trash.items() if entry is not None or path in trashed}
    trash_root = merge(trash_tree, trash, sink) if trash else head.trash
    sink.flush()
    return advance(
        head,
        commit=number,
        at=now(),
        by=committer.by,
        root=root,
        trash=trash_root,
        tally=_tally(old, changes),
        kind=kind,
        mass_delete=mass_delete,
    )


def _swap(
    committer: Committer,
    seen: HeadSeen,
    new: Head,
    page: Page | None,
    changes: Mapping[str, Entry | None],
    pending_commit: Pending,
) -> Committed | None:
    """Try once to swap the head. None: another client was faster, or the response was lost."""
    store = committer.store
    _record(committer.database, committer.remote_id, pending_commit)
    try:
        stored = swap_head(store, new, seen.match, page)
    except PreconditionFailed:
        return None
    except StoreError as error:
        if not error.ambiguous:
            raise
        return None
    made = HeadSeen(new, stored.etag, stored.version)
    return Committed(pending_commit.commit, new.seq, changes, made, replaced=seen.head)


def resolve(store: Store, database: Database, remote_id: int, seen: HeadSeen) -> Committed | None:
    """Return the recorded commit that the log of a head contains, if there is one (T5); forget those that failed.

    The caller updates base to the returned commit (`apply_to_base`) before it plans anything.
    """
    waiting = {attempt.commit: attempt for attempt in pending(database, remote_id)}
    if not waiting:
        return None
    oldest = min(attempt.parent_seq for attempt in waiting.values())
    for row in iter_log(store, seen.head):
        if row.seq <= oldest:
            break
        if row.commit in waiting:
            found = waiting[row.commit]
            return Committed(row.commit, row.seq, found.changes, seen, found.overtaken)
    # A swap that is still on its way can only succeed while the head is the one that it replaces.
    failed = [attempt.commit for attempt in waiting.values() if seen.head.seq > attempt.parent_seq]
    with database.transaction() as db:
        db.executemany("DELETE FROM pending WHERE commit_id = ?", [(number,) for number in failed])
    return None


def apply_to_base(database: Database, remote_id: int, done: Committed) -> None:
    """Update base to a commit whose response was lost; the next scan learns what the files are by now.

    Before this, record a head that has the commit (`run.record_compared`). A path that a pull has written since keeps
    its newer entry.
    """
    with database.transaction() as db:
        for path, entry in done.changes.items():
            if path not in done.overtaken:
                base.record_entry(db, remote_id, path, entry)
                file_stats.save_unhashed(db, path, remote_id) if entry is not None else file_stats.delete(db, path)
            db.execute("DELETE FROM upload WHERE place = ? AND path = ?", (remote_id, path))
        forget_pending(db, remote_id, done)


def forget_pending(db: sqlite3.Connection, remote_id: int, done: Committed) -> None:
    """Forget the recorded attempts: none can succeed any more. Call this in the transaction that updates base.

    If the commit follows the recorded one directly, it is recorded too: if the store is then restored from a backup
    that is older, what base has of this commit is not taken for deleted (see `run.record_compared`).
    """
    db.execute("DELETE FROM pending WHERE place = ?", (remote_id,))
    db.execute(
        "UPDATE place SET seq = ?, commit_id = ? WHERE id = ? AND seq = ?",
        (done.seq, done.commit, remote_id, done.seq - 1),
    )


def pending(database: Database, remote_id: int) -> list[Pending]:
    """Return the commits whose outcome is not known."""
    waiting: list[Pending] = []
    for number, parent, text in database.rows(
        "SELECT commit_id, parent_seq, rows FROM pending WHERE place = ?", (remote_id,)
    ):
        kept = json.loads(str(text))
        overtaken = frozenset(kept.pop(_OVERTAKEN, ()))
        changes = {path: load_entry(path, entry) for path, entry in kept.items()}
        waiting.append(Pending(str(number), cast("int", parent), changes, overtaken))
    return waiting


def mark_overtaken(db: sqlite3.Connection, remote_id: int, paths: Set[str]) -> None:
    """Record that a pull has written paths of pending commits; call this in the transaction that updates base."""
    for number, text in db.execute("SELECT commit_id, rows FROM pending WHERE place = ?", (remote_id,)).fetchall():
        kept = json.loads(text)
        if met := paths & kept.keys():
            kept[_OVERTAKEN] = sorted(met.union(kept.get(_OVERTAKEN, ())))
            db.execute("UPDATE pending SET rows = ? WHERE commit_id = ?", (json.dumps(kept), number))


def uncertain_paths(database: Database, remote_id: int) -> set[str]:
    """Return the paths of pending commits: a late swap may still change what the head has for them.

    V7: no journal row of such a path is dropped for being equal to base; a late swap would undo the change unnoticed.
    """
    return {path for attempt in pending(database, remote_id) for path in attempt.changes}


def _record(database: Database, remote_id: int, attempt: Pending) -> None:
    text = json.dumps({path: dump_entry(entry) for path, entry in attempt.changes.items()})
    with database.transaction() as db:
        db.execute("INSERT INTO pending VALUES (?, ?, ?, ?)", (attempt.commit, remote_id, attempt.parent_seq, text))


def _tally(old: Mapping[str, Entry], changes: Mapping[str, Entry | None]) -> Tally:
    new = [entry for path, entry in changes.items() if entry is not None and not _is_known(entry, old.get(path))]
    added = sum(entry.path not in old for entry in new)
    deleted = sum(path in old for path, entry in changes.items() if entry is None)
    return Tally(added, len(new) - added, deleted, sum(entry.size for entry in new))


def _is_known(entry: Entry, old: Entry | None) -> bool:
    """Return whether the index had this content before, wherever its bytes were: then its row is no change (P4)."""
    return old is not None and (entry == old or entry.same_content(old))
