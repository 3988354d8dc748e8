"""A copy of `sync.db` for the workers of a job: what this machine knew of each path, as of one moment.

Workers never open `sync.db` itself: they may run on another machine, where SQLite's locks do not hold. The copy is a
file that does not change, so it is read without locks.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from bayou.core.errors import StateError
from bayou.index.key_range import KeyRange
from bayou.state.database import Database
from bayou.state.journal import JournalRow

CACHED, UNTRACKED, ABSENT, HASHED, JOURNALED = range(5)
"""The tables that a row of `PathRow` can be of: the stat cache, known untracked files, files that are absent on
purpose, hashes of discovered objects, and the journal."""

_TABLES = (
    "size, mtime, ctime, inode, sha256, settled, matches FROM file WHERE :remote IS NOT NULL",
    "size, mtime, NULL, NULL, NULL, NULL, NULL FROM untracked WHERE place = :remote",
    "why, NULL, NULL, NULL, NULL, NULL, NULL FROM absent WHERE place = :remote",
    "size, etag, version, sha256, NULL, NULL, NULL FROM known WHERE place = :remote",
    "id, kind, state, owner, closed, NULL, NULL FROM journal WHERE place = :remote AND kind != 'tree'",
)
_BETWEEN = "path >= :start AND path < :end"
# Every table has an index by path, so SQLite merges the tables and sorts nothing.
_ROWS = (
    " UNION ALL ".join(f"SELECT path, {number}, {table} AND {_BETWEEN}" for number, table in enumerate(_TABLES))
    + " ORDER BY path"
)
_MARKS = "SELECT id, kind, path, state, owner, closed FROM journal WHERE place = ? AND kind = 'tree' ORDER BY id"

PathRow = tuple[Any, ...]
"""A path, the table that the row is of, and that table's columns, filled up with None."""


class StateCopy(Struct, frozen=True):
    """The copy, for one remote. `marks` are the journal's rows that name directories, `through` is its newest row."""

    file: Path
    remote_id: int
    marks: tuple[JournalRow, ...] = ()
    through: int = 0

    @classmethod
    def make(cls, database: Database, remote_id: int, file: Path) -> StateCopy:
        """Copy the database as it is now."""
        database.copy_to(file)
        with closing(_connect(file)) as db:
            (through,) = db.execute("SELECT coalesce(max(id), 0) FROM journal WHERE place = ?", (remote_id,)).fetchone()
            marks = db.execute(_MARKS, (remote_id,))
            return cls(file, remote_id, tuple(JournalRow(*row) for row in marks), through)

    def is_empty(self) -> bool:
        """Return whether the machine knows nothing of any path."""
        return next(self.rows(KeyRange()), None) is None

    def rows(self, within: KeyRange) -> Iterator[PathRow]:
        """Yield the rows of a range in the order of their paths, with a few of them in memory."""
        start, end = within.bounds
        with closing(_connect(self.file)) as db:
            try:
                yield from db.execute(_ROWS, {"remote": self.remote_id, "start": start, "end": end})
            except sqlite3.Error as error:
                raise StateError(f"cannot read the copy of this machine's state: {error}") from error


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fsencode(file))}?mode=ro&immutable=1", uri=True)
