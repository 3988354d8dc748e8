"""The rules of `verify`: what an index entry and an object say about each other, and the result of a comparison.

The rules judge one key at a time; nothing here reads an index or lists a store. Where only a request can tell, `Rules`
asks for an object by name, and `read_back` reads its bytes. `verify_job` applies the rules to a whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import paths
from bayou.core.errors import BadAnswer, NotFound, PreconditionFailed
from bayou.core.iterators import batched
from bayou.index.entry import Entry
from bayou.index.key_range import KeyRanges
from bayou.objectstore import keys
from bayou.objectstore.multipart import NullSink
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta
from bayou.sync.report import Refusal

MISSING, CHANGED, READ, WELL, LEARNED = "missing", "changed", "read", "well", "learned"
"""Findings about an entry. `READ`: its object must be read. `LEARNED`: reading it gave a hash that was unknown."""


HIDDEN, TRASH, LEFTOVER, UNINDEXED = "hidden", "trash", "leftover", "unindexed"
"""Findings about an object that no entry names. `HIDDEN`: an unreadable part of the index may name it."""


REPAIRABLE = (MISSING, UNINDEXED, LEARNED)
"""Findings that a repair acts on."""


MOST_NAMED = 1000
"""Names in each list of a report; beyond them, the report only has the number."""


WINDOW = 10_000
"""Rows that one commit of a repair contains; the process holds no more of a large repair."""


class Rules(Struct, frozen=True):
    """The rules of one comparison: the paths whose entries cannot be read, and whether to read every object."""

    hidden: KeyRanges
    deep: bool = False

    def entry(self, entry: Entry, at: ObjectMeta | None) -> str:
        """Judge an entry by the object that the listing has at its key."""
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
        """Request by name the objects that the listing does not have, and judge each entry by the response (V4)."""
        for entry, gone in store.map(lambda entry: (entry, _gone(store, entry)), entries):
            yield MISSING if gone else READ if self.deep else WELL, entry


def read_back(store: Store, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
    """Read objects as they are now, and judge each entry by the bytes: CHANGED, LEARNED (with its hash) or WELL."""
    for entry, digest in store.map(lambda entry: (entry, _digest(store, entry)), entries):
        if entry.sha256 is None and digest is not None:
            yield LEARNED, replace(entry, sha256=digest)
        else:
            yield CHANGED if digest != entry.sha256 else WELL, entry


class RepairBatch(Struct, frozen=True):
    """Findings for one commit of a repair: entries without object, unindexed objects, and learned hashes."""

    missing: Sequence[Entry] = ()
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


class Compared(Struct):
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
    """Group findings for the commits of a repair."""
    for batch in batched(rows, WINDOW):
        yield RepairBatch(
            [entry for finding, entry in batch if finding == MISSING],
            [entry.path for finding, entry in batch if finding == UNINDEXED],
            {entry.path: entry for finding, entry in batch if finding == LEARNED},
        )


def _gone(store: Store, entry: Entry) -> bool:
    try:
        store.head(entry.key)
    except NotFound:
        return True
    return False


def _digest(store: Store, entry: Entry) -> bytes | None:
    """Return the hash of an object's current bytes; None if it is missing, or of another size."""
    try:
        return store.download(entry.key, NullSink(), entry.size).sha256
    except (NotFound, BadAnswer, PreconditionFailed):
        return None
