"""Rebuild an index whose head is lost or corrupt, or of which nodes are missing or damaged.

What the current root still shows is the truth, with what this machine has kept of it. The rest comes from earlier
versions (the log's, and base) and from a listing. Nothing is deleted, nothing is dropped in silence: what could not be
recovered is named. The new head replaces exactly the one that was found damaged, or is created where there was none
(V1), and says that it was rebuilt: whoever knew the old one compares anew, and takes nothing that it lacks for deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import limits, paths
from bayou.core.clock import now
from bayou.core.errors import AlreadyExists, NotFound, PreconditionFailed
from bayou.core.ids import ulid
from bayou.core.text import first_names
from bayou.index.build import build
from bayou.index.check import survey
from bayou.index.discovery import PayloadListing, list_payload, trash_refusal
from bayou.index.entry import Entry
from bayou.index.head import Head, advance, create_head, swap_head
from bayou.index.key_range import EVERYTHING
from bayou.index.log import LogRow, Tally
from bayou.index.node import Pointer, Root, digest_of
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.maintenance.damaged_index import Recovered, Remains, Version, Written, chain, look, recover
from bayou.maintenance.repair import rescued
from bayou.objectstore import keys
from bayou.objectstore.probe import probe
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.sync.context import SyncContext
from bayou.sync.transfer import push

_BACKOFF = RetryPolicy(base_s=0.05, cap_s=2.0)
_HISTORY = 200
"""Earlier versions that are looked at, at most: older ones are mostly collected."""
_FEW = 5
_TRASH_LOST = "it is not known any more which discovered objects were deleted: such objects may be indexed again"


class Rebuilt(Struct, frozen=True):
    """What a rebuilding brought: how many entries were out of sight and are back, and which are not."""

    recovered: int
    unrecovered: list[str]
    warnings: list[str]


def rebuild(context: SyncContext) -> Rebuilt | None:
    """Rebuild the index if it is damaged; None if it is whole. An unknown format is refused (V10)."""
    attempt = 0
    while (remains := look(context.store)) is not None:
        listing = list_payload(context.store)
        if remains.over is None:
            _check_lost(context, listing)
        trash = survey(StoreNodes(context.store, context.cache), remains.parts.trash)
        wasted = [row for row in trash.rows if trash_refusal(row) is None]
        made = _recover(context, remains, listing, wasted)
        unrecovered = _bring_back(context, remains, made)
        if _publish(context, remains, made, wasted):
            doubts = [*_doubts(made), *([_TRASH_LOST] if trash.damage else [])]
            return Rebuilt(max(1, len(made.rows) - remains.visible), unrecovered, doubts)
        # Somebody has written another head since: look at that one (T4).
        attempt += 1
        context.deadline.sleep(_BACKOFF.pause(attempt))
    return None


def _check_lost(context: SyncContext, listing: PayloadListing) -> None:
    """Raise unless a store without a head had one: this machine knows it, or objects of pushes tell."""
    pushed = any(keys.parse_payload(meta.key).push is not None for meta in listing.objects)
    if not pushed and not context.base.known:
        raise NotFound(f"{context.store.url} has no index yet", hint="`bayou datastore sync --push` makes one")


def _recover(context: SyncContext, remains: Remains, listing: PayloadListing, wasted: Sequence[Entry]) -> Recovered:
    """Recover the entries, from the newest word on each."""
    parts, place = remains.parts, context.base.fold(context.nodes)
    nodes = StoreNodes(context.store, context.cache)
    written = _nodes(context.store)
    times = _times(written)
    rows = {row.commit: row for page in remains.pages for row in page.rows} | {row.commit: row for row in parts.rows}
    older = [(row.seq, Version(nodes, row.root, times.get(_digest(row.root), 0))) for row in rows.values()]
    newest = [Version(nodes, remains.root)] if remains.knows_root else []
    mine: dict[str, Entry] = {}
    if place.store is None or parts.store in (None, place.store):
        base = Version(context.nodes, place.root, times.get(_digest(place.root), 0))
        mine = {row.path: row for row in survey(base.source, base.root).rows}
        if newest and _digest(newest[0].root) == _digest(place.root):
            newest.append(base)
        elif place.etag is not None and place.seq is not None:
            older.append((place.seq, base))
    older.sort(key=lambda pair: pair[0], reverse=True)
    trash: set[str] = {row.key for row in wasted}

    def leaves_since(at: int) -> Iterator[Written]:
        for name, modified in written.items():
            if modified >= at:
                yield Written(survey(nodes, Pointer(0, name)).rows, modified)

    return recover(newest, [version for _, version in older[:_HISTORY]], mine, listing.objects, trash, leaves_since)


def _nodes(store: Store) -> dict[str, int]:
    """Return the nodes that a store has, each with the time at which it came, in ms."""
    listed = ((keys.parse_node(meta.key), meta) for page in store.list(keys.NODES) for meta in page)
    return {name: meta.modified for name, meta in listed if name is not None}


def _times(written: Mapping[str, int]) -> dict[bytes | None, int]:
    """Return when each node first came into the store, under whatever name."""
    times: dict[bytes | None, int] = {}
    for name, at in written.items():
        times[digest_of(name)] = min(at, times.get(digest_of(name), at))
    return times


def _digest(root: Root | Pointer | None) -> bytes | None:
    return None if root is None else root.digest


def _bring_back(context: SyncContext, remains: Remains, made: Recovered) -> list[str]:
    """Look for what is gone by its name, and give it back from this tree; return the names of what is lost."""
    gone: list[Entry] = []
    for row, there in zip(made.gone, context.store.map(lambda row: _exists(context, row), made.gone), strict=True):
        if there:
            made.rows.setdefault(row.path, row)
        elif row.path not in made.rows:
            gone.append(row)
    made.rows.update(push.upload(context, list(rescued(context, gone)), remains.gc))
    lost = {row.path for row in gone} - made.rows.keys()
    unrecovered = sorted({*lost, *made.blocked, *map(paths.escape, made.unsafe - made.rows.keys())})
    for damage in made.damage:
        named = sum(damage.span.holds(path) for path in (*made.rows, *lost))
        if damage.entries is not None and named < damage.entries:
            where = "" if damage.span == EVERYTHING else f" from {damage.first} to {damage.last}"
            unrecovered.append(f"{damage.entries - named} of {damage.entries} entries{where}")
    return unrecovered


def _exists(context: SyncContext, row: Entry) -> bool:
    try:
        context.store.head(row.key)
    except NotFound:
        return False
    return True


def _publish(context: SyncContext, remains: Remains, made: Recovered, wasted: Sequence[Entry]) -> bool:
    """Build the tree anew, sharing no node with the damaged one, and swap the head; False if another one is there."""
    store, number = context.store, ulid()
    sink = StoreSink(store, number, context.cache)
    root = build((made.rows[path] for path in sorted(made.rows)), sink)
    indexed = {row.key for row in made.rows.values()}
    doomed = {row.path: row for row in (*made.wasted, *wasted) if row.key not in indexed}
    trash = build((doomed[path] for path in sorted(doomed)), sink)
    tally = Tally(changed=max(0, len(made.rows) - remains.visible))
    row = LogRow.of(0, number, now(), f"{context.by} (rebuilt the index)", root, tally, mass_delete=False)
    page = None
    if remains.head is not None:
        head, page = advance(remains.head, commit=number, at=row.at, by=row.by, root=root, trash=trash, tally=tally)
    else:
        head = _first_again(context, remains, row, root, trash)
    head = replace(head, rebuilt=number)
    try:
        if remains.over is None:
            probe(store)
            create_head(store, head)
        else:
            swap_head(store, head, remains.over, page)
    except (AlreadyExists, PreconditionFailed):
        return False
    with context.database.transaction() as db:
        carried = [(context.place, row.path, row.push) for row in made.rows.values() if row.push is not None]
        db.executemany("DELETE FROM upload WHERE place = ? AND path = ? AND push = ?", carried)
    return True


def _first_again(context: SyncContext, remains: Remains, row: LogRow, root: Root | None, trash: Root | None) -> Head:
    """Return a head for a store that has lost its own: under its id, beyond any number that was seen, with its log."""
    place, parts = context.base.remote, remains.parts
    known = [parts.seq, place.seq or 0, *(old.seq for page in remains.pages for old in page.rows)]
    # A number near the last one that there can be was never counted up to.
    last = max(number for number in (0, *known) if number < limits.SEQ_MAX // 2)
    row = replace(row, seq=last + 1)
    log = [row]
    for old in sorted(parts.rows, key=lambda old: old.seq, reverse=True):
        if old.seq == log[0].seq - 1:
            log.insert(0, old)
    before = (page.id for page in remains.pages if page.rows[-1].seq == log[0].seq - 1)
    older = next((page for page in before if not chain(context.store, page)[1]), None)
    return Head(
        store=parts.store or place.store or str(uuid.uuid4()),
        seq=row.seq,
        commit=row.commit,
        parent=log[-2].commit if len(log) > 1 else None,
        at=row.at,
        by=row.by,
        gc=remains.gc,
        root=root,
        trash=trash,
        log=tuple(log),
        older=older,
    )


def _doubts(made: Recovered) -> Iterator[str]:
    """Say what of the rebuilt index may not be what was committed last."""
    if made.older:
        yield f"taken from an earlier version of the index, so that later changes may be undone: {_some(made.older)}"
    if made.found:
        yield f"taken from objects of which nobody knows whether they were committed: {_some(made.found)}"


def _some(paths: set[str]) -> str:
    return first_names(sorted(paths), _FEW)
