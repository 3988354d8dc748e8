"""`datastore gc`: delete what no retained root names, without any agreement about clocks.

List; then commit a head with the same root and the next `gc` count; then delete what was listed, is older (by the
store's clock) than the listing less the grace, was written by Bayou, and is named by no retained root (V5). A push that
was under way sees the new count when it merges, and makes its uploads again (T13). A late or repeated DELETE hits
nothing new, since no key is used twice (T3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import compress

from bayou.deadline import Deadline
from bayou.errors import BadAnswer, NodeDamaged, NodeMissing, NotFound, PreconditionFailed
from bayou.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import Gc, Head, HeadSeen, advance, iter_log, read_head, swap_head
from bayou.index.log import LogRow, Tally, read_page
from bayou.index.merge import merge
from bayou.index.node import Branch, Pointer, Ref
from bayou.index.nodes import StoreNodes, StoreSink
from bayou.index.read import scan
from bayou.index.tree import Tree
from bayou.paths import PAYLOAD_ROOTS
from bayou.repo import Repo
from bayou.store import keys
from bayou.store.store import Store
from bayou.sync.context import identity
from bayou.sync.push import ms
from bayou.sync.report import CollectReport
from bayou.sync.view import now


@dataclass(slots=True)
class _Named:
    """Keys that roots name: of objects, and of nodes."""

    objects: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)


def collect(repo: Repo, *, dry_run: bool, grace_s: float, timeout: float | None = None) -> CollectReport:
    """Delete from the store what nobody can need any more; dry, say what that would be."""
    store = repo.store().within(Deadline.after(timeout or repo.config.sync.timeout))
    seen = _head(store)
    clock = None if dry_run else _store_clock(store)
    listed = [meta for page in store.list() for meta in page]
    # Dry, nothing may be written to learn the time; the newest object is the latest that the store's clock has shown.
    before = (clock if clock is not None else max(meta.modified for meta in listed)) - round(grace_s * 1000)
    if not dry_run:
        seen = _announce(store, seen, before)
    kept = _retained(store, seen.head, before)
    doomed = [meta for meta in listed if meta.modified < before and _ours(meta.key) and not _is_kept(meta.key, kept)]
    once = _walk_all(store, (row.root for row in seen.head.log), _Named())
    objects = [meta for meta in doomed if not meta.key.startswith(f"{keys.INTERNAL}/")]
    trash, replaced = _trash(store, seen.head, kept)
    if not dry_run:
        store.delete([keys.as_listed(meta.key) for meta in doomed])
        _empty_trash(store, seen, trash, replaced)
    old = sum(meta.key in once.objects for meta in objects)
    return CollectReport(
        objects_deleted=old,
        leftovers_deleted=len(objects) - old,
        trash_deleted=len(trash),
        nodes_deleted=len(doomed) - len(objects),
        bytes=sum(meta.size for meta in doomed) + sum(entry.size for entry in trash),
        dry_run=dry_run,
    )


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
        latest = max(before, ms(head.gc.before)) if head.gc.before is not None else before
        gc = Gc(head.gc.count + 1, _iso(latest))
        new, page = advance(
            head, commit=number, at=now(), by=identity(), root=head.root, trash=head.trash, tally=Tally(), gc=gc
        )
        try:
            stored = swap_head(store, new, seen.match, page)
        except PreconditionFailed:
            seen = _head(store)
            continue
        return HeadSeen(new, stored.etag, stored.version)


def _retained(store: Store, head: Head, before: int) -> _Named:
    """Return what the current root and those that were current within the grace name, and the nodes of the trash."""
    named = _Named()
    if head.root is not None:
        _walk(StoreNodes(store), head.root.level, [head.root], named)
    _walk_all(store, (row.root for row in _within(store, head, before)), named)
    trash = _Named()
    if head.trash is not None:
        _walk(StoreNodes(store), head.trash.level, [head.trash], trash)
    named.nodes |= trash.nodes
    named.objects.update(keys.log_page(page) for page in _pages(store, head))
    return named


def _pages(store: Store, head: Head) -> Iterator[str]:
    page = head.older
    while page is not None:
        yield page
        page = read_page(store, page).older


def _within(store: Store, head: Head, before: int) -> Iterator[LogRow]:
    """Yield the rows whose root was current at some time since `before`: those since, and the one before them.

    Writers' clocks differ: what the head has of the log is looked at row by row, older pages up to the first that is
    too old.
    """
    following: LogRow | None = None
    for number, row in enumerate(iter_log(store, head)):
        if following is None or ms(following.at) >= before:
            yield row
        elif number >= len(head.log):
            return
        following = row


def _walk_all(store: Store, roots: Iterable[Pointer | None], named: _Named) -> _Named:
    """Add what earlier roots name, as far as they can be read: an earlier collection may have taken their nodes."""
    source = StoreNodes(store)
    for root in roots:
        if root is not None:
            with suppress(NodeMissing, NodeDamaged):
                _walk(source, root.level, [root], named)
    return named


def _walk(source: StoreNodes, level: int, refs: Sequence[Ref], named: _Named) -> None:
    """Add what a tree names; nodes that were visited before, with all below them, are not read again."""
    fresh = [ref for ref in refs if ref.node not in named.nodes]
    for ref, node in zip(fresh, source.map(lambda ref: source.load(level, ref), fresh), strict=True):
        if isinstance(node, Branch):
            _walk(source, level - 1, node.rows, named)
        else:
            named.objects.update(entry.key for entry in node.rows)
        named.nodes.add(ref.node)


def _ours(key: str) -> bool:
    """Whether Bayou wrote it: an object of a push, a node, a page of the log, or a probe that was left behind."""
    if key.startswith(f"{keys.INTERNAL}/"):
        known = keys.parse_node(key), keys.parse_log_page(key)
        return any(name is not None for name in known) or key.startswith(f"{keys.PROBES}/")
    return keys.parse_payload(key).push is not None and key.partition("/")[0] in PAYLOAD_ROOTS


def _is_kept(key: str, kept: _Named) -> bool:
    node = keys.parse_node(key)
    return node in kept.nodes if node is not None else key in kept.objects


def _trash(store: Store, head: Head, kept: _Named) -> tuple[list[Entry], list[Entry]]:
    """Return the discovered objects whose entry left the index longer ago than the grace: those that nobody changed
    since, and those that somebody has put anew, which are not ours to delete.

    Had it left within the grace, a retained root would still name it.
    """
    if head.trash is None:
        return [], []
    old = [entry for entry in scan(Tree(StoreNodes(store), head.trash)) if entry.key not in kept.objects]
    same = [_unchanged(store, entry) for entry in old]
    return list(compress(old, same)), [entry for entry, one in zip(old, same, strict=True) if not one]


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
        trash = merge(Tree(source, head.trash), listed, StoreSink(store, number))
        new, page = advance(head, commit=number, at=now(), by=identity(), root=head.root, trash=trash, tally=Tally())
        try:
            swap_head(store, new, seen.match, page)
            return
        except PreconditionFailed:
            seen = _head(store)


def _iso(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
