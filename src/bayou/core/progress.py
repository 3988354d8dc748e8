"""How far a long operation has come: the interface of a progress bar, and a stage that is known only by its share.

How far a long operation has come, told to whoever watches.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Progress(Protocol):
    """Shows how far work has come. Called from one thread at a time; must not raise, and must not take long."""

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        """Start a stage, as `pushing`; None where it is not known how much there is."""

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Add what was done since the last call to the current stage."""

    def share(self, done: float) -> None:
        """Set the share of the current stage that is done, from 0 to 1, where it is not known how much there is."""

    def end(self) -> None:
        """End the current stage."""


class Stage(Struct, frozen=True):
    """What a progress bar shows of a job: its name, and how many files and bytes it will go through, where known."""

    what: str
    files: int | None = None
    bytes: int | None = None


class ScaledProgress:
    """Turns a share of the work that is done into files and bytes of a stage, which has begun.

    The share never goes back: an executor learns of more tasks while others are done.
    """

    def __init__(self, progress: Progress, stage: Stage) -> None:
        self._progress = progress
        self._stage = stage
        self._shown = (0, 0)
        self._share = 0.0

    def reach(self, share: float) -> None:
        """Show that a share of the whole is done."""
        if share <= self._share:
            return
        self._share = share
        if self._stage.files is None and self._stage.bytes is None:
            self._progress.share(share)
            return
        files, size = (round((planned or 0) * share) for planned in (self._stage.files, self._stage.bytes))
        before, self._shown = self._shown, (files, size)
        self._progress.advance(files=files - before[0], bytes=size - before[1])


__all__ = ["CombinedProgress", "NoProgress", "Progress"]


class NoProgress:
    """Nobody watches."""

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        return

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        return

    def share(self, done: float) -> None:
        return

    def end(self) -> None:
        return


class CombinedProgress:
    """Tells several stages as one: what is done in each adds up, and only the whole begins and ends."""

    def __init__(self, whole: Progress) -> None:
        self._whole = whole

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        return

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        self._whole.advance(files, bytes)

    def share(self, done: float) -> None:
        return

    def end(self) -> None:
        return
