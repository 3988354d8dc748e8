"""Verify with dictionaries, all of a store in memory: what the job of `maintenance.verify_job` must find, part by
part."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter

from bayou.index.check import survey
from bayou.index.discovery import IN_THE_WAY, directories, entry_of, trash_refusal
from bayou.index.entry import Entry
from bayou.index.head import Head
from bayou.index.key_range import KeyRanges
from bayou.index.node_store import StoreNodes
from bayou.maintenance.damaged_index import read_log_pages
from bayou.maintenance.verify_rules import (
    CHANGED,
    LEFTOVER,
    MISPLACED,
    MISSING,
    MOST_NAMED,
    READ,
    REPAIRABLE,
    TRASH,
    UNINDEXED,
    WELL,
    ComparisonResult,
    PackListing,
    Rules,
    Unsafe,
    is_nameless,
    read_back,
    read_members,
    repair_batches,
)
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.sync.report import Refusal
from tests.sync.reference_discovery import list_payload


def compare(store: Store, head: Head, *, deep: bool) -> ComparisonResult:
    """Compare an index with its store."""
    # The index first: what is committed while we list has its object before its entry (V11).
    index, trash = (survey(StoreNodes(store), root) for root in (head.root, head.trash))
    packs = PackListing.of(store)
    rules = Rules(KeyRanges(damage.span for damage in index.damage), deep, packs)
    refused: list[Refusal] = []
    entries: dict[str, Entry] = {}
    packed: list[Entry] = []
    unsafe: list[Unsafe] = []
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in index.rows:
        why = entry.refusal()
        if why is None and entry.pack is not None:
            packed.append(entry)
        elif why is None:
            entries[entry.key] = entry
        else:
            unsafe.append(Unsafe(entry.path, why, nameless=is_nameless(entry)))
            if not is_nameless(entry) and (entry.pack or entry.at or entry.offset) and entry.push is not None:
                found[MISPLACED].append(entry)
    unsafe += [Unsafe(row.path, why, trash=True) for row in trash.rows if (why := trash_refusal(row)) is not None]
    listing = list_payload(store)
    refused += [Refusal(one.key, one.reason) for one in listing.refused]
    listed = {meta.key: meta for meta in listing.objects}
    for key, entry in entries.items():
        found[rules.entry(entry, listed.get(key))].append(entry)
    for entry in packed:
        found[rules.entry(entry, None)].append(entry)
    for finding, entry in rules.by_name(store, found.pop(MISSING, ())):
        found[finding].append(entry)
    read = found.pop(READ, [])
    for finding, entry in (
        *read_back(store, [entry for entry in read if entry.pack is None]),
        *read_members(store, [entry for entry in read if entry.pack is not None]),
    ):
        found[finding].append(entry)
    trashed: set[str] = {entry.key for entry in trash.rows if trash_refusal(entry) is None}
    strays = Counter[str]()
    plain = (key for key in listed if keys.parse_payload(key).push is None)
    crowded = directories([*(entry.path for entry in (*entries.values(), *packed)), *plain])
    for key, meta in listed.items():
        finding = rules.stray(meta, trashed=key in trashed) if key not in entries else WELL
        strays[finding] += 1
        if finding == UNINDEXED and key in crowded:
            refused.append(Refusal(key, IN_THE_WAY))
        elif finding == UNINDEXED:
            found[UNINDEXED].append(entry_of(meta))
    named = {entry.pack for entry in index.rows}
    names = {finding: sorted(entry.path for entry in found[finding]) for finding in (MISSING, CHANGED, UNINDEXED)}
    return ComparisonResult(
        checked=len(entries) + len(packed),
        missing=names[MISSING][:MOST_NAMED],
        changed=names[CHANGED][:MOST_NAMED],
        unindexed=names[UNINDEXED][:MOST_NAMED],
        refused=sorted(refused, key=attrgetter("path", "reason"))[:MOST_NAMED],
        unsafe=sorted(unsafe, key=attrgetter("path", "reason")),
        leftovers=strays[LEFTOVER] + (0 if index.damage else len((packs.whole | packs.other) - named)),
        trash=strays[TRASH],
        damaged=[damage.error.message for damage in (*index.damage, *trash.damage)]
        + read_log_pages(store, head.older, head.log[0].seq)[1],
        totals={
            "refused": len(refused),
            "unsafe": len(unsafe),
            **{finding: len(paths) for finding, paths in names.items()},
        },
        repairable=lambda: repair_batches(_in_order(found)),
    )


def _in_order(found: Mapping[str, Sequence[Entry]]) -> list[tuple[str, Entry]]:
    rows = [(finding, entry) for finding in REPAIRABLE for entry in found.get(finding, ())]
    return sorted(rows, key=lambda row: row[1].path)
