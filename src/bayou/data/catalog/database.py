"""`catalog.db`: one SQLite file that may vanish, be damaged or come from another Bayou, and is made anew then.

Whoever has it open holds a shared lock; only who holds the lock alone makes a new file. So no process ever has an old
file open beside a new one, where SQLite would remove the new one's log together with the old one's.

What an old catalog still says, for the new one: rows of data that is not here have no other home (V20).
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
from bayou.data.catalog.schema import SCHEMA, TABLES, UNSEEN, VERSION, Values, path_of, put, tell, told

_NUMBERS = {"version": int, "size": int, "streaming": int, "deleted": int, "duration_s": float}
_LATER: Mapping[str, object] = {"tags": "{}", "streaming": 0, "deleted": 0, "data": "[]", "words": ""}
"""What a row says that was written before there was such a column, where it has to say something."""

_NEVER_NULL = ("id", "model", "size", "content_type", "created_at", "method", "status", "started_at", "workflow")
_MAYBE_NULL = {("version", "workflow"), ("output", "workflow")}


class Old(Struct, frozen=True):
    """Rows of an old catalog by table, each a value for every column of today's, and the position that they reflect."""

    rows: Mapping[str, list[Values]] = field(default_factory=dict)
    position: str | None = None


def salvage(path: Path) -> Old:
    """Read what can be read of a file that is damaged, or is none."""
    if not path.exists():
        return Old()
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            return read(db)
    except sqlite3.Error:
        return Old()


def read(db: sqlite3.Connection) -> Old:
    """Read what a catalog of another Bayou, or a damaged one, says."""
    rows: dict[str, list[Values]] = {table: [] for table in TABLES}
    for table, found in rows.items():
        with contextlib.suppress(sqlite3.Error):  # what was read before the damage counts
            for row in _rows(db, table):
                found.append(row)
    position = None
    with contextlib.suppress(sqlite3.Error):
        position = told(db, "position")
    return Old(rows, position)


def take_over(db: sqlite3.Connection, old: Old) -> None:
    """Put the rows of an old catalog into a new one, as rows whose files nobody has seen yet."""
    for table, rows in old.rows.items():
        put(db, table, ((*row, UNSEEN) for row in rows))
    if old.position is not None:
        tell(db, "former", old.position)


def _rows(db: sqlite3.Connection, table: str) -> Iterator[Values]:
    have = {str(name) for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
    columns = [f'"{name}"' if name in have else "?" for name in TABLES[table]]
    plain = [_LATER.get(name) for name in TABLES[table] if name not in have]
    for row in db.execute(f"SELECT {', '.join(columns)} FROM {table}", plain):
        if _is_row(table, row):
            yield row


def _is_row(table: str, row: Values) -> bool:
    """Whether every column has what a row of today may have there: a damaged page can say anything."""
    named = dict(zip(TABLES[table], row, strict=True))
    for name, value in named.items():
        needed = name in _LATER or (name in _NEVER_NULL and (table, name) not in _MAYBE_NULL)
        if not isinstance(value, _NUMBERS.get(name, str)) and (needed or value is not None):
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


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_WITHIN_S = 300.0
"""Longer than anybody rebuilds a catalog."""

_ALONE_WITHIN_S = 5.0
"""Longer than commands have the file open; a program may have it open for hours."""

_CACHE_KIB = 64 << 10
"""At most: a rebuild fills several indexes at once, and goes to the disk for each row where they do not fit."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


_files: weakref.WeakSet[CatalogFile] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []


class CatalogFile:
    """The catalog of one repo, opened when it is first needed. A new file knows in `meta` why it is new.

    Work is given as a function, so that it can be done again on a new file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = threading.RLock()
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        _files.add(self)

    def __del__(self) -> None:
        self.close()

    def forked(self) -> None:
        """Leave the parent's connection alone, in a forked child, which opens its own (as `state.database`)."""
        self._thread = threading.RLock()
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None
        self.close()

    def read(self, work: Work[T]) -> T:
        """Do what only reads, as of one moment; nobody is kept from writing."""
        return self._do("BEGIN", work)

    def write(self, work: Work[T]) -> T:
        """Do work that takes effect as a whole or not at all; what it reads stays true until then."""
        return self._do("BEGIN IMMEDIATE", work)

    def mark(self, db: sqlite3.Connection) -> tuple[int, int] | None:
        """Return which file this is, and a number that changes when another connection writes; None: it is no file."""
        if not self._inode or not db.execute("PRAGMA database_list").fetchone()[2]:
            return None
        return self._inode, int(db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        with self._thread:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._lock.release()

    def _do(self, begin: str, work: Work[T]) -> T:
        with self._thread:
            try:
                try:
                    return _transaction(self._open(), begin, work)
                except sqlite3.DatabaseError as error:
                    if not _is_damage(error):
                        raise
                self._replace("was damaged")
                return _transaction(self._open(), begin, work)
            except (sqlite3.Error, OSError) as error:
                raise _state_error(self.path, error) from error

    def _open(self) -> sqlite3.Connection:
        """Return a connection to the file that has the name now, made anew if there is none."""
        inode = _inode(self.path)
        if self._connection is None or inode != self._inode:
            if inode:
                self._connect()
            else:
                self._replace("was missing")
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        """Open the file that is there; one of another Bayou is emptied, and keeps what can be read of it (V20)."""
        self.close()
        if not self._acquire(_WITHIN_S, shared=True):
            raise StateError(
                f"{self.path.name} is being made anew by another process, and takes too long",
                hint="wait for that process, or end it",
            )
        if (why := self._foreign()) is not None:
            self._replace(why)
            return
        self._connection = _connection(self.path)
        self._inode = _inode(self.path)
        if _format(self._connection) != VERSION:
            _transaction(self._connection, "BEGIN IMMEDIATE", lambda db: _renew(db, self._owner()))

    def _replace(self, why: str) -> None:
        """Make a new file, alone; it keeps what can be read of the old one (V20).

        Where somebody has the old file open and does not let go, work with a catalog of our own, in memory: answers
        are right, and whoever comes later makes the file.
        """
        self.close()
        if not self._acquire(_ALONE_WITHIN_S, shared=False):
            self._inode = _inode(self.path)
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            old = salvage(self.path) if self._foreign() is None else Old()
            _transaction(self._connection, "BEGIN", lambda db: _make(db, why, old, self._owner()))
            return
        try:
            ours = self._foreign() is None
            if not (ours and _is_well(self.path)):  # else somebody was faster
                old = salvage(self.path) if ours else Old()
                for end in ("", "-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{self.path}{end}")
                with contextlib.closing(_connection(self.path)) as db:
                    _transaction(db, "BEGIN IMMEDIATE", lambda db: _make(db, why, old, self._owner()))
        finally:
            self.close()
        self._connect()

    def _owner(self) -> list[str]:
        return owner_ids(self.path.with_name(f"{self.path.name}.{OWNER}"))

    def _foreign(self) -> str | None:
        """Say why the file that is there may not be one that this user made here; None if it is, or there is none.

        Git may have put it there, and what it says decides what is deleted (V24).
        """
        ids = self._owner()
        if not ids or not _inode(self.path):
            return None
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=_WITHIN_S, isolation_level=None)) as db:
                tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                if not tables:
                    return "was empty"
                # Only of a table: a view could take for ever.
                return None if "meta" in tables and told(db, "owner") in ids else "was not made here"
        except sqlite3.DatabaseError:
            return "was damaged"

    def _acquire(self, within: float, *, shared: bool) -> bool:
        """Take the lock of all users of the file, shared or exclusive, in time (V12); return whether that succeeded."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._lock.acquire(within, shared=shared):
            return True
        self.close()
        return False


def _forked() -> None:
    for file in list(_files):
        file.forked()


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a catalog to read it, as a worker does, which has nothing but the file; it may be gone or damaged."""
    try:
        address = f"{path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_WITHIN_S, isolation_level=None)) as db:
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
    db = sqlite3.connect(path, timeout=_WITHIN_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # derived: what a power cut takes is found out anew
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except BaseException:
        db.close()
        raise
    return db


def _make(db: sqlite3.Connection, why: str, old: Old, owner: list[str]) -> None:
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    tell(db, "why", why)
    tell(db, "owner", owner[0] if owner else None)
    take_over(db, old)


def _renew(db: sqlite3.Connection, owner: list[str]) -> None:
    """Empty a file of another Bayou, and fill it with what can be read of it."""
    found = _format(db)
    if found == VERSION:
        return  # somebody was faster
    old = read(db)
    things = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    for kind, name in things:
        if not name.startswith("sqlite_"):
            db.execute(f'DROP {kind} "{name}"')
    whose = "an older" if found < VERSION else "a newer"
    _make(db, f"was of {whose} Bayou" if things else "was empty", old, owner)


def _format(db: sqlite3.Connection) -> int:
    found = db.execute("PRAGMA user_version").fetchone()[0]
    return int(found)


def _is_well(path: Path) -> bool:
    """Whether a whole file of ours is there; asked by who is alone with it."""
    if not _inode(path):
        return False
    try:
        with contextlib.closing(_connection(path)) as db:
            return _format(db) == VERSION and db.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


def _state_error(path: Path, error: Exception) -> StateError:
    text = str(error)
    if "full" in text or "No space" in text:
        hint = "free some space on the volume of .bayou"
    else:
        hint = "check that this user may write to .bayou, and that its volume is well"
    return StateError(f"{path.name}: {text}", hint=hint)
