"""Retries, deadlines and counts, with faults below them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from bayou.core.deadline import Deadline
from bayou.core.errors import (
    AccessDenied,
    Cancelled,
    DeadlinePassed,
    DeleteFailed,
    NotFound,
    PreconditionFailed,
    StoreError,
    TimedOut,
    Unavailable,
)
from bayou.core.ids import ulid
from bayou.objectstore import Create, Match, Store, keys
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.open import open_transport
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.transport import GetResult, PutResult
from bayou.objectstore.url import parse_url
from bayou_testing.contract import payload
from bayou_testing.faulty import Fault, FaultyTransport, lost_answer

if TYPE_CHECKING:
    from typing_extensions import Buffer

QUICK = RetryPolicy(base_s=0.001, cap_s=0.005)


@pytest.fixture
def faulty() -> FaultyTransport:
    return FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))


@pytest.fixture
def store(faulty: FaultyTransport) -> Store:
    return Store(faulty, KeyScope.of("p", None), policy=QUICK)


def unavailable() -> StoreError:
    return Unavailable("503")


def test_a_passing_failure_is_retried_and_counted(store: Store, faulty: FaultyTransport) -> None:
    faulty.faults.append(Fault("put", nth=1, times=3, error=unavailable))
    store.put(payload("data/a"), b"1")
    assert store.requests.put == 4
    assert [one.verb for one in faulty.seen] == ["put"] * 4


def test_a_lasting_failure_ends_after_a_bounded_number_of_attempts(store: Store, faulty: FaultyTransport) -> None:
    faulty.faults.append(Fault("get", error=unavailable))
    with pytest.raises(Unavailable):
        store.get(payload("data/a"))
    assert len(faulty.seen) == QUICK.attempts


@pytest.mark.parametrize("final", [AccessDenied, NotFound, PreconditionFailed])
def test_a_final_failure_is_not_retried(store: Store, faulty: FaultyTransport, final: type[StoreError]) -> None:
    faulty.faults.append(Fault("get", error=lambda: final("no")))
    with pytest.raises(final):
        store.get(payload("data/a"))
    assert len(faulty.seen) == 1


def test_a_create_whose_answer_was_lost_succeeds_once(store: Store, faulty: FaultyTransport) -> None:
    faulty.faults.append(Fault("put", nth=1, when="after", error=lost_answer))
    stored = store.put(keys.HEAD, b"mine", condition=Create())
    found = store.get(keys.HEAD)
    assert found is not None
    assert (bytes(found.data), found.meta.etag) == (b"mine", stored.etag)


def test_a_swap_whose_answer_was_lost_succeeds_once(store: Store, faulty: FaultyTransport) -> None:
    first = store.put(keys.HEAD, b"one", condition=Create())
    faulty.faults.append(Fault("put", nth=1, when="after", error=lost_answer))
    stored = store.put(keys.HEAD, b"two", condition=Match(first.etag))
    found = store.get(keys.HEAD)
    assert found is not None
    assert (bytes(found.data), found.meta.etag) == (b"two", stored.etag)


def test_a_swap_that_never_arrived_and_was_overtaken_fails(store: Store, faulty: FaultyTransport) -> None:
    first = store.put(keys.HEAD, b"one", condition=Create())

    def overtaken() -> StoreError:
        faulty.faults.clear()
        store.put(keys.HEAD, b"peer", condition=Match(first.etag))
        return Unavailable("no answer")

    faulty.faults.append(Fault("put", nth=1, error=overtaken))
    with pytest.raises(PreconditionFailed):
        store.put(keys.HEAD, b"two", condition=Match(first.etag))


def test_a_truncated_answer_is_read_again(store: Store, faulty: FaultyTransport) -> None:
    store.put(payload("data/a"), b"0123456789")
    faulty.faults.append(Fault("get", nth=1, truncate=4))
    found = store.get(payload("data/a"))
    assert found is not None
    assert bytes(found.data) == b"0123456789"


def test_a_listing_that_breaks_goes_on_where_it_was(store: Store, faulty: FaultyTransport) -> None:
    names = [f"data/{number:05}" for number in range(2_500)]
    for name in names:
        faulty.inner.put(f"p/{name}", b"", timeout=5)
    faulty.faults.append(Fault("list", nth=2, error=unavailable))
    assert [meta.key for page in store.list() for meta in page] == names


def test_f053_a_listing_that_keeps_breaking_is_an_error_and_not_a_short_listing(
    store: Store, faulty: FaultyTransport
) -> None:
    for number in range(1_500):
        faulty.inner.put(f"p/data/{number:05}", b"", timeout=5)
    faulty.faults.append(Fault("list", nth=2, times=100, error=unavailable))
    with pytest.raises(Unavailable):
        list(store.list())


def test_keys_that_cannot_be_deleted_are_named_and_the_others_are_gone(store: Store, faulty: FaultyTransport) -> None:
    for number in range(3):
        store.put(payload(f"data/{number}"), b"")
    refused = DeleteFailed({"p/data/1": AccessDenied("kept")})

    def partly() -> DeleteFailed:
        faulty.inner.delete(["p/data/0", "p/data/2"], timeout=5)
        return refused

    faulty.faults.append(Fault("delete", nth=1, error=partly))
    with pytest.raises(DeleteFailed) as caught:
        store.delete([payload(f"data/{number}") for number in range(3)])
    assert set(caught.value.failed) == {"data/1"}
    assert [meta.key for page in store.list() for meta in page] == ["data/1"]


def test_f084_a_deadline_ends_a_call_that_would_go_on_retrying(store: Store, faulty: FaultyTransport) -> None:
    faulty.faults.append(Fault("get", error=lambda: TimedOut("silence")))
    bounded = store.within(Deadline.after(0.0))
    with pytest.raises(DeadlinePassed):
        bounded.get(payload("data/a"))
    assert faulty.seen == []


def test_f086_a_passed_deadline_names_what_it_waited_for(faulty: FaultyTransport) -> None:
    patient = Store(faulty, KeyScope.of("p", None), policy=RetryPolicy(base_s=50, cap_s=50))
    faulty.faults.append(Fault("get", error=lambda: TimedOut("silence")))
    with pytest.raises(DeadlinePassed) as caught:
        patient.within(Deadline.after(0.05)).get(payload("data/a"))
    assert "GET data/a" in caught.value.message
    assert "silence" in caught.value.message
    assert caught.value.exit_code == 124


def test_a_cancelled_deadline_wakes_a_sleeping_retry(faulty: FaultyTransport) -> None:
    patient = Store(faulty, KeyScope.of("p", None), policy=RetryPolicy(base_s=600, cap_s=600))
    deadline = Deadline.after(600)

    def fail_and_cancel() -> StoreError:
        threading.Timer(0.02, deadline.cancel).start()
        return Unavailable("503")

    faulty.faults.append(Fault("get", error=fail_and_cancel))
    with pytest.raises(Cancelled):
        patient.within(deadline).get(payload("data/a"))


def test_map_keeps_order_and_raises_the_first_error_in_its_turn(store: Store) -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 50:
            raise Unavailable("50")
        return number

    results: list[int] = []
    with pytest.raises(Unavailable):
        results.extend(store.map(work, range(10_000)))
    assert results == list(range(50))
    assert len(begun) < 500


@pytest.mark.parametrize("ahead", [1, 4])
def test_map_goes_on_by_itself_as_far_as_it_may(store: Store, ahead: int) -> None:
    taken: list[int] = []
    done: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10_000):
            taken.append(number)
            yield number

    results = store.map(done.append, items(), threads=8, ahead=ahead)
    next(results)
    wanted = 2 + 8 * ahead
    deadline = time.monotonic() + 30
    while len(done) < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(done) == len(taken) == wanted
    results.close()  # type: ignore[attr-defined]


def test_views_share_counts(store: Store) -> None:
    store.within(Deadline.after(5)).put(payload("data/a"), b"123")
    assert (store.requests.put, store.requests.bytes_out) == (1, 3)


class Patient(FaultyTransport):
    """Takes note of the limit that each request has."""

    limits: list[float]

    def read(self, key: str, span: tuple[int, int], *, timeout: float) -> Buffer:
        self.limits.append(timeout)
        return super().read(key, span, timeout=timeout)

    def get(self, key: str, *, timeout: float, **more: Any) -> GetResult | None:
        self.limits.append(timeout)
        return super().get(key, timeout=timeout, **more)

    def put(self, key: str, data: Buffer, *, timeout: float, **more: Any) -> PutResult:
        self.limits.append(timeout)
        return super().put(key, data, timeout=timeout, **more)


SLOW_LINK = RetryPolicy(request_timeout_s=10, least_rate=1000, call_deadline_s=500)


@pytest.fixture
def patient() -> Patient:
    transport = Patient(open_transport(parse_url(f"memory://{ulid()}"), {}))
    transport.limits = []
    return transport


def test_the_limit_of_a_request_grows_with_the_bytes_that_it_moves(patient: Patient) -> None:
    """A pack of 8 MB on a slow link is no stall (V12)."""
    store = Store(patient, KeyScope.of("p", None), policy=SLOW_LINK)
    key, data = payload("data/a"), bytes(50_000)
    store.put(key, b"")
    store.put(key, data)
    store.read_range(key, 1000, 21_000)
    store.read(key, len(data), sha256(data).digest())
    store.get(key, span=(0, 30_000))
    store.get(key)
    assert patient.limits == pytest.approx([10, 60, 30, 60, 10, 10], abs=0.5), "by then the rate is known"


def test_the_limit_of_a_request_never_goes_beyond_the_callers_deadline(patient: Patient) -> None:
    store = Store(patient, KeyScope.of("p", None), policy=SLOW_LINK).within(Deadline.after(20))
    store.put(payload("data/a"), bytes(50_000))
    assert patient.limits == pytest.approx([20], abs=0.5)


def test_a_request_of_a_shorter_limit_keeps_it_and_the_time_for_its_bytes(patient: Patient) -> None:
    store = Store(patient, KeyScope.of("p", None), policy=SLOW_LINK).with_request_timeout(2)
    store.put(payload("data/a"), bytes(5_000))
    assert patient.limits == pytest.approx([7], abs=0.5)


def test_v12_a_store_that_never_answers_is_given_up_soon_although_nothing_limits_the_whole(
    store: Store, faulty: FaultyTransport
) -> None:
    faulty.faults.append(Fault("put", error=lambda: TimedOut("a minute without a byte")))
    with pytest.raises(TimedOut):
        store.within(Deadline.after(None)).put(payload("data/a"), bytes(100_000))
    assert len(faulty.seen) == QUICK.stalled_attempts


@pytest.mark.parametrize("within", [None, Deadline.after(None)], ids=["no deadline", "an endless one"])
def test_v12_a_store_that_has_never_answered_is_silent_for_a_minute_in_all(
    patient: Patient, within: Deadline | None
) -> None:
    policy = RetryPolicy(base_s=0.001, cap_s=0.001)
    store = Store(patient, KeyScope.of("p", None), policy=policy)
    store = store if within is None else store.within(within)
    patient.faults.append(Fault("get", error=lambda: TimedOut("no answer")))
    with pytest.raises(TimedOut):
        store.get(payload("data/a"))
    assert patient.limits == pytest.approx([30, 30], abs=0.5)


def test_v12_a_store_that_has_answered_gets_more_time(patient: Patient) -> None:
    policy = RetryPolicy(base_s=0.001, cap_s=0.001)
    store = Store(patient, KeyScope.of("p", None), policy=policy).within(Deadline.after(None))
    store.put(payload("data/a"), b"")
    patient.limits.clear()
    patient.faults.append(Fault("get", error=lambda: TimedOut("no answer")))
    with pytest.raises(TimedOut):
        store.get(payload("data/a"))
    assert patient.limits == pytest.approx([60] * policy.stalled_attempts, abs=0.5)


def test_v12_a_store_that_stops_answering_many_requests_at_once_is_given_up_as_soon(patient: Patient) -> None:
    """Sixty-four halvings of the rate would make the limit of a request longer than anybody lives."""
    policy = RetryPolicy(base_s=0.001, cap_s=0.001, request_timeout_s=10, least_rate=1000)
    store = Store(patient, KeyScope.of("p", None), policy=policy).within(Deadline.after(None))
    store.put(payload("data/a"), bytes(100_000))
    patient.limits.clear()
    patient.faults.append(Fault("put", error=lambda: TimedOut("a minute without a byte")))

    def put(number: int) -> bool:
        with pytest.raises(TimedOut):
            store.put(payload(f"data/{number}"), bytes(100_000))
        return True

    assert all(store.map(put, range(64), threads=16))

    assert max(patient.limits) < 1000
    assert len(patient.limits) < 64 * policy.stalled_attempts
