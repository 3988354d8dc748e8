"""Recover the entries of a damaged index.

Recovery combines the readable versions of the index with a listing of the store. A version is authoritative for the
ranges of paths that can be read: it has these entries, and no others. Ranges that are unreadable in one version are
read from the version before it. Where only an earlier version is readable, objects written since may have been
committed, and the newest of them gets the path: so no acknowledged commit is lost with a node. The store's own clock,
or a node that was written later, decides what came later.

Packs count as far as `pack_witness` can say what is in them. A compaction or a repair writes old files to new packs, so
of several files for a path, the one with the greatest `push` gets it, not the one in the newest pack (P9).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from bayou.index.check import Damage, survey
from bayou.index.discovery import directories, entry_of
from bayou.index.entry import Entry
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.node import Digest, Pointer, Root
from bayou.index.tree import NodeSource
from bayou.maintenance.pack_witness import NO_PACKS, PackWitness
from bayou.objectstore import keys
from bayou.objectstore.transport import ObjectMeta


class Version(Struct, frozen=True):
    """A version of the index of which at least a part is readable. `at` is when the store got its root, in ms."""

    source: NodeSource
    root: Root | Pointer | None
    at: int = 0


class DatedLeaf(Struct, frozen=True):
    """The rows of a leaf, and when the store got it, in ms."""

    rows: Sequence[Entry]
    at: int


class Recovered(Struct):
    """The recovered entries by path, in `rows`, and what is known about them.

    `older` are paths whose entry comes from an earlier version; `found` are paths whose entry was made from an object
    that was written since; `attested` are those of them that nothing but the list in a pack names. `gone` are entries
    without object; `wasted` are discovered objects that had left the index; `blocked` are paths that are directories of
    other paths; `unsafe` are paths of rows that clients ignore (V25) and that are left out; `damage` are the unreadable
    parts of the newest version and its copies.
    """

    rows: dict[str, Entry] = field(default_factory=dict)
    older: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    attested: set[str] = field(default_factory=set)
    gone: list[Entry] = field(default_factory=list)
    wasted: list[Entry] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    unsafe: set[str] = field(default_factory=set)
    damage: list[Damage] = field(default_factory=list)


class _EarlierVersions(Struct):
    """Lost ranges in earlier versions. `decided` has the time of each version, and the ranges still unreadable."""

    rows: dict[str, Entry] = field(default_factory=dict)
    named: dict[str, Entry] = field(default_factory=dict)
    pushes: set[tuple[str, str | None]] = field(default_factory=set)
    """The path and the push of every file in a pack that any version names."""
    decided: list[tuple[int, list[KeyRange]]] = field(default_factory=list)

    def name(self, rows: Iterable[Entry]) -> None:
        """Note what a version names."""
        for row in rows:
            if row.pack is None:
                self.named[row.key] = row
            self.pushes.add((row.path, row.push))

    def known_at(self, path: str) -> int:
        """Return the time of the version that shows a path; 0 if none does."""
        return next((at for at, dark in self.decided if not _in_ranges(path, dark)), 0)

    @property
    def earliest(self) -> int:
        """Return the time of the oldest version that was needed; 0 if a range stays unreadable."""
        return self.decided[-1][0] if self.decided and not self.decided[-1][1] else 0


def recover(
    newest: Sequence[Version],
    older: Iterable[Version],
    mine: Mapping[str, Entry],
    objects: Sequence[ObjectMeta],
    trash: set[str],
    leaves_since: Callable[[int], Iterable[DatedLeaf]],
    packs: PackWitness = NO_PACKS,
) -> Recovered:
    """Recover the entries of an index.

    `newest` are the current version and copies of it; without any, all ranges are lost. `older` versions come newest
    first. `mine` are entries that this machine knows, of any age; `trash` are keys that have left the index;
    `leaves_since` returns the leaves that the store got since a time.
    """
    recovered = Recovered()
    lost: list[KeyRange] = [EVERYTHING]
    for version in newest:
        seen = survey(version.source, version.root, lost)
        recovered.rows.update({row.path: row for row in _safe(seen.rows)})
        recovered.unsafe.update(row.path for row in seen.rows if row.refusal() is not None)
        recovered.damage, lost = seen.damage, seen.hidden(lost)
    if not lost:
        return recovered
    earlier = _read_earlier(older, lost)
    leaves = ((leaf.at, row) for leaf in leaves_since(earlier.earliest) for row in _safe(leaf.rows))
    later = [row for at, row in leaves if at >= earlier.known_at(row.path)]
    known = {row.path: row for row in _safe(mine.values()) if _in_ranges(row.path, lost)}
    listed = {meta.key: meta for meta in objects}
    later_rows = {row.key: row for row in later if row.pack is None}
    since = {
        path: _entry_of(meta, (known.get(path), later_rows.get(keys.as_listed(meta.key))))
        for path, meta in _written_since(objects, earlier, trash, lost, later_rows.keys()).items()
    }
    packed = _packed_since(packs, earlier, lost, later, known)
    _choose(recovered, packs, earlier, since, packed, listed)
    heard_of = earlier.named.keys() | listed.keys() | packs.listed.keys()
    unknown = (row for row in known.values() if row.path not in recovered.rows and row.key not in heard_of)
    recovered.gone += [row for row in unknown if (row.path, row.push) not in earlier.pushes]
    recovered.gone += _lost_with_a_pack(packs, earlier, lost, later, recovered)
    for path in recovered.found & directories(recovered.rows):
        del recovered.rows[path]
        recovered.blocked.append(path)
    recovered.found.difference_update(recovered.blocked)
    recovered.attested.difference_update(recovered.blocked)
    indexed = {row.key for row in recovered.rows.values()}
    left = (row for key, row in earlier.named.items() if row.push is None and key in listed and key not in indexed)
    recovered.wasted = [row for row in left if listed[row.key].etag == row.etag]
    return recovered


def _packed_since(
    packs: PackWitness,
    earlier: _EarlierVersions,
    lost: list[KeyRange],
    later: Sequence[Entry],
    known: Mapping[str, Entry],
) -> _PackedFiles:
    """Return the files of packs that may have been committed after the version that shows their path.

    A file counts if a node that came later names it, or if its pack came later; not if an earlier version names its
    push: then the version that shows the path has it, or it was deleted.
    """
    found = _PackedFiles()

    def add(entry: Entry, *, by_list: bool, committed: bool) -> None:
        at = packs.listed.get(entry.key)
        if at is None or not _in_ranges(entry.path, lost):
            return
        new = (entry.path, entry.push) not in earlier.pushes and (committed or at >= earlier.known_at(entry.path))
        if found.add(entry, by_list=by_list) and new and _pushed_after(entry, earlier.rows.get(entry.path)):
            found.candidates[entry.path].append(entry)

    for row in later:
        if row.pack is not None:
            add(row, by_list=False, committed=True)
    for row in known.values():
        if row.pack is not None:
            add(row, by_list=False, committed=False)
    for row in packs.members_since(earlier.earliest):
        add(row, by_list=True, committed=False)
    return found


class _PackedFiles(Struct):
    """Files in packs that exist: candidates for a path, and every copy of a push's file, with who names it."""

    candidates: defaultdict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    copies: defaultdict[tuple[str, str | None], list[Entry]] = field(default_factory=lambda: defaultdict(list))
    attested: set[tuple[str, str | None, str | None]] = field(default_factory=set)
    """Path, push and pack of the files that only a list names; their bytes have yet to prove it."""

    def add(self, entry: Entry, *, by_list: bool) -> bool:
        """Add a file; False if its pack is known to have it. Add what nodes name before what lists name."""
        same = self.copies[entry.path, entry.push]
        if any(other.pack == entry.pack for other in same):
            return False
        same.append(entry)
        if by_list:
            self.attested.add((entry.path, entry.push, entry.pack))
        return True

    def is_attested(self, entry: Entry) -> bool:
        return (entry.path, entry.push, entry.pack) in self.attested

    def proven(self, packs: PackWitness, wanted: Mapping[str, Sequence[Entry]]) -> dict[str, Entry]:
        """Return the first of each path's entries that a node names, or whose bytes have its hash."""
        left = {path: list(entries) for path, entries in wanted.items() if entries}
        chosen: dict[str, Entry] = {}
        while left:
            front = {path: entries.pop(0) for path, entries in left.items()}
            doubtful = [entry for entry in front.values() if self.is_attested(entry)]
            proved = {entry.path for entry in packs.prove(doubtful)}
            good = ((path, entry) for path, entry in front.items() if path in proved or not self.is_attested(entry))
            chosen.update(good)
            left = {path: entries for path, entries in left.items() if entries and path not in chosen}
        return chosen


def _choose(
    recovered: Recovered,
    packs: PackWitness,
    earlier: _EarlierVersions,
    since: Mapping[str, Entry],
    packed: _PackedFiles,
    listed: Mapping[str, ObjectMeta],
) -> None:
    """Give each lost path the row of an earlier version, an object that was written since, or a file in a pack."""
    wanted: dict[str, list[Entry]] = {}
    for path, candidates in packed.candidates.items():
        alone = since.get(path)
        newer = [entry for entry in candidates if alone is None or _pushed_after(entry, alone)]
        wanted[path] = sorted(newer, key=lambda entry: (entry.push or "", not packed.is_attested(entry)), reverse=True)
    newest = {**since, **packed.proven(packs, wanted)}
    there = listed.keys() | packs.listed.keys()
    moved = {
        path: [copy for copy in packed.copies[path, row.push] if copy.same_content(row)]
        for path, row in earlier.rows.items()
        if row.key not in there
    }
    relocated = packed.proven(packs, moved)
    for path, row in earlier.rows.items():
        other = newest.get(path)
        if other is not None and _came_after(other, row, listed):
            continue
        newest.pop(path, None)
        if path in relocated or row.key in there:
            recovered.rows[path] = relocated.get(path, row)
            recovered.older.add(path)
        else:
            recovered.gone.append(row)
    for path, entry in newest.items():
        recovered.rows[path] = entry
        recovered.found.add(path)
        if entry.pack is not None and packed.is_attested(entry):
            recovered.attested.add(path)


def _lost_with_a_pack(
    packs: PackWitness,
    earlier: _EarlierVersions,
    lost: list[KeyRange],
    later: Sequence[Entry],
    recovered: Recovered,
) -> list[Entry]:
    """Return the files, of the newest push for each path, that a later node names in a pack that does not exist."""
    newest: dict[str, Entry] = {}
    for row in later:
        if row.pack is None or row.key in packs.listed or not _in_ranges(row.path, lost):
            continue
        if row.path in recovered.rows or (row.path, row.push) in earlier.pushes:
            continue
        if _pushed_after(row, newest.get(row.path)):
            newest[row.path] = row
    known = {row.path for row in recovered.gone}
    return [row for path, row in newest.items() if path not in known]


def _came_after(entry: Entry, row: Entry, listed: Mapping[str, ObjectMeta]) -> bool:
    """Whether an entry is newer than the row of an earlier version: by push, if a pack holds one of them (P9)."""
    if entry.pack is not None or row.pack is not None:
        return _pushed_after(entry, row)
    return row.key not in listed or _age(listed[entry.key]) > _age(listed[row.key])


def _pushed_after(entry: Entry, row: Entry | None) -> bool:
    """Whether the push of an entry began later; ids of pushes are in the order of time."""
    return row is None or (entry.push or "") > (row.push or "")


def _safe(rows: Iterable[Entry]) -> Iterator[Entry]:
    return (row for row in rows if row.refusal() is None)


def _read_earlier(older: Iterable[Version], lost: list[KeyRange]) -> _EarlierVersions:
    """Return the entries of each lost range in the newest readable version, and every key that any version names."""
    earlier = _EarlierVersions()
    visited: set[Digest] = set()
    left = lost
    for version in older:
        if left:
            seen = survey(version.source, version.root, left)
            earlier.rows.update({row.path: row for row in _safe(seen.rows)})
            left = seen.hidden(left)
            earlier.decided.append((version.at, left))
        earlier.name(_safe(survey(version.source, version.root, lost, visited).rows))
    return earlier


def _written_since(
    objects: Sequence[ObjectMeta],
    earlier: _EarlierVersions,
    trash: set[str],
    lost: list[KeyRange],
    later_rows: Iterable[str],
) -> dict[str, ObjectMeta]:
    """Return, for each lost path, the newest object that came after the version that shows the path."""
    newest: dict[str, ObjectMeta] = {}
    known, later = earlier.named.keys() | trash, set(later_rows)
    for meta in objects:
        path = keys.parse_payload(meta.key).path
        if meta.key in known or not _in_ranges(path, lost):
            continue
        if meta.modified < earlier.known_at(path) and meta.key not in later:
            continue
        if path not in newest or _age(meta) > _age(newest[path]):
            newest[path] = meta
    return newest


def _age(meta: ObjectMeta) -> tuple[bool, int, str]:
    """Order the objects of one path by age: first those from before Bayou, then by the store's clock."""
    push = keys.parse_payload(meta.key).push
    return push is not None, meta.modified, push or ""


def _entry_of(meta: ObjectMeta, known: Iterable[Entry | None]) -> Entry:
    """Return the entry of an object, with its hash if a known entry names this very object."""
    entry = entry_of(meta)
    same = (row for row in known if row is not None and row.key == entry.key)
    return next((row for row in same if entry.push is not None or row.etag == entry.etag), entry)


def _in_ranges(path: str, spans: Iterable[KeyRange]) -> bool:
    return any(span.holds(path) for span in spans)
