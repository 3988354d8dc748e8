"""The rules of `verify`: what an index entry and an object say about each other, and the result of a comparison.

The rules judge one key at a time; nothing here reads an index. A file in a pack is judged by its pack, which the
driver lists once (P8): a pack's name has its size. Where only a request can tell, `Rules` asks for an object or a pack
by name, and `read_back` and `read_members` read the bytes. `verify_job` applies the rules to a whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import activity, paths
from bayou.core.errors import BadAnswer, NotFound, PreconditionFailed
from bayou.core.iterators import batched
from bayou.index.entry import Entry
from bayou.index.key_range import KeyRanges
from bayou.objectstore import keys
from bayou.objectstore.multipart import NullSink
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta
from bayou.packs.read import PackRange, plan_ranges, read_range, threads_for
from bayou.sync.report import Refusal

MISSING, CHANGED, READ, WELL, LEARNED = "missing", "changed", "read", "well", "learned"
MISPLACED = "misplaced"
"""Findings about an entry. `READ`: its object must be read. `LEARNED`: reading it gave a hash that was unknown.
`MISPLACED`: the location that it names is none that a client writes (V25), and the rest of it is sound."""


HIDDEN, TRASH, LEFTOVER, UNINDEXED = "hidden", "trash", "leftover", "unindexed"
"""Findings about an object that no entry names. `HIDDEN`: an unreadable part of the index may name it."""


LOST = (MISSING, CHANGED, MISPLACED)
"""Findings about an entry whose bytes the store does not have, or not there."""


REPAIRABLE = (*LOST, UNINDEXED, LEARNED)
"""Findings that a repair acts on."""


MOST_NAMED = 1000
"""Names in each list of a report; beyond them, the report only has the number."""


WINDOW = 10_000
"""Rows that one commit of a repair contains; the process holds no more of a large repair."""


class PackListing(Struct, frozen=True):
    """The packs that a store lists: those of the size that their names say, and the others."""

    whole: Set[str] = frozenset()
    other: Set[str] = frozenset()

    @classmethod
    def of(cls, store: Store) -> PackListing:
        """List the packs of a store; what else lies beside them is ignored."""
        whole: set[str] = set()
        other: set[str] = set()
        for meta in (meta for page in store.list(keys.PACKS) for meta in page):
            name = keys.parse_pack(meta.key)
            if name is not None:
                (whole if meta.size == keys.pack_bytes(name) else other).add(name)
        return cls(frozenset(whole), frozenset(other))


class Rules(Struct, frozen=True):
    """The rules of one comparison: the paths whose entries cannot be read, and whether to read every object."""

    hidden: KeyRanges
    deep: bool = False
    packs: PackListing = PackListing()

    def entry(self, entry: Entry, at: ObjectMeta | None) -> str:
        """Judge an entry by the object that the listing has at its key, or by its pack."""
        if entry.pack is not None:
            return self._packed(entry.pack)
        if at is None:
            return MISSING
        if at.size != entry.size:
            return CHANGED
        if entry.etag is not None and at.etag != entry.etag:
            # A repeated or late PUT wrote the same bytes to the same key (V11): only the bytes can tell.
            return CHANGED if entry.push is None or entry.sha256 is None else READ
        return READ if self.deep else WELL

    def stray(self, meta: ObjectMeta, *, trashed: bool) -> str:
        """Judge an object that no entry names; `trashed`: the trash names it."""
        path, push = keys.parse_payload(meta.key)
        if self.hidden.holds(path):
            return HIDDEN
        if trashed:
            return TRASH
        return UNINDEXED if push is None else LEFTOVER

    def by_name(self, store: Store, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
        """Request by name what the listing does not have, each object and pack once, and judge the entries (V4)."""
        entries = list(entries)
        wanted = dict.fromkeys(entry.key for entry in entries)
        sizes = dict(zip(wanted, store.map(partial(_size, store), wanted), strict=True))
        for entry in entries:
            size = sizes[entry.key]
            if size is None:
                yield MISSING, entry
            elif size != (entry.size if entry.pack is None else keys.pack_bytes(entry.pack)):
                yield CHANGED, entry
            else:
                yield READ if self.deep else WELL, entry

    def _packed(self, pack: str) -> str:
        if pack in self.packs.whole:
            return READ if self.deep else WELL
        return CHANGED if pack in self.packs.other else MISSING


def read_back(store: Store, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
    """Read objects as they are now, and judge each entry by the bytes: MISSING, CHANGED, LEARNED or WELL."""
    return store.map(partial(_judge, store), entries)


def read_members(store: Store, entries: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    """Read files in packs, neighbours with one request, and judge each by its bytes: MISSING, CHANGED or WELL."""
    ranges = plan_ranges(entries)
    for judged in store.map(partial(_judge_range, store), ranges, threads=threads_for(store, ranges)):
        yield from judged


class RepairBatch(Struct, frozen=True):
    """Findings for one commit of a repair: entries without their bytes, unindexed objects, and learned hashes."""

    lost: Sequence[Entry] = ()
    unindexed: Sequence[str] = ()
    hashed: Mapping[str, Entry] = field(default_factory=dict)


class Unsafe(Struct, frozen=True):
    """A row of the index, or of its `trash`, that clients ignore because it is unsafe (V25), and why.

    `nameless`: its path and push make no valid key, so that it cannot name an object of this store.
    """

    path: str
    reason: str
    trash: bool = False
    nameless: bool = False

    @property
    def refusal(self) -> Refusal:
        """The row for a report: a path that can be printed and typed, and why it is unsafe."""
        where = "in the trash: " if self.trash else ""
        return Refusal(paths.escape(self.path), f"{where}{self.reason}")


def is_nameless(entry: Entry) -> bool:
    """Whether an entry cannot name an object of this store."""
    return paths.refusal(entry.path) is not None or not (entry.push is None or keys.is_push_id(entry.push))


class ComparisonResult(Struct):
    """The result of a comparison. Lists are sorted and hold the first names; `totals` has the full numbers."""

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
    repairable: Callable[[], Iterator[RepairBatch]] = lambda: iter(())
    """Yields the findings for a repair, in the order of paths, until `close` is called."""
    close: Callable[[], None] = lambda: None
    """Drops the file that `repairable` reads."""

    @property
    def cut(self) -> dict[str, int]:
        """The full numbers of the lists that are cut."""
        return {name: total for name, total in self.totals.items() if total > MOST_NAMED}


def repair_batches(rows: Iterable[tuple[str, Entry]]) -> Iterator[RepairBatch]:
    """Group findings for the commits of a repair.

    A discovered object that another program has replaced is that program's: only what Bayou wrote is replaced (P8).
    """
    for batch in batched(rows, WINDOW):
        yield RepairBatch(
            [entry for finding, entry in batch if finding == MISSING or (finding in LOST and entry.push is not None)],
            [entry.path for finding, entry in batch if finding == UNINDEXED],
            {entry.path: entry for finding, entry in batch if finding == LEARNED},
        )


def _size(store: Store, key: keys.Key) -> int | None:
    try:
        return store.head(key).size
    except NotFound:
        return None


def _judge(store: Store, entry: Entry) -> tuple[str, Entry]:
    """Judge an entry by the bytes of its object: MISSING, CHANGED (of another size, too), LEARNED or WELL."""
    try:
        digest = store.download(entry.key, NullSink(), entry.size, moved=activity.moved).sha256
    except NotFound:
        return MISSING, entry
    except (BadAnswer, PreconditionFailed):
        return CHANGED, entry
    if entry.sha256 is None:
        return LEARNED, replace(entry, sha256=digest)
    return CHANGED if digest != entry.sha256 else WELL, entry


def _judge_range(store: Store, part: PackRange) -> list[tuple[str, Entry]]:
    try:
        read = [(CHANGED if data is None else WELL, entry) for entry, data in read_range(store, part)]
        activity.moved(sum(entry.size for entry in part.entries))
        return read
    except NotFound:
        return [(MISSING, entry) for entry in part.entries]
