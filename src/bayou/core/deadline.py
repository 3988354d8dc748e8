"""Deadlines: when work must end, and how a signal or a caller ends it earlier (V12)."""

from __future__ import annotations

import math
import threading
import time
from typing import ClassVar
from weakref import WeakKeyDictionary

from msgspec import field

from bayou.core.errors import Cancelled, DeadlinePassed
from bayou.core.structs import SelectiveStruct

MORE_TIME = "BAYOU_SYNC_TIMEOUT, or [sync] timeout in bayou.toml"
"""What gives a command more time. Only some commands have `--timeout`, which goes before both."""

_events: WeakKeyDictionary[threading.Event, float] = WeakKeyDictionary()
_events_lock = threading.Lock()


def stop_event() -> threading.Event:
    """Return a new event that cancels work that begins now; `stop_everything` sets it."""
    event = threading.Event()
    with _events_lock:
        _events[event] = time.monotonic()
    return event


def stop_everything(begun_by: float) -> None:
    """Cancel all work that began by that moment of the monotonic clock, because a signal arrived.

    Work that begins later cleans up, and goes on. Call this from a thread that the signal did not interrupt.
    """
    with _events_lock:
        events = [event for event, moment in _events.items() if moment <= begun_by]
    for event in events:
        event.set()


class Deadline(SelectiveStruct, frozen=True):
    """A moment on the monotonic clock, and an event that cancels the work earlier.

    Callers pass one object down. Code that waits uses `sleep`; code that sends a request calls `remaining` first.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("cancelled",)

    at: float
    seconds: float
    cancelled: threading.Event = field(default_factory=stop_event)

    @classmethod
    def after(cls, seconds: float | None, cancelled: threading.Event | None = None) -> Deadline:
        """Return the deadline that passes in so many seconds; with None it never does, and work can only be cancelled.

        A command has a limit in all only if its caller sets one (V12): requests, waits and stalls have their own.
        """
        limit = math.inf if seconds is None else seconds
        return cls(time.monotonic() + limit, limit, cancelled or stop_event())

    def remaining(self) -> float:
        """Return the seconds left; raise if there are none, or if the work was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled("cancelled")
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(
                f"not finished after {self.seconds:g} s",
                hint=f"allow more time: {MORE_TIME}",
            )
        return left

    def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the deadline, and wake up at once when the work is cancelled."""
        self.cancelled.wait(min(seconds, self.remaining()))
        self.remaining()

    def cancel(self) -> None:
        self.cancelled.set()
