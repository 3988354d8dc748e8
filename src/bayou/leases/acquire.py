"""Acquire a lease: single attempts to take or free it, the wait that repeats them (V12), and the proof of staleness.

A living holder renews its lease every third of the TTL. A process that has watched one version of a lease for a whole
TTL, by its own monotonic clock, has proof that the holder is gone (V13); no other clock matters.
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

from bayou.core import activity
from bayou.core.deadline import Deadline
from bayou.core.errors import (
    BayouError,
    CannotConnect,
    ConfigInvalid,
    DeadlinePassed,
    LeaseCorrupt,
    LeaseTimeout,
    StoreError,
    TimedOut,
)
from bayou.core.ids import ulid
from bayou.leases.objects import RENEW, CorruptLease, FreeLease, HeldLease, LeaseObjects, LeaseVersion
from bayou.objectstore.transport import Match

T = TypeVar("T")

OnWait = Callable[[str], None]
"""Called with a line that says who holds the lease: after a second of waiting, and then every ten seconds."""

TIMEOUT = "BAYOU_LOCK_TIMEOUT"
_TIMEOUT_S = 60.0
NOTIFY_FIRST_S = 1.0
NOTIFY_AGAIN_S = 10.0
_SLACK_S = 0.01
_REQUESTS_S = 1.0
"""The least time for requests: also an acquisition that must not wait may send one request."""
_TRIES = 5

Clock = Callable[[], float]
"""A monotonic clock of this machine, in seconds."""

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)
CLOCK: Clock = time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
"""The clock that also counts while this machine sleeps, where there is one, so that a holder notices its sleep."""


class Backoff(Struct, frozen=True):
    """How long to wait between two attempts: exponential, with jitter."""

    base_s: float = 0.2
    cap_s: float = 8.0

    def pause(self, tries: int) -> float:
        """Return the seconds to wait after attempt number `tries` (from 0)."""
        return float(min(self.cap_s, self.base_s * 2.0 ** min(tries, 16) * random.uniform(0.75, 1.25)))


class Obstacle(Struct, frozen=True):
    """Why a lease cannot be acquired now; `stale_in` are the seconds until it is stale if its holder is dead."""

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
    """Return how long to wait for a lease, according to the environment."""
    text = os.environ.get(TIMEOUT)
    if not text:
        return _TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1 << 31:
        raise ConfigInvalid(f"{TIMEOUT} is no number of seconds: {text!r}", hint="use 60, or leave it out")
    return seconds


def corrupt_lease(key: str, record: CorruptLease) -> LeaseCorrupt:
    """Return the error for an object that is no lease, with the hint how to release it."""
    return LeaseCorrupt(
        f"the lease {key} is corrupt: {record.why}",
        hint="if no process writes, release it with the nonce that `bayou datastore lock status` shows",
    )


class Wait:
    """One wait with one time limit, for all leases of an acquisition."""

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
        self._tries = 0
        self._slept = 0.0
        self._notify_at = NOTIFY_FIRST_S
        whole = max(seconds, _REQUESTS_S)
        if deadline is not None:
            whole = min(whole, deadline.remaining())
        self.limit = Deadline.after(whole, deadline.cancelled if deadline else None)

    def until(self, step: Callable[[], T | Obstacle]) -> T:
        """Repeat a step until it returns a result; `LeaseTimeout` when another process kept the lease all the time.

        A retryable failure of the store counts as an obstacle, and is raised if it lasts until the time is over. Any
        other failure is raised at once, and so is a store that cannot be reached: its client has tried several times.
        """
        last: Obstacle | None = None
        while True:
            try:
                result = step()
            except StoreError as error:
                if not error.retryable or isinstance(error, CannotConnect | TimedOut):
                    raise
                result = Obstacle("the store", cause=error)
            except DeadlinePassed as passed:
                raise self.timeout(last, passed) from passed
            if not isinstance(result, Obstacle):
                return result
            last = result
            try:
                self._sleep(result)
            except DeadlinePassed as passed:
                raise self.timeout(last, passed) from passed

    def _sleep(self, obstacle: Obstacle) -> None:
        waited = max(self._slept, time.monotonic() - self._started)
        if waited >= self._seconds:
            raise self.timeout(obstacle, None)
        pause = min(self._seconds - waited, self._backoff.pause(self._tries))
        self._tries += 1
        if obstacle.stale_in is not None:
            pause = min(pause, obstacle.stale_in + _SLACK_S)  # try again as soon as the lease may be proved stale
        activity.remark(f"waiting: {obstacle}")
        silent = max(0.0, self._notify_at - waited)
        if self._on_wait is not None and silent <= pause:
            self._pause(silent)
            self._on_wait(f"waiting: {obstacle}")
            self._notify_at = waited + silent + NOTIFY_AGAIN_S
            pause -= silent
        self._pause(pause)

    def _pause(self, seconds: float) -> None:
        self._slept += seconds
        (self._deadline or self.limit).sleep(seconds)

    def timeout(self, obstacle: Obstacle | None, passed: DeadlinePassed | None) -> BayouError:
        """Return the error for a wait that is over: the failure of a store that did not answer, or `LeaseTimeout`."""
        if self._deadline is not None:
            self._deadline.remaining()  # raises if the caller's own deadline has passed
        cause: object = obstacle.cause if obstacle is not None else None
        if obstacle is None and passed is not None:
            cause = passed.__cause__ or passed.__context__
        if isinstance(cause, StoreError) and cause.retryable:
            return cause  # the store did not answer: no process is known to hold the lease
        why = str(obstacle) if obstacle is not None else passed.message if passed else "the store did not answer"
        return LeaseTimeout(
            f"{why}; not obtained within {self._seconds:g} s",
            hint=f"see `bayou datastore lock status`; to wait longer, set {TIMEOUT}",
        )


def _about(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"


class Watch:
    """Measures for how long one lease has kept its version."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version: Match | None = None
        self._since = 0.0

    def stale_in(self, seen: LeaseVersion, held: HeldLease, sent_at: float) -> float:
        """Return the seconds until this version is proved stale; not positive: it is stale.

        `sent_at` is when the request that showed the version was sent. The time counts from the end of the first
        response to the beginning of the last request, so it is never longer than the version really existed.
        """
        if seen.match != self._version:
            self._version, self._since = seen.match, self._clock()
        return held.ttl_s - (sent_at - self._since)


class AcquiredLease(Struct, frozen=True):
    """A lease that this process acquired; `sent_at` is when the write was sent, so no other process saw it before."""

    seen: LeaseVersion
    held: HeldLease
    sent_at: float


class AcquireAttempt(Struct):
    """One acquisition. Each of its writes has a nonce of its own.

    Otherwise, after a write that took the lease unnoticed and lost it again, the next write would bring back a version
    that another process has watched for long and takes for stale.
    """

    wanted: HeldLease
    nonces: set[str] = field(default_factory=set)

    def next(self) -> HeldLease:
        held = replace(self.wanted, nonce=ulid())
        self.nonces.add(held.nonce)
        return held


def take(objects: LeaseObjects, attempt: AcquireAttempt, watch: Watch, clock: Clock) -> AcquiredLease | Obstacle:
    """Try once to take a lease that is free, proved stale, or not renewed for longer than any TTL allows.

    A lease with a nonce of this attempt is an earlier write whose response was lost; it is written again, so that the
    time of the new write counts. So is a lease whose response came when it was already due for renewal: other
    processes count its TTL from the write, so its holder would lose it at once.
    """
    key = attempt.wanted.key
    sent_at = clock()
    seen = objects.read(key)
    record: HeldLease | None = None
    match seen:
        case LeaseVersion(CorruptLease() as broken):
            if not objects.past_longest_ttl(seen):
                raise corrupt_lease(key, broken)
        case LeaseVersion(HeldLease(nonce=nonce) as held) if nonce in attempt.nonces:
            record = held.renewal()
        case LeaseVersion(HeldLease() as held):
            stale_in = watch.stale_in(seen, held, sent_at)
            if stale_in > 0 and not objects.past_longest_ttl(seen):
                return Obstacle(key, held, stale_in=stale_in)
    record = record or attempt.next()
    sent_at = clock()
    taken = objects.swap(key, record, seen)
    if taken is None:
        return Obstacle(key)
    if clock() - sent_at > record.ttl_s * RENEW:
        return Obstacle(key, cause=TimedOut("the store answered too late"))
    return AcquiredLease(taken, record, sent_at)


def take_as_left(
    objects: LeaseObjects, attempt: AcquireAttempt, left: Match | None, clock: Clock
) -> AcquiredLease | None:
    """Try to take a lease in the version in which this machine left it, free, without reading it first.

    `left` is None if this machine never had it: then the lease may not exist yet. None: another process has had the
    lease since, or the response was lost; the caller goes on with `take`, which looks for the nonce of this write.
    """
    record = attempt.next()
    sent_at = clock()
    over = LeaseVersion(FreeLease(record.nonce), left, 0) if left is not None else None
    taken = objects.swap(attempt.wanted.key, record, over)
    if taken is None or clock() - sent_at > record.ttl_s * RENEW:
        return None
    return AcquiredLease(taken, record, sent_at)


def release_if_stale(
    objects: LeaseObjects, key: str, seen: LeaseVersion, held: HeldLease, watch: Watch, sent_at: float
) -> Obstacle | None:
    """Free another process's lease if it is proved stale, and return None; else return the obstacle."""
    stale_in = watch.stale_in(seen, held, sent_at)
    if stale_in > 0 and not objects.past_longest_ttl(seen):
        return Obstacle(key, held, stale_in=stale_in)
    return None if objects.swap(key, FreeLease(held.nonce), seen) is not None else Obstacle(key)


def free(
    objects: LeaseObjects, key: str, nonces: Container[str], seen: LeaseVersion | None = None
) -> LeaseVersion | None:
    """Free a lease that has one of these nonces, by a swap (V13); return the free record, None if it was not freed.

    `seen` is the last known record, which saves a read. If a renewal arrives in between, the record is read again; once
    the lease is free no renewal can arrive, since its version is gone.
    """
    for _ in range(_TRIES):
        seen = seen or objects.read(key)
        if seen is None or isinstance(seen.record, FreeLease) or seen.record.nonce not in nonces:
            return None
        freed = objects.swap(key, FreeLease(_plain(seen.record.nonce)), seen)
        if freed is not None:
            return freed
        seen = None
    return None


def abandon_attempt(objects: LeaseObjects, attempt: AcquireAttempt) -> None:
    """Free the lease that a write of this attempt may have taken (V14); if that fails, the lease becomes stale.

    A write that is still on its way must not take effect afterwards, so a free lease is freed once more: then the
    version that the late write expects is gone.
    """
    if not attempt.nonces:
        return
    try:
        for _ in range(_TRIES):
            match objects.read(attempt.wanted.key):
                case None | LeaseVersion(FreeLease()) as seen:
                    freed = objects.swap(attempt.wanted.key, FreeLease(ulid()), seen)
                    if freed is not None:
                        return
                case _ as seen:
                    free(objects, attempt.wanted.key, attempt.nonces, seen)
                    return
    except BayouError:
        return


def _plain(nonce: str) -> str:
    """Return a nonce with the length that free leases have, since the nonce of a corrupt lease is shorter."""
    return nonce[:26].ljust(26, "0")
