"""`bayou datastore lock`: what people and scripts see."""

from __future__ import annotations

import time

import pytest

from bayou.leases import Leases, model_key
from bayou.leases.objects import HeldLease, LeaseObjects, object_key
from bayou_testing.faults import Rule, Silent
from bayou_testing.proxy import HttpProxy
from tests.cli.conftest import command
from tests.sync.conftest import Clone, Team

__all__ = ["command"]

KEY = model_key("@org/name/part", "0c7a")
CONTRACT = {"key", "holder", "host", "pid", "nonce", "acquired_at", "expires_in_s", "stale"}


@pytest.fixture
def clone(team: Team, monkeypatch: pytest.MonkeyPatch) -> Clone:
    clone = team.clone("one")
    monkeypatch.chdir(clone.repo.root)
    return clone


def test_f088_a_status_is_told_exactly_as_documented(team: Team, clone: Clone, command) -> None:
    with Leases(team.store()).acquire(KEY) as lease:
        ran = command("datastore", "lock", "status", "--json")
    assert ran.code == 0
    (row,) = ran.document["leases"]
    assert set(row) == CONTRACT
    assert (row["key"], row["nonce"], row["stale"]) == (KEY, lease.nonce, False)
    assert 0 < row["expires_in_s"] <= 30


def test_people_see_who_holds_what(team: Team, clone: Clone, command) -> None:
    assert command("datastore", "lock", "status").out == "no lease is held\n"
    with Leases(team.store()).acquire(KEY) as lease:
        shown = command("datastore", "lock", "status").out
    heading, row = shown.splitlines()
    assert heading.split() == ["lease", "holder", "host", "pid", "held", "nonce"]
    assert row.startswith(KEY)
    assert row.endswith(lease.nonce)
    assert "expires in" in row


def test_f077_a_live_lease_is_released_without_waiting_for_anything(team: Team, clone: Clone, command) -> None:
    with Leases(team.store()).acquire(KEY) as lease:
        other = command("datastore", "lock", "release", KEY, "--nonce", "another", "--json")
        assert (other.code, other.document) == (0, {"released": False})
        assert [info.nonce for info in Leases(team.store()).list()] == [lease.nonce], "intact"
        ran = command("datastore", "lock", "release", KEY, "--nonce", lease.nonce, "--json")
        assert (ran.code, ran.document) == (0, {"released": True})
        assert Leases(team.store()).list() == []
        again = command("datastore", "lock", "release", KEY, "--nonce", lease.nonce)
        assert "nothing was released" in again.err


def test_a_release_without_a_nonce_is_refused(clone: Clone, command) -> None:
    ran = command("datastore", "lock", "release", KEY, "--json")
    assert ran.code == 2
    assert "--nonce" in ran.error["message"]


def test_a_corrupt_lease_is_shown_and_released(team: Team, clone: Clone, command) -> None:
    team.store().put(object_key(KEY), b"\xff not a lease")
    shown = command("datastore", "lock", "status")
    assert f"{KEY} is no lease" in shown.err
    (row,) = command("datastore", "lock", "status", "--json").document["leases"]
    assert set(row) == CONTRACT | {"corrupt"}
    ran = command("datastore", "lock", "release", KEY, "--nonce", row["nonce"], "--json")
    assert ran.document == {"released": True}


@pytest.mark.s3
def test_v15_a_status_writes_nothing(s3_team: Team, proxy: HttpProxy, command, monkeypatch) -> None:
    clone = s3_team.clone("one")
    monkeypatch.chdir(clone.repo.root)
    Leases(s3_team.store()).acquire("model/t/free").release()
    with Leases(s3_team.store()).acquire(KEY):
        proxy.log.clear()
        assert command("datastore", "lock", "status", "--json").code == 0
        assert not proxy.log.writes()
        assert proxy.log.count(method="GET", path="leases/.+json") == 1, "free ones need no look"


@pytest.mark.s3
@pytest.mark.parametrize("args", [["status"], ["release", KEY, "--nonce", "n"]], ids=lambda args: args[0])
def test_f084_a_store_that_never_answers_does_not_hold_up_a_command(
    s3_team: Team, proxy: HttpProxy, command, monkeypatch, args: list[str]
) -> None:
    clone = s3_team.clone("one")
    monkeypatch.chdir(clone.repo.root)
    monkeypatch.setenv("BAYOU_SYNC_TIMEOUT", "1")
    proxy.faults.add(Rule(Silent()))
    ran = command("datastore", "lock", *args, "--json")
    assert (ran.code, ran.error["code"]) == (124, "deadline_passed")


@pytest.mark.s3
@pytest.mark.parametrize("hours", [-1, 1])
def test_what_is_stale_is_told_by_the_stores_clock(s3_team: Team, command, monkeypatch, hours: int) -> None:
    clone = s3_team.clone("one")
    monkeypatch.chdir(clone.repo.root)
    real = time.time_ns
    with Leases(s3_team.store()).acquire(KEY):
        monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3600 * 10**9)
        (row,) = command("datastore", "lock", "status", "--json").document["leases"]
    assert row["stale"] is False
    assert row["expires_in_s"] > 0


def test_what_nobody_renews_is_shown_as_stale(team: Team, clone: Clone, command) -> None:
    gone = HeldLease(KEY, "ann", "elsewhere", 4711, "01J0000000000000000000DEAD", "2031-05-04T08:00:00.000Z", 0.001)
    assert LeaseObjects(team.store()).swap(KEY, gone, None)
    shown = command("datastore", "lock", "status")
    assert "stale" in shown.out
    assert "bayou datastore lock release KEY --nonce N" in shown.err
