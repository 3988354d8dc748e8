"""Deadlines: when work must end, and how it is told to stop earlier (V12)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from bayou.errors import Cancelled, DeadlinePassed


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, and an event that ends everything sooner.

    Pass one object down; whoever waits, waits with `sleep`, whoever sends a request asks `remaining` first.
    """

    at: float
    seconds: float
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)

    @classmethod
    def after(cls, seconds: float, cancelled: threading.Event | None = None) -> Deadline:
        return cls(time.monotonic() + seconds, seconds, cancelled or threading.Event())

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
