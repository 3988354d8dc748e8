"""What of a store is garbage: the rules of `gc`, one object at a time, and how this process alone goes by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Protocol

from bayou.index.check import try_load
from bayou.index.discovery import TooMany, other_store, parents
from bayou.index.entry import Entry
from bayou.index.node import Leaf, Ref
from bayou.index.nodes import StoreNodes
from bayou.index.read import scan
from bayou.index.trash import trash_refusal
from bayou.index.tree import Tree, leaves
from bayou.paths import refusal
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.store import Store
from bayou.store.transport import ObjectMeta
from bayou.sync.retained import Retained


@dataclass(frozen=True, slots=True)
class Garbage:
    """What a collection deletes: objects that were indexed once, leftovers of pushes, nodes and the like, all bytes."""

    objects: int
    leftovers: int
    nodes: int
    bytes: int
    trash: Sequence[Entry] = ()
    """Discovered objects whose entry left the index, and that no retained root names any more."""
    refused: Sequence[str] = ()
    """The first paths of rows of the trash that nothing is deleted by (V25)."""


class Sweep(Protocol):
    """One collection, step by step, by whoever does the work."""

    def take_stock(self) -> int:
        """List the store, once and for all; return the time of its newest object, in ms."""

    def judge(self, kept: Retained, trash: Tree, before: int) -> Garbage:
        """Say what of that listing is garbage. What of the current index cannot be read is raised."""

    def delete(self) -> None:
        """Delete what was judged to be garbage; what is gone already is no error."""


def is_ours(key: str) -> bool:
    """Whether Bayou wrote it: an object of a push, a node, a page of the log, or a probe that was left behind."""
    if is_internal(key):
        known = keys.parse_node(key), keys.parse_log_page(key)
        return any(name is not None for name in known) or keys.is_probe(key)
    path, push = keys.parse_payload(key)
    return push is not None and refusal(path) is None


def is_inside(key: str, others: Set[str]) -> bool:
    """Whether a key lies in one of these directories: other stores, which are not ours to collect (V9)."""
    return bool(others) and not others.isdisjoint(parents(key))


def entry_refused(entry: Entry, others: Set[str]) -> bool:
    """Whether nothing is deleted by a row of the trash."""
    return trash_refusal(entry) is not None or is_inside(entry.path, others)


def is_internal(key: str) -> bool:
    return key.startswith(f"{keys.INTERNAL}/")


def is_garbage(meta: ObjectMeta, before: int, *, kept: bool) -> bool:
    """Whether a listed object may be deleted (V5): Bayou wrote it before that time, and no retained root names it."""
    return meta.modified < before and not kept and is_ours(meta.key)


def internal_garbage(listed: Iterable[ObjectMeta], kept: Retained, before: int) -> list[ObjectMeta]:
    """Return the nodes, pages and probes that may be deleted."""
    return [meta for meta in listed if is_garbage(meta, before, kept=_stays(meta.key, kept))]


def _stays(key: str, kept: Retained) -> bool:
    return keys.parse_node(key) in kept.nodes or keys.parse_log_page(key) in kept.pages


def _keys(source: StoreNodes, refs: Sequence[Ref]) -> Iterator[str]:
    """Yield the keys of the entries of some leaves, as far as these can be read."""
    for node in source.map(partial(try_load, source, 0), refs):
        if isinstance(node, Leaf):
            yield from (entry.key for entry in node.rows)


class SweepHere:
    """A collection by this process. `TooMany`, as soon as it is known, if there are more than `limit` objects."""

    def __init__(self, store: Store, limit: int | None = None) -> None:
        self._store = store
        self._limit = limit
        self._listed: list[ObjectMeta] = []
        self._others: set[str] = set()
        self._doomed: list[ObjectMeta] = []

    def take_stock(self) -> int:
        for page in self._store.list():
            self._listed += page
            self._others.update(outside for meta in page if (outside := other_store(meta.key)) is not None)
            if self._limit is not None and len(self._listed) > self._limit:
                raise TooMany
        return max(meta.modified for meta in self._listed)

    def judge(self, kept: Retained, trash: Tree, before: int) -> Garbage:
        source = StoreNodes(self._store)
        named: set[str] = {entry.key for leaf in leaves(source, kept.current) for entry in leaf.rows}
        named.update(_keys(source, kept.recent))
        once = set(_keys(source, kept.earlier))
        payload = [meta for meta in self._listed if not is_internal(meta.key) and not is_inside(meta.key, self._others)]
        objects = [meta for meta in payload if is_garbage(meta, before, kept=meta.key in named)]
        nodes = internal_garbage((meta for meta in self._listed if is_internal(meta.key)), kept, before)
        self._doomed = [*objects, *nodes]
        old = sum(meta.key in once for meta in objects)
        size = sum(meta.size for meta in self._doomed)
        rows = [(entry, entry_refused(entry, self._others)) for entry in scan(trash)]
        left = [entry for entry, bad in rows if not bad and entry.key not in named]
        return Garbage(old, len(objects) - old, len(nodes), size, left, [entry.path for entry, bad in rows if bad])

    def delete(self) -> None:
        self._store.delete([keys.as_listed(meta.key) for meta in self._doomed])
