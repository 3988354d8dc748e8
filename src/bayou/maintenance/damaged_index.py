"""What is left of an index that is damaged: its head, or parts of one, and the pages of its log.

Put an index together again from what can be read of its versions, and from what the store lists.

A version decides the ranges of paths that it shows: these entries are there, and no others. What is out of sight in
one version is looked for in the one before it. Where only an earlier version can be seen, what was written since may
have been committed, and the newest of it gets the path: no commit that was acknowledged is lost with the node that
told of it. The store's own clock says what came later, or a node that came later does.
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


class Remains(Struct, frozen=True):
    """What a damaged index still says.

    `head` is there if it can be read, `over` names the version that it is or was (None: there is none at all), `parts`
    is what it says in either case, `visible` how many entries can be reached from it, `pages` those of its log.
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
        """Whether `root` is the current one; else nobody can tell what that was."""
        return self.head is not None or self.parts.root is not None


def look(store: Store) -> Remains | None:
    """Return what is left of a damaged index; None if it is whole. An unknown format is refused (V10)."""
    try:
        fetched = store.get(keys.HEAD, most=limits.HEAD_BYTES)
    except NotFound:
        return Remains(Salvage(), _unlike_any(), pages=_listed(store))
    except TooLarge:
        meta = store.head(keys.HEAD)
        return Remains(Salvage(), _unlike_any(), over=Match(meta.etag, meta.version), pages=_listed(store))
    assert fetched is not None  # nobody asked whether it is modified
    data, over = bytes(fetched.data), Match(fetched.meta.etag, fetched.meta.version)
    try:
        head = parse_head(data, store.url)
    except HeadCorrupt:
        return Remains(salvage(data, store.url), _unlike_any(), over=over, pages=_listed(store))
    pages, broken = chain(store, head.older, head.log[0].seq)
    seen = survey(StoreNodes(store), head.root)
    if not (broken or seen.damage or survey(StoreNodes(store), head.trash).damage):
        return None
    parts = Salvage(head.store, head.seq, _pointer(head.root), _pointer(head.trash), head.log)
    return Remains(parts, head.gc, replace(head, older=None) if broken else head, over, len(seen.rows), pages)


def chain(store: Store, page: str | None, below: int | None = None) -> tuple[list[Page], list[str]]:
    """Return the pages of a log from one back, and what ended that before the first one.

    `below` is the seq of the row that follows, if there is one.
    """
    pages: list[Page] = []
    try:
        pages.extend(older_pages(store, page, below))
    except IndexDamaged as error:
        return pages, [error.message]
    return pages, []


def _listed(store: Store) -> list[Page]:
    """Return every page of the log that is there and can be read."""
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


def _unlike_any() -> Gc:
    """Return a count that no collection can have had: pushes under way look at each of their uploads again (T13)."""
    return Gc(int(time.time()))


class Version(Struct, frozen=True):
    """One version of the index, which can be read in parts at least. `at` is when the store got its root, in ms."""

    source: NodeSource
    root: Root | Pointer | None
    at: int = 0


class Written(Struct, frozen=True):
    """The rows of a leaf, and when the store got it, in ms."""

    rows: Sequence[Entry]
    at: int


class Recovered(Struct):
    """The entries by path; of them, those that are `older` than what was lost, and those `found` to be written since.

    `gone` are entries that should be there and whose object is not; `wasted` are discovered objects that had left the
    index; `blocked` are paths that others have as their directory; `unsafe` are paths of rows that nothing can be done
    by (V25), and that are left out; `damage` is what hides the newest version, in itself and in its copies.
    """

    rows: dict[str, Entry] = field(default_factory=dict)
    older: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    gone: list[Entry] = field(default_factory=list)
    wasted: list[Entry] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    unsafe: set[str] = field(default_factory=set)
    damage: list[Damage] = field(default_factory=list)


class _Past(Struct):
    """What earlier versions say of lost ranges; `decided`: when each was written, and what it leaves in the dark."""

    rows: dict[str, Entry] = field(default_factory=dict)
    named: dict[str, Entry] = field(default_factory=dict)
    decided: list[tuple[int, list[KeyRange]]] = field(default_factory=list)

    def known_at(self, path: str) -> int:
        """Return the time of the version that decides a path; 0 if none does."""
        return next((at for at, dark in self.decided if not _in(path, dark)), 0)

    @property
    def earliest(self) -> int:
        """Return the time of the oldest version that decides anything; 0 if something is left in the dark."""
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

    `newest` are the current version and copies of it; without any, all of it is out of sight. `older` come newest
    first. `mine` are entries that this machine knows, of whatever age; `trash` are keys that have left the index.
    """
    made = Recovered()
    lost: list[KeyRange] = [EVERYTHING]
    for version in newest:
        seen = survey(version.source, version.root, lost)
        made.rows.update({row.path: row for row in _sound(seen.rows)})
        made.unsafe.update(row.path for row in seen.rows if row.refusal() is not None)
        made.damage, lost = seen.damage, seen.hidden(lost)
    if not lost:
        return made
    past = _look_back(older, lost)
    later = ((leaf.at, row) for leaf in leaves_since(past.earliest) for row in _sound(leaf.rows))
    told = {row.key: row for at, row in later if at >= past.known_at(row.path)}
    listed = {meta.key: meta for meta in objects}
    since = _written_since(objects, past, trash, lost, told.keys())
    for path, row in past.rows.items():
        at = listed.get(row.key)
        if path in since and (at is None or _rank(since[path]) > _rank(at)):
            continue
        since.pop(path, None)
        if at is not None:
            made.rows[path] = row
            made.older.add(path)
        else:
            made.gone.append(row)
    known = {row.path: row for row in _sound(mine.values())}
    for path, meta in since.items():
        made.rows[path] = _described(meta, (known.get(path), told.get(keys.as_listed(meta.key))))
        made.found.add(path)
    heard_of = past.named.keys() | listed.keys()
    unknown = (row for row in known.values() if row.path not in made.rows and row.key not in heard_of)
    made.gone += [row for row in unknown if _in(row.path, lost)]
    for path in made.found & directories(made.rows):
        del made.rows[path]
        made.blocked.append(path)
    made.found.difference_update(made.blocked)
    indexed = {row.key for row in made.rows.values()}
    left = (row for key, row in past.named.items() if row.push is None and key in listed and key not in indexed)
    made.wasted = [row for row in left if listed[row.key].etag == row.etag]
    return made


def _sound(rows: Iterable[Entry]) -> Iterator[Entry]:
    return (row for row in rows if row.refusal() is None)


def _look_back(older: Iterable[Version], lost: list[KeyRange]) -> _Past:
    """Return what the newest readable version says of each lost range, and every key that some version names there."""
    past = _Past()
    visited: set[Digest] = set()
    left = lost
    for version in older:
        if left:
            seen = survey(version.source, version.root, left)
            past.rows.update({row.path: row for row in _sound(seen.rows)})
            left = seen.hidden(left)
            past.decided.append((version.at, left))
        past.named.update({row.key: row for row in _sound(survey(version.source, version.root, lost, visited).rows)})
    return past


def _written_since(
    objects: Sequence[ObjectMeta], past: _Past, trash: set[str], lost: list[KeyRange], told: Iterable[str]
) -> dict[str, ObjectMeta]:
    """Return, for each lost path, the newest object that came after the version which decides it."""
    newest: dict[str, ObjectMeta] = {}
    known, later = past.named.keys() | trash, set(told)
    for meta in objects:
        path = keys.parse_payload(meta.key).path
        if meta.key in known or not _in(path, lost):
            continue
        if meta.modified < past.known_at(path) and meta.key not in later:
            continue
        if path not in newest or _rank(meta) > _rank(newest[path]):
            newest[path] = meta
    return newest


def _rank(meta: ObjectMeta) -> tuple[bool, int, str]:
    """Order the objects of one path by age: one that was there before Bayou is the oldest, then the store's clock."""
    push = keys.parse_payload(meta.key).push
    return push is not None, meta.modified, push or ""


def _described(meta: ObjectMeta, known: Iterable[Entry | None]) -> Entry:
    """Return the entry of an object: with its hash, if somebody knows that very object."""
    entry = entry_of(meta)
    same = (one for one in known if one is not None and one.key == entry.key)
    return next((one for one in same if entry.push is not None or one.etag == entry.etag), entry)


def _in(path: str, spans: Iterable[KeyRange]) -> bool:
    return any(span.holds(path) for span in spans)
