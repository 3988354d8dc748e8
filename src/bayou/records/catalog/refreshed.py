"""What a refresh did."""

from __future__ import annotations

import sqlite3

from msgspec import Struct

from bayou.records.catalog.schema import TABLES, tell, told
from bayou.state.change_feed import ChangeFeed


class Refreshed(Struct, frozen=True):
    """Why everything was looked at, if it was (`rows` there are then), and how many rows are not what they were.

    `warnings` are for a person to read, whatever else there is to tell.
    """

    rebuilt: str | None = None
    changed: int = 0
    rows: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str | None:
        """What to tell a person, in one line; None if there is nothing to tell."""
        if self.rebuilt is not None:
            return f"the catalog {self.rebuilt}: rebuilt, {_count(self.rows, 'row')}" if self.rows else None
        return f"the catalog caught up with {_count(self.changed, 'change')}" if self.changed else None


def is_current(db: sqlite3.Connection, feed: ChangeFeed) -> bool:
    """Whether the catalog reflects all that the feed tells of, and no change is under way."""
    return told(db, "position") == feed.position.dump() and not feed.position.open


def settle(db: sqlite3.Connection, place: str, position: str, why: str | None, changed: int) -> Refreshed:
    """Note the place and the position that the catalog reflects from now on, in the transaction that made it so."""
    tell(db, "place", place)
    tell(db, "position", position)
    tell(db, "why", None)
    if why is None:
        return Refreshed(changed=changed)
    rows = sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
    return Refreshed(why, changed, rows)


def empty(db: sqlite3.Connection) -> None:
    """Forget everything: it was of another datastore."""
    for table in (*TABLES, "bad", "folder", "pending", "recent"):
        db.execute(f"DELETE FROM {table}")
    tell(db, "former", None)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
