"""A damaged index: what can still be read of it, and the recovery of its entries.

Recovery combines the readable versions of the index with a listing of the store. A version is authoritative for the
ranges of paths that can be read: it has these entries, and no others. Ranges that are unreadable in one version are
read from the version before it. Where only an earlier version is readable, objects written since may have been
committed, and the newest of them gets the path: so no acknowledged commit is lost with a node. The store's own clock,
or a node that was written later, decides what came later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.errors import HeadCorrupt, IndexDamaged, NotFound, TooLarge
from bayou.index.check import Damage, Salvage, salvage, survey
from bayou.index.discovery import directories, entry_of
from bayou.index.entry import Entry
from bayou.index.head import Gc, Head, parse_head
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.log import Page, older_pages, read_page
from bayou.index.node import Digest, Pointer, Root
from bayou.index.node_store import StoreNodes
from bayou.index.tree import NodeSource
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Match, ObjectMeta


class DamagedIndex(Struct, frozen=True):
    """What can be read of a damaged index.

    `head` is set if the head can be read; `over` is the version of the head object to replace (None: it is missing);
    `parts` is what could be read of the head in any case; `visible` is the number of readable entries; `pages` are the
    readable pages of its log.
    """

    parts: Salvage
    gc: Gc
    head: Head | None = None
    over: Match | None = None
    visible: int = 0
    pages: Sequence[Page] = ()

    @property
    def root(self) -> Root | Pointer | None:
        return self.head.root if self.head is not None else self.parts.root

    @property
    def knows_root(self) -> bool:
        """Whether `root` is the current root; otherwise the current root is unknown."""
        return self.head is not None or self.parts.root is not None


def read_damaged(store: Store) -> DamagedIndex | None:
    """Return what can be read of a damaged index; None if it is not damaged. An unknown format is refused (V10)."""
    try:
        fetched = store.get(keys.HEAD, most=limits.HEAD_BYTES)
    except NotFound:
        return DamagedIndex(Salvage(), _fresh_gc(), pages=_list_pages(store))
    except TooLarge:
        meta = store.head(keys.HEAD)
        return DamagedIndex(Salvage(), _fresh_gc(), over=Match(meta.etag, meta.version), pages=_list_pages(store))
    assert fetched is not None  # the request had no ETag
    data, over = bytes(fetched.data), Match(fetched.meta.etag, fetched.meta.version)
    try:
        head = parse_head(data, store.url)
    except HeadCorrupt:
        return DamagedIndex(salvage(data, store.url), _fresh_gc(), over=over, pages=_list_pages(store))
    pages, broken = read_log_pages(store, head.older, head.log[0].seq)
    seen = survey(StoreNodes(store), head.root)
    if not (broken or seen.damage or survey(StoreNodes(store), head.trash).damage):
        return None
    parts = Salvage(head.store, head.seq, _pointer(head.root), _pointer(head.trash), head.log)
    return DamagedIndex(parts, head.gc, replace(head, older=None) if broken else head, over, len(seen.rows), pages)


def read_log_pages(store: Store, page: str | None, below: int | None = None) -> tuple[list[Page], list[str]]:
    """Return the pages of a log from `page` backwards, and the error that ended the chain early, if any.

    `below` is the seq of the row that follows the page, if there is one.
    """
    pages: list[Page] = []
    try:
        pages.extend(older_pages(store, page, below))
    except IndexDamaged as error:
        return pages, [error.message]
    return pages, []


def _list_pages(store: Store) -> list[Page]:
    """Return every page of the log that the store has and that can be read."""
    names = [keys.parse_log_page(meta.key) for listed in store.list(keys.LOGS) for meta in listed]
    pages = []
    for name in names:
        try:
            pages += [read_page(store, name)] if name is not None else []
        except IndexDamaged:
            continue
    return pages


def _pointer(root: Root | None) -> Pointer | None:
    return None if root is None else root.pointer


def _fresh_gc() -> Gc:
    """Return a count that no collection has had, so that pushes under way check each of their uploads (T13)."""
    return Gc(int(time.time()))


class Version(Struct, frozen=True):
    """A version of the index of which at least a part is readable. `at` is when the store got its root, in ms."""

    source: NodeSource
    root: Root | Pointer | None
    at: int = 0


class Written(Struct, frozen=True):
    """The rows of a leaf, and when the store got it, in ms."""

    rows: Sequence[Entry]
    at: int


class Recovered(Struct):
    """The recovered entries by path, in `rows`, and what is known about them.

    `older` are paths whose entry comes from an earlier version; `found` are paths whose entry was made from an object
    that was written since. `gone` are entries without object; `wasted` are discovered objects that had left the index;
    `blocked` are paths that are directories of other paths; `unsafe` are paths of rows that clients ignore (V25) and
    that are left out; `damage` are the unreadable parts of the newest version and its copies.
    """

    rows: dict[str, Entry] = field(default_factory=dict)
    older: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    gone: list[Entry] = field(default_factory=list)
    wasted: list[Entry] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    unsafe: set[str] = field(default_factory=set)
    damage: list[Damage] = field(default_factory=list)


class _EarlierVersions(Struct):
    """Lost ranges in earlier versions. `decided` has the time of each version, and the ranges still unreadable."""

    rows: dict[str, Entry] = field(default_factory=dict)
    named: dict[str, Entry] = field(default_factory=dict)
    decided: list[tuple[int, list[KeyRange]]] = field(default_factory=list)

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
    leaves_since: Callable[[int], Iterable[Written]],
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
    later = ((leaf.at, row) for leaf in leaves_since(earlier.earliest) for row in _safe(leaf.rows))
    later_rows = {row.key: row for at, row in later if at >= earlier.known_at(row.path)}
    listed = {meta.key: meta for meta in objects}
    since = _written_since(objects, earlier, trash, lost, later_rows.keys())
    for path, row in earlier.rows.items():
        at = listed.get(row.key)
        if path in since and (at is None or _age(since[path]) > _age(at)):
            continue
        since.pop(path, None)
        if at is not None:
            recovered.rows[path] = row
            recovered.older.add(path)
        else:
            recovered.gone.append(row)
    known = {row.path: row for row in _safe(mine.values())}
    for path, meta in since.items():
        recovered.rows[path] = _entry_of(meta, (known.get(path), later_rows.get(keys.as_listed(meta.key))))
        recovered.found.add(path)
    heard_of = earlier.named.keys() | listed.keys()
    unknown = (row for row in known.values() if row.path not in recovered.rows and row.key not in heard_of)
    recovered.gone += [row for row in unknown if _in_ranges(row.path, lost)]
    for path in recovered.found & directories(recovered.rows):
        del recovered.rows[path]
        recovered.blocked.append(path)
    recovered.found.difference_update(recovered.blocked)
    indexed = {row.key for row in recovered.rows.values()}
    left = (row for key, row in earlier.named.items() if row.push is None and key in listed and key not in indexed)
    recovered.wasted = [row for row in left if listed[row.key].etag == row.etag]
    return recovered


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
        earlier.named.update({row.key: row for row in _safe(survey(version.source, version.root, lost, visited).rows)})
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
