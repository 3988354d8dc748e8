"""The store's index as one sync sees it: a head that continues what base knows, or a discovery.

The client checks that the head belongs to the store that base knows and continues its history: a store that was swapped
or restored from a backup must never cause deletes here.
"""

from __future__ import annotations

import uuid

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import AlreadyExists, NotFound, StoreEmptied, StoreRestored, StoreSwapped
from bayou.core.ids import ulid
from bayou.index.build import build
from bayou.index.discovery import Discovered, Refused, TooMany, discover, publish
from bayou.index.head import Head, HeadSeen, iter_log, read_head
from bayou.index.node_store import LocalNodes, NodeFiles, StagingSink, StoreNodes, StoreSink
from bayou.index.tree import IndexTree
from bayou.objectstore.probe import probe
from bayou.objectstore.store import Store
from bayou.state.base import RemoteState
from bayou.sync.bulk import Bulk


class RemoteSnapshot(Struct, frozen=True):
    """One version of the store's index. `seen` is None if the store has no head and a pull has only discovered it."""

    tree: IndexTree
    seen: HeadSeen | None
    discovered: bool = False
    refused: tuple[Refused, ...] = ()
    ignored: int = 0

    @property
    def head(self) -> Head | None:
        return self.seen.head if self.seen is not None else None


def read_snapshot(store: Store, cache: NodeFiles, known: RemoteState, *, etag: str | None) -> RemoteSnapshot | None:
    """Read the head and check that it continues what base knows; None if the head has this ETag.

    `NotFound` if the store has no head and base knows of none; `StoreEmptied` if base knows one.
    """
    try:
        seen = read_head(store, if_none_match=etag)
    except NotFound:
        if known.commit is not None:
            raise store_emptied(store, known) from None
        raise
    if seen is None:
        return None
    check_history(store, known, seen.head)
    return RemoteSnapshot(IndexTree(StoreNodes(store, cache), seen.head.root), seen)


def store_emptied(store: Store, known: RemoteState) -> StoreEmptied:
    """Return the error for a store that base knows and that has no head."""
    return StoreEmptied(
        f"{store.url} had commit {known.commit} and has no index any more",
        hint="if its head was lost: bayou datastore verify --repair; "
        f"if it was emptied on purpose, join it anew: bayou datastore setup {known.url}",
    )


def check_history(store: Store, known: RemoteState, head: Head) -> None:
    """Raise unless the head is of the store that base knows, and its log has base's commit at base's seq."""
    again = f"if that is what you want, join it anew: bayou datastore setup {known.url}"
    if known.store is not None and head.store != known.store:
        raise StoreSwapped(f"{store.url} holds another store now ({head.store}, was {known.store})", hint=again)
    if known.commit is None or known.seq is None or rebuilt_since(known, head):
        return
    if head.seq >= known.seq:
        for row in iter_log(store, head):
            if row.seq == known.seq:
                if row.commit == known.commit:
                    return
                break
            if row.seq < known.seq:
                break
    raise StoreRestored(
        f"the history of {store.url} (at {head.seq}) does not have commit {known.commit} at {known.seq}: "
        "it seems to be an older copy",
        hint=again,
    )


def rebuilt_since(known: RemoteState, head: Head) -> bool:
    """Whether the index was rebuilt since base: then it need not continue what base knows, nor have all entries."""
    return head.rebuilt is not None and head.rebuilt != known.rebuilt


def discover_snapshot(store: Store, nodes: LocalNodes, cache: NodeFiles, bulk: Bulk | None = None) -> RemoteSnapshot:
    """Discover the objects of a store without a head, and write nothing to it (V15)."""
    try:
        found = _discover(store, nodes, bulk, carry=True)
    except AlreadyExists:
        return _read_published(store, cache)
    return RemoteSnapshot(
        IndexTree(nodes, found.root), None, discovered=True, refused=tuple(found.refused), ignored=found.ignored
    )


def create_index(
    store: Store, cache: NodeFiles, by: str, *, proved: bool = False, bulk: Bulk | None = None
) -> RemoteSnapshot:
    """Probe the store, discover its objects, and publish them as its first head.

    This happens before any upload, so objects of pushes without a head always mean that a head was lost. A client that
    loses the race continues from the winner's head (V1). `proved`: the caller has just probed the store.
    """
    if not proved:
        probe(store)
    commit = ulid()
    try:
        found = _discover(store, StoreSink(store, commit, cache), bulk, carry=False)
    except AlreadyExists:
        return _read_published(store, cache)
    seen = publish(store, found.root, store_id=str(uuid.uuid4()), commit=commit, at=now(), by=by)
    return RemoteSnapshot(
        IndexTree(StoreNodes(store, cache), seen.head.root),
        seen,
        discovered=found.root is not None,
        refused=tuple(found.refused),
        ignored=found.ignored,
    )


def _discover(store: Store, sink: StagingSink, bulk: Bulk | None, *, carry: bool) -> Discovered:
    """Discover a store and build its tree in `sink`: the listing starts here, and a long one moves to Spark."""
    try:
        found = discover(store, limit=bulk.limit if bulk is not None else None)
    except TooMany:
        large = bulk.discover(store, sink, carry=carry) if bulk is not None else None
        if large is not None:
            return large
        found = discover(store)
    root = build(found.entries, sink)
    sink.flush()
    return Discovered(root, found.refused, len(found.refused), found.ignored)


def _read_published(store: Store, cache: NodeFiles) -> RemoteSnapshot:
    """Return the snapshot of a head that another client published during the listing: it replaces the listing."""
    seen = read_head(store)
    assert seen is not None  # the request had no ETag
    return RemoteSnapshot(IndexTree(StoreNodes(store, cache), seen.head.root), seen)


def with_head(view: RemoteSnapshot, store: Store, cache: NodeFiles, seen: HeadSeen) -> RemoteSnapshot:
    """Return the snapshot of a head that was read or written after `view`."""
    return replace(view, tree=IndexTree(StoreNodes(store, cache), seen.head.root), seen=seen)
