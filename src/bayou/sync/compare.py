"""What comparing an index with its store brings: the lists of a report, and what a repair works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from bayou.core import paths
from bayou.core.batched import batched
from bayou.index.entry import Entry
from bayou.objectstore import keys
from bayou.sync.judge import LEARNED, MISSING, UNINDEXED
from bayou.sync.report import Refusal

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
