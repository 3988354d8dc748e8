"""`verify` as a job of `engine.job`: compare the entries of an index with the listing of its store.

The driver reads the head before the listing starts: a later commit has its objects before its entry (V11). The store is
divided by directories. Each part is listed, sorted by path, and merged with the entries and the trash of its paths;
`verify_rules` judges each key. The merge goes by path and push, not by key, because the object of a push has another
key than its path, in the same directory. The driver lists the packs, each once, and every part gets that listing; a
part reports the packs that its entries name, and the driver counts the others as leftovers (P8).

A part cannot know everything: an object at a plain path is in the way if other objects or entries lie below that path,
and these may belong to other parts. So a part also reports its directory if it holds payload, and the driver decides.

Bytes that are not where an entry says may have been moved by a compaction since the head was read. So the driver reads
the head again before it reports them: only the same row again means damage (P7).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from bayou.core import paths
from bayou.core.errors import IndexDamaged, NodeDamaged, NodeMissing, NotFound
from bayou.core.iterators import batched
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Needs
from bayou.engine.parts import REQUEST, StorePart, divide, groups
from bayou.engine.spool import SortedSpool, key_bytes, key_text
from bayou.index.check import Outline, outline, try_load
from bayou.index.discovery import (
    IN_THE_WAY,
    parents,
)
from bayou.index.entry import Entry
from bayou.index.head import Head, read_head
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.node import Child, Ref
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many
from bayou.maintenance.damaged_index import read_log_pages
from bayou.maintenance.verify_compare import (
    CHECKED,
    DAMAGED,
    NAMED,
    NAMELESS,
    OCCUPIED,
    REFUSED,
    UNSAFE_TRASH,
    Finding,
    Section,
    SectionComparison,
)
from bayou.maintenance.verify_rules import (
    CHANGED,
    LEFTOVER,
    LOST,
    MISPLACED,
    MISSING,
    MOST_NAMED,
    REPAIRABLE,
    TRASH,
    UNINDEXED,
    WINDOW,
    ComparisonResult,
    PackListing,
    Unsafe,
    repair_batches,
)
from bayou.sync.report import Refusal

ENTRIES_PER_PART = 5000
"""Entries that a part has at least: dividing a store also takes requests."""


class VerifyJob:
    """Compares the index of a head with its store. An `engine.job.Job`; the caller closes the result."""

    row = Finding

    def __init__(self, store: StoreHandle, head: Head, *, deep: bool) -> None:
        self._store = store
        self._head = head
        self._deep = deep
        source = StoreNodes(store.open())
        self._index, self._trash = outline(source, head.root), outline(source, head.trash)
        self._packs = PackListing.of(store.open())

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle, PackListing, bool]]:
        return _VerifyKernel, (self._store, self._packs, self._deep)  # a worker does not need the outlines

    @property
    def stage(self) -> Stage:
        root = self._head.root
        files, size = (root.entries, root.bytes) if root is not None else (0, 0)
        return Stage("verifying", files, size if self._deep else None, counts_bytes=True)

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[Sequence[Section]]:
        """Divide the store by directories, and group sections into parts of about the same cost."""
        root = self._head.root
        wanted = min(wanted, -(-root.entries // ENTRIES_PER_PART) if root is not None else 1)
        hidden = [damage.span for damage in self._index.damage]
        index, trash = _Leaves(self._index), _Leaves(self._trash)
        found = (
            Section(part, index.of(part), trash.of(part), [span for span in hidden if _touches(part, span)])
            for part in divide(self._store.open(), wanted)
        )
        return _balanced([section for section in found if _is_payload(section)], max(1, wanted), self._deep)

    def run(self, part: Sequence[Section]) -> Iterator[Finding]:
        return _VerifyKernel(self._store, self._packs, self._deep).run(part)

    def fold(self, rows: Iterable[Finding]) -> ComparisonResult:
        folded = _Fold()
        try:
            for row in rows:
                folded.add(row)
            hidden = self._index.damage or any(ref.node in folded.damaged for ref in self._index.leaves)
            unnamed = self._packs.whole | self._packs.other if not hidden else frozenset[str]()
            return folded.result(self._damaged(folded.damaged), unnamed, self._moved)
        except BaseException:
            folded.spool.close()
            raise

    def _moved(self, lost: Iterable[Entry]) -> set[str]:
        """Return the paths of these entries for which the head has another row, or none, by now (P7)."""
        source = StoreNodes(self._store.open())
        moved: set[str] = set()
        try:
            seen = read_head(self._store.open())
            if seen.head.root == self._head.root:
                return moved
            for batch in batched(lost, WINDOW):
                now = find_many(IndexTree(source, seen.head.root), [entry.path for entry in batch])
                moved.update(entry.path for entry in batch if now.get(entry.path) != entry)
        except (NotFound, IndexDamaged):
            return set()  # the findings are about the head that was read
        return moved

    def _damaged(self, leaves: dict[str, str]) -> list[str]:
        """Return the errors of nodes of the index, of the trash and of the log, in this order."""
        messages: list[str] = []
        for tree in (self._index, self._trash):
            messages += [damage.error.message for damage in tree.damage]
            messages += [leaves[ref.node] for ref in tree.leaves if ref.node in leaves]
        return messages + read_log_pages(self._store.open(), self._head.older, self._head.log[0].seq)[1]


class IndexCheckJob:
    """Reads every node of a head's index and trash; its result lists the errors. An `engine.job.Job`."""

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
    """The part of the job that a worker gets."""

    row = Finding

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def run(self, part: Sequence[Ref]) -> Iterator[Finding]:
        source = StoreNodes(self._store.open())
        for ref, node in zip(part, source.map(partial(try_load, source, 0), part), strict=True):
            if isinstance(node, NodeMissing | NodeDamaged):
                yield Finding(DAMAGED, path=ref.node, reason=node.message)


class _VerifyKernel:
    """The part of the job that a worker gets."""

    row = Finding

    def __init__(self, store: StoreHandle, packs: PackListing, deep: bool) -> None:
        self._store = store
        self._packs = packs
        self._deep = deep

    def run(self, part: Sequence[Section]) -> Iterator[Finding]:
        """Compare sections one after the other."""
        for section in part:
            yield from SectionComparison(self._store.open(), section, self._packs, deep=self._deep).findings()


class _Fold:
    """Folds the rows of all parts: counts, the first names of each kind, and a file of findings for a repair."""

    def __init__(self) -> None:
        self.spool = SortedSpool(2)
        self.damaged: dict[str, str] = {}
        self._counts = Counter[str]()
        self._refused = _FirstRows()
        self._unsafe: list[Unsafe] = []
        self._occupied: set[str] = set()
        self._packs: set[str] = set()
        self._moved: set[str] = set()

    def add(self, row: Finding) -> None:
        finding, path, reason = row.finding, row.path, row.reason or ""
        self._counts[finding] += row.number
        if path is None:
            return
        if finding in REPAIRABLE:
            self.spool.add([(key_bytes(path), REPAIRABLE.index(finding), *row[3:14])])
        if finding == REFUSED:
            self._refused.add((path, reason))
        elif finding == DAMAGED:
            self.damaged[path] = reason
        elif finding == OCCUPIED:
            self._occupied.update((path, *parents(path)))
        elif finding == NAMED:
            self._packs.add(path)
        elif finding == MISPLACED or finding not in REPAIRABLE:
            trash, nameless = finding == UNSAFE_TRASH, finding == NAMELESS
            self._unsafe.append(Unsafe(path, reason, trash=trash, nameless=nameless))

    def result(
        self, damaged: list[str], packs: Set[str], moved: Callable[[Iterable[Entry]], set[str]]
    ) -> ComparisonResult:
        """Return the result; it reads the findings for a repair from the file, until it is closed.

        `packs` are those that are leftovers unless an entry names them. `moved` returns which of the paths of lost
        entries the head describes differently by now.
        """
        if any(self._counts[finding] for finding in LOST):
            self._moved = moved(entry for finding, entry in self._rows() if finding in LOST)
        names: dict[str, list[str]] = {MISSING: [], CHANGED: [], UNINDEXED: []}
        totals = Counter[str]()
        for finding, entry in self._rows():
            if finding == UNINDEXED and entry.path in self._occupied:
                totals[REFUSED] += 1
                self._refused.add((entry.path, IN_THE_WAY))
            elif finding in names:
                totals[finding] += 1
                if len(names[finding]) < MOST_NAMED:
                    names[finding].append(entry.path)
        unsafe = [row for row in self._unsafe if row.trash or row.path not in self._moved]
        return ComparisonResult(
            checked=self._counts[CHECKED],
            missing=names[MISSING],
            changed=names[CHANGED],
            unindexed=names[UNINDEXED],
            refused=[Refusal(path, reason) for path, reason in self._refused.rows()],
            unsafe=sorted(unsafe, key=attrgetter("path", "reason")),
            leftovers=self._counts[LEFTOVER] + len(packs - self._packs),
            trash=self._counts[TRASH],
            damaged=damaged,
            totals={
                **{finding: totals[finding] for finding in names},
                REFUSED: totals[REFUSED] + self._counts[REFUSED],
                "unsafe": len(unsafe),
            },
            repairable=lambda: repair_batches(self._repairable()),
            close=self.spool.close,
        )

    def _repairable(self) -> Iterator[tuple[str, Entry]]:
        for finding, entry in self._rows():
            if finding != UNINDEXED or entry.path not in self._occupied:
                yield finding, entry

    def _rows(self) -> Iterator[tuple[str, Entry]]:
        """Yield the findings in the file, without those about rows that have moved."""
        for path, kind, *rest in self.spool:
            finding, entry = REPAIRABLE[kind], Entry(key_text(path), *rest)
            if finding not in LOST or entry.path not in self._moved:
                yield finding, entry


class _FirstRows:
    """Keeps the first `MOST_NAMED` of many rows, in order."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []

    def add(self, row: tuple[str, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) > 2 * MOST_NAMED:
            self._rows = self.rows()

    def rows(self) -> list[tuple[str, ...]]:
        return sorted(self._rows)[:MOST_NAMED]


class _Leaves:
    """The readable leaves of a tree, by the paths that they hold."""

    def __init__(self, tree: Outline) -> None:
        self._leaves = tree.leaves
        # The range of a leaf that is the root itself is unknown: every part reads it.
        children = [ref for ref in tree.leaves if isinstance(ref, Child)]
        self._first, self._last = [ref.first for ref in children], [ref.last for ref in children]

    def of(self, part: StorePart) -> Sequence[Ref]:
        """Return the leaves that may hold a path of a part."""
        if not self._first:
            return self._leaves
        span = _key_range(part)
        start = bisect_left(self._last, span.start)
        end = len(self._first) if span.end is None else bisect_left(self._first, span.end)
        found = range(start, end)
        return [self._leaves[at] for at in found if not _lies_inside(part, self._first[at], self._last[at])]


def _lies_inside(part: StorePart, first: str, last: str) -> bool:
    """Whether a range of paths lies in a directory that was split off from a part."""
    if part.deep or part.holds(first):
        return False
    start = 0 if part.directory is None else len(part.directory) + 1
    child = first[: first.find("/", start) + 1]
    return first.startswith("" if part.directory is None else f"{part.directory}/") and last.startswith(child)


def _key_range(part: StorePart) -> KeyRange:
    return EVERYTHING if part.directory is None else KeyRange.under(f"{part.directory}/")


def _touches(part: StorePart, span: KeyRange) -> bool:
    both = _key_range(part) & span
    return both.end is None or both.start < both.end


def _is_payload(section: Section) -> bool:
    """Whether a section can hold payload or entries; directories of other programs are not listed."""
    root, _, _ = (section.part.directory or "").partition("/")
    return bool(section.part.directory is None or root in paths.PAYLOAD_ROOTS or section.leaves or section.trash)


def _balanced(sections: Sequence[Section], wanted: int, deep: bool) -> list[list[Section]]:
    """Group sections into at most `wanted` parts of about the same cost, the costliest first."""
    load: list[tuple[int, int, list[Section]]] = [(0, number, []) for number in range(min(wanted, len(sections)))]
    for section in sorted(sections, key=lambda section: -_cost(section, deep)):
        cost, number, group = load[0]
        group.append(section)
        heapq.heapreplace(load, (cost + _cost(section, deep), number, group))
    return [group for _, _, group in sorted(load, key=itemgetter(1))]


def _cost(section: Section, deep: bool) -> int:
    leaves = [ref for ref in section.leaves if isinstance(ref, Child)]
    size = sum(ref.bytes for ref in leaves) if deep else 0
    return REQUEST * (1 + sum(ref.entries for ref in leaves)) + size
