"""Bytes within a file: threads report what the store has acknowledged while the file is still on its way.

A sync shows a file as done when its result is recorded; a large file or a slow batch would stand still until then. The
`Meter` passes bytes on at once, and tells how many of a file's bytes are left to add at the end, so that no byte counts
twice and a stage never exceeds its total.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bayou.core.progress import Progress


class Meter:
    """Adds the bytes of files that are being transferred to the progress of a sync. Any thread may call it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._shown: dict[str, int] = {}

    def of(self, path: str, size: int) -> Callable[[int], None]:
        """Return a function that reports further bytes of a file of this size."""

        def moved(more: int) -> None:
            with self._lock:
                before = self._shown.get(path, 0)
                shown = self._shown[path] = min(size, before + more)
            if shown > before:
                self._progress.advance(bytes=shown - before)

        return moved

    def rest(self, path: str, size: int) -> int:
        """Return how many bytes of a finished file were not reported yet, and forget the file."""
        with self._lock:
            return size - min(size, self._shown.pop(path, 0))
