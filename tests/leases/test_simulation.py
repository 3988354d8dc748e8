"""The protocol under one scheduler: clocks that differ and drift, answers that get lost, writes that come late.

What is shown, for every interleaving that is played:
L1  at no moment of real time do two processes hold the same lease and both pass `check()`, as long as clocks run at
    rates that differ by less than a tenth and nobody releases by hand;
L2  once a release has been acknowledged, no write that was under way makes the lease held by the same one again;
L3  at no moment does a holder of `store` whose wait for the others is over pass `check()` while a writer of a model,
    whose look at `store` is over, passes it too;
L4  when things calm down, everybody who lives gets what it waits for, also after those who died.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from bayou.core.ids import ulid
from bayou.leases import lease, leases, objects
from bayou.leases.acquire import AcquireAttempt, Watch
from bayou.leases.objects import STORE, HeldLease, LeaseObjects, model_key
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Match
from tests.leases import world
from tests.leases.world import Broken, World

KEY = model_key("@org/name/part", "m1")
OTHER = model_key("t", "m2")


def one_holder(w: World) -> None:
    """L1."""
    passing = sorted((actor.lease.key, actor.name) for actor in w.actors if actor.passes and actor.lease)
    for key, holders in groupby(passing, key=lambda pair: pair[0]):
        names = [name for _, name in holders]
        if len(names) > 1:
            raise Broken(f"{key} is held by {' and '.join(names)} at once")


def store_alone(w: World) -> None:
    """L1 and L3."""
    one_holder(w)
    keys = {actor.lease.key for actor in w.actors if actor.passes and actor.lease}
    if STORE in keys and len(keys) > 1:
        raise Broken(f"store is held beside {keys - {STORE}}")


def contend(seed: int) -> None:
    """Three to five contenders for one lease; L1, L2 and L4."""
    w = World(seed)
    try:
        for number in range(w.rng.randint(3, 5)):
            beats = w.rng.randint(0, 5)
            w.add(f"a{number}", partial(world.hold, key=KEY, beats=beats))
        w.run(250, one_holder)
        assert all(actor.had or actor.dead for actor in w.actors)
    finally:
        w.close()


def exclude_each_other(seed: int) -> None:
    """Writers of two models, and two who want the whole store; L1 to L4."""
    w = World(seed)
    try:
        for number in range(3):
            key, beats = w.rng.choice([KEY, OTHER]), w.rng.randint(0, 4)
            w.add(f"m{number}", partial(world.write_a_model, key=key, beats=beats))
        for number in range(w.rng.randint(1, 2)):
            beats = w.rng.randint(0, 3)
            w.add(f"s{number}", partial(world.take_the_store, beats=beats))
        w.run(300, store_alone)
    finally:
        w.close()


def release_by_hand(seed: int) -> None:
    """As `contend`, with somebody who releases what others hold: only L2 and L4 remain."""
    w = World(seed)
    try:
        for number in range(3):
            w.add(f"a{number}", lambda actor: world.hold(actor, KEY, w.rng.randint(0, 5)))
        w.add("operator", lambda actor: world.operate(actor, KEY))
        w.run(250, lambda _: None)
    finally:
        w.close()


@pytest.fixture(autouse=True)
def one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor sends one request at a time: its thread has the baton."""
    monkeypatch.setattr(Store, "map", lambda self, function, items, **_: map(function, items))


SCENES = [contend, exclude_each_other, release_by_hand]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_no_interleaving_breaks_a_promise(scene: Callable[[int], None], rng: random.Random) -> None:
    play(scene, rng, 150)


@pytest.mark.soak
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_no_interleaving_breaks_a_promise_in_a_long_run(scene: Callable[[int], None], rng: random.Random) -> None:
    play(scene, rng, 10_000)


def play(scene: Callable[[int], None], rng: random.Random, times: int) -> None:
    for _ in range(times):
        seed = rng.getrandbits(40)
        try:
            scene(seed)
        except Broken as error:
            pytest.fail(f"{scene.__name__}({seed}): {error}")


def blind_swap(self: LeaseObjects, key: str, written: Any, over: Any) -> Any:
    stored = self._store.put(objects.object_key(key), objects.encode(written))
    return objects.LeaseVersion(written, Match(stored.etag, stored.version), 0)


TEETH: dict[str, tuple[Callable[[int], None], Callable[[], AbstractContextManager[Any]]]] = {
    "a lease is watched for a whole TTL": (contend, lambda: patch.object(Watch, "stale_in", lambda *_: 0.0)),
    "a watch begins anew with each version": (contend, lambda: patch.object(Watch, "stale_in", impatient)),
    "its holder stops first": (contend, lambda: patch.object(lease, "CERTAIN_PART", 1.6)),
    "writes are swaps": (release_by_hand, lambda: patch.object(LeaseObjects, "swap", blind_swap)),
    "each write has a nonce of its own": (
        release_by_hand,
        lambda: patch.object(AcquireAttempt, "next", the_same_again),
    ),
    "writers look at store": (exclude_each_other, lambda: patch.object(world, "store_lease_holder", lambda *_: None)),
    "store looks at writers": (exclude_each_other, lambda: patch.object(leases, "excluded_by_store", lambda _: False)),
}


def impatient(self: Watch, seen: Any, held: Any, asked: float) -> float:
    if self._version is None:
        self._version, self._since = seen.match, self._clock()
    return float(held.ttl_s - (asked - self._since))


def the_same_again(self: AcquireAttempt) -> HeldLease:
    nonce = next(iter(self.nonces), None) or ulid()
    self.nonces.add(nonce)
    return replace(self.wanted, nonce=nonce)


@pytest.mark.parametrize("rule", TEETH)
def test_the_simulation_notices_when_a_rule_is_left_out(rule: str, rng: random.Random) -> None:
    scene, leave_out = TEETH[rule]
    with leave_out():
        for _ in range(600):
            try:
                scene(rng.getrandbits(40))
            except Broken:
                return
    pytest.fail(f"nobody noticed that it does not hold: {rule}")
