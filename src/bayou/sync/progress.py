"""How far a long operation has come, told to whoever watches."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Somebody who watches. Called from one thread at a time; must not raise, and must not take long."""

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        """Start a stage, as `pushing`; None where nobody knows how much there is."""

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Add what was done since the last call to the current stage."""

    def share(self, done: float) -> None:
        """Tell how much of the current stage is done, from 0 to 1, where nobody knows how much there is."""

    def end(self) -> None:
        """End the current stage."""


class Silent:
    """Nobody watches."""

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        return

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        return

    def share(self, done: float) -> None:
        return

    def end(self) -> None:
        return


class Stages:
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
