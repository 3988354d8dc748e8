"""Bytes within a file: threads report what the store has acknowledged while the file is still on its way.

A sync shows a file as done when its result is recorded; a large file or a slow batch would stand still until then. The
`Meter` passes bytes on at once, and tells how many of a file's bytes are left to add at the end, so that no byte counts
twice and a stage never exceeds its total.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from bayou.core.progress import Progress


class FileMeter(NamedTuple):
    """Reports bytes of one file: those that have `moved`, and those that an earlier command `had` moved."""

    moved: Callable[[int], None]
    had: Callable[[int], None]


def _ignore(_: int) -> None:
    """Report no bytes."""


UNMETERED = FileMeter(_ignore, _ignore)


class Meter:
    """Adds the bytes of files that are being transferred to the progress of a sync. Any thread may call it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._shown: dict[str, int] = {}

    def of(self, path: str, size: int) -> FileMeter:
        """Return the functions that report further bytes of a file of this size."""

        def added(more: int) -> int:
            with self._lock:
                before = self._shown.get(path, 0)
                shown = self._shown[path] = min(size, before + more)
            return shown - before

        def moved(more: int) -> None:
            if new := added(more):
                self._progress.advance(bytes=new)

        def had(more: int) -> None:
            if new := added(more):
                self._progress.skip(new)

        return FileMeter(moved, had)

    def rest(self, path: str, size: int) -> int:
        """Return how many bytes of a finished file were not reported yet, and forget the file."""
        with self._lock:
            return size - min(size, self._shown.pop(path, 0))
