"""Make the rows of some files say what the files say."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable

from bayou.records.catalog.files import Absent, Read
from bayou.records.catalog.schema import KEYS, TABLES, Values, drop, key_of, put, quoted

_BATCH = 1000

Gone = Callable[[Collection[str]], Collection[str]]
"""Says which of some paths whose files are not here are gone for good; the rows of the others stay (V20)."""


def apply(db: sqlite3.Connection, found: Iterable[Read | Absent], gone: Gone) -> int:
    """Change the rows of records that were read; return how many rows are not what they were.

    What cannot be parsed has no row, and is named as bad; what cannot be read keeps the row that it has.
    """
    change = _Change(db)
    absent: list[str] = []
    for one in found:
        if isinstance(one, Absent):
            absent.append(one.path)
        else:
            change.take(one)
    change.write()
    lost = gone(absent) if absent else ()
    db.executemany("DELETE FROM bad WHERE path = ?", [(path,) for path in absent])
    return change.count + drop(db, lost)


class _Change:
    """Rows on their way into the catalog."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: dict[str, list[Values]] = {table: [] for table in TABLES}
        self._bad = {path for (path,) in db.execute("SELECT path FROM bad")}
        # Hot: the first build of a large catalog has nothing to compare with.
        self._new = {table: db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None for table in TABLES}
        self.count = 0

    def take(self, one: Read) -> None:
        if one.row is None:
            self._db.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, ?)", (one.path, one.why, one.stamp))
            self._bad.add(one.path)
            if not one.hidden:
                self.count += drop(self._db, [one.path])
            return
        if one.path in self._bad:
            self._db.execute("DELETE FROM bad WHERE path = ?", (one.path,))
        table, key = key_of(one.path)
        had = None if self._new[table] else self._had(table, key)
        if had is None or had[:-1] != one.row:
            self.count += 1
        if had is None or had != (*one.row, one.stamp):
            self._rows[table].append((*one.row, one.stamp))
            if len(self._rows[table]) >= _BATCH:
                self.write()

    def write(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                put(self._db, table, rows)
                rows.clear()

    def _had(self, table: str, key: Values) -> Values | None:
        where = " AND ".join(f'"{name}" = ?' for name in KEYS[table])
        found: Values | None = self._db.execute(
            f"SELECT {quoted((*TABLES[table], 'stamp'))} FROM {table} WHERE {where}", key
        ).fetchone()
        return found
