"""The protocol, explored: nothing acknowledged is lost, nothing deleted comes back, no entry is without its bytes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.conftest import SEED as RUN
from tests.sync.simulation.campaign import SEED, Tally, explore, explore_on_all_cores, play
from tests.sync.simulation.world import World

GIVEN = os.environ.get(SEED)
IN_A_TEST = 1000
IN_A_SOAK = 100_000


@pytest.mark.skipif(GIVEN is None, reason=f"{SEED} names no scenario")
def test_a_given_seed_is_played_again() -> None:
    assert GIVEN is not None
    play(int(GIVEN), Tally())


def test_a_seed_is_one_story(tmp_path: Path) -> None:
    """What is found once can be looked at again: nothing of a scenario depends on the time of day, or on luck."""
    told = []
    for number in range(2):
        world = World(3, tmp_path / str(number))
        world.run()
        told.append(world.trace)
    assert len(told[0]) > 100
    assert told[0] == told[1]


@pytest.mark.timeout(600)
def test_two_clients_lose_nothing() -> None:
    # The same scenarios every time: a change is judged by what it does to them. New ones are for `./dev soak`.
    tally = explore(random.Random("two"), IN_A_TEST, clients=2)
    assert tally.interleavings >= IN_A_TEST


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_a_hundred_thousand_interleavings_of_two_and_three_clients_lose_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = explore_on_all_cores(os.environ[RUN], IN_A_SOAK)
    with capsys.disabled():
        print(f"\nsimulated {tally}")
    assert tally.interleavings >= IN_A_SOAK
