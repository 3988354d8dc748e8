"""What the file system says of one file, and when that is enough to know its content."""

from __future__ import annotations

import os
from typing import NamedTuple

_COARSEST_CLOCK_NS = 2_000_000_000
"""FAT stamps files in steps of two seconds; nothing else in use is coarser."""

_FINE_CLOCK_NS = 250_000_000
"""A stamp with a fraction of a second comes from a clock of 10 ms steps or less; the rest is for a server's clock."""

_SECOND_NS = 1_000_000_000


class FileStat(NamedTuple):
    """Size, times and inode of a regular file. Equal stats say when not to bother hashing, and no more (V6).

    A tuple, since a walk makes and compares one for every file of the tree.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStat:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def same(self, other: FileStat | None) -> bool:
        """Say whether nothing seems to have happened to the file between the two."""
        return self == other

    def settled(self, now_ns: int) -> bool:
        """Say whether every write after `now_ns` is sure to change this stat.

        Take the stat, then `now_ns`, then read the content: only if the stat was settled do equal stats later prove
        equal content. A file system stamps files by a clock that moves in steps, and a second write within one step
        leaves the stat as the first one did. The step of the last write is over when ctime, stamped by the same
        clock, has moved beyond mtime (as it has when a file is written, synced and then renamed into place), or when
        both lie further back than a clock of their kind can. (Only a program that rewrites a file and sets its old
        mtime again, all within one step, could still hide.)
        """
        if self.mtime_ns < self.ctime_ns <= now_ns:
            return True
        step = _FINE_CLOCK_NS if self.mtime_ns % _SECOND_NS and self.ctime_ns % _SECOND_NS else _COARSEST_CLOCK_NS
        return max(self.mtime_ns, self.ctime_ns) < now_ns - step
