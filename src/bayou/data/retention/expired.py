"""A set of expired versions that may be larger than memory.

`gc` shows the user what it would delete and then deletes exactly that (F120), so the set is kept between the two steps.
It lies in an anonymous SQLite database, which SQLite moves to a temporary file once it grows.
"""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from bayou.data.catalog.schema import values, version_of
from bayou.data.retention.rules import ExpiredRow, ExpiredVersion, order

_PAGE = 1000
"""Rows that an iteration reads at once."""


class ExpiredSet(Sequence[ExpiredRow]):
    """Versions that may be deleted, in order of item and number.

    `bytes` is what deleting all of them frees, `expired` the number of those whose lifetime is over.
    """

    def __init__(self, found: Iterable[ExpiredVersion] = ()) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE expired (at INTEGER PRIMARY KEY, why TEXT NOT NULL, row TEXT NOT NULL)")
        self._count = self.bytes = self.expired = 0
        self._db.executemany("INSERT INTO expired VALUES (?, ?, ?)", map(self._counted, found))

    def within(self, shown: ExpiredSet) -> ExpiredSet:
        """Return the versions of this set that are also in `shown`; their `bytes` are 0 until they are deleted."""
        return ExpiredSet(ExpiredVersion(expired, 0) for expired in _intersection(self, shown))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> ExpiredRow: ...

    @overload
    def __getitem__(self, at: slice) -> list[ExpiredRow]: ...

    def __getitem__(self, at: int | slice) -> ExpiredRow | list[ExpiredRow]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._count)
            return self._page(start, stop)[::step] if step > 0 else [self[index] for index in range(start, stop, step)]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return self._page(at % self._count, at % self._count + 1)[0]

    def __iter__(self) -> Iterator[ExpiredRow]:
        for start in range(0, self._count, _PAGE):
            yield from self._page(start, start + _PAGE)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExpiredSet | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _counted(self, version: ExpiredVersion) -> tuple[int, str, str]:
        """Add a version to the totals, and return its row of the table."""
        row, why = version.expired.row, version.expired.why
        at = self._count
        self._count += 1
        self.bytes += version.bytes
        self.expired += why == "expired"
        return at, why, json.dumps((*values(row)[1], row.latest))

    def _page(self, start: int, stop: int) -> list[ExpiredRow]:
        found = self._db.execute("SELECT row, why FROM expired WHERE at >= ? AND at < ? ORDER BY at", (start, stop))
        return [ExpiredRow(version_of(json.loads(row)), why) for row, why in found]


def _intersection(mine: Iterable[ExpiredRow], shown: Iterable[ExpiredRow]) -> Iterator[ExpiredRow]:
    """Yield the versions of `mine` that `shown` has too; both are sorted by `order`."""
    others = iter(shown)
    other = next(others, None)
    for expired in mine:
        while other is not None and order(other.row) < order(expired.row):
            other = next(others, None)
        if other is not None and order(other.row) == order(expired.row):
            yield expired
