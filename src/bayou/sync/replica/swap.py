"""Publish what was copied: one compare-and-swap of the target's head (V1)."""

from __future__ import annotations

from dataclasses import replace

from bayou.errors import BadAnswer, PreconditionFailed, StoreError
from bayou.index.diff import diff
from bayou.index.head import Head, advance, iter_log, read_head, swap_head
from bayou.index.log import Tally
from bayou.index.replica import Replica
from bayou.index.tree import Tree
from bayou.store.store import Store
from bayou.sync.replica.plan import Counts
from bayou.sync.replica.target import Target
from bayou.sync.replica.transfer import Made
from bayou.sync.steps import is_mass
from bayou.sync.view import now


def tally_of(target: Target, made: Made, counts: Counts) -> Tally:
    """Return what the new tree changes: what was planned, or, where not all of that came to be, what is different."""
    if not made.failures:
        return counts.tally
    added = changed = deleted = size = 0
    for change in diff(target.tree, Tree(target.tree.source, made.root)):
        added += change.old is None
        deleted += change.new is None
        changed += change.old is not None and change.new is not None
        if change.new is not None and (change.old is None or change.old.push != change.new.push):
            size += change.new.size
    return Tally(added, changed, deleted, size)


def swap(target: Target, source: Head, number: str, made: Made, tally: Tally, by: str) -> bool:
    """Put the new tree, of the commit `number`, in the place of exactly the head that was looked at.

    False if that is not the head any more: then nothing has changed that anybody can see (V11).
    """
    assert target.seen is not None
    head, whole = target.seen.head, made.failures == 0
    replica = Replica(
        source.store, source.seq, source.commit, source.rebuilt, source.root if whole else None, made.root, whole
    )
    new, page = advance(
        head,
        commit=number,
        at=now(),
        by=by,
        root=made.root,
        trash=head.trash,
        tally=tally,
        mass_delete=is_mass(tally.deleted, head.root.entries if head.root is not None else 0),
    )
    try:
        swap_head(target.store, replace(new, replica=replica), target.seen.match, page)
    except PreconditionFailed:
        return False
    except StoreError as error:
        if not error.ambiguous:
            raise
        return _landed(target.store, number, head.seq)
    return True


def _landed(target: Store, number: str, after: int) -> bool:
    """Find out whether a swap without an answer came through."""
    seen = read_head(target)
    if seen is None:
        raise BadAnswer(f"{target.url} says that its head is not modified, and nobody asked that")
    for row in iter_log(target, seen.head):
        if row.seq <= after:
            break
        if row.commit == number:
            return True
    return False
