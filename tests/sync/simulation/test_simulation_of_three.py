"""The protocol, explored with a third client; in a file of its own, so that both can run at the same time."""

from __future__ import annotations

import random

import pytest

from tests.sync.simulation.campaign import explore

IN_A_TEST = 1000


@pytest.mark.timeout(600)
def test_three_clients_lose_nothing() -> None:
    tally = explore(random.Random("three"), IN_A_TEST, clients=3)
    assert tally.interleavings >= IN_A_TEST
