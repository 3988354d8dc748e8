"""Holders of leases as threads of which one runs at a time, clocks that nobody agrees on, and a wire that loses things.

Every request and every nap of an actor is a step. Between two steps a scheduler decides: who goes on, what becomes of
the request (it arrives; it arrives and its answer is lost; it is lost; it fails now and arrives later), how much time
passes, who dies. The code under test is the real one; only time, wire and bucket are not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayou.core.errors import AlreadyExists, NotFound, PreconditionFailed, Unavailable
from bayou.leases.acquire import AcquireAttempt, AcquiredLease, Watch, free, take
from bayou.leases.lease import OwnLease
from bayou.leases.leases import active_writer, store_lease_holder
from bayou.leases.objects import STORE, HeldLease, LeaseObjects, decode
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Condition, Create, GetResult, ObjectMeta, PutResult

TTL = 9.0
_STUCK_S = 20.0
AT_ONCE = RetryPolicy(attempts=2, first_contact_attempts=2, base_s=0.0, cap_s=0.0)


class Killed(BaseException):
    """An actor's process ends here."""


class Broken(AssertionError):
    """A promise of the protocol does not hold."""


@dataclass
class Bucket:
    """One store, as everybody would like it: linear, with compare-and-swap on a version made of content, as S3's is."""

    objects: dict[str, bytes] = field(default_factory=dict)
    freed: set[str] = field(default_factory=set)

    def put(self, key: str, data: bytes, condition: Condition | None) -> PutResult:
        old = self.objects.get(key)
        if isinstance(condition, Create):
            if old is not None:
                raise AlreadyExists(key)
        elif condition is not None and (old is None or condition.etag != _etag(old)):
            raise PreconditionFailed(key)
        record = decode(data)
        if isinstance(record, HeldLease) and record.nonce in self.freed:
            raise Broken(f"{key} was released, and is held by the same one again")
        self.objects[key] = data
        return PutResult(_etag(data), None)

    def get(self, key: str) -> GetResult:
        if key not in self.objects:
            raise NotFound(key)
        return GetResult(self.meta(key), self.objects[key], {})

    def meta(self, key: str) -> ObjectMeta:
        data = self.objects[key]
        return ObjectMeta(key, len(data), _etag(data), None, 0)


def _etag(data: bytes) -> str:
    return f'"{hash(data):x}"'


@dataclass(eq=False)
class Wire:
    """The transport of one actor."""

    actor: Actor
    url = "sim://"
    sorted_listing = True
    delete_batch = 1

    def get(self, key: str, *, timeout: float, **_: Any) -> GetResult:
        return self.actor.request(lambda: self.actor.world.bucket.get(key), write=False)

    def put(
        self,
        key: str,
        data: Any,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        return self.actor.request(lambda: self.actor.world.bucket.put(key, bytes(data), condition), write=True)

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        bucket = self.actor.world.bucket
        yield self.actor.request(
            lambda: [bucket.meta(key) for key in sorted(bucket.objects) if key.startswith(prefix)], write=False
        )


@dataclass(eq=False)
class Actor:
    """One process: a clock that is off and drifts, and work that needs a lease now and then."""

    world: World
    name: str
    script: Callable[[Actor], None]
    offset: float
    rate: float
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: bool = False
    dead: bool = False
    wakes: float = 0.0
    fate: str = "arrive"
    lease: OwnLease | None = None
    """The lease under which this actor would write now, if `check` lets it."""
    had: int = 0

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def step(self) -> None:
        """Give the baton back, and go on when it comes again."""
        self.world.baton.release()
        self.turn.acquire()
        if self.dead:
            raise Killed

    def nap(self, seconds: float) -> None:
        """Sleep by this actor's own clock; it may take longer, as long as a stopped process sleeps."""
        self.wakes = self.world.now + seconds / self.rate
        self.step()

    def request(self, act: Callable[[], Any], *, write: bool) -> Any:
        self.step()
        match self.fate:
            case "lose answer":
                act()
                raise Unavailable("no answer")
            case "lose":
                raise Unavailable("no answer")
            case "later" if write:
                self.world.late.append(act)
                raise Unavailable("no answer")
        return act()

    @property
    def passes(self) -> bool:
        """Whether `check` would pass at this moment; looks, and changes nothing."""
        lease = self.lease
        return (
            lease is not None
            and not self.dead
            and lease._lost is None
            and not lease._ended.is_set()
            and self.clock() < lease._until
        )


class World:
    """Actors, time, and what may go wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.bucket = Bucket()
        self.late: list[Callable[[], Any]] = []
        self.baton = threading.Semaphore(0)
        self.actors: list[Actor] = []
        self.calm = False
        self.failure: BaseException | None = None

    def add(self, name: str, script: Callable[[Actor], None]) -> Actor:
        actor = Actor(self, name, script, self.rng.uniform(-3600, 3600), self.rng.uniform(0.97, 1.03))
        self.actors.append(actor)
        threading.Thread(target=self._body, args=(actor,), daemon=True).start()
        return actor

    def run(self, steps: int, check: Callable[[World], None], *, deaths: float = 0.01) -> None:
        """Let things go wrong for so many steps, then let everybody who lives finish in peace."""
        for number in range(steps * 20):
            self.calm = number >= steps
            if all(actor.done for actor in self.actors):
                return
            self._once(0.0 if self.calm else deaths)
            check(self)
            if self.failure is not None:
                raise self.failure
        waiting = [actor.name for actor in self.actors if not actor.done]
        raise Broken(f"{', '.join(waiting)} never came to an end, although all was calm")

    def close(self) -> None:
        """End the threads that are left."""
        for actor in self.actors:
            if not actor.done:
                actor.dead = True
                self._hand_over(actor)

    def _once(self, deaths: float) -> None:
        rng = self.rng
        if self.late and rng.random() < 0.1:
            try:
                self.late.pop(rng.randrange(len(self.late)))()
            except (AlreadyExists, PreconditionFailed):
                pass
            return
        awake = [actor for actor in self.actors if not actor.done and actor.wakes <= self.now]
        if not awake or rng.random() < 0.3:
            soonest = min((actor.wakes for actor in self.actors if not actor.done), default=self.now)
            self.now += rng.choice([0.01, 0.1, 1.0, max(0.0, soonest - self.now)])
            if not self.calm and rng.random() < 0.05:
                self.now += rng.uniform(0, 2 * TTL)  # everybody was slow, or somebody was stopped
            return
        actor = rng.choice(awake)
        actor.dead = rng.random() < deaths
        actor.fate = "arrive" if self.calm or rng.random() < 0.7 else rng.choice(["lose answer", "lose", "later"])
        self._hand_over(actor)

    def _hand_over(self, actor: Actor) -> None:
        actor.turn.release()
        if not self.baton.acquire(timeout=_STUCK_S):
            raise Broken(f"{actor.name} waits for something that no request would end")

    def _body(self, actor: Actor) -> None:
        actor.turn.acquire()
        try:
            if not actor.dead:
                actor.script(actor)
        except Killed:
            actor.dead = True
        except BaseException as error:  # noqa: BLE001  (raised again where the test can see it)
            self.failure = error
        actor.done = True
        self.baton.release()


def objects_of(actor: Actor) -> LeaseObjects:
    return LeaseObjects(Store(Wire(actor), KeyScope.of("", None), policy=AT_ONCE))  # type: ignore[arg-type]


def record(actor: Actor, key: str) -> HeldLease:
    return HeldLease(key, actor.name, actor.name, 1, "", "2031-05-04T08:00:00.000Z", TTL)


def patiently(actor: Actor, step: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Repeat a step, with naps, as `Wait` does."""
    while True:
        try:
            result = step()
        except Unavailable:
            result = None
        else:
            if wanted(result):
                return result
        actor.nap(actor.world.rng.uniform(0.2, 3.0))


def hold(actor: Actor, key: str, beats: int) -> None:
    """Take a lease, keep it for a while, give it up."""
    objects = objects_of(actor)
    lease = _taken(actor, objects, key)
    actor.lease = lease
    _work(actor, lease, beats)


def write_a_model(actor: Actor, key: str, beats: int) -> None:
    """Take a model's lease under the rules of `store`."""
    objects = objects_of(actor)
    watch = Watch(actor.clock)
    while True:
        lease = _taken(actor, objects, key)
        if patiently(actor, lambda: (store_lease_holder(objects, watch, actor.clock, {}) is None,), bool)[0]:
            break
        _released(actor, lease)
        patiently(actor, lambda: store_lease_holder(objects, watch, actor.clock, {}), lambda found: found is None)
    actor.lease = lease
    _work(actor, lease, beats)


def take_the_store(actor: Actor, beats: int) -> None:
    """Take `store`, wait for the writers, keep it for a while."""
    objects = objects_of(actor)
    lease = _taken(actor, objects, STORE)
    watches: dict[str, Watch] = {}
    while True:
        lease.renew()
        if lease.lost:
            return
        try:
            if active_writer(objects, watches, actor.clock, {}) is None:
                break
        except Unavailable:
            pass
        actor.nap(actor.world.rng.uniform(0.2, 2.0))
    actor.lease = lease
    _work(actor, lease, beats)


def operate(actor: Actor, key: str) -> None:
    """Release whatever is there, by the nonce that was seen."""
    objects = objects_of(actor)
    for _ in range(5):
        actor.nap(actor.world.rng.uniform(0.5, 6.0))
        try:
            seen = objects.read(key)
            if seen is not None and isinstance(seen.record, HeldLease) and free(objects, key, {seen.record.nonce}):
                actor.world.bucket.freed.add(seen.record.nonce)
        except Unavailable:
            continue


def _taken(actor: Actor, objects: LeaseObjects, key: str) -> OwnLease:
    bid, watch = AcquireAttempt(record(actor, key)), Watch(actor.clock)
    taken = patiently(
        actor, lambda: take(objects, bid, watch, actor.clock), lambda found: isinstance(found, AcquiredLease)
    )
    return OwnLease(objects, taken, actor.clock)


def _work(actor: Actor, lease: OwnLease, beats: int) -> None:
    actor.had += 1
    for _ in range(beats):
        actor.nap(min(lease.ttl_s / 3, max(0.0, lease._until - actor.clock())))
        lease.renew()
        if lease.lost:
            break
    _released(actor, lease)


def _released(actor: Actor, lease: OwnLease) -> None:
    actor.lease = None
    if lease.release():
        actor.world.bucket.freed.add(lease.nonce)
