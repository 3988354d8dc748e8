"""What is known of the files in the tree: their hashes, as long as their stat has not changed (V6)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, cast

from bayou.core.errors import PathRefused
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.state.database import IN_SPAN, Database
from bayou.worktree.hashing import Content, FileStat
from bayou.worktree.safe_root import SafeRoot
from bayou.worktree.scan import Known as Scanned


class Known(NamedTuple):
    """A file as it was when it was hashed. `matches`: the place whose base it was equal to, if any.

    A tuple: a walk compares one with every file of the tree.
    """

    stat: FileStat
    sha256: bytes
    settled: bool
    matches: int | None

    def still(self, stat: FileStat) -> bool:
        """Whether a file with this stat need not be hashed again."""
        return self.settled and self.stat == stat


def file_stat(root: Path, path: str) -> FileStat | None:
    """Return the stat of a file in the tree; None if there is none, or something that is no file."""
    try:
        os.lstat(os.path.join(root, path))  # most that is asked for is not there, and one call says so
        status = SafeRoot(root).status(path)
    except (PathRefused, OSError):
        return None
    return FileStat.of(status) if status is not None and S_ISREG(status.st_mode) else None


def all_known(database: Database, within: KeyRange = EVERYTHING) -> dict[str, Known]:
    found = database.rows(
        f"SELECT path, size, mtime, ctime, inode, sha256, settled, matches FROM file WHERE {IN_SPAN}", within.bounds
    )
    return {
        str(path): Known(FileStat(size, mtime, ctime, inode), sha256, bool(settled), matches)  # type: ignore[arg-type]
        for path, size, mtime, ctime, inode, sha256, settled, matches in found
    }


def matching(database: Database, place: int) -> tuple[Scanned, set[str]]:
    """Return the stats of files that base of a place names and that are equal to it, and the paths of those that base
    names and that must be looked at. Hot: a walk compares the stats with every file of the tree, and makes no more of
    them than tuples."""
    found = database.rows("SELECT path, size, mtime, ctime, inode, settled FROM file WHERE matches = ?", (place,))
    equal = {cast("str", row[0]): cast("tuple[int, int, int, int]", row[1:5]) for row in found if row[5]}
    return equal, {cast("str", row[0]) for row in found if not row[5]}


def known(database: Database, paths: Iterable[str]) -> dict[str, Known]:
    answer: dict[str, Known] = {}
    for path in paths:
        for size, mtime, ctime, inode, sha256, settled, matches in database.rows(
            "SELECT size, mtime, ctime, inode, sha256, settled, matches FROM file WHERE path = ?", (path,)
        ):
            stat = FileStat(size, mtime, ctime, inode)  # type: ignore[arg-type]
            answer[path] = Known(stat, sha256, bool(settled), matches)  # type: ignore[arg-type]
    return answer


def remember(db: sqlite3.Connection, path: str, content: Content, now_ns: int, matches: int | None) -> None:
    """Keep a file's hash, inside a transaction. `now_ns` is from before the content was read."""
    db.execute(_REMEMBER, row(path, content, now_ns, matches))


_REMEMBER = "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
Row = tuple[str, int, int, int, int, bytes, bool, int | None]


def row(path: str, content: Content, now_ns: int, matches: int | None) -> Row:
    """Return what `remember` keeps of a file."""
    stat = content.stat
    settled = stat.settled(now_ns)
    return path, stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, content.sha256, settled, matches


def renewed(path: str, content: Content, now_ns: int, before: Known | None) -> Row:
    """Return what to keep of a file that has just been hashed, before anything is decided about it."""
    *kept, settled, _ = row(path, content, now_ns, None)
    matches = before.matches if before is not None else None
    same = before is not None and before.sha256 == content.sha256
    # Where base names it, and it has changed, the next walk must look again if this sync does not get to it.
    return *kept, settled and (same or matches is None), matches  # type: ignore[return-value]


def remember_many(db: sqlite3.Connection, kept: Iterable[Row]) -> None:
    db.executemany(_REMEMBER, kept)


def expect(db: sqlite3.Connection, path: str, matches: int) -> None:
    """Note that base names a path whose file is not known to be equal, so that the next walk looks at it."""
    db.execute("INSERT OR REPLACE INTO file VALUES (?, -1, 0, 0, 0, x'', 0, ?)", (path, matches))


def doubt(db: sqlite3.Connection, path: str) -> None:
    """Note that a file is not known to be equal to anything, so that the next walk looks at it."""
    db.execute("UPDATE file SET matches = NULL WHERE path = ?", (path,))


def forget(db: sqlite3.Connection, path: str) -> None:
    db.execute("DELETE FROM file WHERE path = ?", (path,))
