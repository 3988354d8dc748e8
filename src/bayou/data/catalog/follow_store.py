"""Bring the catalog up to date with the local cache of a store: follow its change feed, or read every record.

A refresh is one transaction, which begins before the feed's position is read. So rows and position change together, two
processes that refresh take turns, and no writer's row is lost: a writer writes its file first and its row afterwards,
so the refresh sees the file, or the row is written after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from bayou.data.catalog.backfill import Backfill, records_of
from bayou.data.catalog.derive import (
    ROOTS,
    Gone,
    RefreshReport,
    apply,
    empty,
    finish_refresh,
    is_record,
    read_all,
    stamp,
)
from bayou.data.catalog.schema import PATHS, TABLES, UNSEEN, drop, get_meta, set_meta
from bayou.state.change_feed import ChangeFeed, Cursor, CursorRows, PendingRow
from bayou.worktree.scan import ScannedFile, scan


def follow(db: sqlite3.Connection, root: Path, feed: ChangeFeed, backfill: Backfill) -> RefreshReport:
    """Bring the catalog up to the feed's position."""
    old = Cursor.load(get_meta(db, "position") or "")
    changes = feed.changed_since(old, lambda: _load_cursor_rows(db)) if old is not None else None
    if changes is None:
        return _rebuild(db, root, feed, backfill)
    named = partial(feed.gone, named=True)
    # In order of path, as packs have their files: so does a query that reads the content of many rows.
    count = apply(db, read_all(root, sorted(_records(changes.paths | _fresh(db)))), named)
    for directory in changes.below:
        count += apply(db, read_all(root, sorted(_touched(db, root, directory))), named)
    if feed.complete:
        count += _drop_unseen(db, feed)
    db.executemany("DELETE FROM pending WHERE id = ?", [(number,) for number in changes.dropped])
    _save_cursor_rows(db, changes.added, changes.recent)
    return finish_refresh(db, feed.cursor.remote, feed.cursor.dump(), None, count)


def _rebuild(db: sqlite3.Connection, root: Path, feed: ChangeFeed, backfill: Backfill) -> RefreshReport:
    """Read every record in the cache; keep the rows of other records unless they are known to be gone."""
    why = get_meta(db, "why") or "had lost track of the tree"
    former = Cursor.load(get_meta(db, "former") or "")
    remote = get_meta(db, "place") or (former.remote if former is not None else None)
    if remote is not None and remote != feed.cursor.remote:
        empty(db)
        why = "was of another datastore"
    changes = feed.changed_since(former, CursorRows) if former is not None else None
    changed = _records(changes.paths) if changes is not None else ()
    count = apply(db, read_all(root, changed), partial(feed.gone, named=True))
    for table in TABLES:
        db.execute(f"UPDATE {table} SET stamp = ?", (UNSEEN,))
    db.execute("DELETE FROM bad")
    count += _read_everything(db, root, partial(feed.gone, named=False), backfill)
    count += _drop_unseen(db, feed)
    db.execute("DELETE FROM pending")
    kept = feed.cursor_rows()
    _save_cursor_rows(db, kept.pending, kept.recent)
    set_meta(db, "former", None)
    return finish_refresh(db, feed.cursor.remote, feed.cursor.dump(), why, count)


def _read_everything(db: sqlite3.Connection, root: Path, gone: Gone, backfill: Backfill) -> int:
    """Read every record in the cache."""
    here = _records(found.path for top in ROOTS for found in scan(root, top) if isinstance(found, ScannedFile))
    return backfill.cache(db, root, here, lambda found: apply(db, records_of(found), gone))


def _records(paths: Iterable[str]) -> Iterator[str]:
    return filter(is_record, paths)


def _touched(db: sqlite3.Connection, root: Path, directory: str) -> set[str]:
    """Return the records in a directory (the empty path: anywhere) whose files have changed or are gone."""
    prefix = f"{directory}/" if directory else ""
    stamps: dict[str, str | None] = {}
    for table, path in PATHS.items():
        known = f"SELECT {path} AS path, stamp FROM {table} WHERE substr({path}, 1, ?) = ?"
        stamps.update(db.execute(known, (len(prefix), prefix)).fetchall())
    tops = [directory] if directory else ROOTS
    here = {found.path: found.stat for top in tops for found in scan(root, top) if isinstance(found, ScannedFile)}
    changed = {path for path, stat in here.items() if is_record(path) and stamps.get(path) != stamp(stat)}
    return changed | (stamps.keys() - here.keys())


def _fresh(db: sqlite3.Connection) -> set[str]:
    """Return the records whose rows have no stamp.

    A writer made such a row, and its file may have come and gone between two positions; or the file was too young when
    it was read.
    """
    return {
        str(record)
        for table, path in PATHS.items()
        for (record,) in db.execute(f"SELECT {path} FROM {table} WHERE stamp IS NULL")
    }


def _drop_unseen(db: sqlite3.Connection, feed: ChangeFeed) -> int:
    """Drop rows of an earlier catalog whose records are gone, by the journal or by a complete base."""
    count = 0
    for table, path in PATHS.items():
        unseen = [str(record) for (record,) in db.execute(f"SELECT {path} FROM {table} WHERE stamp = ?", (UNSEEN,))]
        if unseen:
            count += drop(db, feed.gone(unseen, named=False))
    return count


def _load_cursor_rows(db: sqlite3.Connection) -> CursorRows:
    pending = [PendingRow(*row) for row in db.execute("SELECT id, kind, path FROM pending")]
    return CursorRows(pending, [str(path) for (path,) in db.execute("SELECT path FROM recent")])


def _save_cursor_rows(db: sqlite3.Connection, pending: Iterable[PendingRow], recent: Iterable[str] | None) -> None:
    db.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?)", [(row.id, row.kind, row.path) for row in pending])
    if recent is not None:
        db.execute("DELETE FROM recent")
        db.executemany("INSERT OR IGNORE INTO recent VALUES (?)", [(path,) for path in recent])
