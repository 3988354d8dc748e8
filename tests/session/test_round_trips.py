"""How many requests of a command wait for the answers to earlier ones (V16), counted in waves by `RoundTripProxy`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bayou.models import create_model
from bayou_testing.round_trips import RoundTripProxy
from bayou_testing.s3 import S3Endpoint
from tests.session.conftest import Commands
from tests.sync.conftest import Clone, Team
from tests.sync.test_request_counts import lazy, synthetic
from tests.trusting import trust

pytestmark = [pytest.mark.s3, pytest.mark.timeout(600)]


@pytest.fixture
def waves(seaweed: S3Endpoint) -> Iterator[RoundTripProxy]:
    with RoundTripProxy(seaweed.host, seaweed.port) as proxy:
        yield proxy


def through(clone: Clone, proxy: RoundTripProxy) -> None:
    """Let a clone reach its store through the proxy from now on."""
    text = clone.repo.file.read_text()
    old = clone.repo.config.datastore.options["endpoint"]
    clone.repo.file.write_text(text.replace(old, proxy.url))
    trust(clone.repo.root)
    clone.reopen()


def shown(proxy: RoundTripProxy) -> str:
    return "\n".join(", ".join(wave) for wave in proxy.waves)


@pytest.mark.parametrize("entries", [1_000, 100_000])
def test_data_put_takes_five_round_trips_and_nine_requests(
    s3_team: Team, commands: Commands, waves: RoundTripProxy, entries: int
) -> None:
    synthetic(s3_team, entries)
    a = lazy(s3_team, "a")
    create_model(a.repo, "@org/shell", "one")
    assert commands.run(a, *commands.put(a, "one", "first")).document["version"] == 1
    through(a, waves)

    ran = commands.run(a, *commands.put(a, "one", "second"))

    assert (ran.code, ran.err) == (0, "")
    assert (ran.document["version"], ran.document["pushed"]) == (2, True)
    assert "unchanged" not in ran.document
    requests = [request for wave in waves.waves for request in wave]
    assert any(request.startswith("PUT") and "/packs/" in request for request in requests), shown(waves)
    assert waves.trips <= 5, shown(waves)
    assert len(requests) <= 9, shown(waves)


def test_one_changed_file_is_pushed_in_three_round_trips_and_pulled_in_three(
    s3_team: Team, waves: RoundTripProxy
) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/x", "one")
    a.sync()
    b.sync()
    for clone in (a, b):
        through(clone, waves)
    a.write("files/x", "two")

    waves.restart()
    assert a.push(walk=False).pushed.files == 1
    assert waves.trips <= 3, shown(waves)
    assert sum(map(len, waves.waves)) <= 5, shown(waves)

    waves.restart()
    assert b.pull(walk=False).pulled.files == 1
    assert waves.trips <= 3, shown(waves)
    assert sum(map(len, waves.waves)) <= 4, shown(waves)
