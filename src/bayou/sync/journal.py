"""The journal: every change of the tree, durable before it is made (V7).

A row is opened before a change and closed after it. Who opened it holds a lock on a file of its own as long as it
lives; a row whose owner is gone counts as closed, whatever happened to the change, and the next sync looks.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from bayou.ids import ulid
from bayou.sync.database import Database
from bayou.sync.lock import FileLock

Kind = Literal["write", "delete", "tree"]
State = Literal["open", "done", "abandoned"]
EVERYTHING = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One change. `tree` names a directory, or everything (the empty path), that a program writes into by itself.

    `closed` is the newest row's number when this one was closed; None if it is open, or its process died.
    """

    id: int
    kind: Kind
    path: str
    state: State
    owner: str
    closed: int | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
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

    def __init__(self, database: Database, place: int) -> None:
        self._database = database
        self._place = place
        self._owners = database.path.parent / "owners"
        self._lock: FileLock | None = None
        self._owner = ""

    def open(self, kind: Kind, paths: Sequence[str]) -> Ticket:
        """Record that these paths are about to change; return when that is on disk."""
        owner = self._presence()
        with self._database.transaction() as db:
            ids = [
                db.execute(
                    "INSERT INTO journal (place, kind, path, state, owner) VALUES (?, ?, ?, 'open', ?)",
                    (self._place, kind, path, owner),
                ).lastrowid
                for path in paths
            ]
        return Ticket(tuple(cast("list[int]", ids)))

    def close(self, ticket: object) -> None:
        """Record that the changes are made. Takes what `open` gave."""
        assert isinstance(ticket, Ticket)
        with self._database.transaction() as db:
            newest = db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0]
            db.executemany(
                "UPDATE journal SET state = 'done', closed = ? WHERE id = ?",
                [(newest, number) for number in ticket.ids],
            )

    def mark(self, path: str = EVERYTHING) -> Mark:
        """Open a row for a file or directory that a program writes by itself, or for everything."""
        return Mark(self, self.open("tree", [path]))

    def rows(self) -> list[Row]:
        """Return all rows in order, after closing those whose owner is gone."""
        self._settle()
        found = self._database.rows(
            "SELECT id, kind, path, state, owner, closed FROM journal WHERE place = ? ORDER BY id", (self._place,)
        )
        return [Row(*row) for row in found]  # type: ignore[arg-type]

    def counts(self) -> tuple[int, bool]:
        """Return how many paths are named, and whether a row names a directory or everything."""
        found = self._database.rows(
            "SELECT count(DISTINCT path), coalesce(max(kind = 'tree'), 0) FROM journal WHERE place = ?", (self._place,)
        )
        paths, bulk = cast("tuple[int, int]", found[0])
        return paths, bool(bulk)

    def newest(self) -> int:
        """Return the number of the newest row."""
        found = self._database.rows("SELECT coalesce(max(id), 0) FROM journal WHERE place = ?", (self._place,))
        return cast("int", found[0][0])

    def release(self) -> None:
        """Give up this process's presence; its open rows count as closed from now on."""
        if self._lock is not None:
            self._lock.release()
            with contextlib.suppress(OSError):
                (self._owners / self._owner).unlink()
            self._lock = None

    def _presence(self) -> str:
        if self._lock is None:
            self._owners.mkdir(parents=True, exist_ok=True)
            self._owner = ulid()
            self._lock = FileLock(self._owners / self._owner)
            self._lock.acquire()
        return self._owner

    def _settle(self) -> None:
        owners = self._database.rows(
            "SELECT DISTINCT owner FROM journal WHERE place = ? AND state = 'open'", (self._place,)
        )
        gone = [str(owner) for (owner,) in owners if owner != self._owner and not self._alive(str(owner))]
        if gone:
            with self._database.transaction() as db:
                db.executemany(
                    "UPDATE journal SET state = 'abandoned' WHERE state = 'open' AND owner = ?",
                    [(owner,) for owner in gone],
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
