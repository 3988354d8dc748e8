"""SIGINT and SIGTERM: everything that is open is closed (V14), and the process ends in any case (V12).

A signal raises an exception in the main thread, and `finally` does the rest. But Python can raise nothing while that
thread waits inside a request, and a request may wait for a minute. So a second thread is woken by the signal itself,
and ends the process when the first has not done so within a grace.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import NoReturn

GRACE_S = 3.0

_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which unwinds like SIGINT."""


class _Received:
    """The first signal that came, and whether somebody has said so already."""

    number: int | None = None
    told = False


_received = _Received()


def install(*, json: bool) -> None:
    """Begin to listen; once in a process, from its main thread. What the parent process ignores stays ignored."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _interrupt)
    threading.Thread(target=_watch, args=(reading, json), name="bayou-signals", daemon=True).start()


def exit_code() -> int | None:
    """Return the exit code of the signal that came, or None if none did."""
    return None if _received.number is None else 128 + _received.number


def told() -> None:
    """Take note that the end of this process has been reported."""
    _received.told = True


def _interrupt(number: int, _: object) -> NoReturn:
    _received.number = _received.number or number
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _watch(reading: int, json: bool) -> None:
    while (number := os.read(reading, 1)[0]) not in _HANDLED:
        pass
    time.sleep(GRACE_S)
    if not _received.told:
        from bayou.cli.errors import interrupted  # noqa: PLC0415

        # Past Python's own stream, whose lock the main thread may hold.
        os.write(2, interrupted(number).text(json=json).encode())
    os._exit(128 + number)
