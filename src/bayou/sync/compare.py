"""Compare an index with its store: what `verify` is told, and how this process alone finds it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from operator import attrgetter

from bayou import paths
from bayou.core.batched import batched
from bayou.index.check import survey
from bayou.index.discovery import IN_THE_WAY, directories, entry_of, list_payload
from bayou.index.entry import Entry
from bayou.index.head import Head
from bayou.index.nodes import StoreNodes
from bayou.index.span import Spans
from bayou.index.trash import trash_refusal
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.store import Store
from bayou.sync.judge import CHANGED, LEARNED, LEFTOVER, MISSING, READ, TRASH, UNINDEXED, WELL, Rules, read_back
from bayou.sync.progress import Progress
from bayou.sync.remains import chain
from bayou.sync.report import Refusal

MOST_NAMED = 1000
"""Names in each list of a report; of more, only the number is told."""

WINDOW = 10_000
"""Rows that are mended together: one commit, and what this process holds of a large repair."""

MENDABLE = (MISSING, UNINDEXED, LEARNED)
"""Findings that a repair works on."""


@dataclass(frozen=True, slots=True)
class Mendable:
    """Some of what a repair works on: entries whose object is gone, objects that nobody indexed, hashes learned."""

    missing: Sequence[Entry] = ()
    unindexed: Sequence[str] = ()
    hashed: Mapping[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unsafe:
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


@dataclass(slots=True)
class Compared:
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
    """Yields what a repair works on, in the order of paths. Only as long as whoever compared is open."""

    @property
    def cut(self) -> dict[str, int]:
        """The numbers of those lists that do not name all."""
        return {name: total for name, total in self.totals.items() if total > MOST_NAMED}


def compare(store: Store, head: Head, progress: Progress, *, deep: bool, limit: int | None = None) -> Compared:
    """Compare in this process. `TooMany`, as soon as it is known, if the store has more than `limit` objects."""
    # The index first: what is committed while we list has its object before its entry (V11).
    index, trash = (survey(StoreNodes(store), root) for root in (head.root, head.trash))
    rules = Rules(Spans(damage.span for damage in index.damage), deep)
    refused: list[Refusal] = []
    entries: dict[str, Entry] = {}
    unsafe: list[Unsafe] = []
    for entry in index.rows:
        why = entry.refusal()
        if why is None:
            entries[entry.key] = entry
        else:
            unsafe.append(Unsafe(entry.path, why, nameless=is_nameless(entry)))
    unsafe += [Unsafe(row.path, why, trash=True) for row in trash.rows if (why := trash_refusal(row)) is not None]
    listing = list_payload(store, limit=limit)
    refused += [Refusal(one.key, one.reason) for one in listing.refused]
    listed = {meta.key: meta for meta in listing.objects}
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for key, entry in entries.items():
        found[rules.entry(entry, listed.get(key))].append(entry)
    for finding, entry in rules.by_name(store, found.pop(MISSING, ())):
        found[finding].append(entry)
    for finding, entry in _reading(store, found.pop(READ, []), progress):
        found[finding].append(entry)
    wasted: set[str] = {entry.key for entry in trash.rows if trash_refusal(entry) is None}
    strays = Counter[str]()
    plain = (key for key in listed if keys.parse_payload(key).push is None)
    crowded = directories([*(entry.path for entry in entries.values()), *plain])
    for key, meta in listed.items():
        finding = rules.stray(meta, wasted=key in wasted) if key not in entries else WELL
        strays[finding] += 1
        if finding == UNINDEXED and key in crowded:
            refused.append(Refusal(key, IN_THE_WAY))
        elif finding == UNINDEXED:
            found[UNINDEXED].append(entry_of(meta))
    names = {finding: sorted(entry.path for entry in found[finding]) for finding in (MISSING, CHANGED, UNINDEXED)}
    return Compared(
        checked=len(entries),
        missing=names[MISSING][:MOST_NAMED],
        changed=names[CHANGED][:MOST_NAMED],
        unindexed=names[UNINDEXED][:MOST_NAMED],
        refused=sorted(refused, key=attrgetter("path", "reason"))[:MOST_NAMED],
        unsafe=sorted(unsafe, key=attrgetter("path", "reason")),
        leftovers=strays[LEFTOVER],
        trash=strays[TRASH],
        damaged=[damage.error.message for damage in (*index.damage, *trash.damage)]
        + chain(store, head.older, head.log[0].seq)[1],
        totals={
            "refused": len(refused),
            "unsafe": len(unsafe),
            **{finding: len(paths) for finding, paths in names.items()},
        },
        mendable=lambda: windows(_in_order(found)),
    )


def windows(rows: Iterable[tuple[str, Entry]]) -> Iterator[Mendable]:
    """Put findings together to be mended, so many at a time."""
    for some in batched(rows, WINDOW):
        yield Mendable(
            [entry for finding, entry in some if finding == MISSING],
            [entry.path for finding, entry in some if finding == UNINDEXED],
            {entry.path: entry for finding, entry in some if finding == LEARNED},
        )


def _in_order(found: Mapping[str, Sequence[Entry]]) -> list[tuple[str, Entry]]:
    rows = [(finding, entry) for finding in MENDABLE for entry in found.get(finding, ())]
    return sorted(rows, key=lambda row: row[1].path)


def _reading(store: Store, entries: Sequence[Entry], progress: Progress) -> Iterator[tuple[str, Entry]]:
    """Read objects back, and tell how far that is."""
    if not entries:
        return
    progress.begin("reading", len(entries), sum(entry.size for entry in entries))
    for finding, entry in read_back(store, entries):
        yield finding, entry
        progress.advance(files=1, bytes=entry.size)
    progress.end()
