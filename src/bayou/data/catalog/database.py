"""`catalog.db`: a SQLite file that may vanish, be damaged or come from another Bayou, and is then created again.

A process that has the file open holds a shared lock; a process that creates a new file holds the lock exclusively. So
no process ever has an old file open beside a new one, where SQLite would remove the new file's log together with the
old one's. The new file keeps the rows that can be read from the old one: no other place has the rows of data that is
not on this machine (V20).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from bayou.config.ownership import OWNER, create_private, owner_ids
from bayou.core import paths
from bayou.core.errors import StateError
from bayou.core.file_lock import FileLock
from bayou.data.catalog.schema import SCHEMA, TABLES, UNSEEN, VERSION, Values, get_meta, path_of, put, set_meta
from bayou.state.database import database_error, is_damage

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_TIMEOUT_S = 300.0
"""Longer than any rebuild of a catalog takes."""

EXCLUSIVE_TIMEOUT_S = 5.0
"""Longer than a command has the file open; a program may have it open for hours."""

_CACHE_KIB = 64 << 10
"""The most. A rebuild fills several indexes at once, and reads the disk for each row if they do not fit."""

_open_files: weakref.WeakSet[CatalogFile] = weakref.WeakSet()
_parents_connections: list[sqlite3.Connection] = []

_COLUMN_TYPES = {"version": int, "size": int, "streaming": int, "deleted": int, "duration_s": float}
_ADDED_COLUMNS: Mapping[str, object] = {"tags": "{}", "streaming": 0, "deleted": 0, "data": "[]", "words": ""}
"""Values of columns that must not be null and that a file of an older Bayou may lack."""

_NEVER_NULL = ("id", "model", "size", "content_type", "created_at", "method", "status", "started_at", "workflow")
_MAYBE_NULL = {("version", "workflow"), ("output", "workflow")}


class CatalogFile:
    """The catalog file of one repo, opened when it is first needed. In a new file, `meta` says why it is new.

    Callers pass their work as a function, so that it can be repeated on a new file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = threading.RLock()
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        _open_files.add(self)

    def __del__(self) -> None:
        self.close()

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connection alone, and open another when needed."""
        self._thread = threading.RLock()
        if self._connection is not None:
            _parents_connections.append(self._connection)
            self._connection = None
        self.close()

    def read(self, work: Work[T]) -> T:
        """Run work that only reads, on a snapshot; writers are not blocked."""
        return self._run("BEGIN", work)

    def write(self, work: Work[T]) -> T:
        """Run work in one write transaction: no other process writes between its reads and its writes."""
        return self._run("BEGIN IMMEDIATE", work)

    def mark(self, db: sqlite3.Connection) -> tuple[int, int] | None:
        """Return the file's inode, and a number that changes when another connection writes; None if in memory."""
        if not self._inode or not db.execute("PRAGMA database_list").fetchone()[2]:
            return None
        return self._inode, int(db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        with self._thread:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._lock.release()

    def _run(self, begin: str, work: Work[T]) -> T:
        with self._thread:
            try:
                try:
                    return _transaction(self._open(), begin, work)
                except sqlite3.DatabaseError as error:
                    if not is_damage(error):
                        raise
                self._replace("was damaged")
                return _transaction(self._open(), begin, work)
            except (sqlite3.Error, OSError) as error:
                raise database_error(self.path, error) from error

    def _open(self) -> sqlite3.Connection:
        """Return a connection to the file that has the name now; create it if there is none."""
        inode = _inode(self.path)
        if self._connection is None or inode != self._inode:
            if inode:
                self._connect()
            else:
                self._replace("was missing")
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        """Open the existing file; a file of another Bayou gets new tables with the rows that can be read (V20)."""
        self.close()
        if not self._acquire(_TIMEOUT_S, shared=True):
            raise StateError(
                f"{self.path.name} is being made anew by another process, and takes too long",
                hint="wait for that process, or end it",
            )
        if (why := self._why_foreign()) is not None:
            self._replace(why)
            return
        self._connection = _connection(self.path)
        self._inode = _inode(self.path)
        if _format(self._connection) != VERSION:
            _transaction(self._connection, "BEGIN IMMEDIATE", lambda db: _recreate_tables(db, self._owner()))

    def _replace(self, why: str) -> None:
        """Create a new file, under the exclusive lock, with the rows that can be read from the old one (V20).

        If another process keeps the old file open, use a catalog in memory: its answers are right, and a later process
        creates the file.
        """
        self.close()
        if not self._acquire(EXCLUSIVE_TIMEOUT_S, shared=False):
            self._inode = _inode(self.path)
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            salvaged = _salvage(self.path) if self._why_foreign() is None else SalvagedRows()
            _transaction(self._connection, "BEGIN", lambda db: _create_tables(db, why, salvaged, self._owner()))
            return
        try:
            ours = self._why_foreign() is None
            if not (ours and _is_intact(self.path)):  # else another process was faster
                salvaged = _salvage(self.path) if ours else SalvagedRows()
                for end in ("", "-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{self.path}{end}")
                with contextlib.closing(_connection(self.path)) as db:
                    _transaction(db, "BEGIN IMMEDIATE", lambda db: _create_tables(db, why, salvaged, self._owner()))
        finally:
            self.close()
        self._connect()

    def _owner(self) -> list[str]:
        return owner_ids(self.path.with_name(f"{self.path.name}.{OWNER}"))

    def _why_foreign(self) -> str | None:
        """Return why the file may not be one that this user made here; None if it is, or if there is no file.

        Git may have put it there, and its rows decide what retention deletes (V24).
        """
        ids = self._owner()
        if not ids or not _inode(self.path):
            return None
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=_TIMEOUT_S, isolation_level=None)) as db:
                tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                if not tables:
                    return "was empty"
                # Only if `meta` is a table: a query of a view could run for ever.
                return None if "meta" in tables and get_meta(db, "owner") in ids else "was not made here"
        except sqlite3.DatabaseError:
            return "was damaged"

    def _acquire(self, timeout: float, *, shared: bool) -> bool:
        """Take the file's lock, shared or exclusive, within a time (V12); return whether that succeeded."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._lock.acquire(timeout, shared=shared):
            return True
        self.close()
        return False


def _after_fork() -> None:
    for file in list(_open_files):
        file.after_fork()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a catalog to read it, as a worker does, which has nothing but the file; it may be gone or damaged."""
    try:
        address = f"{path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_TIMEOUT_S, isolation_level=None)) as db:
            yield db
    except sqlite3.Error as error:
        raise StateError(
            f"the catalog cannot be read: {path}: {error}",
            hint="workers read it as a file: it must be on a file system that they share with this machine",
        ) from error


def _transaction(db: sqlite3.Connection, begin: str, work: Work[T]) -> T:
    db.execute(begin)
    try:
        answer = work(db)
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            if db.in_transaction:  # on a full disk SQLite has rolled back by itself
                db.execute("ROLLBACK")
        raise
    return answer


def _connection(path: Path) -> sqlite3.Connection:
    create_private(path)
    db = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # derived: a refresh repairs what a power cut loses
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: sqlite3.Connection, why: str, salvaged: SalvagedRows, owner: list[str]) -> None:
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    set_meta(db, "why", why)
    set_meta(db, "owner", owner[0] if owner else None)
    _import_rows(db, salvaged)


def _recreate_tables(db: sqlite3.Connection, owner: list[str]) -> None:
    """Drop the tables of another Bayou, and create ours with the rows that can be read."""
    found = _format(db)
    if found == VERSION:
        return  # another process was faster
    salvaged = _salvage_rows(db)
    objects = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    for kind, name in objects:
        if not name.startswith("sqlite_"):
            db.execute(f'DROP {kind} "{name}"')
    whose = "an older" if found < VERSION else "a newer"
    _create_tables(db, f"was of {whose} Bayou" if objects else "was empty", salvaged, owner)


def _format(db: sqlite3.Connection) -> int:
    found = db.execute("PRAGMA user_version").fetchone()[0]
    return int(found)


def _is_intact(path: Path) -> bool:
    """Return whether the file exists, is ours and is not damaged. Call it under the exclusive lock."""
    if not _inode(path):
        return False
    try:
        with contextlib.closing(_connection(path)) as db:
            return _format(db) == VERSION and db.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


class SalvagedRows(Struct, frozen=True):
    """Rows of an old catalog by table, with a value for each of today's columns, and the position they reflect."""

    rows: Mapping[str, list[Values]] = field(default_factory=dict)
    position: str | None = None


def _salvage(path: Path) -> SalvagedRows:
    """Read the rows that can be read from a file that may be damaged or missing."""
    if not path.exists():
        return SalvagedRows()
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            return _salvage_rows(db)
    except sqlite3.Error:
        return SalvagedRows()


def _salvage_rows(db: sqlite3.Connection) -> SalvagedRows:
    """Read the rows that can be read from a catalog that is damaged or of another Bayou."""
    rows: dict[str, list[Values]] = {table: [] for table in TABLES}
    for table, found in rows.items():
        with contextlib.suppress(sqlite3.Error):  # rows from before the damage are good
            for row in _rows(db, table):
                found.append(row)
    position = None
    with contextlib.suppress(sqlite3.Error):
        position = get_meta(db, "position")
    return SalvagedRows(rows, position)


def _import_rows(db: sqlite3.Connection, salvaged: SalvagedRows) -> None:
    """Put the rows of an old catalog into a new one, as rows whose files were not seen yet."""
    for table, rows in salvaged.rows.items():
        put(db, table, ((*row, UNSEEN) for row in rows))
    if salvaged.position is not None:
        set_meta(db, "former", salvaged.position)


def _rows(db: sqlite3.Connection, table: str) -> Iterator[Values]:
    have = {str(name) for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
    columns = [f'"{name}"' if name in have else "?" for name in TABLES[table]]
    defaults = [_ADDED_COLUMNS.get(name) for name in TABLES[table] if name not in have]
    for row in db.execute(f"SELECT {', '.join(columns)} FROM {table}", defaults):
        if _is_row(table, row):
            yield row


def _is_row(table: str, row: Values) -> bool:
    """Return whether every column has a value that a row may have there: a damaged page can have any."""
    named = dict(zip(TABLES[table], row, strict=True))
    for name, value in named.items():
        needed = name in _ADDED_COLUMNS or (name in _NEVER_NULL and (table, name) not in _MAYBE_NULL)
        if not isinstance(value, _COLUMN_TYPES.get(name, str)) and (needed or value is not None):
            return False
    if not _is_json(named["tags"], dict) or not _is_json(named.get("data", "[]"), list):
        return False
    path = path_of(table, named)
    return path is not None and paths.refusal(path) is None


def _is_json(text: str, kind: type) -> bool:
    try:
        return isinstance(json.loads(text), kind)
    except (ValueError, RecursionError):
        return False
