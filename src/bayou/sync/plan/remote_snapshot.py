"""The store as one sync sees it: a head that belongs to what we know, or a discovery."""

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
    """One version of the store's index. `seen` is None where there is no head and a pull keeps its find to itself."""

    tree: IndexTree
    seen: HeadSeen | None
    discovered: bool = False
    refused: tuple[Refused, ...] = ()
    ignored: int = 0

    @property
    def head(self) -> Head | None:
        return self.seen.head if self.seen is not None else None


def look(store: Store, cache: NodeFiles, place: RemoteState, *, etag: str | None) -> RemoteSnapshot | None:
    """Read the head, and prove that it goes on from what base knows; None if it is the one with this ETag.

    `NotFound` if there is none and base knows of none either.
    """
    try:
        seen = read_head(store, if_none_match=etag)
    except NotFound:
        if place.commit is not None:
            raise emptied(store, place) from None
        raise
    if seen is None:
        return None
    check_history(store, place, seen.head)
    return RemoteSnapshot(IndexTree(StoreNodes(store, cache), seen.head.root), seen)


def emptied(store: Store, place: RemoteState) -> StoreEmptied:
    """Say that a store which base knows has no head."""
    return StoreEmptied(
        f"{store.url} had commit {place.commit} and has no index any more",
        hint="if its head was lost: bayou datastore verify --repair; "
        f"if it was emptied on purpose, join it anew: bayou datastore setup {place.url}",
    )


def check_history(store: Store, place: RemoteState, head: Head) -> None:
    """Raise unless the head is of the store that base knows, and its log has base's commit where base saw it.

    A store that was swapped or came back from a backup must never turn into deletes here.
    """
    again = f"if that is what you want, join it anew: bayou datastore setup {place.url}"
    if place.store is not None and head.store != place.store:
        raise StoreSwapped(f"{store.url} holds another store now ({head.store}, was {place.store})", hint=again)
    if place.commit is None or place.seq is None or rebuilt_since(place, head):
        return
    if head.seq >= place.seq:
        for row in iter_log(store, head):
            if row.seq == place.seq:
                if row.commit == place.commit:
                    return
                break
            if row.seq < place.seq:
                break
    raise StoreRestored(
        f"the history of {store.url} (at {head.seq}) does not have commit {place.commit} at {place.seq}: "
        "it seems to be an older copy",
        hint=again,
    )


def rebuilt_since(place: RemoteState, head: Head) -> bool:
    """Whether the index was rebuilt since base: then it need not go on from what base knows, nor have all of it."""
    return head.rebuilt is not None and head.rebuilt != place.rebuilt


def find(store: Store, nodes: LocalNodes, cache: NodeFiles, bulk: Bulk | None = None) -> RemoteSnapshot:
    """Discover what a store without a head holds, and keep that to ourselves (V15)."""
    try:
        found = _discovered(store, nodes, bulk, carry=True)
    except AlreadyExists:
        return _published(store, cache)
    return RemoteSnapshot(
        IndexTree(nodes, found.root), None, discovered=True, refused=tuple(found.refused), ignored=found.ignored
    )


def create(
    store: Store, cache: NodeFiles, by: str, *, proved: bool = False, bulk: Bulk | None = None
) -> RemoteSnapshot:
    """Prove that the store can do what we need, discover what it holds, and publish that as its first head.

    Before anything is uploaded: so objects of pushes without a head always mean that a head was lost. Whoever loses
    the race goes on from the winner's head (V1). `proved`: the caller has just done the proof.
    """
    if not proved:
        probe(store)
    commit = ulid()
    try:
        found = _discovered(store, StoreSink(store, commit, cache), bulk, carry=False)
    except AlreadyExists:
        return _published(store, cache)
    seen = publish(store, found.root, store_id=str(uuid.uuid4()), commit=commit, at=now(), by=by)
    return RemoteSnapshot(
        IndexTree(StoreNodes(store, cache), seen.head.root),
        seen,
        discovered=found.root is not None,
        refused=tuple(found.refused),
        ignored=found.ignored,
    )


def _discovered(store: Store, sink: StagingSink, bulk: Bulk | None, *, carry: bool) -> Discovered:
    """Discover a store and build its tree in `sink`: the listing starts here, and goes to Spark once it is too long."""
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


def _published(store: Store, cache: NodeFiles) -> RemoteSnapshot:
    """Return the view of a head that came to be while we listed: its writer's word decides, and not our listing."""
    seen = read_head(store)
    assert seen is not None  # nobody asked whether it is modified
    return RemoteSnapshot(IndexTree(StoreNodes(store, cache), seen.head.root), seen)


def later(view: RemoteSnapshot, store: Store, cache: NodeFiles, seen: HeadSeen) -> RemoteSnapshot:
    """Return the view of a head that was read or written after `view`."""
    return replace(view, tree=IndexTree(StoreNodes(store, cache), seen.head.root), seen=seen)
