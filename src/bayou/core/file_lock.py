"""File locks between processes with `flock`, which the kernel releases when the holder dies.

The package `filelock` does the same and more, but takes 45 ms to import: a quarter of a sync that has nothing to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

_HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)  # EACCES: NFS
_POLL_S = 0.01


class FileLock:
    """A shared or exclusive lock on a file, held until `release` or the end of all processes with its descriptor.

    Each object opens the file itself, so two threads of one process exclude each other as well. The lock file stays:
    removing it would let two holders in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open file that holds the lock; a child process that inherits it holds the lock too."""
        assert self._descriptor is not None
        return self._descriptor

    def acquire(self, timeout: float = 0.0, *, shared: bool = False) -> bool:
        """Take the lock within `timeout` seconds; return whether that succeeded."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not lock_descriptor(descriptor, timeout, shared=shared):
                return False
            self._descriptor, descriptor = descriptor, -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return True

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_descriptor(
    descriptor: int, timeout: float | None = 0.0, *, shared: bool = False, poll_s: float = _POLL_S
) -> bool:
    """Lock an open file or directory within `timeout` seconds; return whether that succeeded.

    Closing the descriptor releases the lock. A `timeout` of None waits in the kernel; use it only for locks that
    their holders keep for at most one write (V12).
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if timeout is None:
        fcntl.flock(descriptor, kind)
        return True
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                raise
        else:
            return True
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(poll_s, left))


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock exclusively; do not create the lock file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock_descriptor(descriptor, shared=True)
    finally:
        os.close(descriptor)
