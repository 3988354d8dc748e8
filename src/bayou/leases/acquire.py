"""One try each: to take a lease, to free one. What repeats them is elsewhere.

Waiting for a lease: how often to look, how long, and what whoever waits is told (V12).

When a lease is stale: nobody's clock is asked but our own (V13).

A holder that lives changes its lease every third of the TTL. Who has watched one version for a whole TTL has proof
that its holder is gone, whatever any clock says of the time of day.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Container
from functools import partial
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.deadline import Deadline
from bayou.core.errors import (
    BayouError,
    ConfigInvalid,
    DeadlinePassed,
    LeaseCorrupt,
    LeaseTimeout,
    StoreError,
    TimedOut,
)
from bayou.core.ids import ulid
from bayou.leases.objects import RENEW, Corrupt, Free, HeldLease, LeaseObjects, Seen
from bayou.objectstore.transport import Match

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
    held: HeldLease | None = None
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


Clock = Callable[[], float]
"""Seconds that only grow, of this machine alone."""

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)
CLOCK: Clock = time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
"""The clock that also counts while this machine sleeps, where there is one: a holder that slept through must know."""


class Watch:
    """One observer's view of one lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version: Match | None = None
        self._since = 0.0

    def stale_in(self, seen: Seen, held: HeldLease, asked: float) -> float:
        """Return the seconds until this version is proved stale; none left: it is.

        `asked` is when the request was sent that showed it. The version counts from the end of the first answer to
        the begin of the last question: certainly not longer than it really stood.
        """
        if seen.match != self._version:
            self._version, self._since = seen.match, self._clock()
        return held.ttl_s - (asked - self._since)


_TRIES = 5


class Taken(Struct, frozen=True):
    """A lease that is ours since `asked`, when the write was sent that made it so: nobody saw it before."""

    seen: Seen
    held: HeldLease
    asked: float


class AcquireAttempt(Struct):
    """One acquisition. Each of its writes has a nonce of its own.

    Else, after a write that took the lease unnoticed and lost it again, the next one would bring back a version that
    somebody has watched for long and believes dead.
    """

    wanted: HeldLease
    nonces: set[str] = field(default_factory=set)

    def next(self) -> HeldLease:
        held = replace(self.wanted, nonce=ulid())
        self.nonces.add(held.nonce)
        return held


def take(objects: LeaseObjects, bid: AcquireAttempt, watch: Watch, clock: Clock) -> Taken | Obstacle:
    """Try once to take a lease that nobody has, or that is proved stale, or that no lease can be held for so long.

    One that has a nonce of ours is an earlier write whose answer was lost; it is written over, so that the time of
    this write counts. So is one whose answer came when it was due for renewal already: peers count its TTL from the
    write, so its holder would lose it at once.
    """
    key = bid.wanted.key
    asked = clock()
    seen = objects.read(key)
    record: HeldLease | None = None
    match seen:
        case Seen(Corrupt() as broken):
            if not objects.outlived(seen):
                raise corrupt_lease(key, broken)
        case Seen(HeldLease(nonce=nonce) as held) if nonce in bid.nonces:
            record = held.again()
        case Seen(HeldLease() as held):
            stale_in = watch.stale_in(seen, held, asked)
            if stale_in > 0 and not objects.outlived(seen):
                return Obstacle(key, held, stale_in=stale_in)
    record = record or bid.next()
    asked = clock()
    taken = objects.swap(key, record, seen)
    if taken is None:
        return Obstacle(key)
    if clock() - asked > record.ttl_s * RENEW:
        return Obstacle(key, cause=TimedOut("the store answered too late"))
    return Taken(taken, record, asked)


def release_if_stale(
    objects: LeaseObjects, key: str, seen: Seen, held: HeldLease, watch: Watch, asked: float
) -> Obstacle | None:
    """Free another's lease if it is proved stale; else say that it is in the way. None: it is free now."""
    stale_in = watch.stale_in(seen, held, asked)
    if stale_in > 0 and not objects.outlived(seen):
        return Obstacle(key, held, stale_in=stale_in)
    return None if objects.swap(key, Free(held.nonce), seen) is not None else Obstacle(key)


def free(objects: LeaseObjects, key: str, nonces: Container[str], seen: Seen | None = None) -> bool:
    """Free a lease that has one of these nonces, whoever holds it; return whether this call did (V13: by a swap).

    `seen` is where to begin, to save a look. A renewal that arrives in between makes us look again; it can arrive no
    more once the lease is free, since its version is gone.
    """
    for _ in range(_TRIES):
        seen = seen or objects.read(key)
        if seen is None or isinstance(seen.record, Free) or seen.record.nonce not in nonces:
            return False
        if objects.swap(key, Free(_plain(seen.record.nonce)), seen) is not None:
            return True
        seen = None
    return False


def abandon_attempt(objects: LeaseObjects, bid: AcquireAttempt) -> None:
    """Free what a write of ours may have taken although nobody will use it (V14); if that fails it is stale in time.

    A write that is still on its way must not arrive afterwards, so what is free is freed once more: then its version,
    too, is gone.
    """
    if not bid.nonces:
        return
    try:
        for _ in range(_TRIES):
            match objects.read(bid.wanted.key):
                case None | Seen(Free()) as seen:
                    freed = objects.swap(bid.wanted.key, Free(ulid()), seen)
                    if freed is not None:
                        return
                case _ as seen:
                    free(objects, bid.wanted.key, bid.nonces, seen)
                    return
    except BayouError:
        return


def _plain(nonce: str) -> str:
    """Return a nonce of the length that free leases have: that of a corrupt one is its own."""
    return nonce[:26].ljust(26, "0")
