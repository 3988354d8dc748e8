"""Local state that was made elsewhere and set aside (V24): what work it holds, and how to take it over.

Such state may be hostile. So the code reads as little of it as possible: it counts rows in a copy of the database,
within limits, and applies none.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bayou.config import ownership
from bayou.config.trust import Need, write_private
from bayou.core import limits
from bayou.core.documents import Unreadable, read_json
from bayou.core.errors import StateError

_MAX_DATABASE = 1024 * limits.MIB
_STEPS = 50_000_000
"""Instructions of SQLite's virtual machine that counting may take: some seconds."""
NOTHING = "nothing that is not pushed yet"
_FILES = (
    ("changes", "unfinished changes of records"),
    ("spool", "inputs that are no versions yet"),
    ("spool/refused", "inputs that were refused"),
)
"""Directories of a state that hold a `.json` file for each piece of work (V19, V22)."""
_COUNTS = (
    ("written files that are not pushed yet", "SELECT count(DISTINCT path) FROM journal WHERE kind = 'write'"),
    ("deletes that are not pushed yet", "SELECT count(DISTINCT path) FROM journal WHERE kind = 'delete'"),
    ("changed directories that are not pushed yet", "SELECT count(*) FROM journal WHERE kind = 'tree'"),
    ("commits that were not finished", "SELECT count(*) FROM pending"),
    ("files that a pull was about to write", "SELECT count(*) FROM intent"),
)


def state_need(root: Path, folder: Path) -> Need:
    """Return the permission that using a state directory needs, with the work that it holds."""
    where = folder.relative_to(root).as_posix()
    holds = ", ".join(_pending_work(folder / "state")) or NOTHING
    why = f"state of this repo that was not made by you on this machine was set aside; it holds {holds}"
    return Need.of("state", where, holds, why)


def take_over(local: Path, folder: Path) -> None:
    """Use a state directory that was set aside. `StateError` if that would lose work of the current state."""
    waiting = _pending_work(local / "state") if os.path.isdir(local / "state") else []
    if waiting:
        raise StateError(
            f"the state in use by now holds {', '.join(waiting)}: it cannot be replaced",
            hint="push that first with `bayou datastore sync`, move refused inputs out of .bayou/state/spool/refused,"
            " then run `bayou trust allow` again",
        )
    made = ownership.take_over(local, folder)
    _set_owner(local / "state", made)


def choose(root: Path, folders: Sequence[Path]) -> Path:
    """Return which of several state directories to take over: the newest that holds work."""
    return next((folder for folder in folders if state_need(root, folder).value != NOTHING), folders[0])


def _set_owner(state: Path, owner: str) -> None:
    """Write the owner's id into the files of a state directory, as files made here have it."""
    if os.path.isfile(state / "sync.db"):
        with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(state / "sync.db", timeout=10)) as db:
            db.execute("INSERT INTO owner VALUES (?)", (owner,))
            db.commit()
    for change in (state / "changes").glob("*.json"):
        with contextlib.suppress(OSError, Unreadable, TypeError):
            work = read_json(change.read_bytes(), limits.RECORD_BYTES)
            write_private(change, json.dumps({**work, "owner": [owner]}))


def _pending_work(state: Path) -> list[str]:
    """Describe the unfinished work in a state directory; an unreadable database is named as such."""
    work = []
    for folder, what in _FILES:
        try:
            found = sum(name.endswith(".json") for name in os.listdir(state / folder))
        except OSError:
            found = 0
        if found:
            work.append(f"{found} {what}")
    if os.path.lexists(state / "sync.db"):
        try:
            work += _count_rows(state / "sync.db")
        except (sqlite3.Error, OSError, ValueError):
            work.append("a database that cannot be read")
    return work


def _count_rows(database: Path) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="bayou-") as scratch:
        for end in ("", "-wal"):
            source = Path(f"{database}{end}")
            if source.is_symlink() or (source.exists() and source.stat().st_size > _MAX_DATABASE):
                raise ValueError("not a database of ours")
            if source.is_file():
                shutil.copyfile(source, Path(scratch, f"copy.db{end}"))
        with closing(sqlite3.connect(Path(scratch, "copy.db"), timeout=1)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.MIB)
            db.set_progress_handler(lambda: 1, _STEPS)
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"journal", "pending", "intent"} <= tables:
                raise ValueError("not a database of ours")
            counts = [(text, db.execute(query).fetchone()[0]) for text, query in _COUNTS]
    return [f"{count} {text}" for text, count in counts if count]
