"""Leases on a real S3 server behind a proxy that loses, delays and refuses."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bayou.core.errors import BayouError, LeaseLost, LeaseTimeout, Unavailable
from bayou.leases import Leases, model_key
from bayou.leases.objects import FreeLease, HeldLease, LeaseObjects
from bayou_testing.faults import Fail, Hold, Late, LoseResponse, Rule
from bayou_testing.proxy import HttpProxy
from tests.leases.conftest import QUICK, Place, SlowTime

pytestmark = pytest.mark.s3

KEY = model_key("t", "m")
LEASE = r"/leases/"


def read(place: Place, key: str = KEY) -> HeldLease | FreeLease:
    seen = LeaseObjects(place.store()).read(key)
    assert seen is not None
    assert isinstance(seen.record, HeldLease | FreeLease)
    return seen.record


@pytest.mark.parametrize("action", [LoseResponse(), Fail(500, applied=True), Fail(409, applied=True)], ids=repr)
@pytest.mark.parametrize("first", [True, False], ids=["create", "swap"])
def test_an_acquisition_whose_answer_was_lost_is_ours(s3: Place, proxy: HttpProxy, action: object, first: bool) -> None:
    if not first:
        s3.leases().acquire(KEY).release()
    proxy.faults.add(Rule(action, method="PUT", path=LEASE, nth=1))  # type: ignore[arg-type]
    with s3.leases().acquire(KEY, wait_s=20) as lease:
        lease.check()
        held = read(s3)
        assert isinstance(held, HeldLease)
        assert held.nonce == lease.nonce
    assert isinstance(read(s3), FreeLease)


def test_an_acquisition_of_which_no_answer_ever_came_is_found_by_its_nonce(s3: Place, proxy: HttpProxy) -> None:
    lost = Rule(LoseResponse(), method="PUT", path=LEASE, times=QUICK.attempts)
    proxy.faults.add(lost)
    with s3.leases().acquire(KEY, wait_s=20) as lease:
        assert proxy.faults.applied(lost) == QUICK.attempts
        held = read(s3)
        assert isinstance(held, HeldLease)
        assert (held.nonce, held.renewed) == (lease.nonce, 0), "it was read back, and not written again"


@pytest.mark.parametrize("status", [503, 409, 429])
def test_f087_a_store_that_refuses_for_a_while_is_asked_again(s3: Place, proxy: HttpProxy, status: int) -> None:
    rule = Rule(Fail(status), path=LEASE, times=12)
    proxy.faults.add(rule)
    with s3.leases().acquire(KEY, wait_s=30) as lease:
        lease.check()
    assert proxy.faults.applied(rule) == 12
    assert isinstance(read(s3), FreeLease)


def test_f075_when_leases_cannot_be_had_nobody_is_told_otherwise(s3: Place, proxy: HttpProxy) -> None:
    proxy.faults.add(Rule(Fail(500), path=LEASE))
    with pytest.raises(Unavailable) as error:
        s3.leases().acquire(KEY, wait_s=1)
    assert error.value.exit_code == 1, "nobody is known to have it: the store is the cause"
    proxy.faults.clear()
    assert s3.leases().list() == []


def test_what_will_not_pass_is_not_waited_for(s3: Place, proxy: HttpProxy) -> None:
    proxy.faults.add(Rule(Fail(403), path=LEASE))
    with pytest.raises(BayouError) as error:
        s3.leases().acquire(KEY, wait_s=600)
    assert error.value.code == "access_denied"


def test_f083_a_renewal_that_arrives_after_the_release_does_not_bring_the_lease_back(
    s3: Place, proxy: HttpProxy
) -> None:
    hold = Hold(threading.Event())
    proxy.faults.add(Rule(hold, method="PUT", path=LEASE, nth=2))
    lease = s3.leases(ttl_s=1.5).acquire(KEY)
    assert hold.arrived.wait(20)
    assert lease.release() is True
    hold.release.set()
    assert wait_for_puts(proxy, 3) == [200, 200, 412], "taken, given up, and too late"
    assert read(s3) == FreeLease(lease.nonce)


@pytest.mark.parametrize("first", [True, False], ids=["create", "swap"])
def test_f076_who_is_interrupted_while_it_takes_a_lease_leaves_none_behind(
    s3: Place, proxy: HttpProxy, first: bool
) -> None:
    if not first:
        s3.leases().acquire(KEY).release()
    hold = Hold(threading.Event())
    proxy.faults.add(Rule(hold, method="PUT", path=LEASE, nth=1))
    proxy.log.clear()

    def interrupt() -> None:
        hold.arrived.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        s3.leases().acquire(KEY)
    hold.release.set()
    statuses = wait_for_puts(proxy, 2)
    assert sorted(statuses) == [200, 412], "the write that was on its way comes too late"
    assert s3.leases().list() == []


def wait_for_puts(proxy: HttpProxy, number: int) -> list[int | None]:
    """Return the answers to so many writes of leases, when they are there."""
    for _ in range(1000):
        rows = proxy.log.rows(method="PUT", path=LEASE)
        if len(rows) >= number:
            return [row.status for row in rows]
        threading.Event().wait(0.02)
    raise AssertionError("they never came")


def test_a_steal_between_the_look_and_the_renewal_is_noticed(s3: Place, proxy: HttpProxy, direct: Place) -> None:
    hold = Hold(threading.Event())
    proxy.faults.add(Rule(hold, method="PUT", path=LEASE, nth=2, times=1000))
    told: list[LeaseLost] = []
    lease = s3.leases(ttl_s=1.5).acquire(KEY, on_lost=told.append)
    assert hold.arrived.wait(20)
    with direct.leases(ttl_s=20).acquire(KEY, wait_s=30) as thief:
        hold.release.set()
        assert lease.lost_event.wait(20)
        with pytest.raises(LeaseLost):
            lease.check()
        assert len(told) == 1
        assert lease.release() is False
        thief.check()
        held = read(s3)
        assert isinstance(held, HeldLease)
        assert held.nonce == thief.nonce


def test_a_holder_that_finds_another_nonce_is_told_whose(s3: Place, proxy: HttpProxy, direct: Place) -> None:
    hold = Hold(threading.Event())
    proxy.faults.add(Rule(hold, method="PUT", path=LEASE, nth=2))
    lease = s3.leases(ttl_s=6).acquire(KEY)
    assert hold.arrived.wait(20)
    assert direct.leases().release(KEY, lease.nonce)
    with direct.leases().acquire(KEY, wait_s=0) as other:
        hold.release.set()
        assert lease.lost_event.wait(20)
        with pytest.raises(LeaseLost, match=r"\(pid \d+\) has it now"):
            lease.check()
        assert lease.release() is False
        other.check()
        assert read(s3) == read(direct) != FreeLease(other.nonce)


def test_a_renewal_whose_answer_was_lost_loses_nothing(s3: Place, proxy: HttpProxy) -> None:
    rule = Rule(LoseResponse(), method="PUT", path=LEASE, nth=2, times=3)
    proxy.faults.add(rule)
    with s3.leases(ttl_s=9).acquire(KEY) as lease:
        for _ in range(1000):
            if proxy.faults.applied(rule) == 3:
                break
            assert not lease.lost_event.wait(0.02)
        lease.check()
        held = read(s3)
        assert isinstance(held, HeldLease)
        assert held.nonce == lease.nonce


def test_a_holder_that_cannot_renew_is_told_before_anybody_else_may_take_it(s3: Place, proxy: HttpProxy) -> None:
    lease = s3.leases(ttl_s=1.0).acquire(KEY)
    proxy.faults.add(Rule(Fail(500), method="PUT", path=LEASE))
    assert lease.lost_event.wait(20)
    with pytest.raises(LeaseLost, match="could not be renewed"):
        lease.check()
    proxy.faults.clear()
    held = read(s3)
    assert isinstance(held, HeldLease)
    assert held.nonce == lease.nonce, "nobody has it yet, and its holder has stopped already"
    assert lease.release() is True


def test_f081_a_stale_lease_that_cannot_be_taken_ends_in_time_after_few_tries(
    s3: Place, proxy: HttpProxy, slow_time: SlowTime
) -> None:
    dead(s3, ttl_s=0.5)
    proxy.faults.add(Rule(Fail(412, b"<Error><Code>PreconditionFailed</Code></Error>"), method="PUT", path=LEASE))
    proxy.log.clear()
    with pytest.raises(LeaseTimeout) as error:
        Leases(s3.store(), clock=slow_time.clock).acquire(KEY, wait_s=2)
    assert error.value.exit_code == 75
    assert 1 <= proxy.log.count(method="PUT", path=LEASE) <= 10
    assert proxy.log.count() <= 20


def test_f081_a_stale_lease_that_comes_back_each_time_ends_in_time(
    s3: Place, proxy: HttpProxy, direct: Place, slow_time: SlowTime
) -> None:
    dead(direct, ttl_s=0.5)
    for moment in range(1, 20):
        slow_time.at(moment / 5, lambda: dead(direct, ttl_s=0.5, over=True))
    proxy.log.clear()
    with pytest.raises(LeaseTimeout):
        Leases(s3.store(), clock=slow_time.clock).acquire(KEY, wait_s=2)
    assert 2 <= proxy.log.count() <= 10


def test_f090_twenty_who_wait_ask_no_more_often_than_one_each(s3: Place, proxy: HttpProxy, slow_time: SlowTime) -> None:
    with s3.leases().acquire(KEY):
        proxy.log.clear()

        def want(_: int) -> str:
            try:
                Leases(s3.store()).acquire(KEY, wait_s=3)
            except LeaseTimeout as error:
                return error.code
            return "taken"

        with ThreadPoolExecutor(20) as pool:
            assert set(pool.map(want, range(20))) == {"lease_timeout"}
        assert proxy.log.count(method="PUT") == 0
        assert proxy.log.count() <= 20 * 7


def dead(place: Place, *, ttl_s: float, over: bool = False) -> None:
    """Leave a lease whose holder will never be seen again."""
    objects = LeaseObjects(place.store())
    seen = objects.read(KEY) if over else None
    renewed = seen.record.renewed + 1 if seen is not None and isinstance(seen.record, HeldLease) else 0
    gone = HeldLease(
        KEY, "ann", "elsewhere", 4711, "01J0000000000000000000DEAD", "2031-05-04T08:00:00.000Z", ttl_s, renewed
    )
    assert objects.swap(KEY, gone, seen) is not None


LATE_TTL_S = 3.0
TOO_LATE = Late(2 * LATE_TTL_S)
"""The write takes effect; its answer comes when the lease would be stale."""
REPEATED = Fail(412, applied=True)
"""Something on the way has repeated a request that took effect: the client sees only the second answer."""


@pytest.mark.parametrize("action", [TOO_LATE, REPEATED, Late(LATE_TTL_S)], ids=repr)
@pytest.mark.parametrize("first", [True, False], ids=["create", "swap"])
def test_an_acquisition_that_is_answered_late_is_ours_and_not_lost(
    s3: Place, proxy: HttpProxy, action: Fail | Late, first: bool
) -> None:
    if not first:
        s3.leases().acquire(KEY).release()
    proxy.faults.add(Rule(action, method="PUT", path=LEASE, nth=1))
    with s3.leases(ttl_s=LATE_TTL_S).acquire(KEY, wait_s=30) as lease:
        lease.check()
        assert not lease.lost_event.wait(1.5 * LATE_TTL_S), "it is renewed in time"
        lease.check()
        held = read(s3)
        assert isinstance(held, HeldLease)
        assert held.nonce == lease.nonce
    assert isinstance(read(s3), FreeLease)


@pytest.mark.parametrize("action", [TOO_LATE, REPEATED], ids=repr)
def test_a_renewal_that_is_answered_late_loses_nothing(s3: Place, proxy: HttpProxy, action: Fail | Late) -> None:
    rule = Rule(action, method="PUT", path=LEASE, nth=2)
    proxy.faults.add(rule)
    with s3.leases(ttl_s=LATE_TTL_S).acquire(KEY) as lease:
        assert not lease.lost_event.wait(2 * LATE_TTL_S)
        lease.check()
        assert proxy.faults.applied(rule) == 1
        held = read(s3)
        assert isinstance(held, HeldLease)
        assert (held.nonce, held.renewed > 1) == (lease.nonce, True)


def test_a_release_that_is_answered_late_is_a_release(s3: Place, proxy: HttpProxy) -> None:
    lease = s3.leases().acquire(KEY)
    proxy.faults.add(Rule(TOO_LATE, method="PUT", path=LEASE, nth=1))
    assert lease.release() is True
    assert read(s3) == FreeLease(lease.nonce)
