"""`datastore gc`: delete the objects that no retained root names.

The order makes this safe without any agreement about clocks: list the store; commit a head with the same root and the
next `gc` count; then delete each listed object that Bayou wrote, that is older (by the store's clock) than the listing
less the grace, and that no root retained within the grace names (V5). A push that was under way sees the new count when
it merges, and uploads its files again (T13). A late or repeated DELETE deletes nothing new, because no key is used
twice (T3).

The work that grows with the store are jobs (`gc_jobs`), which run on threads of this process or on Spark
(`engine.select`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import compress
from typing import Literal

from bayou.core import kept, paths
from bayou.core.clock import format_ms, now, parse_ms
from bayou.core.deadline import Deadline
from bayou.core.errors import AccessDenied, AlreadyExists, BadAnswer, NotFound, PreconditionFailed, Rejected
from bayou.core.ids import ulid
from bayou.core.progress import Progress
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.select import SCAN, Engines
from bayou.index.entry import Entry
from bayou.index.head import Gc, HeadSeen, advance, read_head, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree
from bayou.maintenance.gc_jobs import Sweep, gc_roots, is_ours
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.sync.context import identity
from bayou.sync.plan.discovery_job import discover
from bayou.sync.report import CollectReport

GRACE_S = 24 * 3600.0
"""How long a root stays readable after another has replaced it, unless the user says otherwise."""

_NAMED = 3

ReadHead = Callable[[], HeadSeen]
"""Reads the head again, after another client's commit."""


def collect(
    repo: Repo,
    *,
    dry_run: bool,
    grace_s: float,
    timeout: float | None = None,
    engine: Literal["auto", "point", "spark"] = "auto",
    progress: Progress | None = None,
) -> CollectReport:
    """Delete from the store the objects that no retained root names; in a dry run, only count them."""
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    store = repo.store().within(deadline)
    warnings: list[str] = []
    handle = StoreHandle.of(repo.config, store, deadline)
    engines = Engines.of(repo.config, engine, deadline, warnings.append, progress)
    read = partial(require_head, handle, engines, "collected")
    seen = read()
    clock = None if dry_run else _store_clock(store)
    entries = seen.head.root.entries if seen.head.root is not None else 0

    def work(executor: Executor) -> CollectReport:
        with closing(Sweep(executor, handle, entries)) as sweep:
            return _sweep(store, read, seen, clock, sweep, dry_run=dry_run, grace_s=grace_s, warnings=warnings)

    return engines.run(Needs((handle,)), work, what="the store was collected", cost=SCAN, files=entries)


def _sweep(
    store: Store,
    read: ReadHead,
    seen: HeadSeen,
    clock: int | None,
    sweep: Sweep,
    *,
    dry_run: bool,
    grace_s: float,
    warnings: list[str],
) -> CollectReport:
    """List, announce, find garbage, delete: in this order, on any engine."""
    newest = sweep.list_store()
    # A dry run writes nothing to learn the store's time; the newest object has the latest known time.
    before = max(0, (clock if clock is not None else newest) - round(grace_s * 1000))
    if not dry_run:
        seen = _announce(store, read, seen, before)
    found = sweep.find_garbage(
        gc_roots(store, seen.head, before), IndexTree(StoreNodes(store), seen.head.trash), before
    )
    if found.refused:
        warnings.append(_refused_warning(found.refused))
    trash, replaced = _split_trash(store, found.trash)
    if not dry_run:
        kept.now("some of what nothing names was deleted")
        sweep.delete()
        _empty_trash(store, read, seen, trash, replaced)
    aborted = _abort_uploads(store, before, warnings, dry_run=dry_run)
    return CollectReport(
        objects_deleted=found.objects,
        leftovers_deleted=found.leftovers + aborted,
        trash_deleted=len(trash),
        nodes_deleted=found.nodes,
        packs_deleted=found.packs,
        bytes=found.bytes + sum(entry.size for entry in trash),
        dry_run=dry_run,
        warnings=warnings,
    )


def _abort_uploads(store: Store, before: int, warnings: list[str], *, dry_run: bool) -> int:
    """Abort uploads in parts of Bayou that were begun before that time; return how many there are.

    A client that would have resumed one begins it anew.
    """
    count = 0
    try:
        for found in store.unfinished_uploads():
            if found.begun < before and is_ours(found.key):
                count += 1
                if not dry_run:
                    store.abort_upload(keys.as_listed(found.key), found.upload)
    except (AccessDenied, Rejected, BadAnswer) as error:
        warnings.append(f"unfinished uploads were not looked for: {error.message}")
    return count


def _refused_warning(refused: Sequence[str]) -> str:
    """Return the warning about rows of the trash that Bayou did not write (V5, V9)."""
    names = ", ".join(map(paths.escape, refused[:_NAMED])) + (", …" if refused[_NAMED:] else "")
    text = f"{len(refused)} rows of the trash are not this store's to delete by, and were left alone: {names}"
    return f"{text}; `bayou datastore verify --repair` drops what is unsafe from it"


def require_head(handle: StoreHandle, engines: Engines, what: str) -> HeadSeen:
    """Read the head; the error for a store without one says that nothing can be `what`, as in "collected".

    `HeadLost` if an object of the store shows that it had a head (P9).
    """
    store = handle.open()
    try:
        return read_head(store)
    except NotFound:
        try:
            discover(handle, engines).close()
        except AlreadyExists:  # during the listing another client created a head
            return require_head(handle, engines, what)
        raise NotFound(f"{store.url} has no index, so nothing can be {what}", hint="bayou datastore status") from None


def _store_clock(store: Store) -> int:
    """Return the store's time, in ms: no other clock decides the age of objects."""
    while True:
        key = keys.probe(ulid())
        store.put(key, b"clock")
        try:
            return store.head(key).modified
        except NotFound:
            continue  # another collection, without grace, has deleted the probe
        finally:
            store.delete([key])


def _announce(store: Store, read: ReadHead, seen: HeadSeen, before: int) -> HeadSeen:
    """Commit the next `gc` count with the current root."""
    while True:
        head, number = seen.head, ulid()
        # A push may span several collections, and an earlier one may still delete: the latest time counts.
        latest = max(before, parse_ms(head.gc.before)) if head.gc.before is not None else before
        gc = Gc(head.gc.count + 1, format_ms(latest))
        new, page = advance(
            head,
            commit=number,
            at=now(),
            by=identity(),
            root=head.root,
            trash=head.trash,
            tally=Tally(),
            gc=gc,
            kind="gc",
        )
        try:
            stored = swap_head(store, new, seen.match, page)
        except PreconditionFailed:
            seen = read()
            continue
        return HeadSeen(new, stored.etag, stored.version)


def _split_trash(store: Store, trash: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Split the trash, whose entries left the index before the grace, into unchanged and replaced objects.

    An object that another program has written again since is not Bayou's to delete. If an entry had left the index
    within the grace, a retained root would still name it.
    """
    same = list(store.map(partial(_unchanged, store), trash))
    return list(compress(trash, same)), [entry for entry, unchanged in zip(trash, same, strict=True) if not unchanged]


def _unchanged(store: Store, entry: Entry) -> bool:
    try:
        return store.head(entry.key).etag == entry.etag
    except NotFound:
        return True


def _empty_trash(
    store: Store, read: ReadHead, seen: HeadSeen, gone: Sequence[Entry], replaced: Sequence[Entry]
) -> None:
    """Delete the objects of the trash, then its rows: a crash in between leaves rows, and no orphaned objects.

    The rows of replaced objects go, too: `verify` reports these objects as unindexed payload.
    """
    if not gone and not replaced:
        return
    store.delete([entry.key for entry in gone])
    listed = {entry.path: None for entry in (*gone, *replaced)}
    while True:
        head, number = seen.head, ulid()
        source = StoreNodes(store)
        trash = merge(IndexTree(source, head.trash), listed, StoreSink(store, number))
        new, page = advance(
            head, commit=number, at=now(), by=identity(), root=head.root, trash=trash, tally=Tally(), kind="gc"
        )
        try:
            swap_head(store, new, seen.match, page)
            return
        except PreconditionFailed:
            seen = read()
