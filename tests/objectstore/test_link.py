"""The link to a store: its rate decides how much is under way, how large pieces are, and what is a stall."""

from __future__ import annotations

import threading
import time

import pytest

from bayou.core.deadline import Deadline
from bayou.core.errors import Cancelled
from bayou.objectstore import open_store
from bayou.objectstore.link import Flow, Link
from bayou_testing.contract import payload

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def moved(flow: Flow, clock: Clock, size: int, seconds: float) -> None:
    with flow.moving(size, Deadline.after(None)):
        clock.now += seconds


def test_the_rate_is_what_requests_show_and_follows_the_link(clock: Clock) -> None:
    flow = Flow(clock)
    assert flow.rate is None
    moved(flow, clock, 8 * MIB, 8.0)
    assert flow.rate == pytest.approx(MIB)
    for _ in range(20):
        moved(flow, clock, 8 * MIB, 1.0)
    assert flow.rate == pytest.approx(8 * MIB, rel=0.05)


def test_small_requests_measure_nothing(clock: Clock) -> None:
    flow = Flow(clock)
    moved(flow, clock, 1000, 1.0)
    assert flow.rate is None


def test_pieces_take_some_seconds_on_a_slow_link_and_are_large_on_a_fast_one(clock: Clock) -> None:
    flow = Flow(clock)
    assert flow.piece(MIB, 8 * MIB) == 8 * MIB
    moved(flow, clock, MIB, 1.0)
    assert flow.piece(MIB, 16 * MIB) == 5 * MIB
    assert flow.piece(6 * MIB, 16 * MIB) == 6 * MIB
    assert flow.parallel(5 * MIB, 4) == 2
    fast = Flow(clock)
    moved(fast, clock, 100 * MIB, 1.0)
    assert (fast.piece(MIB, 16 * MIB), fast.parallel(16 * MIB, 4)) == (16 * MIB, 4)


def test_v12_a_request_has_time_for_all_that_is_under_way(clock: Clock) -> None:
    flow = Flow(clock)
    moved(flow, clock, MIB, 1.0)
    with flow.moving(5 * MIB, Deadline.after(None)) as first, flow.moving(5 * MIB, Deadline.after(None)) as second:
        assert flow.seconds(5 * MIB, 1.0) == pytest.approx(40.0), "four times as long as measured"
        assert flow.stalled(first) == 1
        assert flow.seconds(5 * MIB, 1.0) == pytest.approx(80.0), "and twice as long after a stall"
        assert flow.stalled(second) == 1
        assert flow.seconds(5 * MIB, 1.0) == pytest.approx(80.0), "of all that were under way together"
        clock.now += 10


def test_a_request_waits_for_room_and_the_wait_can_be_cancelled(clock: Clock) -> None:
    flow, deadline = Flow(clock), Deadline.after(None)
    moved(flow, clock, MIB, 1.0)
    entered = threading.Event()

    def second() -> None:
        with flow.moving(8 * MIB, deadline):
            entered.set()

    waiting = threading.Thread(target=second)
    with flow.moving(8 * MIB, Deadline.after(None)):
        waiting.start()
        assert not entered.wait(0.2)
        deadline_of_a_third = Deadline.after(None)
        deadline_of_a_third.cancel()
        with pytest.raises(Cancelled), flow.moving(8 * MIB, deadline_of_a_third):
            pass
    assert entered.wait(30)
    waiting.join()


def test_requests_get_room_in_the_order_in_which_they_came(clock: Clock) -> None:
    flow = Flow(clock)
    moved(flow, clock, MIB, 1.0)
    order: list[int] = []

    def move(number: int) -> None:
        with flow.moving(8 * MIB, Deadline.after(None)):
            order.append(number)

    waiting = [threading.Thread(target=move, args=(number,)) for number in range(20)]
    with flow.moving(8 * MIB, Deadline.after(None)):
        for number, thread in enumerate(waiting):
            thread.start()
            while len(flow._waiting) <= number:
                time.sleep(0.001)
    for thread in waiting:
        thread.join()
    assert order == list(range(20))


def test_the_first_large_piece_goes_alone_until_the_link_is_known(clock: Clock) -> None:
    flow, second = Flow(clock), threading.Event()

    def move() -> None:
        with flow.moving(8 * MIB, Deadline.after(None)):
            second.set()

    thread = threading.Thread(target=move)
    with flow.moving(8 * MIB, Deadline.after(None)):
        thread.start()
        while not flow._waiting:
            time.sleep(0.001)
        assert not second.wait(0.2)
        clock.now += 1.0
    thread.join()
    assert second.is_set()


def test_a_limited_rate_holds_for_uploads_and_downloads_together() -> None:
    store = open_store("memory://limited-rate", limit_rate=2_000_000)
    key = payload("data/a")
    begin = time.monotonic()
    for _ in range(3):
        store.put(key, bytes(200_000))
        store.get(key, span=(0, 200_000))
    assert time.monotonic() - begin >= 0.5, "1.2 MB less the last piece, at 2 MB/s"


def test_a_limited_rate_makes_pieces_that_take_some_seconds() -> None:
    link = Link(500_000)
    assert link.piece(link.up, MIB, 8 * MIB) == 2_500_000
    assert link.piece(link.down, 5 * MIB, 8 * MIB) == 5 * MIB


def test_views_of_a_store_share_the_link() -> None:
    store = open_store("memory://shared-link")
    assert store.within(Deadline.after(5)).for_operation().with_request_timeout(1).link is store.link
