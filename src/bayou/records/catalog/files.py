"""The files that rows are derived from, read one after the other."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from bayou.core.documents import read_at_most
from bayou.core.errors import BayouError, RecordDamaged
from bayou.records.catalog.derive import derive
from bayou.records.catalog.schema import Values, values
from bayou.records.layout import most_bytes
from bayou.worktree.durability import why
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DirEntryRef, DirFdCache


class Read(Struct, frozen=True):
    """A record's file: what stands in its row, or (None) why there is none. `hidden`: nobody could look at it.

    `stamp` is equal as long as the file is; None if a write in the moment of reading could have left it as it is.
    """

    path: str
    row: Values | None
    stamp: str | None
    why: str = ""
    hidden: bool = False


class Absent(Struct, frozen=True):
    """There is no such file here; what that means is for others to say."""

    path: str


def stamp(status: os.stat_result) -> str:
    """Return what changes whenever a file does, once it has settled."""
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"


def stamp_of(found: FileStat) -> str:
    """Return the stamp of a file that a scan has found."""
    return f"{found.size}:{found.mtime_ns}:{found.ctime_ns}:{found.inode}"


def read_all(root: Path, found: Iterable[str]) -> Iterator[Read | Absent]:
    """Read the records at these paths, in order of path."""
    trail = DirFdCache(root)
    try:
        for path in sorted(found):
            try:
                data, status, settled = _content(trail.to(path), most_bytes(path))
            except (FileNotFoundError, NotADirectoryError):
                trail.close()
                yield Absent(path)
                continue
            except (OSError, BayouError) as error:
                trail.close()
                reason = error.message if isinstance(error, BayouError) else why(error)
                yield Read(path, None, None, f"{path} cannot be read: {reason}", hidden=True)
                continue
            mark = stamp(status) if settled else None
            try:
                yield Read(path, values(derive(path, data))[1], mark)
            except RecordDamaged as error:
                yield Read(path, None, mark, error.message)
    finally:
        trail.close()


def _content(spot: DirEntryRef, most: int) -> tuple[bytes, os.stat_result, bool]:
    """Return a file's bytes, its stat from before, and whether a later write is sure to change that.

    Of a file that has more than `most` bytes it returns a little more than that, which no reader takes (V25).
    """
    descriptor = os.open(spot.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=spot.directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(spot.path)
        settled = FileStat.of(status).settled(time.time_ns())
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return read_at_most(file, most), status, settled
    finally:
        os.close(descriptor)
