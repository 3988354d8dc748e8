"""Hash a file, and notice when it changes meanwhile (V6).

`FileStat` is a file's size, times and inode, and says when an equal stat proves equal content; `read_content` hashes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import ClassVar, NamedTuple

from bayou.core.activity import OnBytes
from bayou.core.deadline import Deadline
from bayou.core.errors import ContentChanged
from bayou.core.limits import INT64_MAX
from bayou.core.structs import SelectiveStruct
from bayou.worktree.durability import path_refused, tree_error
from bayou.worktree.safe_root import file_kind

_COARSEST_CLOCK_NS = 2_000_000_000
"""FAT stamps files in steps of two seconds; no other file system in use is coarser."""

_FINE_CLOCK_NS = 250_000_000
"""A stamp with a fraction of a second comes from a clock of 10 ms steps or less; the rest is for a server's clock."""

_SECOND_NS = 1_000_000_000
_BUFFER = 1 << 20
_TRIES = 5


class FileStat(NamedTuple):
    """Size, times and inode of a regular file. Equal stats only say when hashing can be skipped (V6).

    A tuple, since a walk makes and compares one for every file of the tree.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStat:
        """Return the stat in numbers that `sync.db` and Arrow can store: signed, of 64 bits.

        mergerfs and CIFS, among others, have inodes from 2^63 on, and any program can set a time after 2262.
        """
        mtime, ctime, inode = status.st_mtime_ns, status.st_ctime_ns, status.st_ino
        return cls(status.st_size, _bounded(mtime), _bounded(ctime), inode - 2**64 if inode > INT64_MAX else inode)

    def settled(self, now_ns: int) -> bool:
        """Return whether every write after `now_ns` is sure to change this stat.

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

    def precedes(self, stamp_ns: int) -> bool:
        """Return whether the step of the last write was over when the same clock stamped something else.

        Then the stat is settled, too: the directory into which a file's own directory is renamed gets such a stamp.
        """
        return max(self.mtime_ns, self.ctime_ns) < stamp_ns


def _bounded(time_ns: int) -> int:
    return max(-INT64_MAX, min(time_ns, INT64_MAX))


class Content(SelectiveStruct, frozen=True):
    """The hash and size of bytes that the file had at one moment, and the stat that it had just before.

    A file that has changed since has another stat, unless this stat is not `settled`. `data` are the bytes, if the
    caller asked to keep them.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("data",)
    unshown: ClassVar[tuple[str, ...]] = ("data",)

    sha256: bytes
    size: int
    stat: FileStat
    data: bytes | None = None


def read_content(
    path: Path | str, deadline: Deadline | None = None, keep: int = 0, moved: OnBytes | None = None
) -> Content:
    """Hash a regular file; `FileNotFoundError` if it is gone, `PathRefused` if it is a link or no file.

    If a writer appends to the file meanwhile, the result has the bytes of the start, and a stat that differs from the
    file's new stat. If a writer rewrites the file meanwhile, it is read again, and `ContentChanged` is raised if that
    happens every time. A `deadline` ends the reading of a large file (V12). `Content.data` keeps the bytes of a file of
    at most `keep` bytes that did not grow meanwhile. `moved` is called with the bytes that are read.
    """
    try:
        for _ in range(_TRIES):
            content = _read_once(path, deadline, keep, moved)
            if content is not None:
                return content
    except FileNotFoundError:
        raise
    except OSError as error:
        if os.path.islink(path):
            raise path_refused(str(path), "it is a symbolic link") from None
        raise tree_error(error, f"cannot read {path}") from error
    raise ContentChanged(f"{path} keeps changing while it is read", hint="let its writer finish, and try again")


def _read_once(path: Path | str, deadline: Deadline | None, keep: int, moved: OnBytes | None) -> Content | None:
    """Hash as many bytes as the file has at the start; None if they may be of two versions of the file."""
    # Not blocking, since opening a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise path_refused(str(path), f"it is {file_kind(status.st_mode)}")
        before = FileStat.of(status)
        size = before.size
        if deadline is not None:
            deadline.remaining()
        from hashlib import sha256  # noqa: PLC0415  (a list of records hashes nothing)

        # Hot: most files are small, and are read at once.
        chunk = os.read(descriptor, min(size, _BUFFER)) if size else b""
        digest = sha256(chunk)
        left = size - len(chunk)
        if moved is not None:
            moved(len(chunk))
        while left:
            if deadline is not None:
                deadline.remaining()
            chunk = os.read(descriptor, min(left, _BUFFER))
            if not chunk:
                return None
            digest.update(chunk)
            left -= len(chunk)
            if moved is not None:
                moved(len(chunk))
        after = FileStat.of(os.fstat(descriptor))
    finally:
        os.close(descriptor)
    if after == before:
        return Content(digest.digest(), size, before, chunk if size <= keep and len(chunk) == size else None)
    # It may have been rewritten, and not appended to: keep no bytes, so that the upload reads them again and checks.
    return Content(digest.digest(), size, before) if after.size > size else None
