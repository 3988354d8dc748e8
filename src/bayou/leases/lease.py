"""A lease as its holder has it: renewed in the background, and lost in no silence.

What a process may do because the one above it holds a lease (F089).

A holder puts the nonces of its leases into the environment of the processes it starts. They are believed only while
the store shows the same nonce. A child neither renews nor releases what it was lent, so a sibling that ends first
takes nothing away from the others.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, ConfigInvalid, LeaseLost
from bayou.leases.acquire import Clock, Taken, free
from bayou.leases.objects import RENEW, HeldLease, LeaseObjects, Seen

OnLost = Callable[[LeaseLost], None]
"""Told once, at the moment at which a lease is known to be lost; from another thread."""

_CERTAIN = 0.9
"""The part of its TTL for which a holder trusts a renewal; the rest is for clocks that do not run alike."""
_SOON = 1 / 30
RELEASE_S = 4.0
"""How long giving up may take: a person waits for it."""


class Lease(ABC):
    """Permission to write, until `check` says otherwise. Leaving the block gives it up.

    While `check` passes, nobody else has taken the lease for stale: a holder stops trusting it before anybody else may.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def lost(self) -> bool:
        """Whether it is no longer ours."""
        try:
            self.check()
        except LeaseLost:
            return True
        return False

    def check(self) -> None:
        """Raise `LeaseLost` unless it is still ours. Sends nothing: call it before every write."""
        if self._lost is None and self._clock() >= self._until:
            self._lose(f"it could not be renewed for {self.ttl_s:g} s")
        if self._lost is not None:
            raise self._lost
        if self._ended.is_set():
            raise LeaseLost(f"the lease {self.key} was given up")

    @abstractmethod
    def beat(self) -> float:
        """Confirm the lease once; return the seconds until the next time. Whoever finds it lost says so here."""

    @abstractmethod
    def release(self, deadline: Deadline | None = None) -> bool:
        """Give it up, within a few seconds; return whether it is free now. Never raises: the TTL does the rest."""

    def keep(self) -> Self:
        """Begin to confirm it in the background, until it is given up or lost."""
        threading.Thread(target=self._keep, name=f"bayou-lease {self.key}", daemon=True).start()
        return self

    def _keep(self) -> None:
        delay = self.ttl_s * RENEW
        while not self._ended.wait(min(delay, max(0.0, self._until - self._clock()))) and not self.lost_event.is_set():
            delay = self.beat()

    def _confirm(self, until: float) -> None:
        with self._state:
            self._until = max(self._until, until)

    def _lose(self, why: str) -> None:
        with self._state:
            if self._lost is not None or self._ended.is_set():
                return
            self._lost = LeaseLost(
                f"the lease {self.key} was lost: {why}",
                hint="what is not pushed yet is kept; the same command again goes on from there",
            )
        self.lost_event.set()
        if self._on_lost is not None:
            self._on_lost(self._lost)


class OwnLease(Lease):
    """A lease that this process took, renews, and gives up."""

    def __init__(self, objects: LeaseObjects, taken: Taken, clock: Clock, on_lost: OnLost | None = None) -> None:
        super().__init__(taken.held, taken.asked + taken.held.ttl_s * _CERTAIN, clock, on_lost)
        self._objects = objects
        self._held, self._seen = taken.held, taken.seen

    def beat(self) -> float:
        """Renew it (V13: by swapping exactly the version that we know)."""
        if self.lost:
            return 0.0
        asked = self._clock()
        objects = self._objects.within_seconds(self._until - asked)
        held = self._held.again()
        try:
            renewed = objects.swap(self.key, held, self._seen)
            if renewed is None:
                return self._look(objects)
        except BayouError:
            return self.ttl_s * _SOON
        self._held, self._seen = held, renewed
        self._confirm(asked + self.ttl_s * _CERTAIN)
        return self.ttl_s * RENEW

    def release(self, deadline: Deadline | None = None) -> bool:
        if self._ended.is_set():
            return False
        self._ended.set()
        try:
            bounded = self._objects.within(deadline or Deadline.after(RELEASE_S))
            return free(bounded, self.key, (self.nonce,), self._seen)
        except BayouError:
            return False

    def _look(self, objects: LeaseObjects) -> float:
        """Find out why a renewal was refused: an earlier one of ours has arrived, or it is no longer ours."""
        found = objects.read(self.key)
        match found:
            case Seen(HeldLease(nonce=self.nonce) as held):
                self._held, self._seen = held, found
            case Seen(HeldLease() as other):
                self._lose(f"{other} has it now")
            case _:
                self._lose("somebody released it")
        return self.ttl_s * _SOON


class BorrowedLease(Lease):
    """A lease that the process above us holds and renews. It is watched, and neither renewed nor given up here."""

    def __init__(
        self,
        objects: LeaseObjects,
        seen: Seen,
        held: HeldLease,
        asked: float,
        clock: Clock,
        on_lost: OnLost | None = None,
    ) -> None:
        super().__init__(held, asked + held.ttl_s, clock, on_lost)
        self._objects = objects
        self._seen, self._asked = seen, asked

    def beat(self) -> float:
        """Look whether its holder still has it, and still renews it."""
        if self.lost:
            return 0.0
        asked = self._clock()
        try:
            found = self._objects.within_seconds(self._until - asked).read(self.key)
        except BayouError:
            return self.ttl_s * _SOON
        renewed = False
        match found:
            case Seen(HeldLease(nonce=self.nonce)):
                renewed = found.match != self._seen.match
                if renewed:
                    # It was written after we last looked, so nobody can have watched it for longer than that.
                    self._confirm(self._asked + self.ttl_s * _CERTAIN)
                self._seen, self._asked = found, asked
            case _:
                self._lose("the process that lent it has lost it")
        # Its holder renews it as often as we look. Whoever comes a moment too early must not wait for the next turn:
        # by then he would have lost it, though it was renewed in time.
        return self.ttl_s * (RENEW if renewed else _SOON)

    def release(self, deadline: Deadline | None = None) -> bool:
        self._ended.set()
        return False


VARIABLE = "BAYOU_LEASE"


def environment(leases: Iterable[Lease]) -> dict[str, str]:
    """Return what to add to the environment of a child so that it may work under these leases, and under our own."""
    return {VARIABLE: json.dumps({**inherited(), **{lease.key: lease.nonce for lease in leases}})}


def inherited() -> Mapping[str, str]:
    """Return the nonces that the process above us named, by key; nothing of it is proved."""
    told = os.environ.get(VARIABLE)
    if not told:
        return {}
    try:
        value = json.loads(told)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(nonce, str) for nonce in value.values()):
        raise ConfigInvalid(f"{VARIABLE} is not what a process hands to its children", hint=f"unset {VARIABLE}")
    return value


def borrow(
    objects: LeaseObjects, key: str, nonce: str | None, clock: Clock, on_lost: OnLost | None
) -> BorrowedLease | None:
    """Return the lease that the process above us holds, if the store says so too."""
    if nonce is None:
        return None
    asked = clock()
    match objects.read(key):
        case Seen(HeldLease(nonce=found) as held) as seen if found == nonce:
            return BorrowedLease(objects, seen, held, asked, clock, on_lost)
    return None
