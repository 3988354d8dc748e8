"""The leases of one datastore: acquire, list and release them.

The lease `store` and the leases of models exclude each other, with one object each. A writer of a model acquires its
lease and then reads `store`; if `store` is held, the writer releases its own lease and waits. A process that wants
`store` acquires it and then reads the other leases until none is held. Each side writes before it reads, so of two
that come at once at least one sees the other, and only the writer of a model ever gives way: the two can neither both
go on nor wait for each other. New writers stay out as soon as `store` is held, so its holder goes on when the writers
that were active are done.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from msgspec import Struct

from bayou.core.clock import format_ms, now_ms
from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, StoreError
from bayou.core.ids import user_name
from bayou.leases.acquire import (
    CLOCK,
    AcquireAttempt,
    AcquiredLease,
    Backoff,
    Clock,
    Obstacle,
    OnWait,
    Wait,
    Watch,
    abandon_attempt,
    corrupt_lease,
    free,
    release_if_stale,
    take,
    take_as_left,
    timeout_s,
)
from bayou.leases.lease import RELEASE_S, Lease, LeaseMemory, OnLost, OwnLease, borrow, environment, inherited_nonces
from bayou.leases.objects import (
    RENEW,
    STORE,
    CorruptLease,
    HeldLease,
    LeaseObjects,
    LeaseVersion,
    check_key,
    excluded_by_store,
)
from bayou.objectstore.store import Store
from bayou.repo import Repo

TTL_S = 30.0
ABANDON_S = 2.0
"""The time limit for freeing a lease whose acquisition was interrupted: a person waits for it."""


class LeaseGroup:
    """Leases that one session holds together. The end of the `with` block releases all of them."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._leases = tuple(leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def check(self) -> None:
        """Raise `LeaseLost` unless this process still holds all. Sends no request: call it before every write."""
        for lease in self._leases:
            lease.check()

    @property
    def lost(self) -> bool:
        return any(lease.lost for lease in self._leases)

    def environment(self) -> dict[str, str]:
        """Return the environment variable that lets a child process work under these leases."""
        return environment(self._leases)

    def release(self) -> None:
        """Release all of them, within the time limit of a single release."""
        deadline = Deadline.after(RELEASE_S)
        for lease in reversed(self._leases):
            lease.release(deadline)


def store_lease_holder(
    objects: LeaseObjects, watch: Watch, clock: Clock, inherited: Mapping[str, str]
) -> Obstacle | None:
    """Return the obstacle if a process other than our parent holds `store`; release a stale `store` first (F082)."""
    sent_at = clock()
    match objects.read(STORE):
        case LeaseVersion(CorruptLease() as broken) as seen:
            if not objects.past_longest_ttl(seen):
                raise corrupt_lease(STORE, broken)
        case LeaseVersion(HeldLease() as held) as seen if inherited.get(STORE) != held.nonce:
            return release_if_stale(objects, STORE, seen, held, watch, sent_at)
    return None


def active_writer(
    objects: LeaseObjects, watches: MutableMapping[str, Watch], clock: Clock, inherited: Mapping[str, str]
) -> Obstacle | None:
    """Return an obstacle if a process other than our parent holds a model's lease; release stale leases first."""
    sent_at = clock()
    first: Obstacle | None = None
    for key, seen in objects.held():
        if not excluded_by_store(key):
            continue
        match seen.record:
            case CorruptLease() as broken:
                if not objects.past_longest_ttl(seen):
                    raise corrupt_lease(key, broken)
            case HeldLease() as held if inherited.get(key) != held.nonce:
                watch = watches.setdefault(key, Watch(clock))
                first = _first_over(first, release_if_stale(objects, key, seen, held, watch, sent_at))
    return first


def _first_over(left: Obstacle | None, right: Obstacle | None) -> Obstacle | None:
    """Return the obstacle that may be over first, so that the wait does not sleep past that moment."""
    if left is None or right is None:
        return left or right
    return min(left, right, key=lambda obstacle: obstacle.stale_in if obstacle.stale_in is not None else 0.0)


class LeaseInfo(Struct, frozen=True):
    """A lease that is not free, as `lock status` shows it.

    The times and `stale` are estimates for people: a process that acquires a lease watches it for a whole TTL. If the
    lease is corrupt, `held` is None and `corrupt` says why; its `nonce` releases it all the same.
    """

    key: str
    nonce: str
    held: HeldLease | None
    corrupt: str | None
    age_s: float
    expires_in_s: float
    stale: bool


def describe(key: str, seen: LeaseVersion, now_ms: int) -> LeaseInfo | None:
    """Describe a lease at a moment of the store's clock; None if it is free."""
    quiet_s = max(0.0, (now_ms - seen.modified) / 1000)
    match seen.record:
        case HeldLease() as held:
            left = held.ttl_s - quiet_s
            return LeaseInfo(key, held.nonce, held, None, held.age_s + quiet_s, max(0.0, left), left <= 0)
        case CorruptLease(nonce, why):
            return LeaseInfo(key, nonce, None, why, quiet_s, 0.0, stale=False)
    return None


class Leases:
    """The leases of one store. Safe to use from many threads; two threads exclude each other like two processes.

    `directory` is the directory of a datastore, which the first acquisition creates if it is missing.
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
        memory: LeaseMemory | None = None,
    ) -> None:
        self._directory = directory
        self._memory = memory
        self._ttl_s = ttl_s or TTL_S
        # A longer request would use up the TTL of the lease that it acquires or renews; a retry in time finds the
        # write of the first try.
        self._objects = LeaseObjects(store.with_request_timeout(self._ttl_s * RENEW))
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._inherited = dict(inherited_nonces() if inherited is None else inherited)

    def acquire(
        self,
        key: str,
        *,
        wait_s: float | None = None,
        on_wait: OnWait | None = None,
        deadline: Deadline | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease:
        """Acquire one lease, as `acquire_all` does."""
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
        on_taken: Callable[[], object] | None = None,
    ) -> LeaseGroup:
        """Acquire these leases, or none: `LeaseTimeout` after `wait_s` (BAYOU_LOCK_TIMEOUT), `LeaseCorrupt` at once.

        Every process acquires leases in the same order, so that no two wait for each other. `store` waits for all
        others. A lease that the parent process holds is borrowed. The caller must release the result, which is a
        context manager. `on_taken` is called whenever the leases are taken and `store` is still to be checked: it may
        start to read what the leases protect, to be used only if this function returns after it.
        """
        wanted = sorted({check_key(key) for key in keys})
        if self._directory is not None:
            with suppress(OSError):  # the first request reports what is wrong
                self._directory.mkdir(exist_ok=True)
        wait = Wait(
            timeout_s() if wait_s is None else wait_s, deadline=deadline, on_wait=on_wait, backoff=self._backoff
        )
        watches: defaultdict[str, Watch] = defaultdict(lambda: Watch(self._clock))
        while True:
            group = self._take_all(wanted, wait, on_lost, watches)
            try:
                own = [lease.key for lease in group if isinstance(lease, OwnLease)]
                if STORE in own:
                    self._wait_for_writers(group, wait, watches)
                    return group
                if on_taken is not None:
                    on_taken()
                if not any(map(excluded_by_store, own)) or self._store_is_free(wait, watches[STORE]):
                    return group
                group.release()
                self._wait_for_store(wait, watches[STORE])
            except BaseException:
                group.release()
                raise

    def list(self, deadline: Deadline | None = None) -> list[LeaseInfo]:
        """Return every lease that is not free, by key. Sends no write (V15)."""
        objects = self._within(deadline)
        found = list(objects.held())
        store_ms = objects.now() if found else None
        # If the store has no clock, its newest modification time is a lower bound, in case our clock is behind.
        now = store_ms or max([now_ms(), *(seen.modified for _, seen in found)])
        infos = (describe(key, seen, now) for key, seen in found)
        return sorted((info for info in infos if info is not None), key=lambda info: info.key)

    def release(self, key: str, nonce: str, deadline: Deadline | None = None) -> bool:
        """Release another process's lease that still has this nonce, without acquiring anything (F077)."""
        return free(self._within(deadline), check_key(key), (nonce,)) is not None

    def _take_all(
        self, wanted: Sequence[str], wait: Wait, on_lost: OnLost | None, watches: MutableMapping[str, Watch]
    ) -> LeaseGroup:
        with ExitStack() as taken:
            group = LeaseGroup([taken.enter_context(self._take(key, wanted, wait, on_lost, watches)) for key in wanted])
            taken.pop_all()
        return group

    def _take(
        self,
        key: str,
        wanted: Sequence[str],
        wait: Wait,
        on_lost: OnLost | None,
        watches: MutableMapping[str, Watch],
    ) -> Lease:
        bounded = self._objects.within(wait.limit)
        if key in self._inherited:
            borrowed = wait.until(lambda: borrow(bounded, key, self._inherited[key], self._clock, on_lost))
            if borrowed is not None:
                return borrowed.start_renewing()
        attempt, watch = AcquireAttempt(self._record(key)), watches[key]
        alone = True

        def step() -> AcquiredLease | Obstacle:
            nonlocal alone
            taken = take(bounded, attempt, watch, self._clock)
            if alone and isinstance(taken, Obstacle):
                alone = False
                self._watch_others(bounded, wanted, watches)
            return taken

        try:
            taken: AcquiredLease | None = self._take_as_left(bounded, attempt, wait)
            if taken is None:
                taken = wait.until(step)
            return OwnLease(self._objects, taken, self._clock, on_lost, self._memory).start_renewing()
        except BaseException:  # V14: also if a signal came while the response was on its way
            abandon_attempt(self._objects.within_seconds(ABANDON_S), attempt)
            raise

    def _watch_others(self, objects: LeaseObjects, wanted: Sequence[str], watches: MutableMapping[str, Watch]) -> None:
        """Begin to watch what this acquisition may wait for later: several dead holders cost one TTL, not one each."""
        sent_at = self._clock()
        with suppress(StoreError):  # the step that needs the lease reports it
            others = sorted({*wanted, STORE} - watches.keys())
            for key, version in objects.held() if STORE in wanted else [(key, objects.read(key)) for key in others]:
                if version is not None and isinstance(version.record, HeldLease):
                    watches[key].stale_in(version, version.record, sent_at)

    def _take_as_left(self, objects: LeaseObjects, attempt: AcquireAttempt, wait: Wait) -> AcquiredLease | None:
        """Take a lease without a read, if this machine remembers how it left it; a failure is the next step's.

        If it took all the time that there was, no step is left.
        """
        if self._memory is None or attempt.wanted.key == STORE:
            return None
        try:
            return take_as_left(objects, attempt, self._memory.recall_lease(attempt.wanted.key), self._clock)
        except StoreError:
            return None
        except DeadlinePassed as passed:
            raise wait.timeout(None, passed) from passed

    def _store_is_free(self, wait: Wait, watch: Watch) -> bool:
        bounded = self._objects.within(wait.limit)
        return wait.until(lambda: store_lease_holder(bounded, watch, self._clock, self._inherited) is None)

    def _wait_for_store(self, wait: Wait, watch: Watch) -> None:
        bounded = self._objects.within(wait.limit)
        wait.until(lambda: store_lease_holder(bounded, watch, self._clock, self._inherited))

    def _wait_for_writers(self, group: LeaseGroup, wait: Wait, watches: MutableMapping[str, Watch]) -> None:
        bounded = self._objects.within(wait.limit)
        inherited = {**self._inherited, **{lease.key: lease.nonce for lease in group}}

        def step() -> object:
            group.check()
            return active_writer(bounded, watches, self._clock, inherited)

        wait.until(step)

    def _within(self, deadline: Deadline | None) -> LeaseObjects:
        return self._objects if deadline is None else self._objects.within(deadline)

    def _record(self, key: str) -> HeldLease:
        return HeldLease(
            key=key,
            holder=user_name(),
            host=socket.gethostname(),
            pid=os.getpid(),
            nonce="",
            acquired_at=format_ms(now_ms()),
            ttl_s=self._ttl_s,
        )


def open_leases(repo: Repo, store: Store | None = None, memory: LeaseMemory | None = None) -> Leases:
    """Open the leases of a repo's datastore, in its store or in its directory; no request is sent."""
    if store is not None or repo.config.datastore.url is not None:
        return Leases(store or repo.store(), memory=memory)
    from bayou.objectstore.open import open_directory  # noqa: PLC0415

    # The leases of a tree that only this repo uses are beside it: the tree holds payload alone.
    directory = repo.root if repo.config.datastore.path is None else repo.tree_root
    # A directory that was in use is not made anew: it is not mounted, and nothing must be written to its mount point.
    return Leases(open_directory(directory), directory=None if repo.catalog.exists() else directory)
