"""What comparing an index with its store brings: the lists of a report, and what a repair works on.

What an index and a store say of each other, one key at a time: the rules of `verify`, whoever goes by them.

Nothing here reads an index or lists a store. What only a request can tell is asked by `by_name` and `read_back`.

Verify, as a job of `engine.job`: the entries of an index against the listing of its store, directory by directory.

The index is that of a head which was read before the listing begins: what is committed meanwhile has its object before
its entry (V11). Each part of the store is listed, sorted by path, and merged with the entries and the trash whose paths
lie in it; `maintenance.verify_job` has the rules. An object of a push has another key than its path, in the same
directory, so the
merge goes by path and push and not by key.

What one part cannot know, rows tell the driver: an object at a plain path is in the way if objects or entries lie below
that path, and these may be in other parts, whose directories are then below it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import paths
from bayou.core.batched import batched
from bayou.core.errors import BadAnswer, NodeDamaged, NodeMissing, NotFound, PreconditionFailed
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Needs
from bayou.engine.parts import Part, divide, groups, objects
from bayou.engine.spool import SortedSpool
from bayou.index.check import Outline, damage_of, outline, try_load
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
from bayou.index.head import Head
from bayou.index.key_range import EVERYTHING, KeyRange, KeyRanges
from bayou.index.node import Child, Leaf, Ref
from bayou.index.node_store import StoreNodes
from bayou.maintenance.damaged_index import chain
from bayou.objectstore import keys
from bayou.objectstore.multipart import NullSink
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta
from bayou.sync.report import Refusal

MISSING, CHANGED, READ, WELL, LEARNED = "missing", "changed", "read", "well", "learned"
"""Of an entry. `READ`: only the bytes of its object can tell. `LEARNED`: they told a hash that nobody knew."""

HIDDEN, TRASH, LEFTOVER, UNINDEXED = "hidden", "trash", "leftover", "unindexed"
"""Of an object that no entry names. `HIDDEN`: one may, in a part of the index that cannot be read."""


class Rules(Struct, frozen=True):
    """What one comparison goes by: the paths that are out of sight, and whether every object is to be read."""

    hidden: KeyRanges
    deep: bool = False

    def entry(self, entry: Entry, at: ObjectMeta | None) -> str:
        """Judge an entry by the object that a listing has at its key."""
        if at is None:
            return MISSING
        if at.size != entry.size:
            return CHANGED
        if entry.etag is not None and at.etag != entry.etag:
            # A PUT that was repeated, or came late, wrote the same bytes to the same key (V11); only they can tell.
            return CHANGED if entry.push is None or entry.sha256 is None else READ
        return READ if self.deep else WELL

    def stray(self, meta: ObjectMeta, *, wasted: bool) -> str:
        """Judge an object that no entry names; `wasted`: the trash does."""
        path, push = keys.parse_payload(meta.key)
        if self.hidden.holds(path):
            return HIDDEN
        if wasted:
            return TRASH
        return UNINDEXED if push is None else LEFTOVER

    def by_name(self, store: Store, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
        """Look once more, by name, for objects that a listing does not have, and judge each entry by that (V4)."""
        for entry, gone in store.map(lambda one: (one, _gone(store, one)), entries):
            yield MISSING if gone else READ if self.deep else WELL, entry


def read_back(store: Store, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
    """Read objects as they are now, and judge each entry by their bytes: changed, learned (with its hash), or well."""
    for entry, digest in store.map(lambda one: (one, _digest(store, one)), entries):
        if entry.sha256 is None and digest is not None:
            yield LEARNED, replace(entry, sha256=digest)
        else:
            yield CHANGED if digest != entry.sha256 else WELL, entry


def _gone(store: Store, entry: Entry) -> bool:
    try:
        store.head(entry.key)
    except NotFound:
        return True
    return False


def _digest(store: Store, entry: Entry) -> bytes | None:
    """Return the hash of an object's bytes, as they are now; None if they are not there, or not as many."""
    try:
        return store.download(entry.key, NullSink(), entry.size).sha256
    except (NotFound, BadAnswer, PreconditionFailed):
        return None


MOST_NAMED = 1000
"""Names in each list of a report; of more, only the number is told."""

WINDOW = 10_000
"""Rows that are mended together: one commit, and what this process holds of a large repair."""

MENDABLE = (MISSING, UNINDEXED, LEARNED)
"""Findings that a repair works on."""


class Mendable(Struct, frozen=True):
    """Some of what a repair works on: entries whose object is gone, objects that nobody indexed, hashes learned."""

    missing: Sequence[Entry] = ()
    unindexed: Sequence[str] = ()
    hashed: Mapping[str, Entry] = field(default_factory=dict)


class Unsafe(Struct, frozen=True):
    """A row of the index, or of its `trash`, that nothing is done by (V25), and why.

    `nameless`: its path or push makes no key of this store, so that no object can be meant.
    """

    path: str
    reason: str
    trash: bool = False
    nameless: bool = False

    @property
    def told(self) -> Refusal:
        """What a report says of it: a path that can be printed and typed, and why."""
        where = "in the trash: " if self.trash else ""
        return Refusal(paths.escape(self.path), f"{where}{self.reason}")


def is_nameless(entry: Entry) -> bool:
    """Whether an entry cannot name an object of this store."""
    return paths.refusal(entry.path) is not None or not (entry.push is None or keys.is_push_id(entry.push))


class Compared(Struct):
    """What a comparison brought. Lists are sorted, and name the first; `totals` has the numbers of all."""

    checked: int = 0
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unindexed: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    unsafe: list[Unsafe] = field(default_factory=list)
    leftovers: int = 0
    trash: int = 0
    damaged: list[str] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    mendable: Callable[[], Iterator[Mendable]] = lambda: iter(())
    """Yields what a repair works on, in the order of paths, until `close` is called."""
    close: Callable[[], None] = lambda: None
    """Drops what `mendable` reads."""

    @property
    def cut(self) -> dict[str, int]:
        """The numbers of those lists that do not name all."""
        return {name: total for name, total in self.totals.items() if total > MOST_NAMED}


def windows(rows: Iterable[tuple[str, Entry]]) -> Iterator[Mendable]:
    """Put findings together to be mended, so many at a time."""
    for some in batched(rows, WINDOW):
        yield Mendable(
            [entry for finding, entry in some if finding == MISSING],
            [entry.path for finding, entry in some if finding == UNINDEXED],
            {entry.path: entry for finding, entry in some if finding == LEARNED},
        )


CHECKED, REFUSED, UNSAFE, NAMELESS, UNSAFE_TRASH = "checked", "refused", "unsafe", "nameless", "unsafe-trash"
DAMAGED, OCCUPIED = "damaged", "occupied"
"""Kinds of rows besides the findings of `maintenance.verify_job`: how many entries were checked; a key that is no
payload; a row
of the index, or of the trash, that nothing is done by (V25); a node that cannot be used; a directory of payload."""

_ENTRIES_PER_PART = 5000
"""Fewer are not worth a part: dividing a store takes requests of its own."""

REQUEST = 1 << 16
"""What it costs to read an object besides its bytes, in bytes."""

_AT_ONCE = 2000
"""Entries whose objects are asked for, or read, together."""


class Finding(NamedTuple):
    """A row: a finding about an entry or a name; or, without a path, how many there are of one kind."""

    finding: str
    number: int = 1
    path: str | None = None
    push: str | None = None
    size: int | None = None
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    modified: int | None = None
    reason: str | None = None

    @classmethod
    def of(cls, finding: str, entry: Entry) -> Finding:
        known = (entry.path, entry.push, entry.size, entry.sha256, entry.etag, entry.version, entry.modified)
        return cls(finding, 1, *known)


class Section(Struct, frozen=True):
    """A part of the listing, the leaves of the index and of the trash that can hold its paths, and what is hidden."""

    part: Part
    leaves: Sequence[Ref]
    trash: Sequence[Ref]
    hidden: Sequence[KeyRange]


class VerifyJob:
    """Compares the index of a head with its store. An `engine.job.Job`; close what it returns (`Compared.close`)."""

    row = Finding

    def __init__(self, store: StoreHandle, head: Head, *, deep: bool) -> None:
        self._store = store
        self._head = head
        self._deep = deep
        source = StoreNodes(store.open())
        self._index, self._trash = outline(source, head.root), outline(source, head.trash)

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle, bool]]:
        return _VerifyKernel, (self._store, self._deep)  # the outlines stay with the driver

    @property
    def stage(self) -> Stage:
        root = self._head.root
        files, size = (root.entries, root.bytes) if root is not None else (0, 0)
        return Stage("verifying", files, size if self._deep else None)

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[Sequence[Section]]:
        """Divide the store by directories, and put sections together so that parts cost about the same."""
        root = self._head.root
        wanted = min(wanted, -(-root.entries // _ENTRIES_PER_PART) if root is not None else 1)
        hidden = [damage.span for damage in self._index.damage]
        index, trash = _Leaves(self._index), _Leaves(self._trash)
        found = (
            Section(part, index.of(part), trash.of(part), [span for span in hidden if _touches(part, span)])
            for part in divide(self._store.open(), wanted)
        )
        return _balanced([one for one in found if _is_payload(one)], max(1, wanted), self._deep)

    def run(self, part: Sequence[Section]) -> Iterator[Finding]:
        return _VerifyKernel(self._store, self._deep).run(part)

    def fold(self, rows: Iterable[Finding]) -> Compared:
        folded = _Fold()
        try:
            for row in rows:
                folded.add(row)
            return folded.result(self._damaged(folded.damaged))
        except BaseException:
            folded.spool.close()
            raise

    def _damaged(self, leaves: dict[str, str]) -> list[str]:
        """Say what is wrong with nodes of the index, of the trash and of the log, in this order."""
        told: list[str] = []
        for tree in (self._index, self._trash):
            told += [damage.error.message for damage in tree.damage]
            told += [leaves[ref.node] for ref in tree.leaves if ref.node in leaves]
        return told + chain(self._store.open(), self._head.older, self._head.log[0].seq)[1]


class IndexCheckJob:
    """Reads every node of the index of a head, and of its trash; says what is wrong with those that cannot be used."""

    row = Finding

    def __init__(self, store: StoreHandle, head: Head) -> None:
        self._store = store
        self._entries = head.root.entries if head.root is not None else 0
        source = StoreNodes(store.open())
        trees = [outline(source, root) for root in (head.root, head.trash)]
        self._leaves = [ref for tree in trees for ref in tree.leaves]
        self._damaged = [damage.error.message for tree in trees for damage in tree.damage]

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle]]:
        return _IndexCheckKernel, (self._store,)

    @property
    def stage(self) -> Stage:
        return Stage("reading the index", self._entries)

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[Sequence[Ref]]:
        return groups(self._leaves, wanted)

    def run(self, part: Sequence[Ref]) -> Iterator[Finding]:
        return _IndexCheckKernel(self._store).run(part)

    def fold(self, rows: Iterable[Finding]) -> list[str]:
        return self._damaged + [row.reason or "" for row in rows]


class _IndexCheckKernel:
    """What of the job goes to a worker."""

    row = Finding

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def run(self, part: Sequence[Ref]) -> Iterator[Finding]:
        source = StoreNodes(self._store.open())
        for ref, node in zip(part, source.map(partial(try_load, source, 0), part), strict=True):
            if isinstance(node, NodeMissing | NodeDamaged):
                yield Finding(DAMAGED, path=ref.node, reason=node.message)


class _VerifyKernel:
    """What of the job goes to a worker."""

    row = Finding

    def __init__(self, store: StoreHandle, deep: bool) -> None:
        self._store = store
        self._deep = deep

    def run(self, part: Sequence[Section]) -> Iterator[Finding]:
        """Compare sections one after the other."""
        for section in part:
            yield from _Comparison(self._store.open(), section, deep=self._deep).findings()


class _Comparison:
    """One section: its listing merged with what the index and the trash say of its paths."""

    def __init__(self, store: Store, section: Section, *, deep: bool) -> None:
        self._store = store
        self._section = section
        self._deep = deep
        self._hidden = list(section.hidden)
        self._rules = Rules(KeyRanges(self._hidden), deep)
        self._others: set[str] = set()
        self._counts = Counter[str]()
        self._said: list[Finding] = []
        """What the streams below met besides what they yield."""
        self._missing: list[Entry] = []
        self._unread: list[Entry] = []
        self._waiting: list[tuple[bytes, Entry]] = []
        """Unindexed objects, until the merge has passed everything that could lie below their paths."""
        self._occupied = False

    def findings(self) -> Iterator[Finding]:
        """Yield what is worth a row, and at the end how many are not."""
        with closing(SortedSpool(2)) as spool:
            self._list(spool)
            streams = (self._entries(self._section.leaves), self._wasted(self._section.trash), self._objects(spool))
            for path, group in groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
                # Whoever has taken the whole group has met every node that comes before the next entry, and so every
                # damaged one that may hide this path.
                yield from self._at(path, [one for _, one in group])
                yield from self._take_said()
        yield from self._settle(None)
        yield from self._take_said()
        yield from self._by_name()
        yield from self._read()
        yield from (Finding(finding, number) for finding, number in self._counts.items())
        if self._occupied and self._section.part.directory is not None:
            yield Finding(OCCUPIED, path=self._section.part.directory)

    def _at(self, path: bytes, known: Sequence[Entry | ObjectMeta | None]) -> Iterator[Finding]:
        """Judge all that is known of one path: an entry, objects, and whether the trash names it (None)."""
        entry = next((one for one in known if isinstance(one, Entry)), None)
        found: dict[str, ObjectMeta] = {}
        for one in known:
            # Of an object and a "folder" that a listing calls by one key, the object is the one with bytes.
            if isinstance(one, ObjectMeta) and (one.key not in found or one.size > found[one.key].size):
                found[one.key] = one
        plain = next((key for key in found if keys.parse_payload(key).push is None), None)
        yield from self._settle(path, occupied=entry is not None or plain is not None)
        if entry is not None:
            yield from self._entry(entry, found.pop(entry.key, None))
        for meta in found.values():
            finding = self._rules.stray(meta, wasted=None in known and meta.key == plain)
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
            self._unread.append(entry)
        if len(self._missing) == _AT_ONCE:
            yield from self._by_name()
        if len(self._unread) >= _AT_ONCE:
            yield from self._read()

    def _by_name(self) -> Iterator[Finding]:
        """Ask for objects that the listing lacks (V4)."""
        missing, self._missing = self._missing, []
        for finding, entry in self._rules.by_name(self._store, missing):
            if finding == MISSING:
                yield Finding.of(MISSING, entry)
            elif finding == READ:
                self._unread.append(entry)

    def _read(self) -> Iterator[Finding]:
        """Read objects back."""
        unread, self._unread = self._unread, []
        judged = read_back(self._store, unread)
        yield from (Finding.of(finding, entry) for finding, entry in judged if finding != WELL)

    def _settle(self, path: bytes | None, *, occupied: bool = False) -> Iterator[Finding]:
        """Tell of unindexed objects that the merge, now at `path` (None: at its end), has passed everything below."""
        self._occupied = self._occupied or occupied
        waiting, self._waiting = self._waiting, []
        for at, entry in waiting:
            if path is not None and occupied and path.startswith(at + b"/"):
                yield Finding(REFUSED, path=entry.path, reason=IN_THE_WAY)
            elif path is None or path >= at + b"0":  # the character after "/"
                yield Finding.of(UNINDEXED, entry)
            else:
                self._waiting.append((at, entry))

    def _take_said(self) -> list[Finding]:
        said, self._said = self._said, []
        return said

    def _list(self, spool: SortedSpool) -> None:
        """List the section, and learn which directories in it are other stores."""
        for page in objects(self._store, self._section.part):
            found = [meta for meta in page if in_payload(meta.key) is not None]
            self._others.update(outside for meta in found if (outside := nested_store(meta.key)) is not None)
            spool.add(_spooled(meta) for meta in found if in_payload(meta.key))

    def _objects(self, spool: SortedSpool) -> Iterator[tuple[bytes, ObjectMeta]]:
        """Yield the payload of the listing with its paths, in their order; what is refused is said."""
        rows = iter(spool)
        while some := list(islice(rows, _AT_ONCE)):
            listed = [(row[0], ObjectMeta(_text(row[2]), *row[3:])) for row in some]
            listed = [(path, meta) for path, meta in listed if self._others.isdisjoint(parents(meta.key))]
            folders = folder_markers(self._store, [meta for _, meta in listed])
            for path, meta in listed:
                why = refusal(meta.key) if meta.key not in folders else OF_ANOTHER_SYSTEM
                if why is None:
                    yield path, meta
                elif why != OF_ANOTHER_SYSTEM:
                    self._said.append(Finding(REFUSED, path=meta.key, reason=why))

    def _entries(self, refs: Sequence[Ref]) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries of the section; what of its index cannot be read hides what lies there."""
        for ref, leaf in self._load(refs):
            if isinstance(leaf, NodeMissing | NodeDamaged):
                self._hidden.append(damage_of(ref, 0, leaf).span)
                self._rules = Rules(KeyRanges(self._hidden), self._deep)
                continue
            for entry in leaf:
                why = entry.refusal()
                if why is None:
                    yield _bytes(entry.path), entry
                else:
                    self._said.append(Finding(NAMELESS if is_nameless(entry) else UNSAFE, path=entry.path, reason=why))

    def _wasted(self, refs: Sequence[Ref]) -> Iterator[tuple[bytes, None]]:
        """Yield the paths that the trash names."""
        for _, leaf in self._load(refs):
            for entry in leaf if not isinstance(leaf, NodeMissing | NodeDamaged) else ():
                why = trash_refusal(entry)
                if why is None:
                    yield _bytes(entry.path), None
                else:
                    self._said.append(Finding(UNSAFE_TRASH, path=entry.path, reason=why))

    def _load(self, refs: Sequence[Ref]) -> Iterator[tuple[Ref, list[Entry] | NodeMissing | NodeDamaged]]:
        """Yield the rows of leaves that belong to the section; failures of the store itself are raised (V4)."""
        source = StoreNodes(self._store)
        for ref, node in zip(refs, source.map(partial(try_load, source, 0), refs), strict=True):
            if isinstance(node, Leaf):
                yield ref, [row for row in node.rows if self._section.part.holds(row.path)]
            elif isinstance(node, NodeMissing | NodeDamaged):
                self._said.append(Finding(DAMAGED, path=ref.node, reason=node.message))
                yield ref, node


class _Fold:
    """Rows of all parts, put together: numbers, the first names of each kind, and a file of what can be repaired."""

    def __init__(self) -> None:
        self.spool = SortedSpool(2)
        self.damaged: dict[str, str] = {}
        self._counts = Counter[str]()
        self._changed = _First()
        self._refused = _First()
        self._unsafe: list[Unsafe] = []
        self._occupied: set[str] = set()

    def add(self, row: Finding) -> None:
        finding, path, reason = row.finding, row.path, row.reason or ""
        self._counts[finding] += row.number
        if path is None:
            return
        if finding in MENDABLE:
            self.spool.add([(_bytes(path), MENDABLE.index(finding), *row[3:9])])
        elif finding == CHANGED:
            self._changed.add((path,))
        elif finding == REFUSED:
            self._refused.add((path, reason))
        elif finding == DAMAGED:
            self.damaged[path] = reason
        elif finding == OCCUPIED:
            self._occupied.update((path, *parents(path)))
        else:
            trash, nameless = finding == UNSAFE_TRASH, finding == NAMELESS
            self._unsafe.append(Unsafe(path, reason, trash=trash, nameless=nameless))

    def result(self, damaged: list[str]) -> Compared:
        """Return what was found; its rows for a repair are read from the file, which goes with `close`."""
        names: dict[str, list[str]] = {MISSING: [], UNINDEXED: []}
        crowded = 0
        for finding, entry in self._rows():
            if finding == UNINDEXED and entry.path in self._occupied:
                crowded += 1
                self._refused.add((entry.path, IN_THE_WAY))
            elif finding != LEARNED and len(names[finding]) < MOST_NAMED:
                names[finding].append(entry.path)
        counts = self._counts
        return Compared(
            checked=counts[CHECKED],
            missing=names[MISSING],
            changed=[path for (path,) in self._changed.rows()],
            unindexed=names[UNINDEXED],
            refused=[Refusal(path, reason) for path, reason in self._refused.rows()],
            unsafe=sorted(self._unsafe, key=attrgetter("path", "reason")),
            leftovers=counts[LEFTOVER],
            trash=counts[TRASH],
            damaged=damaged,
            totals={
                MISSING: counts[MISSING],
                CHANGED: counts[CHANGED],
                UNINDEXED: counts[UNINDEXED] - crowded,
                REFUSED: counts[REFUSED] + crowded,
                "unsafe": len(self._unsafe),
            },
            mendable=lambda: windows(self._mendable()),
            close=self.spool.close,
        )

    def _mendable(self) -> Iterator[tuple[str, Entry]]:
        for finding, entry in self._rows():
            if finding != UNINDEXED or entry.path not in self._occupied:
                yield finding, entry

    def _rows(self) -> Iterator[tuple[str, Entry]]:
        return ((MENDABLE[kind], Entry(_text(path), *rest)) for path, kind, *rest in self.spool)


class _First:
    """The first `MOST_NAMED` of many rows, in order."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []

    def add(self, row: tuple[str, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) > 2 * MOST_NAMED:
            self._rows = self.rows()

    def rows(self) -> list[tuple[str, ...]]:
        return sorted(self._rows)[:MOST_NAMED]


class _Leaves:
    """The leaves of a tree that can be reached, by the paths that they hold."""

    def __init__(self, tree: Outline) -> None:
        self._leaves = tree.leaves
        # A leaf that is the root itself says nothing of its paths: every part looks.
        children = [ref for ref in tree.leaves if isinstance(ref, Child)]
        self._first, self._last = [ref.first for ref in children], [ref.last for ref in children]

    def of(self, part: Part) -> Sequence[Ref]:
        """Return the leaves that may hold a path of a part."""
        if not self._first:
            return self._leaves
        span = _span(part)
        start = bisect_left(self._last, span.start)
        end = len(self._first) if span.end is None else bisect_left(self._first, span.end)
        found = range(start, end)
        return [self._leaves[at] for at in found if not _lies_inside(part, self._first[at], self._last[at])]


def _lies_inside(part: Part, first: str, last: str) -> bool:
    """Whether a range of paths lies in one of the directories that a part was divided into."""
    if part.deep or part.holds(first):
        return False
    start = 0 if part.directory is None else len(part.directory) + 1
    child = first[: first.find("/", start) + 1]
    return first.startswith("" if part.directory is None else f"{part.directory}/") and last.startswith(child)


def _span(part: Part) -> KeyRange:
    return EVERYTHING if part.directory is None else KeyRange.under(f"{part.directory}/")


def _touches(part: Part, span: KeyRange) -> bool:
    both = _span(part) & span
    return both.end is None or both.start < both.end


def _is_payload(section: Section) -> bool:
    """Whether anything of a section can be ours: other programs' directories need not be listed."""
    root, _, _ = (section.part.directory or "").partition("/")
    return bool(section.part.directory is None or root in paths.PAYLOAD_ROOTS or section.leaves or section.trash)


def _balanced(sections: Sequence[Section], wanted: int, deep: bool) -> list[list[Section]]:
    """Put sections together into at most `wanted` parts of about the same cost, the costliest first."""
    load: list[tuple[int, int, list[Section]]] = [(0, number, []) for number in range(min(wanted, len(sections)))]
    for section in sorted(sections, key=lambda one: -_cost(one, deep)):
        cost, number, some = load[0]
        some.append(section)
        heapq.heapreplace(load, (cost + _cost(section, deep), number, some))
    return [some for _, _, some in sorted(load, key=itemgetter(1))]


def _cost(section: Section, deep: bool) -> int:
    leaves = [ref for ref in section.leaves if isinstance(ref, Child)]
    size = sum(ref.bytes for ref in leaves) if deep else 0
    return REQUEST * (1 + sum(ref.entries for ref in leaves)) + size


def _spooled(meta: ObjectMeta) -> tuple[Any, ...]:
    path, push = keys.parse_payload(meta.key)
    return _bytes(path), push or "", _bytes(meta.key), meta.size, meta.etag, meta.version, meta.modified


def _bytes(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def _text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")
