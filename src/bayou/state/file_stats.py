"""File stats: the hash of each file in the tree, valid as long as the file's stat has not changed (V6).

A row also says which remote's base the file was equal to when it was hashed (`matches`), so that a walk need only
compare stats to find the files that differ from base. A row with `settled` false is no proof: the file must be hashed
again. Functions with a `db` parameter write inside a transaction of the caller.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, cast

from bayou.core.errors import PathRefused
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.state.database import IN_RANGE, Database
from bayou.worktree.hashing import Content, FileStat
from bayou.worktree.safe_root import SafeRoot
from bayou.worktree.scan import KnownStats

Row = tuple[str, int, int, int, int, bytes, bool, int | None]
"""A row of the table `file`."""

_INSERT = "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class CachedHash(NamedTuple):
    """A file as it was when it was hashed. `matches` is the number of the remote whose base it was equal to, if any.

    A tuple: a walk compares one with every file of the tree.
    """

    stat: FileStat
    sha256: bytes
    settled: bool
    matches: int | None

    def is_current(self, stat: FileStat) -> bool:
        """Return whether a file with this stat need not be hashed again."""
        return self.settled and self.stat == stat


def file_stat(root: Path, path: str) -> FileStat | None:
    """Return the stat of a regular file in the tree; None if there is none at that path, or it cannot be examined."""
    try:
        return examine_file(root, path)
    except OSError:
        return None


def examine_file(root: Path, path: str) -> FileStat | None:
    """Return the stat of a regular file in the tree, None if there is none; `OSError` if that cannot be found out."""
    try:
        os.lstat(os.path.join(root, path))  # most callers ask for a missing file, and this call alone shows it
        status = SafeRoot(root).lstat(path)
    except (PathRefused, FileNotFoundError, NotADirectoryError):
        return None
    return FileStat.of(status) if status is not None and S_ISREG(status.st_mode) else None


def load_range(database: Database, within: KeyRange = EVERYTHING) -> dict[str, CachedHash]:
    """Return the cached hashes of all files of a range, by path."""
    found = database.rows(
        f"SELECT path, size, mtime, ctime, inode, sha256, settled, matches FROM file WHERE {IN_RANGE}", within.bounds
    )
    return {
        str(path): CachedHash(FileStat(size, mtime, ctime, inode), sha256, bool(settled), matches)  # type: ignore[arg-type]
        for path, size, mtime, ctime, inode, sha256, settled, matches in found
    }


def load(database: Database, paths: Iterable[str]) -> dict[str, CachedHash]:
    """Return the cached hashes of those of the paths that have one."""
    cached: dict[str, CachedHash] = {}
    for path in paths:
        for size, mtime, ctime, inode, sha256, settled, matches in database.rows(
            "SELECT size, mtime, ctime, inode, sha256, settled, matches FROM file WHERE path = ?", (path,)
        ):
            stat = FileStat(size, mtime, ctime, inode)  # type: ignore[arg-type]
            cached[path] = CachedHash(stat, sha256, bool(settled), matches)  # type: ignore[arg-type]
    return cached


def load_matching(database: Database, remote_id: int) -> tuple[KnownStats, set[str]]:
    """Return the stats of the files that equal a remote's base, and the paths of base that must be hashed.

    Hot: a walk compares the stats with every file of the tree, so they stay plain tuples.
    """
    found = database.rows("SELECT path, size, mtime, ctime, inode, settled FROM file WHERE matches = ?", (remote_id,))
    equal = {cast("str", row[0]): cast("tuple[int, int, int, int]", row[1:5]) for row in found if row[5]}
    return equal, {cast("str", row[0]) for row in found if not row[5]}


def make_row(path: str, content: Content, now_ns: int, matches: int | None, later_ns: int = 0) -> Row:
    """Return the row of a file that was just hashed. `now_ns` is from before its content was read.

    `later_ns` is a later stamp by the same clock, if one is known (`FileStat.precedes`).
    """
    stat = content.stat
    settled = stat.settled(now_ns) or stat.precedes(later_ns)
    return path, stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, content.sha256, settled, matches


def refresh_row(path: str, content: Content, now_ns: int, before: CachedHash | None) -> Row:
    """Return the row of a file that was just hashed, before the sync decides what to do with the file."""
    *columns, settled, _ = make_row(path, content, now_ns, None)
    matches = before.matches if before is not None else None
    same = before is not None and before.sha256 == content.sha256
    # A file of base that has changed stays unsettled: if this sync does not get to it, the next walk hashes it again.
    return *columns, settled and (same or matches is None), matches  # type: ignore[return-value]


def save(db: sqlite3.Connection, path: str, content: Content, now_ns: int, matches: int | None) -> None:
    """Save a file's hash. `now_ns` is from before the content was read."""
    db.execute(_INSERT, make_row(path, content, now_ns, matches))


def save_many(db: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Save rows that `make_row` or `refresh_row` made."""
    db.executemany(_INSERT, rows)


def save_unhashed(db: sqlite3.Connection, path: str, matches: int) -> None:
    """Record that base has a path whose file is not known to be equal, so that the next walk hashes it."""
    db.execute("INSERT OR REPLACE INTO file VALUES (?, -1, 0, 0, 0, x'', 0, ?)", (path, matches))


def clear_match(db: sqlite3.Connection, path: str) -> None:
    """Record that a file is not known to equal any base, so that the next walk compares it."""
    db.execute("UPDATE file SET matches = NULL WHERE path = ?", (path,))


def delete(db: sqlite3.Connection, path: str) -> None:
    """Delete the cached hash of a file."""
    db.execute("DELETE FROM file WHERE path = ?", (path,))
