"""Calls to the file system: sync many files at once, and turn an `OSError` into an error with cause and next step."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from bayou.core.errors import PathRefused, StateError, TreeError

_T = TypeVar("_T")
_THREADS = 8
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


def parallel_fsync(sync: Callable[[_T], None], items: Sequence[_T]) -> None:
    """Call `sync` for each item on several threads and wait for all; the first error is raised.

    A file system commits the syncs that wait for it together, so that 500 small files take a tenth of the time.
    """
    if len(items) < 2:
        for item in items:
            sync(item)
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (4 ms, and a reader syncs nothing)

    with ThreadPoolExecutor(min(_THREADS, len(items)), thread_name_prefix="bayou-fsync") as pool:
        for _ in pool.map(sync, items):
            pass


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


def os_reason(error: OSError) -> str:
    """Return the reason of an `OSError`, without the file names of this machine."""
    return os.strerror(error.errno) if error.errno else str(error)


def tree_error(error: OSError, what: str) -> TreeError:
    """Return the error for what could not be done (`what`), with its reason and a hint."""
    hint = _HINTS.get(error.errno or 0, "check the file system, and try again")
    return TreeError(f"{what}: {os_reason(error)}", hint=hint)


class translate_oserror:  # noqa: N801  (read as a function: `with translate_oserror("cannot …")`)
    """Raise `TreeError` instead of an `OSError` in a block. Hot: a generator would cost as much as a system call."""

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


def path_refused(path: str, reason: str) -> PathRefused:
    """Return the error for a `path` that cannot be written safely because of what is in the tree."""
    return PathRefused(f"refused path {path!r}: {reason}", hint="move what is in the way out of the tree")


@contextmanager
def state_errors(message: str) -> Iterator[None]:
    """Turn an `OSError` about this machine's state into a `StateError` with this message and the reason."""
    try:
        yield
    except OSError as error:
        raise StateError(
            f"{message}: {error.strerror}",
            hint="check that this user may write to .bayou, and that its volume has space",
        ) from None
