"""`datastore gc`: delete what no retained root names, without any agreement about clocks.

List; then commit a head with the same root and the next `gc` count; then delete what was listed, is older (by the
store's clock) than the listing less the grace, was written by Bayou, and is named by no retained root (V5). A push that
was under way sees the new count when it merges, and makes its uploads again (T13). A late or repeated DELETE hits
nothing new, since no key is used twice (T3).

What grows with the store are jobs (`maintenance.gc`), which threads of this process run, or Spark (`engine.select`).

What a collection must leave alone: all that a root names which was current within the grace (V5).

What of a store is garbage: the rules of `gc`, one object at a time, and the jobs that find it.

Two jobs of `engine.job` do what grows with the store: one lists it, one reads what roots name. Both hand their rows to
the driver, which keeps them in a file, so that what was listed is fixed before the collection is announced, whatever
becomes of a worker: a listing that was made again would hold uploads that ended after the announcement, some of them
with an earlier time (V5, T13). The driver judges key by key, and deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from functools import partial
from itertools import compress, groupby, islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from bayou.core import paths
from bayou.core.clock import format_ms, now, parse_ms
from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, NodeDamaged, NodeMissing, NotFound, PreconditionFailed
from bayou.core.ids import ulid
from bayou.core.paths import refusal
from bayou.core.progress import Progress, Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.parts import Part, divide, groups, objects
from bayou.engine.select import Engines
from bayou.engine.spool import SortedSpool
from bayou.index.check import try_load
from bayou.index.discovery import nested_store, parents, trash_refusal
from bayou.index.entry import Entry
from bayou.index.head import Gc, Head, HeadSeen, advance, iter_log, read_head, swap_head
from bayou.index.log import LogRow, Tally, older_pages
from bayou.index.merge import merge
from bayou.index.node import Branch, Leaf, Pointer, Ref, Root
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta
from bayou.repo import Repo
from bayou.sync.bulk import store_handle
from bayou.sync.context import identity
from bayou.sync.report import CollectReport


class GcRoots(Struct, frozen=True):
    """What roots name: nodes and pages of the log that stay, and the leaves that tell which objects do, each once.

    `current` are leaves of the current root, all of which must be read; `recent` those that other retained roots have
    besides; `earlier` those of roots in the head's log that no retained root has: what only they name was once indexed.
    """

    current: Sequence[Ref]
    recent: Sequence[Ref]
    earlier: Sequence[Ref]
    nodes: frozenset[str]
    pages: frozenset[str]


def gc_roots(store: Store, head: Head, before: int) -> GcRoots:
    """Return what roots name that were current at some time since `before`. Only branches are read.

    Of earlier roots as far as they can be read: an earlier collection may have taken their nodes. What of the current
    one cannot be read is raised: then nothing can be told from garbage.
    """
    source, nodes = StoreNodes(store), set[str]()
    current = _leaves(source, head.root, nodes, strict=True)
    recent = [ref for row in _within(store, head, before) for ref in _leaves(source, row.root, nodes)]
    _leaves(source, head.trash, nodes, strict=True)
    named = frozenset(nodes)
    earlier = [ref for row in head.log for ref in _leaves(source, row.root, nodes)]
    return GcRoots(current, recent, earlier, named, _pages(store, head))


def _leaves(source: StoreNodes, root: Root | Pointer | None, nodes: set[str], *, strict: bool = False) -> list[Ref]:
    """Return what names the leaves of a tree; nodes that were met before, with all below them, are left out."""
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


def _within(store: Store, head: Head, before: int) -> Iterator[LogRow]:
    """Yield the rows whose root was current at some time since `before`: those since, and the one before them.

    Writers' clocks differ: what the head has of the log is looked at row by row, older pages up to the first that is
    too old.
    """
    following: LogRow | None = None
    for number, row in enumerate(iter_log(store, head)):
        if following is None or parse_ms(following.at) >= before:
            yield row
        elif number >= len(head.log):
            return
        following = row


_OBJECT, _KEPT, _ONCE, _TRASH = range(4)
"""What a row of the file says of a key: it was listed; a retained root names it; only an earlier root does; the trash
does."""

_OTHER, _NEWEST = "other", "newest"

_ENTRIES_PER_PART = 5000
"""Fewer are not worth a part: dividing a store takes requests of its own."""

_DELETED_AT_ONCE = 10_000


class Garbage(Struct, frozen=True):
    """What a collection deletes: objects that were indexed once, leftovers of pushes, nodes and the like, all bytes."""

    objects: int
    leftovers: int
    nodes: int
    bytes: int
    trash: Sequence[Entry] = ()
    """Discovered objects whose entry left the index, and that no retained root names any more."""
    refused: Sequence[str] = ()
    """The first paths of rows of the trash that nothing is deleted by (V25)."""


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


def _stays(key: str, kept: GcRoots) -> bool:
    return keys.parse_node(key) in kept.nodes or keys.parse_log_page(key) in kept.pages


class Listed(NamedTuple):
    """A row: an object that Bayou wrote; or a directory that is another store; or the newest time of a part."""

    key: str
    size: int = 0
    etag: str | None = None
    version: str | None = None
    modified: int = 0
    kind: str | None = None


class ListJob:
    """Lists a store. `fold` writes what Bayou wrote to a spool; it returns other stores and the newest object's time.

    Objects that Bayou did not write are never garbage, so they stay with the worker (V5).
    """

    row = Listed

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

    def parts(self, wanted: int) -> Sequence[Sequence[Part]]:
        wanted = min(wanted, max(1, -(-self._entries // _ENTRIES_PER_PART)))
        found = divide(self._store.open(), wanted)
        whole = any(part.directory is None and part.deep for part in found)
        return groups(found if whole else [*found, Part(keys.INTERNAL)], wanted)

    def run(self, part: Sequence[Part]) -> Iterator[Listed]:
        return _ListKernel(self._store).run(part)

    def fold(self, rows: Iterable[Listed]) -> tuple[frozenset[str], int]:
        others: set[str] = set()
        newest = 0
        for row in rows:
            if row.kind == _OTHER:
                others.add(row.key)
            elif row.kind == _NEWEST:
                newest = max(newest, row.modified)
            else:
                path, push = keys.parse_payload(row.key)
                self._spool.add([(_bytes(path), push or "", _OBJECT, _bytes(row.key), *row[1:5])])
        return frozenset(others), newest


class _ListKernel:
    """What of the job goes to a worker."""

    row = Listed

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def run(self, part: Sequence[Part]) -> Iterator[Listed]:
        others: set[str] = set()
        newest = 0
        for page in (page for one in part for page in objects(self._store.open(), one)):
            for meta in page:
                newest = max(newest, meta.modified)
                outside = nested_store(meta.key)
                if outside is not None and outside not in others:
                    others.add(outside)
                    yield Listed(outside, kind=_OTHER)
                if is_ours(meta.key):
                    yield Listed(meta.key, meta.size, meta.etag, meta.version, meta.modified)
        yield Listed("", modified=newest, kind=_NEWEST)


class Named(NamedTuple):
    """A row: what a leaf names, and whether a retained root has that leaf."""

    path: str
    push: str | None
    kept: bool


class NamesJob:
    """Reads leaves and writes what they name to a spool. What of the current index cannot be read is raised (V5)."""

    row = Named

    def __init__(self, store: StoreHandle, kept: GcRoots, spool: SortedSpool) -> None:
        self._store = store
        self._kept = kept
        self._spool = spool

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle]]:
        return _NamesKernel, (self._store,)

    @property
    def stage(self) -> Stage:
        leaves = (ref for refs in (self._kept.current, self._kept.recent, self._kept.earlier) for ref in refs)
        return Stage("reading the index", sum(ref.entries for ref in leaves if not isinstance(ref, Pointer)))

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[LeafGroup]:
        kinds = ((self._kept.current, True, True), (self._kept.recent, True, False), (self._kept.earlier, False, False))
        return [LeafGroup(some, kept, strict) for refs, kept, strict in kinds for some in groups(refs, wanted)]

    def run(self, part: LeafGroup) -> Iterator[Named]:
        return _NamesKernel(self._store).run(part)

    def fold(self, rows: Iterable[Named]) -> None:
        self._spool.add(
            (_bytes(path), push or "", _KEPT if kept else _ONCE, None, None, None, None, None)
            for path, push, kept in rows
        )


class LeafGroup(Struct, frozen=True):
    """Some leaves: of retained roots (`kept`), and of the current one, which must all be read (`strict`)."""

    leaves: Sequence[Ref]
    kept: bool
    strict: bool


class _NamesKernel:
    """What of the job goes to a worker."""

    row = Named

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def run(self, part: LeafGroup) -> Iterator[Named]:
        source = StoreNodes(self._store.open())
        for node in source.map(partial(try_load, source, 0), part.leaves):
            if isinstance(node, Leaf):
                # By the key that a row names, also one that no client wrote (V25): what it names is not deleted (V5).
                yield from (Named(*keys.parse_payload(row.key), part.kept) for row in node.rows)
            elif part.strict and isinstance(node, Exception):
                raise node


class Sweep:
    """One collection, step by step: list, (the caller announces,) judge, delete. Close it at the end."""

    def __init__(self, executor: Executor, store: StoreHandle, entries: int) -> None:
        self._executor = executor
        self._store = store
        self._entries = entries
        self._spool = SortedSpool(3)
        self._others: frozenset[str] = frozenset()
        self._kept: GcRoots | None = None
        self._before = 0

    def take_stock(self) -> int:
        """List the store, once and for all; return the time of its newest object, in ms."""
        self._others, newest = self._executor.run(ListJob(self._store, self._entries, self._spool))
        return newest

    def judge(self, kept: GcRoots, trash: IndexTree, before: int) -> Garbage:
        """Say what of that listing is garbage. What of the current index cannot be read is raised."""
        self._kept, self._before = kept, before
        self._executor.run(NamesJob(self._store, kept, self._spool))
        wasted: dict[bytes, Entry] = {}
        refused: list[str] = []
        for entry in scan(trash):
            if entry_refused(entry, self._others):
                refused.append(entry.path)
            else:
                wasted[_bytes(entry.path)] = entry
        self._spool.add((path, "", _TRASH, None, None, None, None, None) for path in wasted)
        counts = {_KEPT: 0, _ONCE: 0, _OBJECT: 0}
        size = 0
        left: list[Entry] = []
        for path, known in self._by_key():
            if _TRASH in known and _KEPT not in known:
                left.append(wasted[path])
            meta = self._doomed(known)
            if meta is not None:
                counts[_KEPT if is_internal(meta.key) else _ONCE if _ONCE in known else _OBJECT] += 1
                size += meta.size
        return Garbage(counts[_ONCE], counts[_OBJECT], counts[_KEPT], size, left, refused)

    def delete(self) -> None:
        """Delete what was judged to be garbage; what is gone already is no error."""
        found = (meta for _, known in self._by_key() if (meta := self._doomed(known)) is not None)
        while some := [keys.as_listed(meta.key) for meta in islice(found, _DELETED_AT_ONCE)]:
            self._store.open().delete(some)

    def close(self) -> None:
        self._spool.close()

    def _by_key(self) -> Iterator[tuple[bytes, dict[int, tuple[Any, ...]]]]:
        """Yield all that is known of each key, with its path, in order."""
        for (path, _), group in groupby(self._spool, key=itemgetter(0, 1)):
            yield path, {row[2]: row[3:] for row in group}

    def _doomed(self, known: dict[int, tuple[Any, ...]]) -> ObjectMeta | None:
        """Return the listed object of a key if it is garbage."""
        if _OBJECT not in known:
            return None
        assert self._kept is not None
        key, *rest = known[_OBJECT]
        meta = ObjectMeta(_text(key), *rest)
        if is_internal(meta.key):
            kept = _stays(meta.key, self._kept)
        elif is_inside(meta.key, self._others):
            return None
        else:
            kept = _KEPT in known
        return meta if is_garbage(meta, self._before, kept=kept) else None


def _bytes(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def _text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")


_FEW = 3


def collect(
    repo: Repo,
    *,
    dry_run: bool,
    grace_s: float,
    timeout: float | None = None,
    engine: Literal["auto", "point", "spark"] = "auto",
    progress: Progress | None = None,
) -> CollectReport:
    """Delete from the store what nobody can need any more; dry, say what that would be."""
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    store = repo.store().within(deadline)
    warnings: list[str] = []
    seen = _head(store)
    clock = None if dry_run else _store_clock(store)
    handle = store_handle(repo.config, store, deadline)
    entries = seen.head.root.entries if seen.head.root is not None else 0

    def work(executor: Executor) -> CollectReport:
        with closing(Sweep(executor, handle, entries)) as sweep:
            return _sweep(store, seen, clock, sweep, dry_run=dry_run, grace_s=grace_s, warnings=warnings)

    engines = Engines.of(repo.config, engine, deadline, warnings.append, progress)
    return engines.run(Needs((handle,)), work, what="the store was collected", files=entries)


def _sweep(
    store: Store,
    seen: HeadSeen,
    clock: int | None,
    sweep: Sweep,
    *,
    dry_run: bool,
    grace_s: float,
    warnings: list[str],
) -> CollectReport:
    """List, announce, judge, delete: in this order, whoever does the work."""
    newest = sweep.take_stock()
    # Dry, nothing may be written to learn the time; the newest object is the latest that the store's clock has shown.
    before = (clock if clock is not None else newest) - round(grace_s * 1000)
    if not dry_run:
        seen = _announce(store, seen, before)
    found = sweep.judge(gc_roots(store, seen.head, before), IndexTree(StoreNodes(store), seen.head.trash), before)
    if found.refused:
        warnings.append(_left_alone(found.refused))
    trash, replaced = _sorted_out(store, found.trash)
    if not dry_run:
        sweep.delete()
        _empty_trash(store, seen, trash, replaced)
    return CollectReport(
        objects_deleted=found.objects,
        leftovers_deleted=found.leftovers,
        trash_deleted=len(trash),
        nodes_deleted=found.nodes,
        bytes=found.bytes + sum(entry.size for entry in trash),
        dry_run=dry_run,
        warnings=warnings,
    )


def _left_alone(refused: Sequence[str]) -> str:
    """Say that the trash names what Bayou did not put there (V5, V9)."""
    names = ", ".join(map(paths.escape, refused[:_FEW])) + (", …" if refused[_FEW:] else "")
    said = f"{len(refused)} rows of the trash are not this store's to delete by, and were left alone: {names}"
    return f"{said}; `bayou datastore verify --repair` drops what is unsafe from it"


def _head(store: Store) -> HeadSeen:
    try:
        seen = read_head(store)
    except NotFound:
        raise NotFound(
            f"{store.url} has no index, so nothing can be collected", hint="bayou datastore status"
        ) from None
    if seen is None:
        raise BadAnswer(f"{store.url} says that its head is not modified, and nobody asked that")
    return seen


def _store_clock(store: Store) -> int:
    """Return the store's time, in ms: the age of objects is told by no other clock."""
    while True:
        key = keys.probe(ulid())
        store.put(key, b"clock")
        try:
            return store.head(key).modified
        except NotFound:
            continue  # another collection, one without grace, took it for left behind
        finally:
            store.delete([key])


def _announce(store: Store, seen: HeadSeen, before: int) -> HeadSeen:
    """Commit the next `gc` count over the same root, whatever that is by now."""
    while True:
        head, number = seen.head, ulid()
        # A push may look back over several collections, and one may still be deleting: the latest moment counts.
        latest = max(before, parse_ms(head.gc.before)) if head.gc.before is not None else before
        gc = Gc(head.gc.count + 1, format_ms(latest))
        new, page = advance(
            head, commit=number, at=now(), by=identity(), root=head.root, trash=head.trash, tally=Tally(), gc=gc
        )
        try:
            stored = swap_head(store, new, seen.match, page)
        except PreconditionFailed:
            seen = _head(store)
            continue
        return HeadSeen(new, stored.etag, stored.version)


def _sorted_out(store: Store, trash: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Divide discovered objects whose entry left the index longer ago than the grace: those that nobody changed since,
    and those that somebody has put anew, which are not ours to delete.

    Had it left within the grace, a retained root would still name it.
    """
    same = list(store.map(partial(_unchanged, store), trash))
    return list(compress(trash, same)), [entry for entry, one in zip(trash, same, strict=True) if not one]


def _unchanged(store: Store, entry: Entry) -> bool:
    try:
        return store.head(entry.key).etag == entry.etag
    except NotFound:
        return True


def _empty_trash(store: Store, seen: HeadSeen, gone: Sequence[Entry], replaced: Sequence[Entry]) -> None:
    """Delete objects of the trash, then take them off its list: a crash in between leaves rows, and no orphans.

    What was replaced leaves the list too: it is payload that nobody has indexed, and `verify` says so.
    """
    if not gone and not replaced:
        return
    store.delete([entry.key for entry in gone])
    listed = {entry.path: None for entry in (*gone, *replaced)}
    while True:
        head, number = seen.head, ulid()
        source = StoreNodes(store)
        trash = merge(IndexTree(source, head.trash), listed, StoreSink(store, number))
        new, page = advance(head, commit=number, at=now(), by=identity(), root=head.root, trash=trash, tally=Tally())
        try:
            swap_head(store, new, seen.match, page)
            return
        except PreconditionFailed:
            seen = _head(store)
