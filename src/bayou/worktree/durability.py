"""Make files and directories survive a power cut, many at once.

Turn failures of the file system into errors with a cause and a next step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from bayou.core.errors import PathRefused, TreeError

if TYPE_CHECKING:
    from concurrent.futures import Executor

_T = TypeVar("_T")
_TOGETHER = 8


def parallel_fsync(sync: Callable[[_T], None], items: Sequence[_T]) -> None:
    """Call `sync` for each item and wait for all; the first error comes out.

    Side by side, because a file system commits the syncs that wait for it together: 500 small files take a tenth of
    the time.
    """
    if len(items) < 2:
        for item in items:
            sync(item)
        return
    with _pool(min(_TOGETHER, len(items))) as pool:
        for _ in pool.map(sync, items):
            pass


def _pool(threads: int) -> Executor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (4 ms, and who only reads syncs nothing)

    return ThreadPoolExecutor(threads, thread_name_prefix="bayou-fsync")


def sync_file_system(root: Path) -> bool:
    """Make everything on the file system of `root` durable in one call; return False where there is no such call."""
    import ctypes  # noqa: PLC0415  (10 ms: only after a large pull)

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bool(syncfs(descriptor) == 0)
    finally:
        os.close(descriptor)


_HINTS = {
    errno.ENOSPC: "free some space, and try again",
    errno.EDQUOT: "free some space or raise the quota, and try again",
    errno.EFBIG: "raise the limit on the size of files, and try again",
    errno.EROFS: "mount the file system writable",
    errno.EACCES: "give this user access to the directory of the datastore",
    errno.EPERM: "give this user access to the directory of the datastore",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EXDEV: "keep the tree and .bayou on one file system",
}


def why(error: OSError) -> str:
    """Say what went wrong, without the file names of this machine."""
    return os.strerror(error.errno) if error.errno else str(error)


def tree_error(error: OSError, what: str) -> TreeError:
    """Say what could not be done, why, and what helps."""
    hint = _HINTS.get(error.errno or 0, "check the file system, and try again")
    return TreeError(f"{what}: {why(error)}", hint=hint)


class translate_oserror:  # noqa: N801  (read as a word: `with explained("cannot …")`)
    """Let no bare `OSError` out of a block of file system calls. Hot: a generator would cost as much as a call."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise tree_error(error, self._what) from error


def refused(path: str, reason: str) -> PathRefused:
    """Say that what lies in the tree leaves no safe place for `path`."""
    return PathRefused(f"refused path {path!r}: {reason}", hint="move what is in the way out of the tree")
