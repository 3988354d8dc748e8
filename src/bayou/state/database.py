"""`sync.db`: what this machine knows about its tree and its stores (SQLite, WAL, synchronous=FULL).

A process has one connection, which its threads share; a forked child opens its own. Every change is a transaction that
takes the write lock at its start, so that what a transaction has read stays true until it commits.

A remote is a URL and a namespace that the repo has synced with. Nearly every table has a column `place`: the number of
the remote that the row is about (`register_remote`). `dump_entry` and `load_entry` convert the index entries in these
tables.

Opening moves a damaged file (no SQLite database, truncated, malformed) to `.bayou/set-aside/`, and sync goes on as
after a lost state directory. A file that is busy, not readable or of another version stays. Damage that a statement
meets later ends the command; the next command checks the whole file first.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import warnings
import weakref
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import ClassVar, cast

from bayou.config.ownership import ASIDE, OWNER, create_private, is_foreign, owner_ids, set_aside_damaged
from bayou.core.errors import StateError, StateSetAside
from bayou.core.file_lock import FileLock
from bayou.index.entry import Entry
from bayou.objectstore.url import parse_url
from bayou.repo import Repo

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
    seen INTEGER,
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
CREATE TABLE forgotten (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
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
    pack TEXT,
    pack_offset INTEGER,
    stored INTEGER,
    method INTEGER,
    PRIMARY KEY (place, path)
) WITHOUT ROWID;
CREATE TABLE part_upload (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    push TEXT NOT NULL,
    upload TEXT NOT NULL,
    part_size INTEGER NOT NULL,
    PRIMARY KEY (place, path, push)
) WITHOUT ROWID;
CREATE TABLE part (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    push TEXT NOT NULL,
    number INTEGER NOT NULL,
    tag TEXT NOT NULL,
    sha256 BLOB NOT NULL,
    PRIMARY KEY (place, path, push, number)
) WITHOUT ROWID;
CREATE TABLE lease (
    place INTEGER NOT NULL,
    key TEXT NOT NULL,
    etag TEXT,
    version TEXT,
    PRIMARY KEY (place, key)
) WITHOUT ROWID;
CREATE TABLE pending (
    commit_id TEXT PRIMARY KEY,
    place INTEGER NOT NULL,
    parent_seq INTEGER NOT NULL,
    rows TEXT NOT NULL
);
"""
_VERSION = 4

IN_RANGE = "path >= ? AND path < ?"
"""A condition on paths whose parameters are `KeyRange.bounds`; SQLite compares text by its UTF-8 bytes, as they do."""

_OPEN_WITHIN_S = 60.0
_FILES = ("", "-wal", "-shm", "-journal")
"""Suffixes of SQLite's files, the database first: SQLite deletes a log beside a database that is empty."""
_SUSPECT = "-suspect"
"""Suffix of the file that makes the next command check the whole database, since a statement found damage."""
_SHARED_MEMORY = 64 << 10
"""Bytes, more than SQLite reserves at once for the shared memory of its log."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NORMAL = 1
"""SQLite's number of `synchronous = NORMAL`. In WAL mode NORMAL syncs at checkpoints only."""
_decode_json = json.JSONDecoder().raw_decode
"""Hot: `json.loads` takes twice as long for a list this short."""

_NO_LOCATION = (None,) * 5

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
        self._aside: Path | None = None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Several processes may open the database for the first time at once; only one creates it.
            lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
            if not lock.acquire(_OPEN_WITHIN_S):  # V12
                raise StateError(
                    f"another process has opened {self.path.name} for {_OPEN_WITHIN_S:.0f} s", hint="end it"
                )
            try:
                try:
                    self._handle: sqlite3.Connection | None = self._open()
                except sqlite3.DatabaseError:
                    if self._aside is None:
                        raise
                    self._handle = self._open()
            finally:
                lock.release()
        except (sqlite3.Error, OSError) as error:
            raise self._state_error(error) from None
        self._closer = weakref.finalize(self, self._handle.close)
        if self._aside is not None:
            warnings.warn(
                f"{self.path.name} was damaged and is not used; it was moved to .bayou/{ASIDE}/{self._aside.name}."
                " Deletes that were not pushed yet are lost; files that were not pushed yet are untracked, and"
                " `bayou datastore sync --adopt` pushes them",
                StateSetAside,
                stacklevel=2,
            )

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._handle is None:
            self._connect()
        assert self._handle is not None
        return self._handle

    def forked(self) -> None:
        """Let go of the parent's connection in a forked child: SQLite lets a child neither use nor close it."""
        self._lock = threading.RLock()  # another thread of the parent may have held the old lock
        if self._handle is not None and self._closer.detach():
            _inherited.append(self._handle)
            self._handle = None

    def _open(self) -> sqlite3.Connection:
        for suffix in _FILES:
            if os.path.islink(f"{self.path}{suffix}"):
                raise StateError(f"{self.path.name}{suffix} is a link, which Bayou never makes", hint="remove the link")
        # SQLite takes an empty file for a new database; beside nodes of base, the file has lost its rows.
        emptied = os.path.lexists(self.path) and not self.path.stat().st_size and self.path.with_name("nodes").is_dir()
        create_private(self.path)
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            if emptied:
                raise _Malformed(f"{self.path.name} is empty")
            self._prepare(connection)
        except BaseException as error:
            try:
                if is_damage(error):
                    self._set_aside()  # before the close, which could write the log into the file and delete the log
            finally:
                connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new database; raise unless an old one is intact, of this version, and this user's."""
        for pragma in self.pragmas:
            connection.execute(f"PRAGMA {pragma}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if os.path.lexists(f"{self.path}{_SUSPECT}"):
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise _Malformed(found)
            os.unlink(f"{self.path}{_SUSPECT}")
        if version == 0:
            # A random number, by which a reader of the change feed notices that the state was created again.
            numbers = f"PRAGMA application_id = {int.from_bytes(os.urandom(3))}; PRAGMA user_version = {_VERSION};"
            owners = [f"INSERT INTO owner VALUES ('{owner}');" for owner in owner_ids(self.path.with_name(OWNER))[:1]]
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {''.join(owners)} {numbers} COMMIT;")
        elif version != _VERSION:
            raise StateError(
                f"{self.path.name} was written by another version of Bayou (format {version})",
                hint="use that version, or remove .bayou/state: the next sync finds out anew what is here",
            )
        self._check_owner(connection)

    def _set_aside(self) -> None:
        """Move a damaged database away, unless a process uses it: the rows that it journals must not go too (V7)."""
        state = self.path.parent
        for path in (state / "sync.lock", *state.glob("owners/*")):
            lock = FileLock(path)
            if path.exists() and not lock.acquire():
                raise StateError(
                    f"{self.path.name} is damaged, and a process still works with it",
                    hint="end that process, and try again: the next command sets the file aside",
                )
            lock.release()
        files = [self.path.with_name(f"{self.path.name}{suffix}") for suffix in (*_FILES, _SUSPECT)]
        self._aside = set_aside_damaged(state.parent, files)

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        """Raise unless this file was created with the state directory around it: Git may have replaced it (V24)."""
        found = [owner for (owner,) in connection.execute("SELECT id FROM owner")]
        if is_foreign(owner_ids(self.path.with_name(OWNER)), found):
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
                raise self._state_error(error) from None

    @contextlib.contextmanager
    def note(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction without waiting for the disk; use it for rows that can be computed again.

        The transaction survives the end of this process. A power cut can undo it until the next `transaction` is over.
        """
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
        """Run queries that all see one version of the database; other processes may write meanwhile."""
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                try:
                    yield self._connection
                finally:
                    self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self._state_error(error) from None

    def copy_to(self, file: Path) -> None:
        """Write a copy of the database as it is now; nothing is ever written to the copy again."""
        create_private(file)
        with self._lock:
            try:
                with contextlib.closing(sqlite3.connect(file)) as copy:
                    self._connection.backup(copy)
            except sqlite3.Error as error:
                raise self._state_error(error) from None

    def rows(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Return all rows of a query."""
        with self._lock:
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._state_error(error) from None

    def close(self) -> None:
        with self._lock:
            self._closer()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _state_error(self, error: Exception) -> StateError:
        if not is_damage(error):
            return database_error(self.path, error)
        with contextlib.suppress(OSError):
            create_private(self.path.with_name(f"{self.path.name}{_SUSPECT}"))
        return StateError(
            f"{self.path.name}: {error}",
            hint="try again: the next command checks the file, and sets it aside if it is damaged",
        )


class _Malformed(sqlite3.DatabaseError):
    """Damage that Bayou finds where SQLite reports none."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def database_error(path: Path, error: Exception) -> StateError:
    """Return the error for a database that SQLite cannot use though it is not damaged, with the hint what to check.

    SQLite calls a disk on which the shared memory of its log finds no room an I/O error.
    """
    text = str(error)
    failed = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR
    if failed and _is_full(path.parent):
        text = f"the disk is full ({text})"
    if "full" in text or "No space" in text:
        hint = "free some space on the volume of .bayou"
    else:
        hint = "check that this user may write to .bayou, and that its volume is well"
    return StateError(f"{path.name}: {text}", hint=hint)


def _is_full(directory: Path) -> bool:
    try:
        volume = os.statvfs(directory)
    except OSError:
        return False
    return volume.f_bavail * volume.f_frsize < _SHARED_MEMORY


def is_damage(error: BaseException) -> bool:
    """Return whether SQLite reports with an error that the file is damaged, or no database."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _forked() -> None:
    for database in list(_databases):
        database.forked()


os.register_at_fork(after_in_child=_forked)


def remote_of(database: Database, repo: Repo) -> int:
    """Return the number of the remote that a repo's configuration names; no store is opened, so this works offline."""
    config = repo.config.datastore
    assert config.url is not None
    return register_remote(database, remote_url(config.url, config.namespace), config.namespace or "")


def remote_url(url: str, namespace: str | None) -> str:
    """Return the URL that identifies a remote."""
    return f"{parse_url(url)}/{namespace or ''}".rstrip("/")


def register_remote(database: Database, url: str, namespace: str) -> int:
    """Return the number of a remote; the first call for a remote creates its row."""
    found = database.rows("SELECT id FROM place WHERE url = ? AND namespace = ?", (url, namespace))
    if not found:
        with database.transaction() as db:
            db.execute("INSERT OR IGNORE INTO place (url, namespace) VALUES (?, ?)", (url, namespace))
        found = database.rows("SELECT id FROM place WHERE url = ? AND namespace = ?", (url, namespace))
    return cast("int", found[0][0])


def dump_entry(entry: Entry | None) -> str | None:
    """Return an entry without its path as JSON. Hot: `json.dumps` takes five times as long for a list this short."""
    if entry is None:
        return None
    sha256 = f'"{entry.sha256.hex()}"' if entry.sha256 is not None else "null"
    push, etag, version = _json_string(entry.push), _json_string(entry.etag), _json_string(entry.version)
    common = f"{push}, {entry.size}, {sha256}, {etag}, {version}, {entry.modified}"
    location = (entry.at, entry.pack, entry.offset, entry.stored, entry.method)
    if location == _NO_LOCATION:
        return f"[{common}]"
    # Verbatim, also a row that no client can have written (V25): base's rows are the store's.
    offset, stored, method = _json_number(entry.offset), _json_number(entry.stored), _json_number(entry.method)
    return f"[{common}, {_json_string(entry.at)}, {_json_string(entry.pack)}, {offset}, {stored}, {method}]"


def _json_string(text: str | None) -> str:
    return "null" if text is None else encode_basestring_ascii(text)


def _json_number(number: int | None) -> int | str:
    return "null" if number is None else number


def load_entry(path: str, text: str | None) -> Entry | None:
    """Return the entry that `dump_entry` wrote for a path."""
    if text is None:
        return None
    (push, size, sha256, *rest), _ = _decode_json(text)
    return Entry(path, push, size, bytes.fromhex(sha256) if sha256 is not None else None, *rest)
