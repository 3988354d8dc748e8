"""Deadlines, and a signal that ends everything under way (V12)."""

from __future__ import annotations

import threading
import time

import pytest

from bayou.core.deadline import MORE_TIME, Deadline, stop_event, stop_everything
from bayou.core.errors import Cancelled, DeadlinePassed


def test_a_deadline_that_has_passed_says_how_long_it_was_and_what_to_do() -> None:
    with pytest.raises(DeadlinePassed) as caught:
        Deadline.after(0).remaining()

    assert caught.value.message == "not finished after 0 s"
    assert caught.value.hint == f"allow more time: {MORE_TIME}"
    assert "BAYOU_SYNC_TIMEOUT" in MORE_TIME
    assert "--" not in MORE_TIME  # most commands have no --timeout


def test_what_began_before_a_signal_is_cancelled_and_what_cleans_up_after_it_is_not() -> None:
    before, event = Deadline.after(60), stop_event()
    moment = time.monotonic()
    after = Deadline(moment + 61, 60)
    later = threading.Event()

    stop_everything(moment)

    with pytest.raises(Cancelled):
        before.remaining()
    assert event.is_set()
    assert after.remaining() > 0
    assert not later.is_set()


def test_a_signal_wakes_whoever_sleeps() -> None:
    deadline = Deadline.after(3600)
    threading.Timer(0.05, lambda: stop_everything(time.monotonic())).start()

    with pytest.raises(Cancelled):
        deadline.sleep(3000)


def test_a_deadline_is_forgotten_with_its_work() -> None:
    """A process that lives for weeks makes many."""
    from bayou.core import deadline

    before = len(deadline._events)
    for _ in range(100):
        Deadline.after(60)

    assert len(deadline._events) <= before + 1
