"""F089: what the children of a holder may do."""

from __future__ import annotations

import json
import threading

import pytest

from bayou.core.errors import ConfigInvalid, LeaseLost, LeaseTimeout
from bayou.leases import STORE, VARIABLE, Leases, environment, model_key
from bayou.leases.lease import BorrowedLease
from bayou.leases.objects import HeldLease, LeaseObjects, LeaseVersion
from tests.leases.children import holder
from tests.leases.conftest import Place

KEY = model_key("t", "m")
SIBLING = model_key("t", "other")


def test_f089_a_child_works_under_its_parents_lease_and_leaves_it_alone(shared: Place) -> None:
    with shared.leases().acquire(KEY) as lease:
        first, _ = holder(shared, 30, KEY, env=environment([lease]))
        second, nonce = holder(shared, 30, KEY, env=environment([lease]))
        with first, second:
            assert nonce == lease.nonce
            assert first.ask("end") == "ended"
            assert first.end() == 0
            assert second.ask("?") == "held", "a sibling that ends first takes nothing away"
            lease.check()
        assert [info.nonce for info in shared.leases().list()] == [lease.nonce]


def test_f089_a_child_takes_a_sibling_models_lease_for_itself(directory: Place) -> None:
    with directory.leases().acquire(KEY) as lease:
        child, nonce = holder(directory, 30, SIBLING, env=environment([lease]))
        with child:
            assert {info.key: info.nonce for info in directory.leases().list()} == {KEY: lease.nonce, SIBLING: nonce}
            assert child.ask("end") == "ended"
        assert [info.key for info in directory.leases().list()] == [KEY]


def test_a_child_of_a_store_holder_may_write_a_model(directory: Place) -> None:
    with directory.leases().acquire(STORE) as lease:
        with pytest.raises(LeaseTimeout):
            directory.leases().acquire(KEY, wait_s=0)
        child, _ = holder(directory, 30, KEY, env=environment([lease]))
        with child:
            assert child.ask("?") == "held"


def test_a_child_of_a_writer_may_take_the_store(directory: Place) -> None:
    with directory.leases().acquire(KEY) as lease:
        child, _ = holder(directory, 30, STORE, env=environment([lease]))
        with child:
            assert child.ask("?") == "held"


def test_a_nonce_that_the_store_does_not_show_permits_nothing(directory: Place) -> None:
    stranger = {KEY: "01J0000000000000000000FAKE"}
    with directory.leases().acquire(KEY), pytest.raises(LeaseTimeout):
        directory.leases(inherited=stranger).acquire(KEY, wait_s=0)
    with directory.leases(inherited=stranger).acquire(KEY, wait_s=0) as own:
        assert own.nonce != stranger[KEY], "it is free, so it is taken like any other"


def test_a_child_learns_that_its_parent_has_lost_the_lease(directory: Place) -> None:
    lease = directory.leases(ttl_s=0.6).acquire(KEY)
    lent = directory.leases(inherited={KEY: lease.nonce}).acquire(KEY)
    assert directory.leases().release(KEY, lease.nonce)
    assert lent.lost_event.wait(20)
    with pytest.raises(LeaseLost, match="the process that lent it has lost it"):
        lent.check()


def test_a_child_learns_that_its_parent_died(directory: Place) -> None:
    parent, nonce = holder(directory, 6.0, KEY)
    with parent:
        lent = directory.leases(inherited={KEY: nonce}).acquire(KEY)
        assert not lent.lost_event.wait(7.0), "the parent renews, and that is seen"
        parent.kill()
        assert lent.lost_event.wait(20)
        with pytest.raises(LeaseLost):
            lent.check()


@pytest.mark.parametrize("late", [-0.3, -0.001, 0.0, 0.001, 0.01, 0.3])
@pytest.mark.parametrize("slower", [-0.002, 0.0, 0.002])
def test_a_child_that_looks_a_moment_before_each_renewal_loses_nothing(
    directory: Place, late: float, slower: float
) -> None:
    """Both have the same rhythm, so they may meet at the same moment for a long time, or drift past each other."""
    lease = directory.leases(ttl_s=30).acquire(KEY)
    objects = LeaseObjects(directory.store())
    seen = objects.read(KEY)
    assert isinstance(seen, LeaseVersion)
    assert isinstance(seen.record, HeldLease)
    now = 0.0
    lent = BorrowedLease(objects, seen, seen.record, now, lambda: now)
    renews, looks = 10 + late, 10.0
    lookups = 0
    with lease:
        while now < 4_000:
            now = min(renews, looks)
            if now == renews:
                lease.renew()
                renews = now + 10 + slower
            else:
                delay = lent.renew()
                lent.check()
                lookups += 1
                looks = now + delay
    assert lookups < 1_000, "it is looked at about as often as it is renewed"


def test_a_child_never_writes_to_the_lease(directory: Place) -> None:
    with directory.leases().acquire(KEY) as lease:
        before = LeaseObjects(directory.store()).read(KEY)
        with directory.leases(ttl_s=0.1, inherited={KEY: lease.nonce}).acquire(KEY) as lent:
            assert lent.renew() > 0
            assert lent.release() is False
        assert LeaseObjects(directory.store()).read(KEY) == before


def test_a_grandchild_has_the_leases_of_both_above_it(directory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"model/t/a": "one"}))
    with directory.leases().acquire(KEY) as lease:
        assert json.loads(environment([lease])[VARIABLE]) == {"model/t/a": "one", KEY: lease.nonce}


@pytest.mark.parametrize("told", ["yes", "[1]", '{"a": 1}', "{"])
def test_what_no_process_hands_to_its_children_is_refused(
    directory: Place, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv(VARIABLE, told)
    with pytest.raises(ConfigInvalid, match=VARIABLE):
        Leases(directory.store())


def test_two_threads_of_one_process_exclude_each_other_too(directory: Place) -> None:
    with directory.leases().acquire(KEY):
        refused: list[bool] = []

        def other() -> None:
            with pytest.raises(LeaseTimeout):
                directory.leases().acquire(KEY, wait_s=0)
            refused.append(True)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert refused == [True]
