"""Locks between processes, as files: the kernel tells who is alive, whatever a process left behind when it died."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_POLL_S = 0.02


class Lock:
    """A lock on a file, shared or exclusive, held until `release` or the end of whoever has its descriptor.

    The file stays: removing it would let two holders in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open file that holds the lock; a process that inherits it holds the lock too."""
        assert self._descriptor is not None
        return self._descriptor

    def acquire(self, *, shared: bool = False, timeout: float = 0.0) -> bool:
        """Take the lock within `timeout` seconds; return whether that came about."""
        end = time.monotonic() + timeout
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try(descriptor, shared=shared):
                if time.monotonic() >= end:
                    return False
                time.sleep(_POLL_S)
            self._descriptor, descriptor = descriptor, -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return True

    def release(self) -> None:
        """Give it up; doing so twice does no harm."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def held(path: Path) -> bool:
    """Say whether somebody alive holds the lock exclusively. Leaves no trace."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _try(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
