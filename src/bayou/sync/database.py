"""`sync.db`: what this machine knows about its tree and its stores (SQLite, WAL, synchronous=FULL).

One connection for each process (a forked child opens its own) and thread-safe use of it; every change is a transaction
that takes the write lock at its start, so that what a transaction has read stays true until it commits.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from bayou.config.ownership import OWNER, create_private, owner_ids
from bayou.config.trust import trusts_all
from bayou.errors import StateError
from bayou.sync.lock import FileLock

_SCHEMA = """
CREATE TABLE owner (
    id TEXT NOT NULL
);
CREATE TABLE place (
    id INTEGER PRIMARY KEY,
    url TEXT NOT NULL,
    namespace TEXT NOT NULL,
    store TEXT,
    root TEXT,
    seq INTEGER,
    commit_id TEXT,
    etag TEXT,
    policy TEXT NOT NULL DEFAULT '',
    rebuilt TEXT,
    UNIQUE (url, namespace)
);
CREATE TABLE overlay (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    entry TEXT,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
CREATE TABLE absent (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
CREATE TABLE known (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    etag TEXT,
    version TEXT,
    sha256 BLOB NOT NULL,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
CREATE TABLE file (
    path TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    ctime INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    settled INTEGER NOT NULL,
    matches INTEGER
) WITHOUT ROWID;
CREATE TABLE untracked (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
CREATE TABLE journal (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    place INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('write', 'delete', 'tree')),
    path TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'done', 'abandoned')),
    owner TEXT NOT NULL,
    closed INTEGER
);
CREATE INDEX journal_path ON journal (place, path, id);
CREATE INDEX journal_open ON journal (place, owner) WHERE state = 'open';
CREATE TABLE intent (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    entry TEXT,
    sha256 BLOB,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
CREATE TABLE upload (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    push TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    gc INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    etag TEXT,
    version TEXT,
    repeated INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
CREATE TABLE pending (
    commit_id TEXT PRIMARY KEY,
    place INTEGER NOT NULL,
    parent_seq INTEGER NOT NULL,
    rows TEXT NOT NULL
);
"""
_VERSION = 2

IN_SPAN = "path >= ? AND path < ?"
"""A condition on paths that takes the `bounds` of a `Span`; SQLite compares text by its UTF-8 bytes, as spans do."""

_OPEN_WITHIN_S = 60.0
_NORMAL = 1
"""As SQLite counts what it waits for: OFF, NORMAL, FULL. In WAL mode NORMAL waits at checkpoints only."""


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []


class Database:
    """The open state of one repo. Close it, or use it as a context manager."""

    pragmas: ClassVar[tuple[str, ...]] = ("journal_mode = WAL", "synchronous = FULL")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connect()
        _databases.add(self)

    def _connect(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Ten processes may open it for the first time at once; only one makes it.
            lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
            lock.acquire(_OPEN_WITHIN_S)
            try:
                self._handle: sqlite3.Connection | None = self._open()
            finally:
                lock.release()
        except (sqlite3.Error, OSError) as error:
            raise _state_error(self.path, error) from None
        self._closer = weakref.finalize(self, self._handle.close)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._handle is None:
            self._connect()
        assert self._handle is not None
        return self._handle

    def forked(self) -> None:
        """Leave the parent's connection alone, in a forked child: SQLite lets a child neither use nor close it."""
        self._lock = threading.RLock()  # another thread of the parent may have held the old one
        if self._handle is not None and self._closer.detach():
            _inherited.append(self._handle)
            self._handle = None

    def _open(self) -> sqlite3.Connection:
        for end in ("", "-wal", "-shm", "-journal"):
            if os.path.islink(f"{self.path}{end}"):
                raise StateError(f"{self.path.name}{end} is a link, which Bayou never makes", hint="remove the link")
        create_private(self.path)
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        for pragma in self.pragmas:
            connection.execute(f"PRAGMA {pragma}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            # A number of its own, so that whoever follows the journal notices when the state was made anew.
            own = f"PRAGMA application_id = {int.from_bytes(os.urandom(3))}; PRAGMA user_version = {_VERSION};"
            whose = [f"INSERT INTO owner VALUES ('{one}');" for one in owner_ids(self.path.with_name(OWNER))[:1]]
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {''.join(whose)} {own} COMMIT;")
        elif version != _VERSION:
            connection.close()
            raise StateError(
                f"{self.path.name} was written by another version of Bayou (format {version})",
                hint="use that version, or remove .bayou/state: the next sync finds out anew what is here",
            )
        self._check_owner(connection)
        return connection

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        """Raise unless this file was made with the state that it lies in: Git may have replaced it since (V24)."""
        ids = owner_ids(self.path.with_name(OWNER))
        found = [one for (one,) in connection.execute("SELECT id FROM owner")]
        if ids and not set(ids) & set(found) and not trusts_all():
            connection.close()
            raise StateError(
                f"{self.path.name} is not the one that you made here: something has replaced it",
                hint="move .bayou/state away, and find out what did: the next sync finds out anew what is here",
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run statements that take effect together, durably, or not at all."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    if self._connection.in_transaction:  # on a full disk SQLite has rolled back by itself
                        self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise _state_error(self.path, error) from None

    @contextlib.contextmanager
    def note(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that nobody waits for the disk for: processes that are killed cannot take it back, but a
        power cut can, until the next `transaction` is over. For what can be found out, or done, anew."""
        with self._lock:
            (level,) = self._connection.execute("PRAGMA synchronous").fetchone()
            self._connection.execute(f"PRAGMA synchronous = {min(level, _NORMAL)}")
            try:
                with self.transaction() as db:
                    yield db
            finally:
                self._connection.execute(f"PRAGMA synchronous = {level}")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Run queries that all see one moment; nobody is kept from writing meanwhile."""
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                try:
                    yield self._connection
                finally:
                    self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise _state_error(self.path, error) from None

    def rows(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Return what a query finds, as of one moment."""
        with self._lock:
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise _state_error(self.path, error) from None

    def close(self) -> None:
        with self._lock:
            self._closer()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _forked() -> None:
    for database in list(_databases):
        database.forked()


os.register_at_fork(after_in_child=_forked)


def _state_error(path: Path, error: Exception) -> StateError:
    text = str(error)
    if "full" in text or "No space" in text:
        hint = "free some space on the volume of .bayou"
    elif "malformed" in text or "not a database" in text:
        hint = "remove .bayou/state: the next sync finds out anew what is here"
    else:
        hint = "check that this user may write to .bayou, and that its volume is well"
    return StateError(f"{path.name}: {text}", hint=hint)
