"""Indexes as other programs, or damage, would leave them: rows that no push of ours would commit."""

from __future__ import annotations

from collections.abc import Mapping

from bayou.core.clock import now
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, advance, read_head, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import Store


def head_of(store: Store) -> HeadSeen:
    seen = read_head(store)
    assert seen is not None
    return seen


def entries_of(store: Store) -> dict[str, Entry]:
    """Every row of the index."""
    return {entry.path: entry for entry in scan(IndexTree(StoreNodes(store), head_of(store).head.root))}


def commit_rows(store: Store, changes: Mapping[str, Entry | None]) -> None:
    """Commit rows as they are, asking nobody."""
    seen, number = head_of(store), ulid()
    sink = StoreSink(store, number)
    root = merge(IndexTree(StoreNodes(store), seen.head.root), changes, sink)
    sink.flush()
    head, page = advance(
        seen.head, commit=number, at=now(), by="a stranger", root=root, trash=seen.head.trash, tally=Tally()
    )
    swap_head(store, head, seen.match, page)
