"""The store's index as one sync sees it: a head that continues what base knows, or a discovery.

The client checks that the head belongs to the store that base knows and continues its history: a store that was swapped
or restored from a backup must never cause deletes here.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from bayou.config.settings import DatastoreConfig
from bayou.core.clock import now
from bayou.core.errors import AlreadyExists, NotFound, StoreEmptied, StoreRestored, StoreSwapped
from bayou.core.ids import ulid
from bayou.engine.handle import StoreHandle
from bayou.engine.select import Engines
from bayou.index.build import build
from bayou.index.discovery import RefusedKey, publish
from bayou.index.head import Head, HeadSeen, iter_log, read_head
from bayou.index.node_store import LocalNodes, NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import IndexTree
from bayou.objectstore.probe import probe
from bayou.objectstore.store import Store
from bayou.state.base import RemoteState

if TYPE_CHECKING:
    from bayou.sync.plan.discovery_job import Discovery


class RemoteSnapshot(Struct, frozen=True):
    """One version of the store's index. `seen` is None if the store has no head and a pull has only discovered it."""

    tree: IndexTree
    seen: HeadSeen | None
    discovered: bool = False
    refused: tuple[RefusedKey, ...] = ()
    ignored: int = 0

    @property
    def head(self) -> Head | None:
        return self.seen.head if self.seen is not None else None


def read_snapshot(
    store: Store,
    cache: NodeFiles,
    known: RemoteState,
    config: DatastoreConfig,
    *,
    etag: str | None,
    seen: HeadSeen | None = None,
) -> RemoteSnapshot | None:
    """Read the head, unless the caller has `seen` it, and check that it continues what base knows.

    None if the head has this ETag. `NotFound` if the store has no head and base knows of none; `StoreEmptied` if base
    knows one.
    """
    if seen is not None and known.seq is not None and seen.head.seq < known.seq:
        seen = None  # another sync of this repo has gone on since it was read
    try:
        seen = seen or read_head(store, if_none_match=etag)
    except NotFound:
        if known.store is not None:
            raise store_emptied(store, known, config) from None
        raise
    if seen is None or (etag is not None and seen.etag == etag):
        return None
    check_history(store, known, seen.head, config)
    return RemoteSnapshot(IndexTree(StoreNodes(store, cache), seen.head.root), seen)


def store_emptied(store: Store, known: RemoteState, config: DatastoreConfig) -> StoreEmptied:
    """Return the error for a store that base knows and that has no head."""
    had = f"commit {known.commit}" if known.commit is not None else f"the index of store {known.store}"
    return StoreEmptied(
        f"{store.url} had {had} and has no index any more",
        hint="if its head was lost: bayou datastore verify --repair; "
        f"if it was emptied on purpose, join it anew: {config.setup_command()}",
    )


def check_history(store: Store, known: RemoteState, head: Head, config: DatastoreConfig) -> None:
    """Raise unless the head is of the store that base knows, and its log has base's commit at base's seq."""
    again = f"if that is what you want, join it anew: {config.setup_command()}"
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
    """Return whether the index was rebuilt since base: then it need neither continue base nor have all entries."""
    return head.rebuilt is not None and head.rebuilt != known.rebuilt


def discover_snapshot(store: StoreHandle, engines: Engines, nodes: LocalNodes, cache: NodeFiles) -> RemoteSnapshot:
    """Discover the objects of a store without a head, and write nothing to it (V15)."""
    try:
        with _discover(store, engines) as found:
            root = build(found.entries(), nodes)
    except AlreadyExists:
        return _read_published(store.open(), cache)
    return RemoteSnapshot(
        IndexTree(nodes, root), None, discovered=True, refused=tuple(found.refused), ignored=found.ignored
    )


def create_index(
    store: StoreHandle, engines: Engines, cache: NodeFiles, by: str, *, proved: bool = False
) -> RemoteSnapshot:
    """Probe the store, discover its objects, and publish them as its first head.

    This happens before any upload, so objects of pushes without a head always mean that a head was lost. A client that
    loses the race continues from the winner's head (V1). `proved`: the caller has just probed the store.
    """
    opened = store.open()
    if not proved:
        probe(opened)
    commit = ulid()
    try:
        with _discover(store, engines) as found:
            root = build(found.entries(), StoreSink(opened, commit, cache))
    except AlreadyExists:
        return _read_published(opened, cache)
    seen = publish(opened, root, store_id=str(uuid.uuid4()), commit=commit, at=now(), by=by)
    return RemoteSnapshot(
        IndexTree(StoreNodes(opened, cache), seen.head.root),
        seen,
        discovered=root is not None,
        refused=tuple(found.refused),
        ignored=found.ignored,
    )


def _discover(store: StoreHandle, engines: Engines) -> closing[Discovery]:
    from bayou.sync.plan import discovery_job  # noqa: PLC0415  (almost every store has a head)

    return closing(discovery_job.discover(store, engines))


def _read_published(store: Store, cache: NodeFiles) -> RemoteSnapshot:
    """Return the snapshot of a head that another client published during the listing: it replaces the listing."""
    seen = read_head(store)
    return RemoteSnapshot(IndexTree(StoreNodes(store, cache), seen.head.root), seen)


def with_head(view: RemoteSnapshot, store: Store, cache: NodeFiles, seen: HeadSeen) -> RemoteSnapshot:
    """Return the snapshot of a head that was read or written after `view`."""
    return replace(view, tree=IndexTree(StoreNodes(store, cache), seen.head.root), seen=seen)
