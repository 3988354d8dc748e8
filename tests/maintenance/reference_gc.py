"""Collection with sets, all of a store in memory: what the jobs of `maintenance.gc_jobs` must find, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from bayou.index.check import try_load
from bayou.index.discovery import nested_store
from bayou.index.node import Leaf, Ref
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, leaves, scan
from bayou.maintenance.gc_jobs import Garbage, GcRoots, entry_refused, is_garbage, is_inside, is_internal, is_pack
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta


def internal_garbage(listed: Iterable[ObjectMeta], kept: GcRoots, before: int) -> list[ObjectMeta]:
    """Return the nodes, pages and probes that may be deleted."""
    return [meta for meta in listed if is_garbage(meta, before, retained=_stays(meta.key, kept))]


def _stays(key: str, kept: GcRoots) -> bool:
    return keys.parse_node(key) in kept.nodes or keys.parse_log_page(key) in kept.pages


def _keys(source: StoreNodes, refs: Sequence[Ref]) -> Iterator[str]:
    """Yield the keys of the entries of some leaves, as far as these can be read."""
    for node in source.map(partial(try_load, source, 0), refs):
        if isinstance(node, Leaf):
            yield from (entry.key for entry in node.rows)


def _is_payload(key: str) -> bool:
    return not is_internal(key) or is_pack(key)


class SweepReference:
    """A collection of a store that fits in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listed: list[ObjectMeta] = []
        self._others: set[str] = set()
        self.doomed: list[ObjectMeta] = []

    def list_store(self) -> int:
        for page in self._store.list():
            self._listed += page
            self._others.update(outside for meta in page if (outside := nested_store(meta.key)) is not None)
        return max(meta.modified for meta in self._listed)

    def find_garbage(self, kept: GcRoots, trash: IndexTree, before: int) -> Garbage:
        source = StoreNodes(self._store)
        named: set[str] = {entry.key for leaf in leaves(source, kept.current) for entry in leaf.rows}
        named.update(_keys(source, kept.recent))
        once = set(_keys(source, kept.earlier))
        payload = [meta for meta in self._listed if _is_payload(meta.key) and not is_inside(meta.key, self._others)]
        objects = [meta for meta in payload if is_garbage(meta, before, retained=meta.key in named)]
        nodes = internal_garbage((meta for meta in self._listed if not _is_payload(meta.key)), kept, before)
        self.doomed = [*objects, *nodes]
        old = sum(meta.key in once for meta in objects)
        size = sum(meta.size for meta in self.doomed)
        rows = [(entry, entry_refused(entry, self._others)) for entry in scan(trash)]
        left = [entry for entry, bad in rows if not bad and entry.key not in named]
        packs = sum(is_pack(meta.key) for meta in objects)
        bad_rows = [entry.path for entry, bad in rows if bad]
        return Garbage(old, len(objects) - old, len(nodes), size, left, bad_rows, packs)
