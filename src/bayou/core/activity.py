"""The current activity of this process, for the person who waits for it.

Code deep below a command (a thread that sends a part of a file, a request that is tried again, a wait for a lease)
tells it here, without a `Progress` passed down to it: a process has one terminal. The command line installs the one
watcher (`watch`); without it, in a library and in Spark's workers, every call does nothing. Any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from bayou.core.progress import NoProgress, Progress

OnBytes = Callable[[int], None]
"""Called with the number of bytes moved, by the thread that transfers them; a negative number takes some back."""


class Watcher(Progress, Protocol):
    """Shows what goes on: stages, waits and remarks."""

    def begin_wait(self, what: str) -> object:
        """Show what is waited for, and for how long; return what `end_wait` takes."""

    def end_wait(self, wait: object) -> None:
        """Show a wait no longer."""

    def remark(self, text: str) -> None:
        """Show a remark until the current stage makes progress or ends."""


_watchers: list[Watcher] = []


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Tell a watcher what goes on in this block; inside another such block, the inner watcher alone is told."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def is_watched() -> bool:
    """Return whether a progress line shows what goes on."""
    return bool(_watchers)


def current() -> Progress:
    """Return the progress that is shown now, for an operation whose caller has passed none."""
    return _watchers[-1] if _watchers else NoProgress()


def moved(count: int) -> None:
    """Count bytes of the current stage that have just been moved, as those of one part of a file."""
    if _watchers:
        _watchers[-1].advance(bytes=count)


def seen(files: int) -> None:
    """Count files that a listing, or a walk, has just found."""
    if _watchers:
        _watchers[-1].advance(files=files)


def remark(text: str) -> None:
    """Show a sentence about a delay, such as a request that is retried."""
    if _watchers:
        _watchers[-1].remark(text)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that this block waits for something outside, such as another process."""
    if not _watchers:
        yield
        return
    watcher = _watchers[-1]
    wait = watcher.begin_wait(what)
    try:
        yield
    finally:
        watcher.end_wait(wait)
