"""Waiting for a lease: how often to look, how long, and what whoever waits is told (V12)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import ConfigInvalid, DeadlinePassed, LeaseCorrupt, LeaseTimeout, StoreError
from bayou.lease.record import Corrupt, Held

T = TypeVar("T")

OnWait = Callable[[str], None]
"""Told, in one line, who holds what we wait for: after a second, and again every now and then."""

TIMEOUT = "BAYOU_LOCK_TIMEOUT"
_TIMEOUT_S = 60.0
_TELL_FIRST_S = 1.0
_TELL_AGAIN_S = 10.0
_SLACK_S = 0.01
_REQUESTS_S = 1.0
"""Who is not to wait at all is still to ask once."""


class Backoff(Struct, frozen=True):
    """How long to wait between two looks: soon at first, then ever longer; never in step with others."""

    base_s: float = 0.2
    cap_s: float = 8.0

    def pause(self, turn: int) -> float:
        """Seconds to wait after look number `turn` (from 0)."""
        return float(min(self.cap_s, self.base_s * 2.0 ** min(turn, 16) * random.uniform(0.75, 1.25)))


class Obstacle(Struct, frozen=True):
    """Why a lease cannot be had at this moment; `stale_in` is when that is over if its holder is dead."""

    key: str
    held: Held | None = None
    cause: StoreError | None = None
    stale_in: float | None = None

    def __str__(self) -> str:
        if self.held is not None:
            return f"{self.key} is held by {self.held}, for {_about(self.held.age_s)}"
        if self.cause is not None:
            return f"{self.key}: {self.cause.message}"
        return f"{self.key} goes from hand to hand"


def timeout_s() -> float:
    """Return how long to wait for a lease, as the environment has it."""
    told = os.environ.get(TIMEOUT)
    if not told:
        return _TIMEOUT_S
    try:
        seconds = float(told)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1 << 31:
        raise ConfigInvalid(f"{TIMEOUT} is no number of seconds: {told!r}", hint="use 60, or leave it out")
    return seconds


def corrupt_lease(key: str, record: Corrupt) -> LeaseCorrupt:
    """Say that an object is no lease, and how to get rid of it."""
    return LeaseCorrupt(
        f"the lease {key} is corrupt: {record.why}",
        hint="if nobody writes, release it with the nonce that `bayou datastore lock status` shows",
    )


class Wait:
    """One wait, for as many leases as somebody needs together."""

    def __init__(
        self,
        seconds: float,
        *,
        deadline: Deadline | None = None,
        on_wait: OnWait | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._seconds = seconds
        self._deadline = deadline
        self._on_wait = on_wait
        self._backoff = backoff or Backoff()
        self._started = time.monotonic()
        self._turn = 0
        self._slept = 0.0
        self._tell_at = _TELL_FIRST_S
        whole = max(seconds, _REQUESTS_S)
        if deadline is not None:
            whole = min(whole, deadline.remaining())
        self.limit = Deadline.after(whole, deadline.cancelled if deadline else None)

    def until(self, step: Callable[[], T | Obstacle]) -> T:
        """Repeat a step until it has a result; `LeaseTimeout` when the wait is over.

        A failure of the store that may pass is an obstacle like others; one that will not is raised at once.
        """
        last: Obstacle | None = None
        while True:
            try:
                result = step()
            except StoreError as error:
                if not error.retryable:
                    raise
                result = Obstacle("the store", cause=error)
            except DeadlinePassed as passed:
                raise self._over(last, passed) from passed
            if not isinstance(result, Obstacle):
                return result
            last = result
            try:
                self._sleep(result)
            except DeadlinePassed as passed:
                raise self._over(last, passed) from passed

    def _sleep(self, obstacle: Obstacle) -> None:
        waited = max(self._slept, time.monotonic() - self._started)
        if waited >= self._seconds:
            raise self._over(obstacle, None)
        pause = min(self._seconds - waited, self._backoff.pause(self._turn))
        self._turn += 1
        if obstacle.stale_in is not None:
            pause = min(pause, obstacle.stale_in + _SLACK_S)  # look again when there may be proof, and not long after
        silent = max(0.0, self._tell_at - waited)
        if self._on_wait is not None and silent <= pause:
            self._pause(silent)
            self._on_wait(f"waiting: {obstacle}")
            self._tell_at = waited + silent + _TELL_AGAIN_S
            pause -= silent
        self._pause(pause)

    def _pause(self, seconds: float) -> None:
        self._slept += seconds
        (self._deadline or self.limit).sleep(seconds)

    def _over(self, obstacle: Obstacle | None, passed: DeadlinePassed | None) -> LeaseTimeout:
        if self._deadline is not None:
            self._deadline.remaining()  # the caller's own end, if that is what came
        why = str(obstacle) if obstacle is not None else passed.message if passed else "the store did not answer"
        return LeaseTimeout(
            f"{why}; not obtained within {self._seconds:g} s",
            hint=f"see `bayou datastore lock status`; to wait longer, set {TIMEOUT}",
        )


def _about(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"
