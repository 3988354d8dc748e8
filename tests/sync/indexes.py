"""Indexes as other programs, or damage, would leave them: rows that no push of ours would commit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from bayou.config import SparkConfig
from bayou.core.clock import now
from bayou.core.deadline import Deadline
from bayou.core.ids import ulid
from bayou.engine.handle import StoreHandle
from bayou.engine.select import Engines, Selector
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, advance, read_head, swap_head
from bayou.index.log import Kind, Tally
from bayou.index.merge import merge
from bayou.index.node_store import NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import Store
from bayou.objectstore.spec import StoreSpec
from bayou.packs import entries
from bayou.sync.plan import remote_snapshot
from bayou.sync.plan.remote_snapshot import RemoteSnapshot


def head_of(store: Store) -> HeadSeen:
    return read_head(store)


def create_index(store: Store, nodes: NodeFiles, by: str) -> RemoteSnapshot:
    """Make the first index of a store, in this process."""
    engines = Engines(SparkConfig(), Selector("point"), Deadline.after(600), warnings.warn)
    return remote_snapshot.create_index(StoreHandle(store, _no_recipe), engines, nodes, by)


def _no_recipe() -> StoreSpec:
    raise AssertionError("no other process opens this store")


def entries_of(store: Store) -> dict[str, Entry]:
    """Every row of the index."""
    return {entry.path: entry for entry in scan(IndexTree(StoreNodes(store), head_of(store).head.root))}


def content_of(store: Store) -> dict[str, bytes]:
    """What the index names, read from the store."""
    return {path: read_entry(store, entry) for path, entry in entries_of(store).items()}


def read_entry(store: Store, entry: Entry) -> bytes:
    """The bytes of one file, out of its pack or its object."""
    data = entries.read_entry(store, entry)
    assert data is not None, f"{entry.path} has other bytes in the store"
    return data


def commit_rows(store: Store, changes: Mapping[str, Entry | None], kind: Kind = "push") -> None:
    """Commit rows as they are, unchecked: a hostile client could."""
    seen, number = head_of(store), ulid()
    sink = StoreSink(store, number)
    root = merge(IndexTree(StoreNodes(store), seen.head.root), changes, sink)
    sink.flush()
    head, page = advance(
        seen.head,
        commit=number,
        at=now(),
        by="a stranger",
        root=root,
        trash=seen.head.trash,
        tally=Tally(),
        kind=kind,
    )
    swap_head(store, head, seen.match, page)
