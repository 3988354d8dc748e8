"""Progress of a long operation: the interface that shows it, and adapters for stages and for parts of an operation."""

from __future__ import annotations

import threading
from typing import Protocol

from msgspec import Struct


class Progress(Protocol):
    """Shows the progress of an operation. Any thread may call `advance`; no call may raise or take long."""

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        """Start a stage, such as `pushing`; None: the number of files or bytes is unknown."""

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Add the files and bytes that were done since the last call; bytes of a part that failed are taken back."""

    def skip(self, bytes: int) -> None:  # noqa: A002
        """Add bytes that need not be moved, such as those that an earlier command has moved: no speed counts them."""

    def share(self, done: float) -> None:
        """Set the share of the current stage that is done, from 0 to 1, if its files and bytes are unknown."""

    def end(self) -> None:
        """End the current stage."""


class Stage(Struct, frozen=True):
    """The name of a stage and how many files and bytes it will process, if known.

    `counts_bytes`: where the work runs in this process, it counts its bytes itself (`core.activity`), as they move.
    """

    what: str
    files: int | None = None
    bytes: int | None = None
    counts_bytes: bool = False


class ScaledProgress:
    """Converts a share of the work that is done to files and bytes of a stage, which has begun.

    The shown share never decreases, although an executor learns of more tasks while others are done.
    """

    def __init__(self, progress: Progress, stage: Stage) -> None:
        self._progress = progress
        self._stage = stage
        self._shown = (0, 0)
        self._share = 0.0

    def reach(self, share: float) -> None:
        """Show that this share of the stage is done."""
        if share <= self._share:
            return
        self._share = share
        if self._stage.files is None and self._stage.bytes is None:
            self._progress.share(share)
            return
        files, size = (round((planned or 0) * share) for planned in (self._stage.files, self._stage.bytes))
        before, self._shown = self._shown, (files, size)
        self._progress.advance(files=files - before[0], bytes=size - before[1])


class NoProgress:
    """Ignores all progress."""

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        return

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        return

    def skip(self, bytes: int) -> None:  # noqa: A002
        return

    def share(self, done: float) -> None:
        return

    def end(self) -> None:
        return


class SerialProgress:
    """Lets several threads report to a progress, one at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        with self._lock:
            self._progress.begin(what, files, bytes)

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        with self._lock:
            self._progress.advance(files, bytes)

    def skip(self, bytes: int) -> None:  # noqa: A002
        with self._lock:
            self._progress.skip(bytes)

    def share(self, done: float) -> None:
        with self._lock:
            self._progress.share(done)

    def end(self) -> None:
        with self._lock:
            self._progress.end()


def serial(progress: Progress) -> Progress:
    """Return a progress that several threads may report to; one that ignores everything stays recognisable."""
    return progress if isinstance(progress, NoProgress) else SerialProgress(progress)


class CombinedProgress:
    """Shows several stages as one: it adds up their progress and ignores their beginnings and ends."""

    def __init__(self, whole: Progress) -> None:
        self._whole = whole

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        return

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        self._whole.advance(files, bytes)

    def skip(self, bytes: int) -> None:  # noqa: A002
        self._whole.skip(bytes)

    def share(self, done: float) -> None:
        return

    def end(self) -> None:
        return
