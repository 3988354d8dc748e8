"""The journal: one durable row for every change of the tree, written before the change is made (V7).

A writer opens a row before the change and closes it after. `open_journal` gives a process the journal of a repo, which
implements the protocol `bayou.worktree.journal.Journal`. Each process is an owner: it holds a lock on a file of its own
in `.bayou/state/owners` as long as it lives. A row whose owner is gone counts as closed (`abandoned`), whether or not
the change was made, and the next sync checks the file.

A row gets its number when it is opened, and `closed` is the newest number at the time when it was closed. So two rows
are ordered, unless they overlap; then only the file itself shows which change came last. `JournalSnapshot` answers what
all rows of a path mean together.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct, field

from bayou.core.file_lock import FileLock
from bayou.core.ids import is_ulid, ulid, ulid_ms
from bayou.repo import Repo
from bayou.state.connection import Connection, connected
from bayou.state.database import IN_RANGE, Database, remote_of

if TYPE_CHECKING:
    from pathlib import Path

    from bayou.index.key_range import KeyRange

Kind = Literal["write", "delete", "tree"]
State = Literal["open", "done", "abandoned"]
EVERYTHING = ""
"""The path of a mark that names the whole tree."""
Guard = Callable[[], None]
"""Called before every change: raises if the change is not allowed any more, because a lease was lost."""


class JournalRow(Struct, frozen=True):
    """One change. A row of kind `tree`, a mark, names a file or directory that a program writes by itself, or all.

    `closed` is the newest row's number when this row was closed, or its owner was found gone; None while it is open.
    """

    id: int
    kind: Kind
    path: str
    state: State
    owner: str
    closed: int | None = None


class Ticket(Struct, frozen=True):
    """The numbers of the rows that one `open` made, for `close`."""

    ids: tuple[int, ...]


class Mark:
    """An open mark: a program changes files by itself. `done()` closes the mark; so does the end of the process."""

    def __init__(self, journal: Journal, ticket: Ticket) -> None:
        self._journal = journal
        self._ticket = ticket

    def done(self) -> None:
        self._journal.close(self._ticket)


class Journal:
    """The rows of one repo for one remote, and this process as their owner."""

    def __init__(self, database: Database, remote_id: int, guard: Guard | None = None) -> None:
        self.database = database
        self.remote_id = remote_id
        self._guard = guard
        self._owners = database.path.parent / "owners"
        self._owner, self._process = "", os.getpid()
        self._unregister: weakref.finalize[..., Journal] | None = None

    def open(self, kind: Kind, paths: Sequence[str]) -> Ticket:
        """Record that these paths are about to change; the rows are on disk when this returns."""
        if self._guard is not None:
            self._guard()
        owner = self.register_owner()
        self.close_abandoned()  # rows of processes that are gone came before this change
        with self.database.transaction() as db:
            ids = [
                db.execute(
                    "INSERT INTO journal (place, kind, path, state, owner) VALUES (?, ?, ?, 'open', ?)",
                    (self.remote_id, kind, path, owner),
                ).lastrowid
                for path in paths
            ]
        return Ticket(tuple(cast("list[int]", ids)))

    def close(self, ticket: object) -> None:
        """Record that the changes of one `open` are made."""
        assert isinstance(ticket, Ticket)
        with self.database.transaction() as db:
            newest = _newest(db)
            db.executemany(
                "UPDATE journal SET state = 'done', closed = ? WHERE id = ?",
                [(newest, number) for number in ticket.ids],
            )

    def mark(self, path: str = EVERYTHING) -> Mark:
        """Open a row for a file or directory that a program writes by itself, or for everything."""
        return Mark(self, self.open("tree", [path]))

    def rows(self) -> list[JournalRow]:
        """Return all rows in order, after closing those whose owner is gone."""
        self.close_abandoned()
        return self._rows("TRUE")

    def marks(self) -> list[JournalRow]:
        """Return the rows that name directories or everything."""
        return self._rows("kind = 'tree'")

    def rows_within(self, span: KeyRange, through: int) -> list[JournalRow]:
        """Return the rows up to the number `through` that name files of a range, in order."""
        return self._rows(f"kind != 'tree' AND {IN_RANGE} AND id <= ?", *span.bounds, through)

    def counts(self) -> tuple[int, bool]:
        """Return how many paths the rows name, and whether one of the rows is a mark."""
        found = self.database.rows(
            "SELECT count(DISTINCT path), coalesce(max(kind = 'tree'), 0) FROM journal WHERE place = ?",
            (self.remote_id,),
        )
        paths, bulk = cast("tuple[int, int]", found[0])
        return paths, bool(bulk)

    def newest(self) -> int:
        """Return the number of the newest row."""
        found = self.database.rows("SELECT coalesce(max(id), 0) FROM journal WHERE place = ?", (self.remote_id,))
        return cast("int", found[0][0])

    def _rows(self, where: str, *parameters: object) -> list[JournalRow]:
        found = self.database.rows(
            f"SELECT id, kind, path, state, owner, closed FROM journal WHERE place = ? AND {where} ORDER BY id",
            (self.remote_id, *parameters),
        )
        return [JournalRow(*row) for row in found]  # type: ignore[arg-type]

    def register_owner(self) -> str:
        """Register this process as an owner, if it is not yet; return its id.

        A process that is about to write registers first, so that no other process removes its temporary files.
        """
        if self._process != os.getpid():
            self.release()  # a forked child is an owner of its own: it may outlive its parent
        if self._unregister is None:
            self._owners.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owner, self._process = ulid(), os.getpid()
            lock = FileLock(self._owners / self._owner)
            lock.acquire()
            # V14: also a journal that a caller drops without `release` unregisters its owner.
            self._unregister = weakref.finalize(self, _unregister, lock, self._owners / self._owner, self._process)
        return self._owner

    def oldest_owner_ms(self, before_ms: int) -> int | None:
        """Return when the oldest of the living owners registered, in ms since 1970, if that was before `before_ms`.

        Delete the files of older owners that are gone.
        """
        try:
            owners = sorted(name for name in os.listdir(self._owners) if is_ulid(name))
        except FileNotFoundError:
            return None
        for owner in owners:
            registered_ms = ulid_ms(owner)
            if registered_ms >= before_ms:
                break  # an owner that has only just registered may not hold its lock yet
            if self._is_alive(owner):
                return registered_ms
            with contextlib.suppress(OSError):
                (self._owners / owner).unlink()
        return None

    def release(self) -> None:
        """Unregister this process as an owner; its open rows count as closed from now on."""
        if self._unregister is not None:
            self._unregister()
            self._unregister = None

    def close_abandoned(self) -> None:
        """Close the rows of owners that are gone."""
        owners = self.database.rows(
            "SELECT DISTINCT owner FROM journal WHERE place = ? AND state = 'open'", (self.remote_id,)
        )
        gone = [str(owner) for (owner,) in owners if owner != self._owner and not self._is_alive(str(owner))]
        if gone:
            with self.database.transaction() as db:
                newest = _newest(db)
                db.executemany(
                    "UPDATE journal SET state = 'abandoned', closed = ? WHERE state = 'open' AND owner = ?",
                    [(newest, owner) for owner in gone],
                )
            for owner in gone:
                with contextlib.suppress(OSError):
                    (self._owners / owner).unlink()

    def _is_alive(self, owner: str) -> bool:
        path = self._owners / owner
        if not path.exists():
            return False
        lock = FileLock(path)
        if not lock.acquire():
            return True
        lock.release()
        return False


def _unregister(lock: FileLock, path: Path, process: int) -> None:
    """Release an owner's lock and delete its file; a forked child releases only its copy of the lock."""
    lock.release()
    if process == os.getpid():
        with contextlib.suppress(OSError):
            path.unlink()


def _newest(db: sqlite3.Connection) -> int:
    return cast("int", db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0])


def is_empty(db: sqlite3.Connection, remote_id: int) -> bool:
    """Return whether there is no row at all: then, until the transaction ends, no path need be checked on its own."""
    return db.execute("SELECT 1 FROM journal WHERE place = ? LIMIT 1", (remote_id,)).fetchone() is None


def drop_rows(db: sqlite3.Connection, remote_id: int, path: str, through: int) -> None:
    """Delete the rows of a path, inside the transaction that records the path's state in base (V7).

    Nothing is deleted while a row of the path is open or newer than `through`, the newest row when the file was read.
    """
    blocked = db.execute(
        "SELECT 1 FROM journal WHERE place = ? AND path = ? AND kind != 'tree' AND (state = 'open' OR id > ?) LIMIT 1",
        (remote_id, path, through),
    ).fetchone()
    if blocked is None:
        db.execute("DELETE FROM journal WHERE place = ? AND path = ? AND kind != 'tree'", (remote_id, path))


def drop_marks(db: sqlite3.Connection, remote_id: int, ids: Iterable[int]) -> None:
    """Delete closed marks, once base records the state of all paths that they cover."""
    db.executemany(
        "DELETE FROM journal WHERE place = ? AND id = ? AND kind = 'tree' AND state != 'open'",
        [(remote_id, number) for number in ids],
    )


class JournalSnapshot(Struct):
    """The journal as of one row: the last row of each path in `last`, all marks, and `through`, the newest number."""

    through: int = 0
    last: dict[str, JournalRow] = field(default_factory=dict)
    marks: list[JournalRow] = field(default_factory=list)
    _rows: dict[str, list[JournalRow]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, rows: Iterable[JournalRow]) -> JournalSnapshot:
        self = cls()
        for row in rows:
            self.through = row.id
            if row.kind == "tree":
                self.marks.append(row)
            else:
                self.last[row.path] = row
                self._rows[row.path].append(row)
        return self

    def closed_through(self, path: str) -> int:
        """Return the newest row that reading this path covers: a row that is open may still change the file (T7)."""
        still_open = (row.id for row in self._rows.get(path, ()) if row.state == "open")
        return next(still_open, self.through + 1) - 1

    def written(self, path: str) -> bool:
        """Return whether a program wrote the file: then a file that exists is to be pushed."""
        return any(row.kind == "write" for row in self._rows.get(path, ()))

    def deleted(self, path: str) -> bool:
        """Return whether a file that is missing was deleted: no write that was carried out began after the delete.

        An abandoned write created no file, so the delete before it still holds. A write without a delete does not make
        a missing file deleted (T10).
        """
        rows = self._rows.get(path, ())
        last_write = max((row.id for row in rows if row.kind == "write" and row.state != "abandoned"), default=0)
        return any(row.kind == "delete" and last_write <= _end(row) for row in rows)

    def unfinished_delete(self, path: str) -> bool:
        """Return whether a file that exists was to be deleted by a process that ended before it did so.

        A delete that was carried out does not apply to a file that was created afterwards. Neither does an abandoned
        delete, if a write or a mark was still open when it began.
        """
        row = self.last.get(path)
        if row is None or row.kind != "delete" or row.state != "abandoned":
            return False
        writes = [other for other in self._rows[path] if other.kind == "write"] + self._marks_of(path)
        return all(write.closed is not None and write.closed < row.id for write in writes)

    def marked(self, path: str) -> bool:
        """Return whether a mark names the path, a directory above it, or everything."""
        return bool(self._marks_of(path))

    def is_open(self, directory: str, paths: Iterable[str]) -> bool:
        """Return whether a process is still writing to a directory, which has these paths: a row or a mark is open."""
        rows = [row for path in paths for row in self._rows.get(path, ())] + self._marks_of(directory)
        rows += [row for row in self.marks if row.path.startswith(f"{directory}/")]
        return any(row.state == "open" for row in rows)

    @property
    def everything(self) -> bool:
        """Whether a mark names the whole tree."""
        return any(not row.path for row in self.marks)

    def _marks_of(self, path: str) -> list[JournalRow]:
        return [row for row in self.marks if not row.path or path == row.path or path.startswith(f"{row.path}/")]


def _end(row: JournalRow) -> int:
    """Return the newest number when a row was closed; for an open row, the least that this can become."""
    return row.closed if row.closed is not None else row.id


@contextmanager
def open_journal(
    repo: Repo, guard: Guard | None = None, connection: Connection | None = None
) -> Iterator[Journal | NoJournal]:
    """Open the journal of a repo's datastore; no store is opened and no request sent, so this works offline.

    The journal calls `guard` before every change of the tree, and the change is not made if `guard` raises.
    """
    if repo.config.datastore.url is None:
        yield NoJournal(guard)
        return
    with connected(repo, connection) as opened:
        journal = Journal(opened.database, remote_of(opened.database, repo), guard)
        try:
            journal.register_owner()
            yield journal
        finally:
            journal.release()


class NoJournal:
    """The journal of a directory datastore, which keeps no rows; it only calls the guard."""

    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard

    def open(self, kind: Kind, paths: Sequence[str]) -> object:
        if self._guard is not None:
            self._guard()
        return None

    def close(self, ticket: object) -> None:
        return

    def done(self) -> None:
        return
