"""Rebuild an index whose head is lost or corrupt, or of which nodes are missing or damaged.

The readable part of the current root is authoritative, together with its copy on this machine. The rest comes from
earlier versions (those of the log, and base), from a listing, and from the lists in packs (P9). A rebuild deletes
nothing; it names everything that it could not recover, and everything that only packs attest. The new head replaces
exactly the damaged head, or is created where there was none (V1). It is marked as rebuilt: a client that knew the old
head compares everything again, and does not treat a missing entry as deleted.
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
from bayou.index.discovery import trash_refusal
from bayou.index.entry import Entry
from bayou.index.head import Head, advance, create_head, swap_head
from bayou.index.key_range import EVERYTHING
from bayou.index.log import LogRow, Tally
from bayou.index.node import Pointer, Root, digest_of
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.maintenance.damaged_index import DamagedIndex, read_damaged, read_log_pages
from bayou.maintenance.pack_witness import PackWitness, pack_witness
from bayou.maintenance.recover import DatedLeaf, Recovered, Version, recover
from bayou.maintenance.relocate import Relocation, local_files_of
from bayou.objectstore import keys
from bayou.objectstore.probe import probe
from bayou.objectstore.retry import SWAP_BACKOFF
from bayou.objectstore.store import Store
from bayou.sync.context import SyncContext
from bayou.sync.plan.discovery_job import PayloadListing, list_payload
from bayou.sync.transfer import push

_HISTORY = 200
"""Earlier versions that a rebuild reads, at most: gc has deleted most older ones."""
_NAMED = 5
_TRASH_LOST = "it is not known any more which discovered objects were deleted: such objects may be indexed again"


class Rebuilt(Struct, frozen=True):
    """The result of a rebuild: the number of recovered entries, what was not recovered, and what only packs attest.

    `changed` are the paths whose bytes in a pack are not those that were pushed, and that this tree does not have.
    """

    recovered: int
    unrecovered: list[str]
    attested: list[str]
    changed: list[str]
    warnings: list[str]


def rebuild(context: SyncContext) -> Rebuilt | None:
    """Rebuild the index if it is damaged; None if it is not. An unknown format is refused (V10)."""
    attempt = 0
    while (damaged := read_damaged(context.store)) is not None:
        listing = list_payload(context.store)
        if damaged.over is None:
            _check_lost(context, listing)
        trash = survey(StoreNodes(context.store, context.cache), damaged.parts.trash)
        trash_rows = [row for row in trash.rows if trash_refusal(row) is None]
        packs = pack_witness(context.store)
        recovered = _recover(context, damaged, listing, trash_rows, packs)
        unrecovered = _restore_missing(context, damaged, recovered)
        changed = _restore_changed(context, damaged, recovered, packs)
        if _publish(context, damaged, recovered, trash_rows):
            doubts = [*_warnings(recovered, packs), *([_TRASH_LOST] if trash.damage else [])]
            restored = max(1, len(recovered.rows) - damaged.visible)
            return Rebuilt(restored, unrecovered, sorted(recovered.attested), changed, doubts)
        # Another client has written a head since: start again from that head (T4).
        attempt += 1
        context.deadline.sleep(SWAP_BACKOFF.backoff(attempt))
    return None


def _check_lost(context: SyncContext, listing: PayloadListing) -> None:
    """Raise unless a store without a head had one: base knows it, or the listing shows it (P9)."""
    if not listing.head_proved and context.base.remote.store is None:
        raise NotFound(f"{context.store.url} has no index yet", hint="`bayou datastore sync --push` makes one")


def _recover(
    context: SyncContext,
    damaged: DamagedIndex,
    listing: PayloadListing,
    trash_rows: Sequence[Entry],
    packs: PackWitness,
) -> Recovered:
    """Recover the entries, each from the newest version that shows it."""
    parts, known = damaged.parts, context.base.fold(context.nodes)
    nodes = StoreNodes(context.store, context.cache)
    written = _list_nodes(context.store)
    times = _node_times(written)
    rows = {row.commit: row for page in damaged.pages for row in page.rows} | {row.commit: row for row in parts.rows}
    older = [(row.seq, Version(nodes, row.root, times.get(_digest(row.root), 0))) for row in rows.values()]
    newest = [Version(nodes, damaged.root)] if damaged.knows_root else []
    mine: dict[str, Entry] = {}
    if known.store is None or parts.store in (None, known.store):
        base = Version(context.nodes, known.root, times.get(_digest(known.root), 0))
        mine = {row.path: row for row in survey(base.source, base.root).rows}
        if newest and _digest(newest[0].root) == _digest(known.root):
            newest.append(base)
        elif known.etag is not None and known.seq is not None:
            older.append((known.seq, base))
    older.sort(key=lambda pair: pair[0], reverse=True)
    trash: set[str] = {row.key for row in trash_rows}

    def leaves_since(at: int) -> Iterator[DatedLeaf]:
        for name, modified in written.items():
            if modified >= at:
                yield DatedLeaf(survey(nodes, Pointer(0, name)).rows, modified)

    versions = [version for _, version in older[:_HISTORY]]
    return recover(newest, versions, mine, listing.objects, trash, leaves_since, packs)


def _list_nodes(store: Store) -> dict[str, int]:
    """Return the nodes that a store has, each with its time, in ms."""
    listed = ((keys.parse_node(meta.key), meta) for page in store.list(keys.NODES) for meta in page)
    return {name: meta.modified for name, meta in listed if name is not None}


def _node_times(written: Mapping[str, int]) -> dict[bytes | None, int]:
    """Return when the store first got each node, under any name."""
    times: dict[bytes | None, int] = {}
    for name, at in written.items():
        times[digest_of(name)] = min(at, times.get(digest_of(name), at))
    return times


def _digest(root: Root | Pointer | None) -> bytes | None:
    return None if root is None else root.digest


def _restore_missing(context: SyncContext, damaged: DamagedIndex, recovered: Recovered) -> list[str]:
    """Request missing objects by name, and upload them again from this tree; return the names of what is lost.

    An upload of a push's content changes its location only, so that peers which have the file find it unchanged (P5).
    """
    gone: list[Entry] = []
    for row, there in zip(
        recovered.gone, context.store.map(lambda row: _exists(context, row), recovered.gone), strict=True
    ):
        if there:
            recovered.rows.setdefault(row.path, row)
        elif row.path not in recovered.rows:
            gone.append(row)
    files = {file.path: file for file in local_files_of(context, gone)}
    found = [row for row in gone if row.path in files]
    moved = Relocation(context, [row for row in found if row.push is not None], files, damaged.gc)
    discovered = push.upload(context, [files[row.path] for row in found if row.push is None], damaged.gc)
    recovered.rows.update({**discovered, **moved.rows})
    lost = {row.path for row in gone} - recovered.rows.keys()
    unrecovered = sorted({*lost, *recovered.blocked, *map(paths.escape, recovered.unsafe - recovered.rows.keys())})
    for damage in recovered.damage:
        named = sum(damage.span.holds(path) for path in (*recovered.rows, *lost))
        if damage.entries is not None and named < damage.entries:
            where = "" if damage.span == EVERYTHING else f" from {damage.first} to {damage.last}"
            unrecovered.append(f"{damage.entries - named} of {damage.entries} entries{where}")
    return unrecovered


def _restore_changed(
    context: SyncContext, damaged: DamagedIndex, recovered: Recovered, packs: PackWitness
) -> list[str]:
    """Read the files of packs whose list is damaged, and upload from this tree those that have other bytes now (P8).

    Return the paths of the files that this tree does not have: their entries stay, since another tree may have them.
    """
    doubtful = [row for row in recovered.rows.values() if row.pack in packs.unreadable]
    good = {row.path for row in packs.prove(doubtful)}
    changed = [row for row in doubtful if row.path not in good]
    files = {file.path: file for file in local_files_of(context, changed)}
    moved = Relocation(context, [row for row in changed if row.path in files], files, damaged.gc)
    recovered.rows.update(moved.rows)
    return sorted(row.path for row in changed if row.path not in moved.rows)


def _exists(context: SyncContext, row: Entry) -> bool:
    try:
        meta = context.store.head(row.key)
    except NotFound:
        return False
    return row.pack is None or meta.size == keys.pack_bytes(row.pack)


def _publish(context: SyncContext, damaged: DamagedIndex, recovered: Recovered, trash_rows: Sequence[Entry]) -> bool:
    """Build a new index that shares no node with the damaged one, and swap the head; False if the head has changed."""
    store, number = context.store, ulid()
    sink = StoreSink(store, number, context.cache)
    root = build((recovered.rows[path] for path in sorted(recovered.rows)), sink)
    indexed = {row.key for row in recovered.rows.values()}
    new_trash = {row.path: row for row in (*recovered.wasted, *trash_rows) if row.key not in indexed}
    trash = build((new_trash[path] for path in sorted(new_trash)), sink)
    tally = Tally(changed=max(0, len(recovered.rows) - damaged.visible))
    row = LogRow.of(0, number, now(), f"{context.by} (rebuilt the index)", root, tally, "repair")
    page = None
    if damaged.head is not None:
        head, page = advance(
            damaged.head, commit=number, at=row.at, by=row.by, root=root, trash=trash, tally=tally, kind="repair"
        )
    else:
        head = _new_first_head(context, damaged, row, root, trash)
    head = replace(head, rebuilt=number)
    try:
        if damaged.over is None:
            probe(store)
            create_head(store, head)
        else:
            swap_head(store, head, damaged.over, page)
    except (AlreadyExists, PreconditionFailed):
        return False
    with context.database.transaction() as db:
        carried = [(context.remote_id, row.path, row.push) for row in recovered.rows.values() if row.push is not None]
        db.executemany("DELETE FROM upload WHERE place = ? AND path = ? AND push = ?", carried)
    return True


def _new_first_head(
    context: SyncContext, damaged: DamagedIndex, row: LogRow, root: Root | None, trash: Root | None
) -> Head:
    """Return a head for a store that has lost its own: with its id, a higher seq than any known, and its log."""
    known, parts = context.base.remote, damaged.parts
    seqs = [parts.seq, known.seq or 0, *(old.seq for page in damaged.pages for old in page.rows)]
    # A seq near the maximum was never reached by counting.
    last = max(number for number in (0, *seqs) if number < limits.SEQ_MAX // 2)
    row = replace(row, seq=last + 1)
    log = [row]
    for old in sorted(parts.rows, key=lambda old: old.seq, reverse=True):
        if old.seq == log[0].seq - 1:
            log.insert(0, old)
    before = (page.id for page in damaged.pages if page.rows[-1].seq == log[0].seq - 1)
    older = next((page for page in before if not read_log_pages(context.store, page)[1]), None)
    return Head(
        store=parts.store or known.store or str(uuid.uuid4()),
        seq=row.seq,
        commit=row.commit,
        parent=log[-2].commit if len(log) > 1 else None,
        at=row.at,
        by=row.by,
        gc=damaged.gc,
        root=root,
        trash=trash,
        log=tuple(log),
        older=older,
    )


def _warnings(recovered: Recovered, packs: PackWitness) -> Iterator[str]:
    """Yield warnings about entries that may not be what was committed last, and about packs that tell nothing."""
    if recovered.older:
        names = _names(recovered.older)
        yield f"taken from an earlier version of the index, so that later changes may be undone: {names}"
    if recovered.found:
        yield f"taken from objects of which it is not known whether they were committed: {_names(recovered.found)}"
    if packs.unreadable:
        names = _names(set(packs.unreadable))
        yield f"packs whose list is damaged, so that files which only they attest may be lost: {names}"


def _names(paths: set[str]) -> str:
    return first_names(sorted(paths), _NAMED)
