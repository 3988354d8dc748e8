"""The leases of one datastore: take, list, release.

Several leases that stand and fall together.

How `store` and the leases of models keep each other out, with nothing but one object each.

A writer of a model takes its lease, and then looks at `store`; if somebody has that, it gives its own up again and
waits. Who wants `store` takes it, and then looks at the others, until none is held. Each writes before it looks, so
of two that come at once at least one sees the other, and only the writer of a model ever gives way: neither can both
go on, nor wait for each other. New writers stay out as soon as `store` is taken, so its turn comes when those that
were at work are done.

Leases as `lock status` shows them: for people, and by clocks that nobody relies on.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from bayou.core.clock import format_ms, now_ms
from bayou.core.deadline import Deadline
from bayou.leases import lease as inherit
from bayou.leases.acquire import (
    CLOCK,
    AcquireAttempt,
    Backoff,
    Clock,
    Obstacle,
    OnWait,
    Taken,
    Wait,
    Watch,
    abandon_attempt,
    corrupt_lease,
    free,
    release_if_stale,
    take,
    timeout_s,
)
from bayou.leases.lease import RELEASE_S, Lease, OnLost, OwnLease, environment
from bayou.leases.objects import RENEW, STORE, Corrupt, HeldLease, LeaseObjects, Seen, check_key, is_work
from bayou.objectstore.store import Store
from bayou.repo import Repo


class LeaseGroup:
    """Leases that one session holds. Leaving the block gives up all of them."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._leases = tuple(leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def check(self) -> None:
        """Raise `LeaseLost` unless all of them are still ours. Sends nothing: call it before every write."""
        for lease in self._leases:
            lease.check()

    @property
    def lost(self) -> bool:
        return any(lease.lost for lease in self._leases)

    def environment(self) -> dict[str, str]:
        """Return what to add to the environment of a child, so that it may work under these leases."""
        return environment(self._leases)

    def release(self) -> None:
        """Give all of them up, in the time that one may take."""
        deadline = Deadline.after(RELEASE_S)
        for lease in reversed(self._leases):
            lease.release(deadline)


def store_lease_holder(objects: LeaseObjects, watch: Watch, clock: Clock, family: Mapping[str, str]) -> Obstacle | None:
    """Say who has `store`, unless that is the process above us; a holder that is proved dead loses it here (F082)."""
    asked = clock()
    match objects.read(STORE):
        case Seen(Corrupt() as broken) as seen:
            if not objects.outlived(seen):
                raise corrupt_lease(STORE, broken)
        case Seen(HeldLease() as held) as seen if family.get(STORE) != held.nonce:
            return release_if_stale(objects, STORE, seen, held, watch, asked)
    return None


def active_writer(
    objects: LeaseObjects, watches: MutableMapping[str, Watch], clock: Clock, family: Mapping[str, str]
) -> Obstacle | None:
    """Say who is at work on a model, other than the process above us; dead ones lose their leases here."""
    asked = clock()
    first: Obstacle | None = None
    for key, seen in objects.held():
        if not is_work(key):
            continue
        match seen.record:
            case Corrupt() as broken:
                if not objects.outlived(seen):
                    raise corrupt_lease(key, broken)
            case HeldLease() as held if family.get(key) != held.nonce:
                watch = watches.setdefault(key, Watch(clock))
                first = _sooner(first, release_if_stale(objects, key, seen, held, watch, asked))
    return first


def _sooner(one: Obstacle | None, other: Obstacle | None) -> Obstacle | None:
    """Return the obstacle that may be over first, so that nobody sleeps past that moment."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda each: each.stale_in if each.stale_in is not None else 0.0)


class LeaseInfo(Struct, frozen=True):
    """One lease that is not free. `stale` is what the times suggest; who takes a lease watches it for a whole TTL.

    `held` is None if it is corrupt, and `corrupt` says how; its `nonce` releases it all the same.
    """

    key: str
    nonce: str
    held: HeldLease | None
    corrupt: str | None
    age_s: float
    expires_in_s: float
    stale: bool


def describe(key: str, seen: Seen, now_ms: int) -> LeaseInfo | None:
    """Say how a lease stands at a moment of the store's clock; None if it is free."""
    quiet_s = max(0.0, (now_ms - seen.modified) / 1000)
    match seen.record:
        case HeldLease() as held:
            left = held.ttl_s - quiet_s
            return LeaseInfo(key, held.nonce, held, None, held.age_s + quiet_s, max(0.0, left), left <= 0)
        case Corrupt(nonce, why):
            return LeaseInfo(key, nonce, None, why, quiet_s, 0.0, stale=False)
    return None


TTL_S = 30.0
_FORSAKE_S = 2.0


class Leases:
    """The leases of one store. Safe to use from many threads; two of them exclude each other like two processes.

    `directory` is where the store lies if it is one that the first who writes may have to make.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl_s: float | None = None,
        backoff: Backoff | None = None,
        clock: Clock = CLOCK,
        inherited: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._directory = directory
        self._ttl_s = ttl_s or TTL_S
        # A request that waits for longer than this would use up the lease that it takes or renews; repeated in time, it
        # finds its own write.
        self._objects = LeaseObjects(store.with_request_timeout(self._ttl_s * RENEW))
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._family = dict(inherit.inherited() if inherited is None else inherited)

    def acquire(
        self,
        key: str,
        *,
        wait_s: float | None = None,
        on_wait: OnWait | None = None,
        deadline: Deadline | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease:
        """Take one lease, as `acquire_all` does."""
        (lease,) = self.acquire_all([key], wait_s=wait_s, on_wait=on_wait, deadline=deadline, on_lost=on_lost)
        return lease

    def acquire_all(
        self,
        keys: Iterable[str],
        *,
        wait_s: float | None = None,
        on_wait: OnWait | None = None,
        deadline: Deadline | None = None,
        on_lost: OnLost | None = None,
    ) -> LeaseGroup:
        """Take these leases, or none: `LeaseTimeout` after `wait_s` (BAYOU_LOCK_TIMEOUT), `LeaseCorrupt` at once.

        They are taken in one order by everybody, so that nobody waits in a circle. `store` waits for all others. What
        the process above us holds is lent to us. Give them up: the result is a context manager.
        """
        wanted = sorted({check_key(key) for key in keys})
        if self._directory is not None:
            with suppress(OSError):  # the first request says what is wrong with it
                self._directory.mkdir(exist_ok=True)
        wait = Wait(
            timeout_s() if wait_s is None else wait_s, deadline=deadline, on_wait=on_wait, backoff=self._backoff
        )
        while True:
            group = self._take_all(wanted, wait, on_lost)
            try:
                own = [lease.key for lease in group if isinstance(lease, OwnLease)]
                if STORE in own:
                    self._wait_for_work(group, wait)
                    return group
                watch = Watch(self._clock)
                if not any(map(is_work, own)) or self._store_is_open_now(wait, watch):
                    return group
                group.release()
                self._wait_for_store(wait, watch)
            except BaseException:
                group.release()
                raise

    def list(self, deadline: Deadline | None = None) -> list[LeaseInfo]:
        """Return every lease that is not free, by key. Sends no write (V15)."""
        objects = self._within(deadline)
        found = list(objects.held())
        told = objects.now() if found else None
        # Where the store has no clock of its own, what it shows as newest is a lower bound, should ours be behind.
        now = told or max([now_ms(), *(seen.modified for _, seen in found)])
        infos = (describe(key, seen, now) for key, seen in found)
        return sorted((info for info in infos if info is not None), key=lambda info: info.key)

    def release(self, key: str, nonce: str, deadline: Deadline | None = None) -> bool:
        """Free a lease that still has this nonce, whoever holds it, without acquiring anything (F077)."""
        return free(self._within(deadline), check_key(key), (nonce,))

    def _take_all(self, wanted: Sequence[str], wait: Wait, on_lost: OnLost | None) -> LeaseGroup:
        with ExitStack() as taken:
            group = LeaseGroup([taken.enter_context(self._take(key, wait, on_lost)) for key in wanted])
            taken.pop_all()
        return group

    def _take(self, key: str, wait: Wait, on_lost: OnLost | None) -> Lease:
        bounded = self._objects.within(wait.limit)
        if key in self._family:
            lent = wait.until(lambda: inherit.borrow(bounded, key, self._family[key], self._clock, on_lost))
            if lent is not None:
                return lent.keep()
        bid, watch = AcquireAttempt(self._record(key)), Watch(self._clock)
        try:
            taken: Taken = wait.until(lambda: take(bounded, bid, watch, self._clock))
            return OwnLease(self._objects, taken, self._clock, on_lost).keep()
        except BaseException:  # V14: also when a signal came while the answer was on its way
            abandon_attempt(self._objects.within_seconds(_FORSAKE_S), bid)
            raise

    def _store_is_open_now(self, wait: Wait, watch: Watch) -> bool:
        bounded = self._objects.within(wait.limit)
        return wait.until(lambda: store_lease_holder(bounded, watch, self._clock, self._family) is None)

    def _wait_for_store(self, wait: Wait, watch: Watch) -> None:
        bounded = self._objects.within(wait.limit)
        wait.until(lambda: store_lease_holder(bounded, watch, self._clock, self._family))

    def _wait_for_work(self, group: LeaseGroup, wait: Wait) -> None:
        bounded, watches = self._objects.within(wait.limit), dict[str, Watch]()
        family = {**self._family, **{lease.key: lease.nonce for lease in group}}

        def step() -> object:
            group.check()
            return active_writer(bounded, watches, self._clock, family)

        wait.until(step)

    def _within(self, deadline: Deadline | None) -> LeaseObjects:
        return self._objects if deadline is None else self._objects.within(deadline)

    def _record(self, key: str) -> HeldLease:
        return HeldLease(
            key=key,
            holder=_user(),
            host=socket.gethostname(),
            pid=os.getpid(),
            nonce="",
            acquired_at=format_ms(now_ms()),
            ttl_s=self._ttl_s,
        )


def open_leases(repo: Repo, store: Store | None = None) -> Leases:
    """Open the leases of a repo's datastore, in its store or in its directory; no request is sent."""
    if store is not None or repo.config.datastore.url is not None:
        return Leases(store or repo.store())
    from bayou.objectstore.open import open_directory  # noqa: PLC0415

    # Those of a tree that only this repo has stay out of it: the tree holds payload alone.
    directory = repo.root if repo.config.datastore.path is None else repo.tree_root
    return Leases(open_directory(directory), directory=directory)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as somebody whom nobody has named
        return f"uid {os.getuid()}"
