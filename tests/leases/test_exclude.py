"""`store` and the leases of models keep each other out."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bayou.core.errors import LeaseTimeout
from bayou.core.ids import ulid
from bayou.leases import COMMIT, STORE, Leases, model_key
from bayou.leases.objects import HeldLease, LeaseObjects
from tests.leases.conftest import Place, SlowTime

KEY = model_key("@org/name/part", "0c7a")


def test_f088_store_waits_for_a_model_whose_type_has_slashes(place: Place) -> None:
    with place.leases().acquire(KEY):
        with pytest.raises(LeaseTimeout, match=f"{KEY} is held by"):
            place.leases().acquire(STORE, wait_s=0.2)
        assert [info.key for info in place.leases().list()] == [KEY], "who gave up has left nothing behind"
    with place.leases().acquire(STORE, wait_s=0):
        assert [info.key for info in place.leases().list()] == [STORE]


def test_store_keeps_new_writers_out_while_it_waits_for_old_ones(directory: Place, slow_time: SlowTime) -> None:
    seen: list[object] = []

    def somebody_new() -> None:
        with pytest.raises(LeaseTimeout, match="store is held by"):
            directory.leases().acquire("model/t/new", wait_s=0)
        seen.append([info.key for info in directory.leases().list()])

    old = directory.leases().acquire(KEY)
    slow_time.at(1.0, somebody_new)
    slow_time.at(3.0, old.release)
    with Leases(directory.store()).acquire(STORE, wait_s=60):
        assert seen == [[KEY, STORE]]
        assert [info.key for info in directory.leases().list()] == [STORE]


def test_a_writer_goes_on_as_soon_as_store_is_free(directory: Place, slow_time: SlowTime) -> None:
    store = directory.leases().acquire(STORE)
    slow_time.at(0.05, store.release)
    with Leases(directory.store()).acquire(KEY, wait_s=60):
        assert slow_time.now < 0.5
        assert [info.key for info in directory.leases().list()] == [KEY]


def test_who_has_store_may_have_a_models_lease_with_it(directory: Place) -> None:
    with directory.leases().acquire_all([KEY, STORE], wait_s=0) as group:
        assert len(group) == 2


def test_a_commit_neither_waits_for_store_nor_holds_it_up(directory: Place) -> None:
    with directory.leases().acquire(STORE, wait_s=0), directory.leases().acquire(COMMIT, wait_s=0):
        pass
    with directory.leases().acquire(COMMIT, wait_s=0), directory.leases().acquire(STORE, wait_s=0):
        pass


def test_writers_and_store_never_work_at_once(directory: Place) -> None:
    inside: set[str] = set()
    overlaps: list[set[str]] = []
    guard = threading.Lock()

    def work(key: str) -> None:
        for _ in range(6):
            with directory.leases().acquire(key, wait_s=60):
                with guard:
                    inside.add(key)
                    if STORE in inside and len(inside) > 1:
                        overlaps.append(set(inside))
                with guard:
                    inside.discard(key)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [STORE, "model/t/a", "model/t/b", "model/t/c", STORE + "d", "model/t/e"]))
    assert overlaps == []
    assert directory.leases().list() == []


@pytest.mark.parametrize("wanted", [(KEY,), (STORE,), (KEY, model_key("t", "other"))], ids=["model", "store", "models"])
def test_f093_the_leases_of_several_dead_holders_are_watched_at_once(
    directory: Place, slow_time: SlowTime, wanted: tuple[str, ...]
) -> None:
    """One after the other, they would take a TTL each, and with the usual wait a command would fail."""
    objects = LeaseObjects(directory.store())
    for key in {STORE, KEY, *wanted}:
        held = HeldLease(key, "root", "elsewhere", 7, ulid(), "2026-01-01T00:00:00.000Z", 30.0)
        assert objects.swap(key, held, None) is not None
    with Leases(directory.store(), clock=slow_time.clock).acquire_all(wanted, wait_s=60):
        assert 30.0 <= slow_time.now < 40.0
        assert [info.key for info in directory.leases().list()] == sorted(wanted)
