"""Which entries of base another client forgot (`verify --forget`): a pull keeps their files aside instead of deleting.

A forget says that the store has lost the bytes, not that the file is no longer wanted, so the file of this tree may be
the last good copy. The log tells a forget from a delete: its row says `forget`, and the entries that the row's root
lacks, and the root before it has, are the forgotten ones. If one of these roots cannot be read any more (`gc` has
deleted it), any entry of base may have been forgotten. Keeping a copy too many is harmless; deleting the last one is
not.
"""

from __future__ import annotations

from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.index.head import Head, iter_log
from bayou.index.node import Pointer
from bayou.index.node_store import StoreNodes
from bayou.index.tree import removed
from bayou.state import base
from bayou.sync.context import SyncContext

_KIND = "forget"


def learn_forgotten(context: SyncContext, head: Head) -> None:
    """Record which entries of base were forgotten between base's commit and this head.

    Call it before base's commit moves on to a head that base does not equal, since that hides the rows in between.
    """
    found = _forgotten_since(context, head)
    if found is not None:
        found = set(context.base.lookup(found)) if found else found
    if found is None or found:
        with context.database.transaction() as db:
            base.record_forgotten(db, context.remote_id, found)


def _forgotten_since(context: SyncContext, head: Head) -> set[str] | None:
    """Return the paths that commits after base's commit forgot; None if one of these commits cannot be compared."""
    known = context.base.remote.seq
    known = context.state.compared_seq if known is None else known
    if known is None:
        return set()
    pairs: list[tuple[Pointer | None, Pointer | None]] = []
    after: Pointer | None = None
    forgets = False
    for row in iter_log(context.store, head):
        if forgets:
            pairs.append((row.root, after))
        if row.seq <= known:
            break
        forgets, after = row.kind == _KIND, row.root
    source = StoreNodes(context.store, context.cache)
    found: set[str] = set()
    try:
        for old, new in pairs:
            found.update(removed(source, old, new))
    except (NodeMissing, NodeDamaged):
        return None
    return found
