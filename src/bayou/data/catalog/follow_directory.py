"""Catch up with a datastore that is a directory, which others may write to as well."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from bayou.data.catalog.backfill import Backfill, Closed, Folder, Told, survey
from bayou.data.catalog.derive import Absent, Read, Refreshed, apply, empty, finish_refresh, is_record, read_all
from bayou.data.catalog.schema import KEYS, PATHS, TABLES, UNSEEN, get_meta, key_of

_MANY = 20_000
_CHANGING = """
WHERE stamp IS NULL OR rowid IN (
    SELECT place FROM (SELECT rowid AS place, max(version) FROM version GROUP BY type, model_id, name)
    UNION
    SELECT place FROM (SELECT rowid AS place, max(version) FROM version WHERE NOT deleted GROUP BY type, model_id, name)
)"""
"""Of an item, the highest version is marked as deleted in place, and the newest is appended to; the others only go."""


class DirectoryScan(Struct, frozen=True):
    """What is to be done: records to be read, directories to be remembered or forgotten, and what cannot be seen."""

    todo: frozenset[str] = frozenset()
    folders: Mapping[str, int | None] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)


def find_changes(db: sqlite3.Connection, root: Path) -> DirectoryScan | None:
    """Compare the directory with what is remembered of it, opening no file; None if nothing has changed."""
    if get_meta(db, "position") != _position(root):
        return DirectoryScan()
    found = _scan(db, root)
    stirred = found.todo or found.folders or found.gone or found.unreadable.keys() != set(_unreadable_directories(db))
    return found if stirred else None


def _scan(db: sqlite3.Connection, root: Path) -> DirectoryScan:
    remembered = {str(path): mtime for path, mtime in db.execute("SELECT path, mtime FROM folder")}
    seen = survey(root, remembered, _known_records(db))
    todo = {
        *seen.changed,
        *_changed_records(db, seen.found),
        *(_versions_in(db, seen.listed | seen.gone) - seen.found.keys()),
    }
    unreadable = {path: f"{path} cannot be read: {why}" for path, why in seen.hidden.items()}
    news = dict(seen.folders.items() - remembered.items())
    return DirectoryScan(frozenset(todo), news, frozenset(seen.gone & remembered.keys()), unreadable)


def catch_up(db: sqlite3.Connection, root: Path, changes: DirectoryScan, backfill: Backfill) -> Refreshed:
    """Read what has changed, and remember the directory as it was when it was changes at."""
    place = _position(root)
    if get_meta(db, "position") != place:
        why = get_meta(db, "why") or "had lost track of the tree"
        if get_meta(db, "place") not in (None, place):
            empty(db)
            why = "was of another datastore"
        return finish_refresh(db, place, place, why, _read_everything(db, root, backfill))
    count = apply(db, read_all(root, changes.todo), partial(_gone, db, root))
    db.executemany("DELETE FROM bad WHERE path = ?", [(path,) for path in _unreadable_directories(db)])
    db.executemany("INSERT OR REPLACE INTO bad VALUES (?, ?, NULL)", changes.unreadable.items())
    db.executemany("DELETE FROM folder WHERE path = ?", [(path,) for path in changes.gone])
    db.executemany("INSERT OR REPLACE INTO folder VALUES (?, ?)", changes.folders.items())
    return finish_refresh(db, place, place, None, count)


def _read_everything(db: sqlite3.Connection, root: Path, backfill: Backfill) -> int:
    """Read every record that is here, and remember every directory."""

    def take(found: Iterator[Told]) -> int:
        db.executemany("DELETE FROM bad WHERE path = ?", [(path,) for path in _unreadable_directories(db)])
        db.execute("DELETE FROM folder")
        for table in TABLES:
            db.execute(f"UPDATE {table} SET stamp = ?", (UNSEEN,))
        count = apply(db, _without_directories(db, found), partial(_gone, db, root))
        # Rows of an earlier catalog whose files the job did not meet are gone, unless it could not look (V20).
        hidden = tuple(f"{path}/" for path in _unreadable_directories(db))
        unseen = [
            str(path)
            for table, where in PATHS.items()
            for (path,) in db.execute(f"SELECT {where} FROM {table} WHERE stamp = ?", (UNSEEN,))
            if not path.startswith(hidden)
        ]
        return count + apply(db, read_all(root, unseen), partial(_gone, db, root))

    return backfill.directory(db, root, take)


def _without_directories(db: sqlite3.Connection, found: Iterator[Told]) -> Iterator[Read | Absent]:
    """Note the directories among what was found, and pass on the rest."""
    for one in found:
        match one:
            case Folder(path, mtime):
                db.execute("INSERT OR REPLACE INTO folder VALUES (?, ?)", (path, mtime))
            case Closed(path, why):
                db.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, NULL)", (path, why))
            case _:
                yield one


def _position(root: Path) -> str:
    return f"directory {root}"


def _gone(db: sqlite3.Connection, root: Path, absent: Collection[str]) -> list[str]:
    """A directory is the datastore itself: what is not in it is gone, unless the volume is not even there (V20).

    A payload root is never removed by Bayou: one that is missing is on a volume that is not mounted.
    """
    # A version that has lost its metadata may get it back, and only its own directory would show it.
    halves = {path.rpartition("/")[0] for path in absent if path.startswith("data/")}
    left = [(half,) for half in halves if os.path.isdir(root / half)]
    db.executemany("INSERT OR IGNORE INTO folder VALUES (?, NULL)", left)
    return [path for path in absent if os.path.isdir(root / path.partition("/")[0])]


def _known_records(db: sqlite3.Connection) -> Iterator[tuple[str, str | None]]:
    """Yield the records to look at, with their stamps: all, or of many versions those that Bayou changes in place."""
    for table, path in PATHS.items():
        many = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > _MANY
        some = _CHANGING if table == "version" and many else ""
        yield from db.execute(f"SELECT {path}, stamp FROM {table} {some}")
    yield from ((path, mark) for path, mark in db.execute("SELECT path, stamp FROM bad") if is_record(path))


def _versions_in(db: sqlite3.Connection, folders: Collection[str]) -> set[str]:
    """Return the versions that are known to have been in some directories."""
    items = [path.removeprefix("data/").rsplit("/", 2) for path in folders if path.startswith("data/")]
    query = f"SELECT {PATHS['version']} FROM version WHERE type = ? AND model_id = ? AND name = ?"
    return {path for item in items if len(item) == 3 for (path,) in db.execute(query, item)}


def _unreadable_directories(db: sqlite3.Connection) -> list[str]:
    """Return the directories that could not be changes into the last time."""
    return [path for (path,) in db.execute("SELECT path FROM bad") if not is_record(path)]


def _changed_records(db: sqlite3.Connection, found: Mapping[str, str]) -> Iterator[str]:
    """Yield the records whose stamp is neither that of their row nor that of a file that is known to be bad."""
    tables = {table for table in KEYS if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None}
    bad = dict(db.execute("SELECT path, stamp FROM bad").fetchall())
    for path, mark in found.items():
        table, key = key_of(path)
        where = " AND ".join(f'"{name}" = ?' for name in KEYS[table])
        row = db.execute(f"SELECT stamp FROM {table} WHERE {where}", key).fetchone() if table in tables else None
        if mark not in (row and row[0], bad.get(path)):
            yield path
