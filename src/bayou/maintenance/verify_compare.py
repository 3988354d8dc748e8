"""The comparison of one section of a store with the index, which a worker of `verify_job` runs.

The section's listing, its index entries and its trash are three streams in the order of paths. The comparison merges
them, and applies `verify_rules` to each path. It yields findings: rows that name an entry, a key or a pack, and counts.

An entry in a pack has its object in another directory, so the comparison judges it by the packs that the driver listed
(P8). It reads the files of packs many at a time, so that neighbours in a pack come with one request.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.engine.parts import StorePart, objects
from bayou.engine.spool import SortedSpool, key_bytes, key_text
from bayou.index.check import damage_of, try_load
from bayou.index.discovery import (
    IN_THE_WAY,
    OF_ANOTHER_SYSTEM,
    entry_of,
    folder_markers,
    in_payload,
    nested_store,
    parents,
    refusal,
    trash_refusal,
)
from bayou.index.entry import Entry
from bayou.index.key_range import KeyRange, KeyRanges
from bayou.index.node import Leaf, Ref
from bayou.index.node_store import StoreNodes
from bayou.maintenance.verify_rules import (
    CHANGED,
    MISPLACED,
    MISSING,
    READ,
    UNINDEXED,
    WELL,
    PackListing,
    Rules,
    is_nameless,
    read_back,
    read_members,
)
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta

CHECKED, REFUSED, UNSAFE, NAMELESS, UNSAFE_TRASH = "checked", "refused", "unsafe", "nameless", "unsafe-trash"


DAMAGED, OCCUPIED, NAMED = "damaged", "occupied", "named"
"""Findings besides those of `verify_rules`: the number of checked entries; a refused key; an unsafe row of the index or
of the trash (V25); a damaged node; a directory that holds payload; a pack that an entry names."""


_BATCH = 2000
"""Entries whose objects are requested or read together."""


PACKED_BATCH = 20_000
"""Entries in packs that are read together: the files of a dozen packs, so that few packs need two requests."""


class Finding(NamedTuple):
    """A row of the job: a finding about an entry, a key or a pack; without a path, the number of one kind."""

    finding: str
    number: int = 1
    path: str | None = None
    push: str | None = None
    size: int | None = None
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    modified: int | None = None
    at: str | None = None
    pack: str | None = None
    offset: int | None = None
    stored: int | None = None
    method: int | None = None
    reason: str | None = None

    @classmethod
    def of(cls, finding: str, entry: Entry, reason: str | None = None) -> Finding:
        known = (entry.path, entry.push, entry.size, entry.sha256, entry.etag, entry.version, entry.modified)
        return cls(finding, 1, *known, entry.at, entry.pack, entry.offset, entry.stored, entry.method, reason)


class Section(Struct, frozen=True):
    """A part of the listing, the leaves of index and trash that can hold its paths, and unreadable ranges."""

    part: StorePart
    leaves: Sequence[Ref]
    trash: Sequence[Ref]
    hidden: Sequence[KeyRange]


class SectionComparison:
    """The comparison of one section; use it once."""

    def __init__(self, store: Store, section: Section, packs: PackListing, *, deep: bool) -> None:
        self._store = store
        self._section = section
        self._hidden = list(section.hidden)
        self._rules = Rules(KeyRanges(self._hidden), deep, packs)
        self._named: set[str] = set()
        self._others: set[str] = set()
        self._counts = Counter[str]()
        self._side_findings: list[Finding] = []
        """Findings that the streams below make besides what they yield."""
        self._missing: list[Entry] = []
        self._unread: list[Entry] = []
        self._unread_packed: list[Entry] = []
        self._waiting: list[tuple[bytes, Entry]] = []
        """Unindexed objects, until the merge has passed every path that could lie below theirs."""
        self._occupied = False

    def findings(self) -> Iterator[Finding]:
        """Yield the findings that name something, and at the end the counts of the others."""
        with closing(SortedSpool(2)) as spool:
            self._list(spool)
            streams = (
                self._entries(self._section.leaves),
                self._trash_paths(self._section.trash),
                self._objects(spool),
            )
            for path, group in groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
                # Taking the whole group has read every node before the next entry, and so every damaged node that may
                # hide this path.
                yield from self._judge_path(path, [item for _, item in group])
                yield from self._take_side_findings()
        yield from self._release_waiting(None)
        yield from self._take_side_findings()
        yield from self._by_name()
        yield from self._read()
        yield from self._read_packed()
        yield from (Finding(NAMED, path=pack) for pack in self._named)
        yield from (Finding(finding, number) for finding, number in self._counts.items())
        if self._occupied and self._section.part.directory is not None:
            yield Finding(OCCUPIED, path=self._section.part.directory)

    def _judge_path(self, path: bytes, known: Sequence[Entry | ObjectMeta | None]) -> Iterator[Finding]:
        """Judge everything known of one path: its entry, its objects, and whether the trash names it (None)."""
        entry = next((item for item in known if isinstance(item, Entry)), None)
        found: dict[str, ObjectMeta] = {}
        for item in known:
            # A listing may have an object and a "folder" under one key: the object is the one with bytes.
            if isinstance(item, ObjectMeta) and (item.key not in found or item.size > found[item.key].size):
                found[item.key] = item
        plain = next((key for key in found if keys.parse_payload(key).push is None), None)
        yield from self._release_waiting(path, occupied=entry is not None or plain is not None)
        if entry is not None:
            yield from self._entry(entry, found.pop(entry.key, None))
        for meta in found.values():
            finding = self._rules.stray(meta, trashed=None in known and meta.key == plain)
            if finding == UNINDEXED:
                self._waiting.append((path, entry_of(meta)))
            else:
                self._counts[finding] += 1

    def _entry(self, entry: Entry, at: ObjectMeta | None) -> Iterator[Finding]:
        self._counts[CHECKED] += 1
        finding = self._rules.entry(entry, at)
        if finding == CHANGED:
            yield Finding.of(CHANGED, entry)
        elif finding == MISSING:
            self._missing.append(entry)
        elif finding == READ:
            self._to_read(entry)
        if len(self._missing) == _BATCH:
            yield from self._by_name()
        if len(self._unread) >= _BATCH:
            yield from self._read()
        if len(self._unread_packed) >= PACKED_BATCH:
            yield from self._read_packed()

    def _to_read(self, entry: Entry) -> None:
        (self._unread if entry.pack is None else self._unread_packed).append(entry)

    def _by_name(self) -> Iterator[Finding]:
        """Request by name the objects that the listing lacks (V4)."""
        missing, self._missing = self._missing, []
        for finding, entry in self._rules.by_name(self._store, missing):
            if finding in (MISSING, CHANGED):
                yield Finding.of(finding, entry)
            elif finding == READ:
                self._to_read(entry)

    def _read(self) -> Iterator[Finding]:
        """Read the objects whose bytes must be checked."""
        unread, self._unread = self._unread, []
        judged = read_back(self._store, unread)
        yield from (Finding.of(finding, entry) for finding, entry in judged if finding != WELL)

    def _read_packed(self) -> Iterator[Finding]:
        """Read the files of packs whose bytes must be checked."""
        unread, self._unread_packed = self._unread_packed, []
        judged = read_members(self._store, unread)
        yield from (Finding.of(finding, entry) for finding, entry in judged if finding != WELL)

    def _release_waiting(self, path: bytes | None, *, occupied: bool = False) -> Iterator[Finding]:
        """Yield unindexed objects once the merge, now at `path` (None: at its end), has passed what lies below them."""
        self._occupied = self._occupied or occupied
        waiting, self._waiting = self._waiting, []
        for at, entry in waiting:
            if path is not None and occupied and path.startswith(at + b"/"):
                yield Finding(REFUSED, path=entry.path, reason=IN_THE_WAY)
            elif path is None or path >= at + b"0":  # the character after "/"
                yield Finding.of(UNINDEXED, entry)
            else:
                self._waiting.append((at, entry))

    def _take_side_findings(self) -> list[Finding]:
        findings, self._side_findings = self._side_findings, []
        return findings

    def _list(self, spool: SortedSpool) -> None:
        """List the section into the spool, and note which of its directories are other stores."""
        for page in objects(self._store, self._section.part):
            found = [meta for meta in page if in_payload(meta.key) is not None]
            self._others.update(outside for meta in found if (outside := nested_store(meta.key)) is not None)
            spool.add(_spooled(meta) for meta in found if in_payload(meta.key))

    def _objects(self, spool: SortedSpool) -> Iterator[tuple[bytes, ObjectMeta]]:
        """Yield the listed payload objects in the order of their paths; refused keys become findings."""
        rows = iter(spool)
        while batch := list(islice(rows, _BATCH)):
            listed = [(row[0], ObjectMeta(key_text(row[2]), *row[3:])) for row in batch]
            listed = [(path, meta) for path, meta in listed if self._others.isdisjoint(parents(meta.key))]
            folders = folder_markers(self._store, [meta for _, meta in listed])
            for path, meta in listed:
                why = refusal(meta.key) if meta.key not in folders else OF_ANOTHER_SYSTEM
                if why is None:
                    yield path, meta
                elif why != OF_ANOTHER_SYSTEM:
                    self._side_findings.append(Finding(REFUSED, path=meta.key, reason=why))

    def _entries(self, refs: Sequence[Ref]) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries of the section; an unreadable leaf hides the range of its paths."""
        for ref, leaf in self._load(refs):
            if isinstance(leaf, NodeMissing | NodeDamaged):
                self._hidden.append(damage_of(ref, 0, leaf).span)
                self._rules = replace(self._rules, hidden=KeyRanges(self._hidden))
                continue
            for entry in leaf:
                if entry.pack is not None:
                    self._named.add(entry.pack)
                why = entry.refusal()
                if why is None:
                    yield key_bytes(entry.path), entry
                else:
                    self._side_findings.append(unsafe_entry(entry, why))

    def _trash_paths(self, refs: Sequence[Ref]) -> Iterator[tuple[bytes, None]]:
        """Yield the paths that the trash names."""
        for _, leaf in self._load(refs):
            for entry in leaf if not isinstance(leaf, NodeMissing | NodeDamaged) else ():
                why = trash_refusal(entry)
                if why is None:
                    yield key_bytes(entry.path), None
                else:
                    self._side_findings.append(Finding(UNSAFE_TRASH, path=entry.path, reason=why))

    def _load(self, refs: Sequence[Ref]) -> Iterator[tuple[Ref, list[Entry] | NodeMissing | NodeDamaged]]:
        """Yield the rows of each leaf in the section, or the leaf's error; errors of the store are raised (V4)."""
        source = StoreNodes(self._store)
        for ref, node in zip(refs, source.map(partial(try_load, source, 0), refs), strict=True):
            if isinstance(node, Leaf):
                yield ref, [row for row in node.rows if self._section.part.holds(row.path)]
            elif isinstance(node, NodeMissing | NodeDamaged):
                self._side_findings.append(Finding(DAMAGED, path=ref.node, reason=node.message))
                yield ref, node


def unsafe_entry(entry: Entry, why: str) -> Finding:
    """Return the finding about a row that no client may act on, and why (V25)."""
    if is_nameless(entry):
        return Finding(NAMELESS, path=entry.path, reason=why)
    elsewhere = replace(entry, at=None, pack=None, offset=None, stored=None, method=None)
    if entry.push is not None and elsewhere.refusal() is None:
        return Finding.of(MISPLACED, entry, why)
    return Finding(UNSAFE, path=entry.path, reason=why)


def _spooled(meta: ObjectMeta) -> tuple[Any, ...]:
    path, push = keys.parse_payload(meta.key)
    return key_bytes(path), push or "", key_bytes(meta.key), meta.size, meta.etag, meta.version, meta.modified
