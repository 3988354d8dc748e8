"""A sorted collection of any number of rows: a few in memory, more in a temporary file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from bayou.core.errors import StateError

IN_MEMORY = 20_000
"""Rows that stay in memory; more go to the file."""

_BATCH = 1000


class SortedSpool:
    """Takes rows in any order and yields them in the order of their first `keys` columns. Use it in one thread.

    Columns hold text, bytes, numbers and None; those that rows are ordered by hold one kind each, and never None. Text
    must be UTF-8: give keys of a store as bytes. The file is SQLite's own temporary database, which has no name and is
    gone when this is closed or the process ends (V14).
    """

    def __init__(self, keys: int, in_memory: int = IN_MEMORY) -> None:
        self._keys = keys
        self._in_memory = in_memory
        self._rows: list[tuple[Any, ...]] = []
        self._file: sqlite3.Connection | None = None

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows, all of the same number of columns."""
        source = iter(rows)
        while batch := list(islice(source, _BATCH)):
            self._rows += batch
            if len(self._rows) > self._in_memory:
                self._write()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield all rows, in order; may be called again. Add no rows meanwhile."""
        if self._file is None:
            self._rows.sort(key=lambda row: row[: self._keys])
            yield from self._rows
            return
        self._write()
        order = ", ".join(f"c{number}" for number in range(self._keys))
        with _explained():
            yield from self._file.execute(f"SELECT * FROM spool ORDER BY {order}")

    def close(self) -> None:
        self._rows = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        """Move the rows in memory to the file."""
        if not self._rows:
            return
        width = len(self._rows[0])
        with _explained():
            if self._file is None:
                self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
                self._file.execute("PRAGMA journal_mode = OFF")
                self._file.execute(f"CREATE TABLE spool ({', '.join(f'c{number}' for number in range(width))})")
            self._file.execute("BEGIN")
            self._file.executemany(f"INSERT INTO spool VALUES ({', '.join('?' * width)})", self._rows)
            self._file.execute("COMMIT")
        self._rows = []


@contextmanager
def _explained() -> Iterator[None]:
    """Turn an error of SQLite into one that says what to do: the disk for temporary files may be full."""
    try:
        yield
    except sqlite3.Error as error:
        raise StateError(
            f"cannot keep rows in a temporary file: {error}",
            hint="free some space there, or name another directory for temporary files with TMPDIR",
        ) from error


def key_bytes(key: str) -> bytes:
    """Return a key as a spool column: a key of a store may have bytes that are no UTF-8, as surrogates."""
    return key.encode(errors="surrogateescape")


def key_text(data: bytes) -> str:
    """Return the key of a spool column."""
    return data.decode(errors="surrogateescape")
