"""Deadlines: when work must end, and how it is told to stop earlier (V12)."""

from __future__ import annotations

import threading
import time
from typing import ClassVar
from weakref import WeakKeyDictionary

from msgspec import field

from bayou.core.errors import Cancelled, DeadlinePassed
from bayou.core.structs import SelectiveStruct

_begun: WeakKeyDictionary[threading.Event, float] = WeakKeyDictionary()
_begun_lock = threading.Lock()


def stop_event() -> threading.Event:
    """Return a new event that ends what begins now; `stop_everything` sets it."""
    event = threading.Event()
    with _begun_lock:
        _begun[event] = time.monotonic()
    return event


def stop_everything(begun_by: float) -> None:
    """Cancel whatever began by that moment of the monotonic clock: a signal came.

    What begins later is there to clean up, and goes on. Call it from a thread that was not interrupted.
    """
    with _begun_lock:
        events = [event for event, moment in _begun.items() if moment <= begun_by]
    for event in events:
        event.set()


class Deadline(SelectiveStruct, frozen=True):
    """A moment on the monotonic clock, and an event that ends everything sooner.

    Pass one object down; whoever waits, waits with `sleep`, whoever sends a request asks `remaining` first.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("cancelled",)

    at: float
    seconds: float
    cancelled: threading.Event = field(default_factory=stop_event)

    @classmethod
    def after(cls, seconds: float, cancelled: threading.Event | None = None) -> Deadline:
        return cls(time.monotonic() + seconds, seconds, cancelled or stop_event())

    def remaining(self) -> float:
        """Seconds left; raise when there are none, or when somebody has cancelled."""
        if self.cancelled.is_set():
            raise Cancelled("cancelled")
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(
                f"not finished after {self.seconds:g} s",
                hint="what was done is kept; allow more time: [sync] timeout in bayou.toml, or BAYOU_SYNC_TIMEOUT",
            )
        return left

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than the deadline, and wake up at once when cancelled."""
        self.cancelled.wait(min(seconds, self.remaining()))
        self.remaining()

    def cancel(self) -> None:
        self.cancelled.set()
