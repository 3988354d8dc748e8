"""SIGINT and SIGTERM: the process closes what is open (V14) and ends within five seconds (V12).

A signal raises an exception in the main thread, whose `finally` blocks release leases and leave the journal as it is.
The main thread waits for requests, but never sends one itself, so it can always be interrupted. The signal also wakes
a second thread, through a pipe: that thread stops the work of all other threads, and ends the process if the main
thread has not ended it in time, or if a second signal comes.

Python runs a handler in the main thread alone, and only between two instructions. If the kernel gave the signal to
another thread, or just before the main thread began to wait for a lock, the main thread would sleep on: the second
thread wakes it.

Python may raise between any two instructions. Between taking a lock and recording that it is held, an exception would
break a `Condition`: it would raise "cannot release un-acquired lock" instead, or keep the lock for ever. If the signal
arrives there, the handler tries again a moment later.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

from bayou.core import activity
from bayou.core.deadline import stop_everything

GRACE_S = 4.5

_HANDLED = (signal.SIGINT, signal.SIGTERM)

_RETRY_S = 0.001
"""After this time the handler tries again, if the signal came while a `Condition` changed its lock."""

_WAKE_S = 0.01
"""How often the second thread wakes the main thread, until that has run the handler."""

_WAIT = threading.Condition.wait.__code__
_CHANGES_LOCK = frozenset(
    getattr(threading.Condition, name).__code__
    for name in ("__enter__", "__exit__", "_release_save", "_acquire_restore")
)


class Terminated(KeyboardInterrupt):
    """SIGTERM came. It unwinds the stack as SIGINT does."""


class _Received:
    """The first signal, when it came, and whether an error message has reported it."""

    number: int | None = None
    at: float | None = None
    reported = False


_received = _Received()


def install(*, json: bool) -> None:
    """Install the handlers; once in a process, from its main thread. A signal that the parent ignores stays ignored."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGURG, lambda *_: None)  # `_wake`
    for number in _HANDLED:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _interrupt)
    threading.Thread(target=_watch, args=(reading, json), name="bayou-signals", daemon=True).start()


def exit_code() -> int | None:
    """Return the exit code of the signal that came, or None if none did."""
    return None if _received.number is None else 128 + _received.number


def received() -> int | None:
    """Return the signal that came, or None if none did."""
    return _received.number


def mark_reported() -> None:
    """Note that the user has an error message, so that the second thread prints none."""
    _received.reported = True


def exit_process(code: int) -> NoReturn:
    """End the process; after a signal, without waiting for threads that are inside a request."""
    if _received.number is None:
        sys.exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _received.number is not None:
        return  # the second thread ends the process; another exception would disturb the clean-up
    if frame is not None and _is_changing_lock(frame):
        signal.signal(signal.SIGALRM, lambda _, later: _interrupt(number, later))
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        return
    _received.number, _received.at = number, time.monotonic()
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _is_changing_lock(frame: FrameType) -> bool:
    """Whether an exception here would break a `Condition`, which has taken or freed a lock and not recorded it yet."""
    return frame.f_code in _CHANGES_LOCK or (frame.f_code is _WAIT and "gotit" not in frame.f_locals)


def _watch(reading: int, json: bool) -> None:
    number = _next_signal(reading, None)
    assert number is not None  # this wait has no deadline
    now = time.monotonic()  # read before `_received.at`, so that the clean-up begins after both times
    stop_everything(_received.at or now)
    if _received.at is not None or not _wake(reading, now):
        _next_signal(reading, now + GRACE_S)
    try:
        if not _received.reported:
            _report(number, json=json)
    finally:
        os._exit(128 + number)


def _wake(reading: int, begun: float) -> bool:
    """Wake the main thread until it has run the handler; return whether the process is to end at once.

    Until then the main thread may begin new work, which is stopped too. SIGURG only ends the wait for a lock, and a
    process that has no handler for it any more ignores it.
    """
    main = threading.main_thread().ident
    assert main is not None
    while _received.at is None:
        if time.monotonic() >= begun + GRACE_S:
            return True
        signal.pthread_kill(main, signal.SIGURG)
        if _next_signal(reading, time.monotonic() + _WAKE_S) is not None:
            return True
        stop_everything(_received.at or begun)
    return False


def _report(number: int, *, json: bool) -> None:
    from bayou.cli.errors import interrupted  # noqa: PLC0415

    shows_cursor = "\r\n\x1b[?25h" if activity.is_watched() and os.isatty(2) else ""  # the progress line hides it
    text = (shows_cursor + interrupted(number).text(json=json)).encode()
    # A full pipe that no program reads must not keep this process alive.
    if select.select([], [2], [], 0)[1]:
        os.write(2, text)  # not through sys.stderr, whose lock the main thread may hold


def _next_signal(reading: int, until: float | None) -> int | None:
    """Wait for a signal that ends the process and return it; None if none comes in time."""
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            return None
        number = os.read(reading, 1)[0]
        if number in _HANDLED:
            return number
