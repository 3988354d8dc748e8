"""One lease, two who want it: taken, renewed, given up, on every kind of datastore."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest

from bayou.core.deadline import Deadline
from bayou.core.errors import LeaseCorrupt, LeaseLost, LeaseTimeout, PreconditionFailed
from bayou.leases import STORE, Leases, model_key
from bayou.leases.acquire import Wait
from bayou.leases.objects import FreeLease, HeldLease, LeaseObjects, object_key
from bayou_testing.proxy import HttpProxy
from tests.leases.conftest import Place, SlowTime

KEY = model_key("@org/name/part", "0c7a")


def wait_for_renewals(place: Place, key: str, number: int) -> HeldLease:
    """Return a lease that was renewed so often; its holder does that by itself."""
    objects, over = LeaseObjects(place.store()), threading.Event()
    for _ in range(1000):
        seen = objects.read(key)
        assert seen is not None
        assert isinstance(seen.record, HeldLease), "it was renewed before, and is not held any more"
        if seen.record.renewed >= number:
            return seen.record
        over.wait(0.02)
    raise AssertionError("nobody renews it")


def test_a_lease_is_held_by_one_and_then_by_the_next(place: Place) -> None:
    one, two = place.leases(), place.leases()
    with one.acquire(KEY) as first:
        first.check()
        (info,) = two.list()
        assert (info.key, info.nonce, info.stale) == (KEY, first.nonce, False)
        with pytest.raises(LeaseTimeout) as refused:
            two.acquire(KEY, wait_s=0)
        assert refused.value.exit_code == 75
    assert two.list() == []
    with two.acquire(KEY, wait_s=0) as second:
        assert second.nonce != first.nonce


def test_a_holder_renews_and_the_lease_outlives_its_ttl(place: Place) -> None:
    with place.leases(ttl_s=2.4).acquire(KEY) as lease:
        held = wait_for_renewals(place, KEY, 4)
        assert held.nonce == lease.nonce
        lease.check()
        with pytest.raises(LeaseTimeout):
            place.leases().acquire(KEY, wait_s=0)


def test_a_lease_is_given_up_by_a_swap_and_never_deleted(s3: Place, proxy: HttpProxy) -> None:
    for _ in range(3):
        s3.leases().acquire(KEY).release()
    assert proxy.log.count(method="DELETE") == 0
    seen = LeaseObjects(s3.store()).read(KEY)
    assert seen is not None
    assert isinstance(seen.record, FreeLease)
    puts = proxy.log.rows(method="PUT")
    assert all({"If-Match", "If-None-Match"} & {name.title() for name in row.headers} for row in puts)


def test_what_nobody_contends_for_costs_three_requests_to_take_and_one_to_give_up(s3: Place, proxy: HttpProxy) -> None:
    s3.leases().acquire(KEY).release()
    proxy.log.clear()
    lease = s3.leases().acquire(KEY)
    assert [row.method for row in proxy.log.rows()] == ["GET", "PUT", "GET"], "look, take, look at `store`"
    proxy.log.clear()
    assert lease.release()
    assert [row.method for row in proxy.log.rows()] == ["PUT"]


def test_the_record_says_who_holds_it_for_people(directory: Place) -> None:
    with directory.leases().acquire(KEY):
        (info,) = directory.leases().list()
    assert info.held is not None
    assert info.held.holder
    assert info.held.host
    assert info.held.pid
    assert datetime.fromisoformat(info.held.acquired_at).tzinfo is not None


def test_a_key_is_any_text_and_any_length(directory: Place) -> None:
    keys = [model_key("@org/näme/part", "x" * 300), model_key("a", "b/c%2F"), "model/\udcff/ü", STORE + "/x"]
    with directory.leases().acquire_all(keys) as group:
        assert sorted(lease.key for lease in group) == sorted(keys)
        assert [info.key for info in directory.leases().list()] == sorted(keys)


def test_several_leases_are_taken_all_or_none(directory: Place) -> None:
    leases = directory.leases()
    with leases.acquire("model/t/b"):
        with pytest.raises(LeaseTimeout, match="model/t/b is held by"):
            leases.acquire_all(["model/t/c", "model/t/b", "model/t/a"], wait_s=0)
        assert [info.key for info in leases.list()] == ["model/t/b"]


def test_two_who_want_the_same_two_leases_in_another_order_both_get_them(directory: Place) -> None:
    done: list[str] = []

    def want(name: str, *keys: str) -> None:
        for _ in range(10):
            with directory.leases().acquire_all(keys, wait_s=30):
                done.append(name)

    threads = [
        threading.Thread(target=want, args=("x", "model/t/a", "model/t/b")),
        threading.Thread(target=want, args=("y", "model/t/b", "model/t/a")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == ["x"] * 10 + ["y"] * 10


def test_f077_a_lease_that_was_released_by_hand_tells_its_holder(directory: Place) -> None:
    told: list[LeaseLost] = []
    lease = directory.leases(ttl_s=1.5).acquire(KEY, on_lost=told.append)
    assert directory.leases().release(KEY, lease.nonce)
    assert lease.lost_event.wait(10)
    assert [error.message for error in told] == [f"the lease {KEY} was lost: it was released by hand"]
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.release() is False, "it is not ours to free"


def test_f077_release_needs_the_nonce_that_was_shown(place: Place) -> None:
    with place.leases().acquire(KEY) as lease:
        assert place.leases().release(KEY, "another") is False
        assert place.leases().release("model/t/nobody", lease.nonce) is False
        assert [info.nonce for info in place.leases().list()] == [lease.nonce]
        assert place.leases().release(KEY, lease.nonce) is True
        assert place.leases().release(KEY, lease.nonce) is False, "it is free"


def test_a_lease_that_was_given_up_permits_nothing(directory: Place) -> None:
    lease = directory.leases().acquire(KEY)
    assert lease.release() is True
    assert lease.release() is False
    with pytest.raises(LeaseLost, match="given up"):
        lease.check()


@pytest.mark.parametrize("garbage", [b"", b"{}", b"[1]", b"\xff\x00", b'{"free":true}', b'{"key":"x","ttl_s":0}'])
def test_a_corrupt_lease_is_reported_and_can_be_released(directory: Place, garbage: bytes) -> None:
    directory.store().put(object_key(KEY), garbage)
    for key in (KEY, STORE):
        with pytest.raises(LeaseCorrupt, match=f"the lease {KEY} is corrupt"):
            directory.leases().acquire(key)
    (info,) = directory.leases().list()
    assert info.corrupt
    assert info.held is None
    assert directory.leases().release(KEY, info.nonce)
    with directory.leases().acquire(KEY, wait_s=0) as lease:
        lease.check()


def test_a_lease_under_anothers_name_is_corrupt(directory: Place) -> None:
    store = directory.store()
    with directory.leases().acquire("model/t/a"):
        stray = store.get(object_key("model/t/a"))
        assert stray is not None
        store.put(object_key("model/t/b"), stray.data)
        with pytest.raises(LeaseCorrupt, match="it says that it is model/t/a"):
            directory.leases().acquire("model/t/b")
        assert [info.corrupt is None for info in directory.leases().list()] == [True, False]


def test_f091_a_short_hand_over_costs_less_than_half_a_second(directory: Place, slow_time: SlowTime) -> None:
    first = Leases(directory.store(), clock=slow_time.clock).acquire(KEY)
    slow_time.at(0.05, first.release)
    with Leases(directory.store(), clock=slow_time.clock).acquire(KEY):
        assert slow_time.now < 0.5


def test_f092_who_waits_is_told_within_two_seconds_and_again(directory: Place, slow_time: SlowTime) -> None:
    told: list[tuple[float, str]] = []
    with Leases(directory.store()).acquire(KEY) as lease:
        held = directory.leases().list()[0].held
        assert held is not None
        with pytest.raises(LeaseTimeout) as over:
            Leases(directory.store()).acquire(
                KEY, wait_s=25, on_wait=lambda line: told.append((round(slow_time.now), line))
            )
        lease.check()
    (first, line), *later = told
    assert first <= 2
    assert later, "a long wait is not silent"
    for text in (line, over.value.message):
        assert KEY in text
        assert f"{held.holder} on {held.host} (pid {held.pid})" in text
    assert over.value.code == "lease_timeout"
    assert over.value.hint is not None
    assert "BAYOU_LOCK_TIMEOUT" in over.value.hint


def test_f090_each_waiter_looks_less_often_the_longer_it_waits(directory: Place, slow_time: SlowTime) -> None:
    with Leases(directory.store()).acquire(KEY), pytest.raises(LeaseTimeout):
        Leases(directory.store()).acquire(KEY, wait_s=60)
    assert len(slow_time.naps) <= 15, "a minute of waiting is a dozen requests"
    assert max(slow_time.naps) <= 8.0


def test_v17_time_that_ends_while_another_process_takes_the_lease_is_a_timeout() -> None:
    def lose() -> None:
        try:
            raise PreconditionFailed("another process was faster")
        except PreconditionFailed:
            Deadline.after(0).remaining()

    with pytest.raises(LeaseTimeout):
        Wait(0).until(lose)


def test_how_long_to_wait_comes_from_the_environment(
    directory: Place, slow_time: SlowTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "3")
    with directory.leases().acquire(KEY), pytest.raises(LeaseTimeout, match="not obtained within 3 s"):
        directory.leases().acquire(KEY)
    assert 2.9 < slow_time.now < 3.1
