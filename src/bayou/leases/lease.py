"""A lease as its holder uses it: renewed in the background, with `check` to learn that it was lost.

`OwnLease` is a lease that this process acquired. `BorrowedLease` is a lease of the parent process (F089): a holder puts
the nonces of its leases into the environment of the processes that it starts. A child trusts a nonce only while the
store shows the same nonce, and neither renews nor releases the lease, so that a child that ends first takes nothing
away from its siblings.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, Self

from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, ConfigInvalid, LeaseLost
from bayou.leases.acquire import AcquiredLease, Clock, free
from bayou.leases.objects import RENEW, HeldLease, LeaseObjects, LeaseVersion
from bayou.objectstore.transport import Match

VARIABLE = "BAYOU_LEASE"
OnLost = Callable[[LeaseLost], None]
"""Called once, from another thread, when a lease is found to be lost."""

CERTAIN_PART = 0.9
"""The part of its TTL for which a holder trusts a renewal; the rest is for clocks that do not run alike."""
_SOON = 1 / 30
"""The part of its TTL after which a holder tries again if it could not renew a lease."""
RELEASE_S = 4.0
"""The time limit of a release: a person waits for it."""


class Lease(ABC):
    """Permission to write, until `check` raises. The end of the `with` block releases it.

    While `check` passes, no other process has found the lease stale: a holder stops trusting it before others may.
    """

    def __init__(self, held: HeldLease, until: float, clock: Clock, on_lost: OnLost | None) -> None:
        self.key = held.key
        self.nonce = held.nonce
        self.ttl_s = held.ttl_s
        self._until = until
        self._clock = clock
        self._on_lost = on_lost
        self._lost: LeaseLost | None = None
        self._state = threading.Lock()
        self._ended = threading.Event()
        self.lost_event = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def lost(self) -> bool:
        """Whether this process no longer holds the lease."""
        try:
            self.check()
        except LeaseLost:
            return True
        return False

    def check(self) -> None:
        """Raise `LeaseLost` unless this process still holds the lease. Sends no request: call it before every write."""
        if self._lost is None and self._clock() >= self._until:
            self._lose(f"it could not be renewed for {self.ttl_s:g} s")
        if self._lost is not None:
            raise self._lost
        if self._ended.is_set():
            raise LeaseLost(f"the lease {self.key} was given up")

    @abstractmethod
    def renew(self) -> float:
        """Renew or confirm the lease once, or find that it is lost; return the seconds until the next renewal."""

    @abstractmethod
    def release(self, deadline: Deadline | None = None) -> bool:
        """Release the lease, within a few seconds; return whether it is free now. Never raises: its TTL ends it."""

    def start_renewing(self) -> Self:
        """Start the thread that renews the lease until it is released or lost."""
        threading.Thread(target=self._renew_until_ended, name=f"bayou-lease {self.key}", daemon=True).start()
        return self

    def _renew_until_ended(self) -> None:
        delay = self.ttl_s * RENEW
        while not self._ended.wait(min(delay, max(0.0, self._until - self._clock()))) and not self.lost_event.is_set():
            delay = self.renew()

    def _confirm(self, until: float) -> None:
        with self._state:
            self._until = max(self._until, until)

    def _lose(self, why: str) -> None:
        with self._state:
            if self._lost is not None or self._ended.is_set():
                return
            self._lost = LeaseLost(
                f"the lease {self.key} was lost: {why}",
                hint="`bayou datastore lock status` shows who has it",
            )
        self.lost_event.set()
        if self._on_lost is not None:
            self._on_lost(self._lost)


class LeaseMemory(Protocol):
    """Remembers in which version this machine left each lease, so that it need not read the lease to take it again.

    The memory may be wrong: a swap over another version is refused, and then the lease is read.
    """

    def recall_lease(self, key: str) -> Match | None:
        """Return the version in which this machine freed a lease; None if it never had the lease."""

    def remember_lease(self, key: str, freed: Match) -> None:
        """Remember the version of a lease that this machine has just freed."""


class OwnLease(Lease):
    """A lease that this process acquired, renews, and releases."""

    def __init__(
        self,
        objects: LeaseObjects,
        taken: AcquiredLease,
        clock: Clock,
        on_lost: OnLost | None = None,
        memory: LeaseMemory | None = None,
    ) -> None:
        super().__init__(taken.held, taken.sent_at + taken.held.ttl_s * CERTAIN_PART, clock, on_lost)
        self._objects = objects
        self._memory = memory
        self._held, self._seen = taken.held, taken.seen

    def renew(self) -> float:
        """Renew the lease by a swap of exactly the version that this process wrote (V13)."""
        if self.lost:
            return 0.0
        sent_at = self._clock()
        objects = self._objects.within_seconds(self._until - sent_at)
        held = self._held.renewal()
        try:
            renewed = objects.swap(self.key, held, self._seen)
            if renewed is None:
                return self._reread(objects)
        except BayouError:
            return self.ttl_s * _SOON
        self._held, self._seen = held, renewed
        self._confirm(sent_at + self.ttl_s * CERTAIN_PART)
        return self.ttl_s * RENEW

    def release(self, deadline: Deadline | None = None) -> bool:
        if self._ended.is_set():
            return False
        self._ended.set()
        try:
            bounded = self._objects.within(deadline or Deadline.after(RELEASE_S))
            freed = free(bounded, self.key, (self.nonce,), self._seen)
            if freed is not None and self._memory is not None:
                self._memory.remember_lease(self.key, freed.match)
            return freed is not None
        except BayouError:
            return False

    def _reread(self, objects: LeaseObjects) -> float:
        """Find out why a renewal was refused: an earlier renewal of ours has arrived late, or the lease is lost."""
        found = objects.read(self.key)
        match found:
            case LeaseVersion(HeldLease(nonce=self.nonce) as held):
                self._held, self._seen = held, found
            case LeaseVersion(HeldLease() as other):
                self._lose(f"{other} has it now")
            case _:
                self._lose("it was released by hand")
        return self.ttl_s * _SOON


class BorrowedLease(Lease):
    """A lease that the parent process holds and renews. This process only watches it, and never releases it."""

    def __init__(
        self,
        objects: LeaseObjects,
        seen: LeaseVersion,
        held: HeldLease,
        sent_at: float,
        clock: Clock,
        on_lost: OnLost | None = None,
    ) -> None:
        super().__init__(held, sent_at + held.ttl_s, clock, on_lost)
        self._objects = objects
        self._seen, self._asked = seen, sent_at

    def renew(self) -> float:
        """Check that the parent still holds the lease, and still renews it."""
        if self.lost:
            return 0.0
        sent_at = self._clock()
        try:
            found = self._objects.within_seconds(self._until - sent_at).read(self.key)
        except BayouError:
            return self.ttl_s * _SOON
        renewed = False
        match found:
            case LeaseVersion(HeldLease(nonce=self.nonce)):
                renewed = found.match != self._seen.match
                if renewed:
                    # It was written after our last read, so no process can have watched it for longer than that.
                    self._confirm(self._asked + self.ttl_s * CERTAIN_PART)
                self._seen, self._asked = found, sent_at
            case _:
                self._lose("the process that lent it has lost it")
        # The holder renews as often as we read. A read that comes a moment too early must be repeated soon: at the
        # next regular read we would count the lease as lost, though it was renewed in time.
        return self.ttl_s * (RENEW if renewed else _SOON)

    def release(self, deadline: Deadline | None = None) -> bool:
        self._ended.set()
        return False


def environment(leases: Iterable[Lease]) -> dict[str, str]:
    """Return the environment variable that lets a child work under these leases, and under those we inherited."""
    return {VARIABLE: json.dumps({**inherited_nonces(), **{lease.key: lease.nonce for lease in leases}})}


def inherited_nonces() -> Mapping[str, str]:
    """Return the nonces that the parent process named, by key; they are not verified yet."""
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(nonce, str) for nonce in value.values()):
        raise ConfigInvalid(f"{VARIABLE} is not what a process hands to its children", hint=f"unset {VARIABLE}")
    return value


def borrow(
    objects: LeaseObjects, key: str, nonce: str | None, clock: Clock, on_lost: OnLost | None
) -> BorrowedLease | None:
    """Return the lease that the parent process holds, if the store shows the same nonce; else None."""
    if nonce is None:
        return None
    sent_at = clock()
    match objects.read(key):
        case LeaseVersion(HeldLease(nonce=found) as held) as seen if found == nonce:
            return BorrowedLease(objects, seen, held, sent_at, clock, on_lost)
    return None
