"""The rules of `verify`: what an index entry and an object say about each other, and the result of a comparison.

The rules judge one key at a time; nothing here reads an index or lists a store. Where only a request can tell, `Rules`
asks for an object by name, and `read_back` reads its bytes. `verify_job` applies the rules to a whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import paths
from bayou.core.batched import batched
from bayou.core.errors import BadAnswer, NotFound, PreconditionFailed
from bayou.index.entry import Entry
from bayou.index.key_range import KeyRanges
from bayou.objectstore import keys
from bayou.objectstore.multipart import NullSink
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta
from bayou.sync.report import Refusal

MISSING, CHANGED, READ, WELL, LEARNED = "missing", "changed", "read", "well", "learned"
"""Of an entry. `READ`: only the bytes of its object can tell. `LEARNED`: they told a hash that nobody knew."""


HIDDEN, TRASH, LEFTOVER, UNINDEXED = "hidden", "trash", "leftover", "unindexed"
"""Of an object that no entry names. `HIDDEN`: one may, in a part of the index that cannot be read."""


REPAIRABLE = (MISSING, UNINDEXED, LEARNED)
"""Findings that a repair works on."""


MOST_NAMED = 1000
"""Names in each list of a report; of more, only the number is told."""


WINDOW = 10_000
"""Rows that are mended together: one commit, and what this process holds of a large repair."""


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


class RepairBatch(Struct, frozen=True):
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
    def refusal(self) -> Refusal:
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
    repairable: Callable[[], Iterator[RepairBatch]] = lambda: iter(())
    """Yields what a repair works on, in the order of paths, until `close` is called."""
    close: Callable[[], None] = lambda: None
    """Drops what `mendable` reads."""

    @property
    def cut(self) -> dict[str, int]:
        """The numbers of those lists that do not name all."""
        return {name: total for name, total in self.totals.items() if total > MOST_NAMED}


def repair_batches(rows: Iterable[tuple[str, Entry]]) -> Iterator[RepairBatch]:
    """Put findings together to be mended, so many at a time."""
    for some in batched(rows, WINDOW):
        yield RepairBatch(
            [entry for finding, entry in some if finding == MISSING],
            [entry.path for finding, entry in some if finding == UNINDEXED],
            {entry.path: entry for finding, entry in some if finding == LEARNED},
        )


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
