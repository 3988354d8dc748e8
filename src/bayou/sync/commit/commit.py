"""Commit: merge our changes into the root that was read, write nodes, swap the head (V1, V11).

Every attempt has an id of its own and is recorded before the swap. When the swap is refused, or no answer comes, the
head is read again: if its log has one of our ids, that attempt was the one; else we merge again.

Going first: a committer that loses one race after the other asks the others to wait, out of politeness (V13).

A store may allow no more than one write a second to the head, and a slow writer must not starve. Nothing depends on
it: who cannot have the lease in time commits without it, by compare-and-swap like everybody.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, LeaseError, PreconditionFailed, StoreError
from bayou.core.ids import ulid
from bayou.index.discovery import trash_changes
from bayou.index.entry import Entry
from bayou.index.head import Head, HeadSeen, advance, iter_log, read_head, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import Change, IndexTree, find_many
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.state import base, file_stats
from bayou.state.database import Database, dump_entry, load_entry

_WAIT_S = 10.0


@contextmanager
def commit_lease(store: Store, deadline: Deadline) -> Iterator[bool]:
    """Take the `commit` lease for a while, if it can be had; say whether that came about."""
    from bayou.leases import COMMIT, Leases  # noqa: PLC0415  (hardly ever needed)

    try:
        lease = Leases(store, inherited={}).acquire(COMMIT, wait_s=_WAIT_S, deadline=deadline)
    except (LeaseError, StoreError):
        yield False
        return
    with lease:
        yield True


Choose = Callable[[HeadSeen, Mapping[str, Entry]], Mapping[str, Entry | None]]
"""Given a head and its entries for our paths, say what to change in it; called anew for every head that is met."""

_BACKOFF = RetryPolicy(base_s=0.05, cap_s=2.0)
_OVERTAKEN = ""
"""Beside the paths of a commit, and no path itself."""

_LOSSES = 3
"""After so many lost races a committer asks the others to let it go first."""


class Pending(Struct, frozen=True):
    """A commit whose outcome is not known yet: its id, the head it was to replace, and what it makes of base.

    `overtaken` are paths that a pull has put in place since: base says of them what that brought.
    """

    commit: str
    parent_seq: int
    changes: Mapping[str, Entry | None]
    overtaken: frozenset[str] = frozenset()


class Committed(Struct, frozen=True):
    """A commit that is in the log, and the newest head that we know since.

    `replaced` is the head that it was merged into, if `seen` is the very one that it made.
    """

    commit: str
    seq: int
    changes: Mapping[str, Entry | None]
    seen: HeadSeen
    overtaken: frozenset[str] = frozenset()
    replaced: Head | None = None


def commit(
    store: Store,
    cache: NodeFiles,
    database: Database,
    place: int,
    seen: HeadSeen,
    paths: Sequence[str],
    choose: Choose,
    *,
    by: str,
    deadline: Deadline,
    mass_delete: bool = False,
    here: Container[str] | None = None,
) -> Committed | None:
    """Commit what `choose` makes of the head for `paths`, until it is in or time is up; None if there is nothing left.

    `choose` may drop paths that turn out to be in conflict with a head that came in between. `here` are the paths
    whose files base is about (None: all of them).
    """
    mine: dict[str, Mapping[str, Entry | None]] = {}
    first = False
    with ExitStack() as polite:
        while True:
            tree = IndexTree(StoreNodes(store, cache), seen.head.root)
            changes = choose(seen, find_many(tree, paths))
            if not changes:
                return None
            number = ulid()
            mine[number] = changes
            base_takes = {path: entry for path, entry in changes.items() if here is None or path in here}
            intended = Pending(number, seen.head.seq, base_takes)
            made = _attempt(
                store, cache, database, place, seen, tree, changes, intended, by=by, mass_delete=mass_delete
            )
            if isinstance(made, Committed):
                return made
            if len(mine) == _LOSSES:
                first = polite.enter_context(commit_lease(store, deadline))
            again = read_head(store)
            if again is None:
                raise BadAnswer(f"{store.url} says that its head is not modified, and nobody asked that")
            done = resolve(store, database, place, again)
            if done is not None and done.commit in mine:
                return replace(done, changes=mine[done.commit])
            if done is not None:
                # Of an earlier run: it is part of what we merge into, and not what we made.
                settle(database, place, done)
            seen = again
            deadline.sleep(_BACKOFF.pause(1 if first else len(mine)))


def _attempt(
    store: Store,
    cache: NodeFiles,
    database: Database,
    place: int,
    seen: HeadSeen,
    tree: IndexTree,
    changes: Mapping[str, Entry | None],
    intended: Pending,
    *,
    by: str,
    mass_delete: bool,
) -> Committed | None:
    """Try once. None: somebody else was faster, or the answer was lost."""
    head, number = seen.head, intended.commit
    old = find_many(tree, changes)
    sink = StoreSink(store, number, cache, durable=True)  # base may consist of these nodes soon
    root = merge(tree, changes, sink)
    trash = trash_changes(Change(path, old.get(path), entry) for path, entry in changes.items())
    trash_tree = IndexTree(tree.source, head.trash)
    wasted = find_many(trash_tree, trash) if head.trash is not None else {}
    trash = {path: entry for path, entry in trash.items() if entry is not None or path in wasted}
    trash_root = merge(trash_tree, trash, sink) if trash else head.trash
    sink.flush()
    tally = _tally(old, changes)
    new, page = advance(
        head, commit=number, at=now(), by=by, root=root, trash=trash_root, tally=tally, mass_delete=mass_delete
    )
    _record(database, place, intended)
    try:
        stored = swap_head(store, new, seen.match, page)
    except PreconditionFailed:
        return None
    except StoreError as error:
        if not error.ambiguous:
            raise
        return None
    return Committed(number, new.seq, changes, HeadSeen(new, stored.etag, stored.version), replaced=head)


def resolve(store: Store, database: Database, place: int, seen: HeadSeen) -> Committed | None:
    """Find out, from a head, what became of the commits that we intended (T5); forget those that can never land.

    The one that did is returned; the caller brings base up to it (`settle`) before it plans anything.
    """
    waiting = {one.commit: one for one in pending(database, place)}
    if not waiting:
        return None
    oldest = min(one.parent_seq for one in waiting.values())
    done: Committed | None = None
    for row in iter_log(store, seen.head):
        if row.seq <= oldest:
            break
        if row.commit in waiting:
            found = waiting[row.commit]
            done = Committed(row.commit, row.seq, found.changes, seen, found.overtaken)
            break
    if done is None:
        # A swap that is still on its way can only succeed while the head is the one that it was to replace.
        lost = [one.commit for one in waiting.values() if seen.head.seq > one.parent_seq]
        with database.transaction() as db:
            db.executemany("DELETE FROM pending WHERE commit_id = ?", [(number,) for number in lost])
    return done


def settle(database: Database, place: int, done: Committed) -> None:
    """Bring base up to a commit of ours whose answer was lost; what the files are by now is for the next look.

    A file that a pull has put in place since is behind this commit, and no change of ours on top of it.
    """
    with database.transaction() as db:
        for path, entry in done.changes.items():
            if path not in done.overtaken:
                base.record_entry(db, place, path, entry)
                file_stats.save_unhashed(db, path, place) if entry is not None else file_stats.delete(db, path)
            db.execute("DELETE FROM upload WHERE place = ? AND path = ?", (place, path))
        db.execute(FORGET, (place,))


def pending(database: Database, place: int) -> list[Pending]:
    """Return the commits whose outcome is not known."""
    found = database.rows("SELECT commit_id, parent_seq, rows FROM pending WHERE place = ?", (place,))
    waiting: list[Pending] = []
    for number, parent, kept in found:
        told = json.loads(str(kept))
        overtaken = frozenset(told.pop(_OVERTAKEN, ()))
        changes = {path: load_entry(path, text) for path, text in told.items()}
        waiting.append(Pending(str(number), cast("int", parent), changes, overtaken))
    return waiting


def overtake(db: sqlite3.Connection, place: int, paths: Set[str]) -> None:
    """Note that a pull has put files in place that commits of unknown outcome name, in the transaction that does."""
    for number, kept in db.execute("SELECT commit_id, rows FROM pending WHERE place = ?", (place,)).fetchall():
        told = json.loads(kept)
        if met := paths & told.keys():
            told[_OVERTAKEN] = sorted(met.union(told.get(_OVERTAKEN, ())))
            db.execute("UPDATE pending SET rows = ? WHERE commit_id = ?", (json.dumps(told), number))


def doubtful(database: Database, place: int) -> set[str]:
    """Return the paths that commits of unknown outcome name: what base and the head say of them may be over soon.

    V7: no journal row of such a path is dropped for being equal to base; a late swap would undo it unseen.
    """
    return {path for one in pending(database, place) for path in one.changes}


FORGET = "DELETE FROM pending WHERE place = ?"
"""Run this in the transaction that brings base up to a commit: then no other attempt can land any more."""


def _record(database: Database, place: int, one: Pending) -> None:
    kept = json.dumps({path: dump_entry(entry) for path, entry in one.changes.items()})
    with database.transaction() as db:
        db.execute("INSERT INTO pending VALUES (?, ?, ?, ?)", (one.commit, place, one.parent_seq, kept))


def _tally(old: Mapping[str, Entry], changes: Mapping[str, Entry | None]) -> Tally:
    new = [entry for path, entry in changes.items() if entry is not None and entry != old.get(path)]
    added = sum(entry.path not in old for entry in new)
    return Tally(
        added, len(new) - added, sum(path in old for path, entry in changes.items() if entry is None), _size(new)
    )


def _size(entries: Iterable[Entry]) -> int:
    return sum(entry.size for entry in entries)
