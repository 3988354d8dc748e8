"""Batches of an iterable; a thread reads a source ahead of its consumer, which gets the source's exceptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator

import pytest

from bayou.core import iterators
from bayou.core.iterators import Prefetcher, batched, prefetch

BATCH = iterators._BATCH


@pytest.fixture(autouse=True)
def full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are full, however slow this machine is."""
    monkeypatch.setattr(iterators, "BATCH_S", float("inf"))


class Source:
    """Numbers without an end: how many were taken, and whether somebody has said that they want no more."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.taken = 0
        self.closed = threading.Event()
        self.threads: set[threading.Thread] = set()
        self._fails_at = fails_at

    def numbers(self) -> Generator[int, None, None]:
        try:
            while True:
                self.threads.add(threading.current_thread())
                self.taken += 1
                if self.taken == self._fails_at:
                    raise ValueError("broken")
                yield self.taken
        finally:
            self.closed.set()

    def goes_beyond(self, number: int, within: float = 30) -> bool:
        """Wait until more than so many were taken."""
        end = time.monotonic() + within
        while self.taken <= number and time.monotonic() < end:
            time.sleep(0.001)
        return self.taken > number


def test_a_source_is_read_to_its_end_although_nobody_asks() -> None:
    read = threading.Event()

    def source() -> Iterator[int]:
        yield from range(3)
        read.set()

    found = Prefetcher(source())

    assert read.wait(30)
    assert list(found) == [0, 1, 2]


def test_what_came_before_a_failure_comes_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    found = iter(Prefetcher(source()))

    assert next(found) == 1
    with pytest.raises(ValueError, match="broken"):
        next(found)


def test_whoever_leaves_does_not_wait_for_a_source_that_never_ends() -> None:
    held = threading.Event()

    def source() -> Iterator[int]:
        held.wait()
        yield 1

    found = Prefetcher(source())
    found.close()
    held.set()

    assert list(found) == [1]


@pytest.mark.parametrize("most", [1, 5])
def test_no_more_is_held_than_may_be(most: int) -> None:
    source = Source()
    found = Prefetcher(source.numbers(), most)
    assert source.goes_beyond(most - 1)
    beyond = source.goes_beyond(most, within=0.3)
    found.close()
    assert not beyond


@pytest.mark.parametrize("most", [1, 5])
def test_what_is_taken_makes_room_for_as_many_and_no_more(most: int) -> None:
    source = Source()
    found = Prefetcher(source.numbers(), most)
    numbers = iter(found)
    for number in range(1, 51):
        assert next(numbers) == number
        assert source.taken <= number + most + 1
    assert source.goes_beyond(50 + most - 1)
    found.close()


def test_whoever_leaves_early_closes_a_source_that_has_more() -> None:
    source = Source()
    found = Prefetcher(source.numbers(), 3)
    assert next(iter(found)) == 1
    found.close()
    assert source.closed.wait(30)
    assert source.taken <= 5


def test_whoever_leaves_a_source_without_bounds_closes_it_too() -> None:
    source = Source()
    found = Prefetcher(source.numbers())
    found.close()
    assert source.closed.wait(30)


def test_what_is_read_ahead_comes_in_order_and_whole_from_a_thread_of_its_own() -> None:
    threads: set[threading.Thread] = set()

    def source() -> Iterator[int]:
        for number in range(1000):
            threads.add(threading.current_thread())
            yield number

    assert list(prefetch(source(), 64, name="reader")) == list(range(1000))
    assert [thread.name for thread in threads] == ["reader"]


@pytest.mark.parametrize("count", [0, 1, BATCH - 1, BATCH, BATCH + 1])
def test_few_are_read_ahead_as_well(count: int) -> None:
    assert list(prefetch(range(count), 1, name="reader")) == list(range(count))


@pytest.mark.parametrize("most", [1, BATCH, 4 * BATCH])
def test_reading_ahead_goes_on_by_itself_and_not_without_end(most: int) -> None:
    source = Source()
    results = prefetch(source.numbers(), most, name="reader")
    assert next(results) == 1
    assert source.goes_beyond(most - 1)
    most = max(most, BATCH) + 2 * BATCH  # some are in hand, and some in between
    assert not source.goes_beyond(most, within=0.1)
    results.close()


def test_an_item_of_a_slow_source_does_not_wait_for_a_full_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterators, "BATCH_S", 0.0)
    taken = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        assert taken.wait(30)
        yield 2

    results = prefetch(source(), 64, name="reader")
    assert next(results) == 1
    taken.set()
    assert list(results) == [2]


def test_whoever_wants_no_more_that_is_read_ahead_closes_the_source() -> None:
    source = Source()
    results = prefetch(source.numbers(), 64, name="reader")
    assert next(results) == 1
    results.close()
    assert source.closed.wait(30)
    for thread in source.threads:
        thread.join(30)
        assert not thread.is_alive()


def test_what_a_source_raises_is_raised_by_whoever_reads_ahead() -> None:
    source = Source(fails_at=2 * BATCH + 1)
    results = prefetch(source.numbers(), 1000, name="reader")
    assert [next(results) for _ in range(2 * BATCH)] == list(range(1, 2 * BATCH + 1))
    with pytest.raises(ValueError, match="broken"):
        next(results)
    assert source.closed.wait(30)


def test_what_came_before_a_failure_is_not_dropped_when_it_is_read_ahead() -> None:
    results = prefetch(Source(fails_at=6).numbers(), 1000, name="reader")
    assert [next(results) for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="broken"):
        next(results)


@pytest.mark.parametrize(
    ("number", "wanted"), [(0, []), (1, [[0]]), (3, [[0, 1, 2]]), (7, [[0, 1, 2], [3, 4, 5], [6]])]
)
def test_batches_have_all_items_in_order_and_only_the_last_one_is_shorter(number: int, wanted: list[list[int]]) -> None:
    assert list(batched(range(number), 3)) == wanted


def test_no_item_is_read_before_its_batch_is_asked_for() -> None:
    source = iter(range(10))
    batches = batched(source, 4)
    assert next(batches) == [0, 1, 2, 3]
    assert next(source) == 4
