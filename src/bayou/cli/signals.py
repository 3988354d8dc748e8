"""SIGINT and SIGTERM: everything that is open is closed (V14), and the process ends within five seconds (V12).

A signal raises an exception in the main thread, and `finally` does the rest: it gives leases up and leaves the journal
as it is. The main thread waits for requests, but is never inside one, so that it can be interrupted. A second thread
is woken by the signal itself: it stops what the other threads do, and ends the process when the main thread has not
done so in time, or when another signal comes.

Python raises between any two steps, also between a lock and the note that it is held: out of a `Condition` would come
"cannot release un-acquired lock" instead of the signal, or nothing but a lock that stays shut. There it waits a moment.
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

from bayou.core.deadline import stop_everything

GRACE_S = 4.5

_HANDLED = (signal.SIGINT, signal.SIGTERM)

_AGAIN_S = 0.001
"""When a signal is tried again that came at a bad moment."""

_WAIT = threading.Condition.wait.__code__
_DELICATE = frozenset(
    getattr(threading.Condition, name).__code__
    for name in ("__enter__", "__exit__", "_release_save", "_acquire_restore")
)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which unwinds like SIGINT."""


class _Received:
    """The first signal that came and when, and whether somebody has said so already."""

    number: int | None = None
    at: float | None = None
    told = False


_received = _Received()


def install(*, json: bool) -> None:
    """Begin to listen; once in a process, from its main thread. What the parent process ignores stays ignored."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
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


def told() -> None:
    """Take note that the end of this process has been reported."""
    _received.told = True


def leave(code: int) -> NoReturn:
    """End the process; after a signal without waiting for anybody who is still inside a request."""
    if _received.number is None:
        sys.exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _received.number is not None:
        return  # the other thread ends the process; another exception would only disturb who is cleaning up
    if frame is not None and _is_delicate(frame):
        signal.signal(signal.SIGALRM, lambda _, later: _interrupt(number, later))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        return
    _received.number, _received.at = number, time.monotonic()
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _is_delicate(frame: FrameType) -> bool:
    """Say whether an exception here would break a `Condition`: it has taken or freed a lock, and not said so yet."""
    return frame.f_code in _DELICATE or (frame.f_code is _WAIT and "gotit" not in frame.f_locals)


def _watch(reading: int, json: bool) -> None:
    number = _next(reading, None)
    assert number is not None  # there is no end to this wait
    now = time.monotonic()  # before the look at the other: whoever cleans up has begun after both
    stop_everything(_received.at or now)
    if _received.at is None:  # the main thread is at a bad moment: what it begins before it is interrupted, ends too
        time.sleep(10 * _AGAIN_S)
        stop_everything(_received.at or now)
    _next(reading, now + GRACE_S)
    try:
        if not _received.told:
            _tell(number, json=json)
    finally:
        os._exit(128 + number)


def _tell(number: int, *, json: bool) -> None:
    from bayou.cli.errors import interrupted  # noqa: PLC0415

    text = interrupted(number).text(json=json).encode()
    # Nobody may read any more what we say, or ever will: that is no reason to stay.
    if select.select([], [2], [], 0)[1]:
        os.write(2, text)  # past Python's own stream, whose lock the main thread may hold


def _next(reading: int, until: float | None) -> int | None:
    """Return the next signal that ends us; None if none comes in time."""
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            return None
        number = os.read(reading, 1)[0]
        if number in _HANDLED:
            return number
