"""Bring the catalog up to date with a datastore that is a directory, which other programs may write to as well.

The catalog remembers the mtime of each directory and a stamp of each record. `find_changes` compares these with the
disk by stat alone; `catch_up` reads the records that changed and updates rows and mtimes in the caller's transaction.
What cannot be read is not taken for deleted (V20). A catalog of another datastore, or a new one, is rebuilt.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from bayou.data.catalog.backfill import Backfill, BackfillFinding, DirectoryStamp, UnreadableDirectory, survey
from bayou.data.catalog.derive import (
    MissingFile,
    RecordRead,
    RefreshReport,
    apply,
    empty,
    finish_refresh,
    is_record,
    read_all,
)
from bayou.data.catalog.schema import KEYS, PATHS, TABLES, UNSEEN, get_meta, key_of

MOST_COMPARED = 20_000
"""Versions up to which all stamps are compared; of more, only those in `_CHANGING`."""
_CHANGING = """
WHERE stamp IS NULL OR rowid IN (
    SELECT place FROM (SELECT rowid AS place, max(version) FROM version GROUP BY type, model_id, name)
    UNION
    SELECT place FROM (SELECT rowid AS place, max(version) FROM version WHERE NOT deleted GROUP BY type, model_id, name)
)"""
"""The versions whose files Bayou changes in place: an item's highest becomes a tombstone, its newest is appended to.

All other versions are only ever deleted, which the mtime of the item's directory shows."""


class DirectoryScan(Struct, frozen=True):
    """The changes: records to read, directories to remember or to forget, and directories that cannot be read."""

    todo: frozenset[str] = frozenset()
    folders: Mapping[str, int | None] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)


def find_changes(db: sqlite3.Connection, root: Path) -> DirectoryScan | None:
    """Compare the directory with the catalog without opening a file; None if nothing has changed."""
    if get_meta(db, "position") != _position(root):
        return DirectoryScan()
    found = _scan(db, root)
    changed = found.todo or found.folders or found.gone or found.unreadable.keys() != set(_unreadable_directories(db))
    return found if changed else None


def _scan(db: sqlite3.Connection, root: Path) -> DirectoryScan:
    remembered = {str(path): mtime for path, mtime in db.execute("SELECT path, mtime FROM folder")}
    seen = survey(root, remembered, _known_records(db))
    todo = {
        *seen.changed,
        *_changed_records(db, seen.found),
        *(_versions_in(db, seen.listed | seen.gone) - seen.found.keys()),
    }
    unreadable = {path: f"{path} cannot be read: {why}" for path, why in seen.hidden.items()}
    new_mtimes = dict(seen.folders.items() - remembered.items())
    return DirectoryScan(frozenset(todo), new_mtimes, frozenset(seen.gone & remembered.keys()), unreadable)


def catch_up(db: sqlite3.Connection, root: Path, changes: DirectoryScan, backfill: Backfill) -> RefreshReport:
    """Read the records that changed, and remember the directories as they were when `changes` were found."""
    position = _position(root)
    if get_meta(db, "position") != position:
        why = get_meta(db, "why") or "had lost track of the tree"
        if get_meta(db, "place") not in (None, position):
            empty(db)
            why = "was of another datastore"
        return finish_refresh(db, position, position, why, _read_everything(db, root, backfill))
    count = apply(db, read_all(root, changes.todo), partial(_gone, db, root))
    db.executemany("DELETE FROM bad WHERE path = ?", [(path,) for path in _unreadable_directories(db)])
    db.executemany("INSERT OR REPLACE INTO bad VALUES (?, ?, NULL)", changes.unreadable.items())
    db.executemany("DELETE FROM folder WHERE path = ?", [(path,) for path in changes.gone])
    db.executemany("INSERT OR REPLACE INTO folder VALUES (?, ?)", changes.folders.items())
    return finish_refresh(db, position, position, None, count)


def _read_everything(db: sqlite3.Connection, root: Path, backfill: Backfill) -> int:
    """Read every record of the datastore, and remember every directory."""

    def take(found: Iterator[BackfillFinding]) -> int:
        db.executemany("DELETE FROM bad WHERE path = ?", [(path,) for path in _unreadable_directories(db)])
        db.execute("DELETE FROM folder")
        for table in TABLES:
            db.execute(f"UPDATE {table} SET stamp = ?", (UNSEEN,))
        count = apply(db, _without_directories(db, found), partial(_gone, db, root))
        # Rows of an earlier catalog that the job did not find are gone, unless their directory is unreadable (V20).
        hidden = tuple(f"{path}/" for path in _unreadable_directories(db))
        unseen = [
            str(path)
            for table, where in PATHS.items()
            for (path,) in db.execute(f"SELECT {where} FROM {table} WHERE stamp = ?", (UNSEEN,))
            if not path.startswith(hidden)
        ]
        return count + apply(db, read_all(root, unseen), partial(_gone, db, root))

    return backfill.directory(db, root, take)


def _without_directories(
    db: sqlite3.Connection, found: Iterator[BackfillFinding]
) -> Iterator[RecordRead | MissingFile]:
    """Save the directories among the findings, and yield the others."""
    for finding in found:
        match finding:
            case DirectoryStamp(path, mtime):
                db.execute("INSERT OR REPLACE INTO folder VALUES (?, ?)", (path, mtime))
            case UnreadableDirectory(path, why):
                db.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, NULL)", (path, why))
            case _:
                yield finding


def _position(root: Path) -> str:
    """Return the text that stands for a directory datastore, of which the name need not be UTF-8."""
    return f"directory {os.fsencode(root).decode(errors='backslashreplace')}"


def _gone(db: sqlite3.Connection, root: Path, absent: Collection[str]) -> list[str]:
    """Return which absent records are gone: all whose payload root exists (V20).

    The directory is the datastore itself, so a record that is not in it is deleted. Bayou never removes a payload root:
    if one is missing, its volume is not mounted.
    """
    # A version that has lost its metadata may get it back, and only the mtime of its own directory would show that.
    versions = {path.rpartition("/")[0] for path in absent if path.startswith("data/")}
    remaining = [(version,) for version in versions if os.path.isdir(root / version)]
    db.executemany("INSERT OR IGNORE INTO folder VALUES (?, NULL)", remaining)
    return [path for path in absent if os.path.isdir(root / path.partition("/")[0])]


def _known_records(db: sqlite3.Connection) -> Iterator[tuple[str, str | None]]:
    """Yield the records to compare, with their stamps; of many versions only those that Bayou changes in place."""
    for table, path in PATHS.items():
        many = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > MOST_COMPARED
        where = _CHANGING if table == "version" and many else ""
        yield from db.execute(f"SELECT {path}, stamp FROM {table} {where}")
    yield from ((path, mark) for path, mark in db.execute("SELECT path, stamp FROM bad") if is_record(path))


def _versions_in(db: sqlite3.Connection, folders: Collection[str]) -> set[str]:
    """Return the metadata paths of the versions that the catalog has in these directories."""
    items = [path.removeprefix("data/").rsplit("/", 2) for path in folders if path.startswith("data/")]
    query = f"SELECT {PATHS['version']} FROM version WHERE type = ? AND model_id = ? AND name = ?"
    return {path for item in items if len(item) == 3 for (path,) in db.execute(query, item)}


def _unreadable_directories(db: sqlite3.Connection) -> list[str]:
    """Return the directories that the last refresh could not read."""
    return [path for (path,) in db.execute("SELECT path FROM bad") if not is_record(path)]


def _changed_records(db: sqlite3.Connection, found: Mapping[str, str]) -> Iterator[str]:
    """Yield the records whose stamp is neither that of their row nor that of a file known to be invalid."""
    tables = {table for table in KEYS if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None}
    bad = dict(db.execute("SELECT path, stamp FROM bad").fetchall())
    for path, mark in found.items():
        table, key = key_of(path)
        where = " AND ".join(f'"{name}" = ?' for name in KEYS[table])
        row = db.execute(f"SELECT stamp FROM {table} WHERE {where}", key).fetchone() if table in tables else None
        if mark not in (row and row[0], bad.get(path)):
            yield path
