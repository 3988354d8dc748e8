"""What of a store is garbage: the retained roots, the rules for one object, and the jobs that find it.

Two jobs of `engine.job` do the work that grows with the store: `ListJob` lists it, `NamesJob` reads what roots name.
The driver keeps their rows in a file, so that the listing is fixed before the collection is announced, even if a worker
is lost: a repeated listing would contain uploads that ended after the announcement, some with an earlier time (V5,
T13). `Sweep` then judges the store key by key, and deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec import Struct

from bayou.core import activity
from bayou.core.clock import parse_ms
from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.core.paths import refusal
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.parts import StorePart, divide, groups, objects
from bayou.engine.spool import SortedSpool, key_bytes, key_text
from bayou.index.check import try_load
from bayou.index.discovery import nested_store, parents, trash_refusal
from bayou.index.entry import Entry
from bayou.index.head import Head, iter_log
from bayou.index.log import LogRow, older_pages
from bayou.index.node import Branch, Leaf, Pointer, Ref, Root
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta

_LISTED, _RETAINED, _ONCE_INDEXED, _IN_TRASH = range(4)
"""What a row of the spool says about a key: it was listed; a retained root names it; only an earlier root names it; the
trash names it."""


_OTHER, _NEWEST = "other", "newest"


ENTRIES_PER_PART = 5000
"""Entries that a part has at least: dividing a store also takes requests."""


_DELETED_AT_ONCE = 10_000


class GcRoots(Struct, frozen=True):
    """What the retained roots name: nodes, pages of the log, and the leaves whose rows name objects, each once.

    `current` are the leaves of the current root, which must all be readable; `recent` are those that other retained
    roots have besides; `earlier` are those of the other roots in the head's log: what only they name was once indexed.
    """

    current: Sequence[Ref]
    recent: Sequence[Ref]
    earlier: Sequence[Ref]
    nodes: frozenset[str]
    pages: frozenset[str]


class Garbage(Struct, frozen=True):
    """What a collection deletes: formerly indexed objects, leftovers of pushes, nodes and log pages, and all bytes.

    A pack counts as one object, or as one leftover if no root ever named a file in it. `packs` is how many of both are
    packs.
    """

    objects: int
    leftovers: int
    nodes: int
    bytes: int
    trash: Sequence[Entry] = ()
    """Discovered objects that have left the index and that no retained root names."""
    refused: Sequence[str] = ()
    """The paths of rows of the trash that are unsafe, or lie in another store, and delete nothing (V25)."""
    packs: int = 0


def gc_roots(store: Store, head: Head, before: int) -> GcRoots:
    """Return what the roots name that were current at some time since `before`. Only branches are read.

    Unreadable nodes of earlier roots are skipped: an earlier collection may have deleted them. An unreadable node of
    the current root is raised, because then garbage cannot be told from data.
    """
    source, nodes = StoreNodes(store), set[str]()
    current, recent = current_leaves(store, head, nodes), recent_leaves(store, head, before, nodes)
    _leaves(source, head.trash, nodes, strict=True)
    named = frozenset(nodes)
    earlier = [ref for row in head.log for ref in _leaves(source, row.root, nodes)]
    return GcRoots(current, recent, earlier, named, _pages(store, head))


def current_leaves(store: Store, head: Head, nodes: set[str]) -> list[Ref]:
    """Return the leaves of the current root, and add the names of its nodes to `nodes`; an unreadable one is raised."""
    return _leaves(StoreNodes(store), head.root, nodes, strict=True)


def recent_leaves(store: Store, head: Head, before: int, nodes: set[str]) -> list[Ref]:
    """Return the leaves of other roots that were current since `before`, without the nodes in `nodes`; add to these."""
    source = StoreNodes(store)
    return [ref for row in _retained_rows(store, head, before) for ref in _leaves(source, row.root, nodes)]


def is_garbage(meta: ObjectMeta, before: int, *, retained: bool) -> bool:
    """Whether a listed object may be deleted (V5): Bayou wrote it before `before`, and no retained root names it."""
    return meta.modified < before and not retained and is_ours(meta.key)


def is_ours(key: str) -> bool:
    """Whether Bayou wrote the object: of a push, a pack, a node, a page of the log, or a leftover probe."""
    if is_internal(key):
        known = keys.parse_pack(key), keys.parse_node(key), keys.parse_log_page(key)
        return any(name is not None for name in known) or keys.is_probe(key)
    path, push = keys.parse_payload(key)
    return push is not None and refusal(path) is None


def is_internal(key: str) -> bool:
    return key.startswith(f"{keys.INTERNAL}/")


def is_pack(key: str) -> bool:
    return keys.parse_pack(key) is not None


def is_inside(key: str, other_stores: Set[str]) -> bool:
    """Whether a key lies in another store, which this collection must not change (V9)."""
    return bool(other_stores) and not other_stores.isdisjoint(parents(key))


def entry_refused(entry: Entry, other_stores: Set[str]) -> bool:
    """Whether a row of the trash is unsafe, or names an object of another store."""
    return trash_refusal(entry) is not None or is_inside(entry.path, other_stores)


class Sweep:
    """One collection, step by step: `list_store`, (the caller announces it,) `find_garbage`, `delete`, `close`."""

    def __init__(self, executor: Executor, store: StoreHandle, entries: int) -> None:
        self._executor = executor
        self._store = store
        self._entries = entries
        self._spool = SortedSpool(3)
        self._other_stores: frozenset[str] = frozenset()
        self._roots: GcRoots | None = None
        self._before = 0

    def list_store(self) -> int:
        """List the store, once; return the time of its newest object, in ms."""
        self._other_stores, newest = self._executor.run(ListJob(self._store, self._entries, self._spool))
        return newest

    def find_garbage(self, roots: GcRoots, trash: IndexTree, before: int) -> Garbage:
        """Return the garbage of that listing. An unreadable node of the current index is raised."""
        self._roots, self._before = roots, before
        self._executor.run(NamesJob(self._store, roots, self._spool))
        trashed: dict[bytes, Entry] = {}
        refused: list[str] = []
        for entry in scan(trash):
            if entry_refused(entry, self._other_stores):
                refused.append(entry.path)
            else:
                trashed[key_bytes(entry.path)] = entry
        self._spool.add((path, "", _IN_TRASH, None, None, None, None, None) for path in trashed)
        objects = leftovers = nodes = packs = size = 0
        left: list[Entry] = []
        for path, known in self._by_key():
            if _IN_TRASH in known and _RETAINED not in known:
                left.append(trashed[path])
            meta = self._garbage(known)
            if meta is None:
                continue
            size += meta.size
            if is_internal(meta.key) and not is_pack(meta.key):
                nodes += 1
                continue
            packs += is_pack(meta.key)
            if _ONCE_INDEXED in known:
                objects += 1
            else:
                leftovers += 1
        return Garbage(objects, leftovers, nodes, size, left, refused, packs)

    def delete(self) -> None:
        """Delete the garbage; an object that is gone already is no error."""
        found = (meta for _, known in self._by_key() if (meta := self._garbage(known)) is not None)
        while some := [keys.as_listed(meta.key) for meta in islice(found, _DELETED_AT_ONCE)]:
            self._store.open().delete(some)

    def close(self) -> None:
        self._spool.close()

    def _by_key(self) -> Iterator[tuple[bytes, dict[int, tuple[Any, ...]]]]:
        """Yield the rows of each key by kind, with its path, in order."""
        for (path, _), group in groupby(self._spool, key=itemgetter(0, 1)):
            yield path, {row[2]: row[3:] for row in group}

    def _garbage(self, known: dict[int, tuple[Any, ...]]) -> ObjectMeta | None:
        """Return the listed object of a key if it is garbage."""
        if _LISTED not in known:
            return None
        assert self._roots is not None
        key, *rest = known[_LISTED]
        meta = ObjectMeta(key_text(key), *rest)
        if is_internal(meta.key) and not is_pack(meta.key):
            retained = _is_retained(meta.key, self._roots)
        elif is_inside(meta.key, self._other_stores):
            return None
        else:
            retained = _RETAINED in known  # a pack: if a retained root names any of its files (P6)
        return meta if is_garbage(meta, self._before, retained=retained) else None


class ListRow(NamedTuple):
    """A row of `ListJob`: an object that Bayou wrote, a directory that is another store, or a part's newest time."""

    key: str
    size: int = 0
    etag: str | None = None
    version: str | None = None
    modified: int = 0
    kind: str | None = None


class ListJob:
    """Lists a store. `fold` writes Bayou's objects to a spool, and returns other stores and the newest object's time.

    Objects that Bayou did not write are never garbage (V5), so the workers send no rows for them.
    """

    row = ListRow

    def __init__(self, store: StoreHandle, entries: int, spool: SortedSpool) -> None:
        self._store = store
        self._entries = entries
        self._spool = spool

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle]]:
        return _ListKernel, (self._store,)

    @property
    def stage(self) -> Stage:
        return Stage("listing")

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[Sequence[StorePart]]:
        wanted = min(wanted, max(1, -(-self._entries // ENTRIES_PER_PART)))
        found = divide(self._store.open(), wanted)
        whole = any(part.directory is None and part.deep for part in found)
        return groups(found if whole else [*found, StorePart(keys.INTERNAL)], wanted)

    def run(self, part: Sequence[StorePart]) -> Iterator[ListRow]:
        return _ListKernel(self._store).run(part)

    def fold(self, rows: Iterable[ListRow]) -> tuple[frozenset[str], int]:
        other_stores: set[str] = set()
        newest = 0
        for row in rows:
            if row.kind == _OTHER:
                other_stores.add(row.key)
            elif row.kind == _NEWEST:
                newest = max(newest, row.modified)
            else:
                path, push = keys.parse_payload(row.key)
                self._spool.add([(key_bytes(path), push or "", _LISTED, key_bytes(row.key), *row[1:5])])
        return frozenset(other_stores), newest


class _ListKernel:
    """The part of the job that a worker gets."""

    row = ListRow

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def run(self, part: Sequence[StorePart]) -> Iterator[ListRow]:
        other_stores: set[str] = set()
        newest = 0
        for page in (page for directory in part for page in objects(self._store.open(), directory)):
            activity.seen(len(page))
            for meta in page:
                newest = max(newest, meta.modified)
                outside = nested_store(meta.key)
                if outside is not None and outside not in other_stores:
                    other_stores.add(outside)
                    yield ListRow(outside, kind=_OTHER)
                if is_ours(meta.key):
                    yield ListRow(meta.key, meta.size, meta.etag, meta.version, meta.modified)
        yield ListRow("", modified=newest, kind=_NEWEST)


class NamedObject(NamedTuple):
    """A row of `NamesJob`: the key that a leaf names, as `parse_payload` divides it, and whether a retained root has
    that leaf. A pack's key is its path."""

    path: str
    push: str | None
    retained: bool


class LeafGroup(Struct, frozen=True):
    """Some leaves. `retained`: of retained roots. `strict`: of the current root, so that each must be readable."""

    leaves: Sequence[Ref]
    retained: bool
    strict: bool


class NamesJob:
    """Reads leaves and writes what they name to a spool. An unreadable leaf of the current index is raised (V5)."""

    row = NamedObject

    def __init__(self, store: StoreHandle, roots: GcRoots, spool: SortedSpool) -> None:
        self._store = store
        self._roots = roots
        self._spool = spool

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle]]:
        return _NamesKernel, (self._store,)

    @property
    def stage(self) -> Stage:
        leaves = (ref for refs in (self._roots.current, self._roots.recent, self._roots.earlier) for ref in refs)
        return Stage("reading the index", sum(ref.entries for ref in leaves if not isinstance(ref, Pointer)))

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[LeafGroup]:
        kinds = (
            (self._roots.current, True, True),
            (self._roots.recent, True, False),
            (self._roots.earlier, False, False),
        )
        return [LeafGroup(some, retained, strict) for refs, retained, strict in kinds for some in groups(refs, wanted)]

    def run(self, part: LeafGroup) -> Iterator[NamedObject]:
        return _NamesKernel(self._store).run(part)

    def fold(self, rows: Iterable[NamedObject]) -> None:
        self._spool.add(
            (key_bytes(path), push or "", _RETAINED if retained else _ONCE_INDEXED, None, None, None, None, None)
            for path, push, retained in rows
        )


class _NamesKernel:
    """The part of the job that a worker gets."""

    row = NamedObject

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def run(self, part: LeafGroup) -> Iterator[NamedObject]:
        source = StoreNodes(self._store.open())
        packs: set[str] = set()
        for node in source.map(partial(try_load, source, 0), part.leaves):
            if isinstance(node, Leaf):
                for row in node.rows:
                    # The key of any row, even one that no client wrote (V25), protects its object (V5).
                    if row.pack is None:
                        yield NamedObject(*keys.parse_payload(row.key), part.retained)
                    elif row.pack not in packs:
                        packs.add(row.pack)
                        yield NamedObject(row.key, None, part.retained)
            elif part.strict and isinstance(node, Exception):
                raise node


def _leaves(source: StoreNodes, root: Root | Pointer | None, nodes: set[str], *, strict: bool = False) -> list[Ref]:
    """Return references to the leaves of a tree, without the nodes in `nodes` and all below them; add to `nodes`."""
    refs: list[Ref] = [root] if root is not None else []
    for level in range(root.level if root is not None else 0, -1, -1):
        refs = [ref for ref in refs if ref.node not in nodes]
        nodes.update(ref.node for ref in refs)
        if level == 0:
            break
        below: list[Ref] = []
        for node in source.map(partial(try_load, source, level), refs):
            if isinstance(node, Branch):
                below += node.rows
            elif strict and isinstance(node, NodeMissing | NodeDamaged):
                raise node
        refs = below
    return refs


def _pages(store: Store, head: Head) -> frozenset[str]:
    return frozenset(page.id for page in older_pages(store, head.older, head.log[0].seq))


def _retained_rows(store: Store, head: Head, before: int) -> Iterator[LogRow]:
    """Yield the rows whose root was current at some time since `before`: those since, and the row before them.

    Clocks of clients differ, so every row in the head is checked; older pages are read up to the first older row.
    """
    following: LogRow | None = None
    for number, row in enumerate(iter_log(store, head)):
        if following is None or parse_ms(following.at) >= before:
            yield row
        elif number >= len(head.log):
            return
        following = row


def _is_retained(key: str, roots: GcRoots) -> bool:
    return keys.parse_node(key) in roots.nodes or keys.parse_log_page(key) in roots.pages
