"""A committer that keeps losing takes the `commit` lease; nothing ever fails for want of it."""

from __future__ import annotations

import pytest

from bayou.core.errors import AccessDenied, PreconditionFailed, Unavailable
from bayou.leases import COMMIT, Leases
from bayou_testing.faulty import Fault
from tests.sync.conftest import Team, Wire

HEAD = r"head\.json$"
LEASE = r"leases/commit\.json$"


def losing(times: int) -> Fault:
    """So many swaps of the head are refused."""
    return Fault("put", HEAD, times=times, error=lambda: PreconditionFailed("somebody was faster"))


@pytest.fixture
def shared(team: Team) -> Team:
    first = team.clone("first")
    first.write("files/a", "1")
    first.sync()
    return team


def test_who_loses_three_races_takes_the_lease_and_gives_it_up(shared: Team, wire: Wire) -> None:
    clone = shared.clone("slow")
    clone.pull()
    clone.write("files/b", "2")
    wire.cut(losing(4))
    assert clone.push().pushed.files == 1
    assert len(wire.sent("put", LEASE)) == 2, "taken, and given up"
    assert Leases(shared.store()).list() == []


def test_who_loses_two_races_asks_nobody(shared: Team, wire: Wire) -> None:
    clone = shared.clone("slow")
    clone.pull()
    clone.write("files/b", "2")
    wire.cut(losing(2))
    assert clone.push().pushed.files == 1
    assert not wire.sent("get", "leases") + wire.sent("put", "leases")


@pytest.mark.parametrize("error", [Unavailable("down"), AccessDenied("not you")], ids=lambda error: error.code)
def test_a_lease_that_cannot_be_had_is_no_reason_to_fail(
    shared: Team, wire: Wire, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("bayou.sync.commit.commit.LEASE_WAIT_S", 0.3)
    clone = shared.clone("slow")
    clone.pull()
    clone.write("files/b", "2")
    wire.cut(losing(5), Fault(None, LEASE, error=lambda: error))
    assert clone.push().pushed.files == 1
    assert wire.sent("get", LEASE)


def test_somebody_elses_commit_lease_delays_and_does_not_prevent(
    shared: Team, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayou.sync.commit.commit.LEASE_WAIT_S", 0.3)
    clone = shared.clone("slow")
    clone.pull()
    clone.write("files/b", "2")
    with Leases(shared.store()).acquire(COMMIT) as held:
        wire.cut(losing(3))
        assert clone.push().pushed.files == 1
        held.check()
        assert [info.nonce for info in Leases(shared.store()).list()] == [held.nonce]
