"""The current activity of this process, for the person who waits for it.

Code deep below a command (a thread that sends a part of a file, a request that is tried again, a wait for a lease)
reports it here, without a `Progress` passed down to it: a process has one terminal. The command line installs the one
watcher (`watch`); without it, in a library and in Spark's workers, every call does nothing. Any thread may call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, TypeVar

from bayou.core.progress import NoProgress, Progress

R = TypeVar("R")

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

    def begin_request(self, size: int) -> object:
        """Note a request that moves so many bytes; return what `arrive` and `end_request` take."""

    def arrive(self, request: object, more: int) -> None:
        """Show bytes of a request before the stage counts them, which it does once the request is done."""

    def hand_over(self, request: object, more: int) -> None:
        """Note bytes of a request that the system has taken and may still hold; they are shown as they leave."""

    def end_request(self, request: object, *, failed: bool) -> None:
        """Note that a request has ended; the bytes that arrived of one that failed are taken back."""

    def hidden(self) -> AbstractContextManager[None]:
        """Show nothing in this block."""


_watchers: list[Watcher] = []


class _Here(threading.local):
    """The request that this thread is inside of, and its watcher."""

    request: tuple[Watcher, object] | None = None


_here = _Here()


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Report to a watcher what goes on in this block; of nested blocks, the inner watcher alone gets reports."""
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


def counted(size: int, send: Callable[[], R]) -> Callable[[], R]:
    """Return a function that sends a request of so many bytes, and shows those that `arrived` reports meanwhile."""
    if not _watchers:
        return send
    watcher = _watchers[-1]

    def send_counted() -> R:
        request = watcher.begin_request(size)
        _here.request = (watcher, request)
        failed = True
        try:
            answer = send()
            failed = False
            return answer
        finally:
            _here.request = None
            watcher.end_request(request, failed=failed)

    return send_counted


def arrived(more: int) -> None:
    """Count bytes of the request that this thread is inside of (`counted`), as they come."""
    if _here.request is not None:
        watcher, request = _here.request
        watcher.arrive(request, more)


def handed_over(more: int) -> None:
    """Count bytes of the request that this thread is inside of, as the system takes them to send them."""
    if _here.request is not None:
        watcher, request = _here.request
        watcher.hand_over(request, more)


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


@contextmanager
def hidden() -> Iterator[None]:
    """Show no progress line in this block, in which the user is asked something."""
    with ExitStack() as stack:
        for watcher in _watchers:
            stack.enter_context(watcher.hidden())
        yield
