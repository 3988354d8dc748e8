"""The journal: every change of the tree, durable before it is made (V7).

A row is opened before a change and closed after it. Who opened it holds a lock on a file of its own as long as it
lives; a row whose owner is gone counts as closed, whatever happened to the change, and the next sync looks.

The journal as of one moment, and what its rows say of a path together.

A row is numbered when it is opened, and knows the newest number of the moment when it was closed: so of two rows one
can tell which came first, and where they overlap, that the file itself must tell.

A process's presence in a repo: the journal that it writes to, as long as it works there.
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
from bayou.state.database import IN_SPAN, Database, remote_of

if TYPE_CHECKING:
    from pathlib import Path

    from bayou.index.key_range import KeyRange

Kind = Literal["write", "delete", "tree"]
State = Literal["open", "done", "abandoned"]
EVERYTHING = ""
Guard = Callable[[], None]
"""Asked before every change: raises if it may not be made any more, since a lease was lost."""


class JournalRow(Struct, frozen=True):
    """One change. `tree` names a directory, or everything (the empty path), that a program writes into by itself.

    `closed` is the newest row's number when this one was closed, or its process found dead; None while it is open.
    """

    id: int
    kind: Kind
    path: str
    state: State
    owner: str
    closed: int | None = None


class Ticket(Struct, frozen=True):
    """What `open` returns and `close` takes."""

    ids: tuple[int, ...]


class Mark:
    """A program's word that it is changing something itself. `done()` closes it; so does the end of the process."""

    def __init__(self, journal: Journal, ticket: Ticket) -> None:
        self._journal = journal
        self._ticket = ticket

    def done(self) -> None:
        self._journal.close(self._ticket)


class Journal:
    """The rows of one repo for one place, and this process's presence as their owner."""

    def __init__(self, database: Database, place: int, guard: Guard | None = None) -> None:
        self.database = database
        self.place = place
        self._guard = guard
        self._owners = database.path.parent / "owners"
        self._owner, self._process = "", os.getpid()
        self._leave: weakref.finalize[..., Journal] | None = None

    def open(self, kind: Kind, paths: Sequence[str]) -> Ticket:
        """Record that these paths are about to change; return when that is on disk."""
        if self._guard is not None:
            self._guard()
        owner = self._presence()
        self.settle()  # whose process is dead by now came before this change
        with self.database.transaction() as db:
            ids = [
                db.execute(
                    "INSERT INTO journal (place, kind, path, state, owner) VALUES (?, ?, ?, 'open', ?)",
                    (self.place, kind, path, owner),
                ).lastrowid
                for path in paths
            ]
        return Ticket(tuple(cast("list[int]", ids)))

    def close(self, ticket: object) -> None:
        """Record that the changes are made. Takes what `open` gave."""
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
        self.settle()
        return self._rows("TRUE")

    def marks(self) -> list[JournalRow]:
        """Return the rows that name directories or everything."""
        return self._rows("kind = 'tree'")

    def rows_within(self, span: KeyRange, through: int) -> list[JournalRow]:
        """Return what rows up to a number say of the paths of a range, in order: those that name files."""
        return self._rows(f"kind != 'tree' AND {IN_SPAN} AND id <= ?", *span.bounds, through)

    def counts(self) -> tuple[int, bool]:
        """Return how many paths are named, and whether a row names a directory or everything."""
        found = self.database.rows(
            "SELECT count(DISTINCT path), coalesce(max(kind = 'tree'), 0) FROM journal WHERE place = ?", (self.place,)
        )
        paths, bulk = cast("tuple[int, int]", found[0])
        return paths, bool(bulk)

    def newest(self) -> int:
        """Return the number of the newest row."""
        found = self.database.rows("SELECT coalesce(max(id), 0) FROM journal WHERE place = ?", (self.place,))
        return cast("int", found[0][0])

    def _rows(self, where: str, *parameters: object) -> list[JournalRow]:
        found = self.database.rows(
            f"SELECT id, kind, path, state, owner, closed FROM journal WHERE place = ? AND {where} ORDER BY id",
            (self.place, *parameters),
        )
        return [JournalRow(*row) for row in found]  # type: ignore[arg-type]

    def appear(self) -> None:
        """Show that this process is here, before it changes anything: what it leaves unfinished is not swept away."""
        self._presence()

    def oldest_living(self, before_ms: int) -> int | None:
        """Return when the first of the processes that are here now appeared, in ms since 1970, if before a moment.

        The files of those that died without a word go.
        """
        try:
            owners = sorted(name for name in os.listdir(self._owners) if is_ulid(name))
        except FileNotFoundError:
            return None
        for owner in owners:
            moment = ulid_ms(owner)
            if moment >= before_ms:
                break  # who has only just appeared may not hold its lock yet
            if self._alive(owner):
                return moment
            with contextlib.suppress(OSError):
                (self._owners / owner).unlink()
        return None

    def release(self) -> None:
        """Give up this process's presence; its open rows count as closed from now on."""
        if self._leave is not None:
            self._leave()
            self._leave = None

    def _presence(self) -> str:
        if self._process != os.getpid():
            self.release()  # a forked child is an owner of its own: it may outlive its parent
        if self._leave is None:
            self._owners.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owner, self._process = ulid(), os.getpid()
            lock = FileLock(self._owners / self._owner)
            lock.acquire()
            # V14: a journal that a caller drops without a word gives up its presence, too.
            self._leave = weakref.finalize(self, _leave, lock, self._owners / self._owner, self._process)
        return self._owner

    def settle(self) -> None:
        """Close the rows of owners that are gone."""
        owners = self.database.rows(
            "SELECT DISTINCT owner FROM journal WHERE place = ? AND state = 'open'", (self.place,)
        )
        gone = [str(owner) for (owner,) in owners if owner != self._owner and not self._alive(str(owner))]
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

    def _alive(self, owner: str) -> bool:
        path = self._owners / owner
        if not path.exists():
            return False
        lock = FileLock(path)
        if not lock.acquire():
            return True
        lock.release()
        return False


def _leave(lock: FileLock, path: Path, process: int) -> None:
    """Give up a presence; a forked child lets go of its copy, and its parent stays present."""
    lock.release()
    if process == os.getpid():
        with contextlib.suppress(OSError):
            path.unlink()


def _newest(db: sqlite3.Connection) -> int:
    return cast("int", db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0])


def silent(db: sqlite3.Connection, place: int) -> bool:
    """Whether there is no row at all: then nobody has to ask path by path, until the transaction ends."""
    return db.execute("SELECT 1 FROM journal WHERE place = ? LIMIT 1", (place,)).fetchone() is None


def drop(db: sqlite3.Connection, place: int, path: str, through: int) -> None:
    """Forget the rows of a path that base now tells of; call it inside the transaction that makes base tell it.

    Nothing is dropped while a row is open, or newer than what was looked at: `through` is the newest row known then.
    """
    blocked = db.execute(
        "SELECT 1 FROM journal WHERE place = ? AND path = ? AND kind != 'tree' AND (state = 'open' OR id > ?) LIMIT 1",
        (place, path, through),
    ).fetchone()
    if blocked is None:
        db.execute("DELETE FROM journal WHERE place = ? AND path = ? AND kind != 'tree'", (place, path))


def drop_marks(db: sqlite3.Connection, place: int, ids: Iterable[int]) -> None:
    """Forget rows that name directories or everything, once all that they covered is settled."""
    db.executemany(
        "DELETE FROM journal WHERE place = ? AND id = ? AND kind = 'tree' AND state != 'open'",
        [(place, number) for number in ids],
    )


class JournalSnapshot(Struct):
    """The last row of each path, and the rows that name directories or everything."""

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
        """Return the newest row that a look at this path can settle: what is open may still change the file (T7)."""
        still_open = (row.id for row in self._rows.get(path, ()) if row.state == "open")
        return next(still_open, self.through + 1) - 1

    def written(self, path: str) -> bool:
        """Whether a program wrote it: then a file that is there is meant to go up."""
        return any(row.kind == "write" for row in self._rows.get(path, ()))

    def deleted(self, path: str) -> bool:
        """Whether a file that is not here was deleted: no write was begun after the delete that came to anything.

        A write that its process did not live to carry out is nothing, so the delete before it still stands (T10: one
        whose file somebody wiped is no delete).
        """
        rows = self._rows.get(path, ())
        began = max((row.id for row in rows if row.kind == "write" and row.state != "abandoned"), default=0)
        return any(row.kind == "delete" and began <= _end(row) for row in rows)

    def undone(self, path: str) -> bool:
        """Whether a file that is here was to be deleted by a process that did not live to carry it out.

        A delete that was carried out is not meant for a file that somebody put there afterwards; nor is one whose
        process died, if a write or a mark was not over by then.
        """
        row = self.last.get(path)
        if row is None or row.kind != "delete" or row.state != "abandoned":
            return False
        others = [one for one in self._rows[path] if one.kind == "write"] + self._marks_of(path)
        return all(one.closed is not None and one.closed < row.id for one in others)

    def marked(self, path: str) -> bool:
        """Whether a row names a directory that the path lies in, or the path itself, or everything."""
        return bool(self._marks_of(path))

    def open_in(self, directory: str, paths: Iterable[str]) -> bool:
        """Whether somebody is still writing to a directory, which has these paths: by a row or by a mark."""
        rows = [row for path in paths for row in self._rows.get(path, ())] + self._marks_of(directory)
        rows += [row for row in self.marks if row.path.startswith(f"{directory}/")]
        return any(row.state == "open" for row in rows)

    @property
    def everything(self) -> bool:
        return any(not row.path for row in self.marks)

    def _marks_of(self, path: str) -> list[JournalRow]:
        return [row for row in self.marks if not row.path or path == row.path or path.startswith(f"{row.path}/")]


def _end(row: JournalRow) -> int:
    """Return the newest number when a row was closed; of one that is open, the least that it can be."""
    return row.closed if row.closed is not None else row.id


@contextmanager
def open_journal(
    repo: Repo, guard: Guard | None = None, connection: Connection | None = None
) -> Iterator[Journal | NoJournal]:
    """Open the journal of a repo's datastore; no store is opened and no request sent, so that offline work goes on.

    Whatever changes the tree passes here first, and so does what `guard` forbids.
    """
    if repo.config.datastore.url is None:
        yield NoJournal(guard)
        return
    with connected(repo, connection) as opened:
        journal = Journal(opened.database, remote_of(opened.database, repo), guard)
        try:
            journal.appear()
            yield journal
        finally:
            journal.release()


class NoJournal:
    """The journal of a directory datastore: there is nobody to tell."""

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
