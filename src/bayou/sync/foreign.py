"""State that was made elsewhere and set aside (V24): what it would have done, and taking it over.

It may be hostile, so it is read as little as possible: a copy of its database, counted and not applied, within limits.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from bayou import limits
from bayou.config import ownership
from bayou.config.trust import Need
from bayou.errors import StateError

_MAX_DATABASE = 1024 * limits.MIB
_STEPS = 50_000_000
"""Instructions of SQLite's machine that counting may take: some seconds."""
_COUNTS = (
    ("written files that are not pushed yet", "SELECT count(DISTINCT path) FROM journal WHERE kind = 'write'"),
    ("deletes that are not pushed yet", "SELECT count(DISTINCT path) FROM journal WHERE kind = 'delete'"),
    ("changed directories that are not pushed yet", "SELECT count(*) FROM journal WHERE kind = 'tree'"),
    ("commits that were not finished", "SELECT count(*) FROM pending"),
    ("files that a pull was about to write", "SELECT count(*) FROM intent"),
)


def state_need(root: Path, folder: Path) -> Need:
    """Return what needs permission before state that was set aside is used."""
    where = folder.relative_to(root).as_posix()
    holds = ", ".join(_holds(folder / "state")) or "nothing that is not pushed yet"
    why = f"state of this repo that was not made by you on this machine was set aside; it holds {holds}"
    return Need.of("state", where, holds, why)


def take_over(local: Path, folder: Path) -> None:
    """Use state that was set aside again. `StateError` if what was noted since would be lost by that."""
    waiting = _holds(local / "state") if os.path.isdir(local / "state") else []
    if waiting:
        raise StateError(
            f"the state in use by now holds {', '.join(waiting)}: it cannot be replaced",
            hint="push that first with `bayou datastore sync`, then run `bayou trust allow` again",
        )
    ownership.take_over(local, folder)


def _holds(state: Path) -> list[str]:
    """Say what is left to do according to a state directory, in words; a damaged one says that it is."""
    found = []
    changes = state / "changes"
    try:
        unfinished = sum(1 for name in os.listdir(changes) if name.endswith(".json"))
    except OSError:
        unfinished = 0
    if unfinished:
        found.append(f"{unfinished} unfinished changes of records")
    if os.path.lexists(state / "sync.db"):
        try:
            found += _counted(state / "sync.db")
        except (sqlite3.Error, OSError, ValueError):
            found.append("a database that cannot be read")
    return found


def _counted(database: Path) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="bayou-") as scratch:
        for end in ("", "-wal"):
            source = Path(f"{database}{end}")
            if source.is_symlink() or (source.exists() and source.stat().st_size > _MAX_DATABASE):
                raise ValueError("not a database of ours")
            if source.is_file():
                shutil.copyfile(source, Path(scratch, f"copy.db{end}"))
        with closing(sqlite3.connect(Path(scratch, "copy.db"), timeout=1)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            db.set_progress_handler(lambda: 1, _STEPS)
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"journal", "pending", "intent"} <= tables:
                raise ValueError("not a database of ours")
            counts = [(text, db.execute(query).fetchone()[0]) for text, query in _COUNTS]
    return [f"{count} {text}" for text, count in counts if count]
