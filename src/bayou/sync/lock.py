"""Locks between processes of this machine, as files.

`filelock` does the same and more, and costs 45 ms at import: a quarter of a sync that has nothing to do. What is
needed here is one call of the kernel, which also tells when a holder has died.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_POLL_S = 0.01


class FileLock:
    """An exclusive lock on a file, held until `release` or the end of the process. Not for network file systems.

    The file stays: removing it would let two holders in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, timeout: float = 0.0) -> bool:
        """Take the lock within `timeout` seconds; return whether that came about."""
        end = time.monotonic() + timeout
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    os.close(descriptor)
                    return False
                time.sleep(min(_POLL_S, max(0.0, end - time.monotonic())))
            else:
                self._descriptor = descriptor
                return True

    def release(self) -> None:
        """Give the lock up; doing so twice does no harm."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
