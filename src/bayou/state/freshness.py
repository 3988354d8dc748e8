"""How old this machine's view of its datastore is, and what waits here for the store; no request is sent (V15).

The view is as old as the last response that showed the store's head. Waiting are the paths of the journal, and the
inputs in `.bayou/state/spool` that are no versions yet (V22).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from bayou.core.clock import now_ms
from bayou.core.errors import StateError
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.state.connection import Connection
    from bayou.state.database import Database

RECORD = ".json"
"""The suffix of the file that makes a spooled input count: without it the input was not read to its end."""


class Freshness(Struct, frozen=True):
    """`seen_ms` is when the head was last seen, in ms since 1970; None if it never was, or if there is no store."""

    seen_ms: int | None = None
    waiting: int = 0

    @property
    def age_s(self) -> float | None:
        """The age of the view in seconds; None if the head was never seen."""
        return None if self.seen_ms is None else max(0.0, (now_ms() - self.seen_ms) / 1000)


def freshness(connection: Connection) -> Freshness:
    """Return how fresh this machine's view is; a datastore that is a directory has no view, and only inputs wait."""
    repo = connection.repo
    inputs = len(pending_inputs(repo))
    if repo.config.datastore.url is None:
        return Freshness(waiting=inputs)
    from bayou.state.database import remote_of  # noqa: PLC0415  (sqlite3)

    database = connection.database
    remote_id = remote_of(database, repo)
    ((seen, paths),) = database.rows(
        "SELECT seen, (SELECT count(DISTINCT path) FROM journal WHERE place = ?) FROM place WHERE id = ?",
        (remote_id, remote_id),
    )
    return Freshness(cast("int | None", seen), cast("int", paths) + inputs)


def record_seen(database: Database, remote_id: int, store: str | None = None) -> None:
    """Record that the store has just shown its head; a power cut may undo this, and the view looks older then.

    `store` is the store's id, if a sync follows: what the sync records from here on is of that store, and of no other
    one at the same URL, even if it is killed before its end.
    """
    with database.note() as db:
        db.execute("UPDATE place SET seen = ?, store = coalesce(store, ?) WHERE id = ?", (now_ms(), store, remote_id))


def count_untracked(database: Database, remote_id: int) -> int:
    """Return how many untracked files the last walk of the tree found; no file is looked at."""
    return cast("int", database.rows("SELECT count(*) FROM untracked WHERE place = ?", (remote_id,))[0][0])


def pending_inputs(repo: Repo) -> list[str]:
    """Return the ids of the spooled inputs, the oldest first, also those that a living process works on."""
    if not (repo.local / "state").is_dir():
        return []  # and none is made: a repo whose datastore is a directory may have no state
    return [name.removesuffix(RECORD) for name in record_names(spool_directory(repo))]


def record_names(directory: Path) -> list[str]:
    """Return the names of the `.json` files in a directory of the state, in order; none if there is no directory."""
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(RECORD))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StateError(
            f"cannot read {directory.name}: {error.strerror}", hint="check that this user may read .bayou/state"
        ) from None


def spool_directory(repo: Repo) -> Path:
    """Return the directory of inputs that are no versions yet."""
    return repo.state / "spool"
