"""The versions that may go, however many: what is told first is kept, so that exactly that can go (F120)."""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from bayou.data.catalog.schema import values, version_of
from bayou.data.retention.rules import Doomed, ExpiredVersion, order

_AT_ONCE = 1000


class ExpiredSet(Sequence[Doomed]):
    """Versions that may go, in order of item and number. In a temporary file, which SQLite begins once they are many.

    `bytes` is what they free together, `expired` how many of them go because their lifetime is over.
    """

    def __init__(self, found: Iterable[ExpiredVersion] = ()) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE doomed (at INTEGER PRIMARY KEY, why TEXT NOT NULL, row TEXT NOT NULL)")
        self._count = self.bytes = self.expired = 0
        self._db.executemany("INSERT INTO doomed VALUES (?, ?, ?)", map(self._counted, found))

    def within(self, shown: ExpiredSet) -> ExpiredSet:
        """Return those of these that somebody was shown before; what they free is told once they are gone."""
        return ExpiredSet(ExpiredVersion(one, 0) for one in _shared(self, shown))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Doomed: ...

    @overload
    def __getitem__(self, at: slice) -> list[Doomed]: ...

    def __getitem__(self, at: int | slice) -> Doomed | list[Doomed]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._count)
            return self._page(start, stop)[::step] if step > 0 else [self[one] for one in range(start, stop, step)]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return self._page(at % self._count, at % self._count + 1)[0]

    def __iter__(self) -> Iterator[Doomed]:
        for start in range(0, self._count, _AT_ONCE):
            yield from self._page(start, start + _AT_ONCE)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExpiredSet | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _counted(self, one: ExpiredVersion) -> tuple[int, str, str]:
        row, why = one.doomed.row, one.doomed.why
        at = self._count
        self._count += 1
        self.bytes += one.bytes
        self.expired += why == "expired"
        return at, why, json.dumps((*values(row)[1], row.latest))

    def _page(self, start: int, stop: int) -> list[Doomed]:
        found = self._db.execute("SELECT row, why FROM doomed WHERE at >= ? AND at < ? ORDER BY at", (start, stop))
        return [Doomed(version_of(json.loads(row)), why) for row, why in found]


def _shared(mine: Iterable[Doomed], shown: Iterable[Doomed]) -> Iterator[Doomed]:
    """Yield what is in both; both are in order."""
    others = iter(shown)
    other = next(others, None)
    for one in mine:
        while other is not None and order(other.row) < order(one.row):
            other = next(others, None)
        if other is not None and order(other.row) == order(one.row):
            yield one
