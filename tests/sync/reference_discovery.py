"""Discovery with dictionaries, all of a store in memory: what the job of `sync.plan.discovery_job` must find, part by
part."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from operator import attrgetter
from typing import Any

from msgspec import Struct

from bayou.engine.handle import StoreHandle
from bayou.engine.local import LocalExecutor
from bayou.index.discovery import (
    IN_THE_WAY,
    OF_ANOTHER_SYSTEM,
    RefusedKey,
    directories,
    entry_of,
    folder_markers,
    head_lost,
    in_payload,
    nested_store,
    parents,
    proves_head,
    refusal,
)
from bayou.index.entry import Entry
from bayou.index.node_store import ReadableStore
from bayou.objectstore.transport import ObjectMeta
from bayou.sync.plan.discovery_job import DiscoveryJob


class Found(Struct, frozen=True):
    """The entries of a discovery, all of them; refused keys; and the number of other keys."""

    entries: list[Entry]
    refused: list[RefusedKey]
    ignored: int


class Listing(Struct, frozen=True):
    """The payload objects of a store, of Bayou and of other writers; refused keys; and the number of other keys."""

    objects: Sequence[ObjectMeta]
    refused: Sequence[RefusedKey]
    ignored: int


def find(store: Any, *, divided: bool = False, most: int | None = None, threads: int = 1) -> Found:
    """Run the job in this process; with `divided`, in up to four parts for each thread."""
    job = DiscoveryJob(StoreHandle(store, _no_recipe), divided=divided, most=most)
    with closing(LocalExecutor(threads=threads).run(job)) as found:
        assert found.refusals == len(found.refused)
        return Found(list(found.entries()), list(found.refused), found.ignored)


def discover(store: ReadableStore) -> Found:
    """List a store without a head and return the entries of its payload."""
    listing = list_payload(store)
    entries: dict[str, Entry] = {}
    for page in store.list():
        for meta in page:
            if proves_head(meta.key):
                raise head_lost(store, meta.key)
    for meta in listing.objects:
        entry = entry_of(meta)
        if entry.push is not None:
            raise head_lost(store, meta.key)
        entries[entry.path] = entry
    refused = [*listing.refused]
    for path in directories(entries) & entries.keys():
        del entries[path]
        refused.append(RefusedKey(path, IN_THE_WAY))
    return Found([entries[path] for path in sorted(entries)], sorted(refused, key=attrgetter("key")), listing.ignored)


def list_payload(store: ReadableStore) -> Listing:
    """List a store and return its payload: objects at plain paths, and objects of pushes."""
    found, ignored = _list(store)
    objects: dict[str, ObjectMeta] = {}
    refused: list[RefusedKey] = []
    folders = folder_markers(store, found)
    for meta in found:
        if meta.key in folders:
            continue
        why = refusal(meta.key)
        if why is None:
            # If an object and a "folder" are listed under one key, the larger is the object.
            if meta.key not in objects or meta.size > objects[meta.key].size:
                objects[meta.key] = meta
        elif why == OF_ANOTHER_SYSTEM:
            ignored += 1
        else:
            refused.append(RefusedKey(meta.key, why))
    return Listing(list(objects.values()), refused, ignored)


def _list(store: ReadableStore) -> tuple[list[ObjectMeta], int]:
    """Return the objects at or below a payload root and in no nested store, and the number of other keys."""
    listed = [meta for page in store.list() for meta in page if in_payload(meta.key) is not None]
    foreign = {outside for meta in listed if (outside := nested_store(meta.key)) is not None}
    kept = [meta for meta in listed if in_payload(meta.key) and foreign.isdisjoint(parents(meta.key))]
    return kept, len(listed) - len(kept)


def _no_recipe() -> Any:
    raise AssertionError("no other process opens this store")
