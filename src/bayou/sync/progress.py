"""How far a long operation has come, told to whoever watches."""

from __future__ import annotations

from bayou.engine.progress import Progress

__all__ = ["Progress", "Silent", "Stages"]


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
