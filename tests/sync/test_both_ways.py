"""Items are done quickly by this thread, or by others: each once, and nobody is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pytest

from bayou.errors import Unavailable
from bayou.store import Store, open_store
from bayou.sync.mover import both_ways

THREADS = 4
ITEMS = 200
Told = tuple[int, str | None] | None
Quickly = Callable[[Iterator[int | None]], Iterator[Told]]


@pytest.fixture
def store() -> Store:
    return open_store("memory://both", concurrency=THREADS)


def slowly(item: int) -> str:
    return f"slowly {item}"


def results(store: Store, quickly: Quickly, *, fits: Callable[[int], bool] = lambda _: True) -> list[str]:
    return list(both_ways(store, quickly, fits, slowly, range(ITEMS), ITEMS))


def all_quickly(items: Iterator[int | None]) -> Iterator[Told]:
    return ((item, f"quickly {item}") if item is not None else None for item in items)


def ways(found: Iterable[str]) -> dict[int, str]:
    """Return the way that each item went; each is there once."""
    pairs = [(int(one.split()[1]), one.split()[0]) for one in found]
    assert sorted(item for item, _ in pairs) == list(range(ITEMS))
    return dict(pairs)


def test_what_fits_is_done_quickly_and_the_rest_by_others(store: Store) -> None:
    found = ways(results(store, all_quickly, fits=lambda item: item % 3 != 0))
    assert found == {item: "slowly" if item % 3 == 0 else "quickly" for item in range(ITEMS)}


def test_what_cannot_be_done_quickly_is_done_by_others(store: Store) -> None:
    def partly(items: Iterator[int]) -> Iterator[tuple[int, str | None]]:
        for item in items:
            yield item, None if item % 5 == 0 else f"quickly {item}"

    found = ways(results(store, partly))
    assert found == {item: "slowly" if item % 5 == 0 else "quickly" for item in range(ITEMS)}


@pytest.mark.parametrize("taken", [0, 1, 50, ITEMS])
def test_once_the_quick_way_is_closed_others_do_the_rest(store: Store, taken: int) -> None:
    def closing(items: Iterator[int]) -> Iterator[tuple[int, str | None]]:
        for item in islice(items, taken):
            yield (item, f"quickly {item}") if item is not None else None

    found = ways(results(store, closing, fits=lambda item: item != ITEMS - 1))
    assert [found[item] for item in range(ITEMS)].count("quickly") == min(taken, ITEMS - 1)
    assert found[ITEMS - 1] == "slowly"


def test_this_thread_does_what_is_done_quickly_and_others_do_what_is_not(store: Store) -> None:
    threads: set[threading.Thread] = set()

    def quickly(items: Iterator[int]) -> Iterator[tuple[int, str | None]]:
        for item in items:
            assert threading.current_thread() is threading.main_thread()
            yield item, None

    def work(item: int) -> int:
        threads.add(threading.current_thread())
        return item

    assert sorted(both_ways(store, quickly, lambda _: True, work, range(ITEMS), ITEMS)) == list(range(ITEMS))
    assert 1 <= len(threads) <= THREADS
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("where", ["quickly", "slowly", "items"])
def test_what_any_of_them_raises_comes_out_and_nobody_works_on(store: Store, where: str) -> None:
    def fail(name: str, item: int) -> None:
        if name == where and item == 100:
            raise Unavailable(name)

    def items() -> Iterator[int]:
        for item in range(ITEMS):
            fail("items", item)
            yield item

    def quickly(some: Iterator[int]) -> Iterator[tuple[int, str | None]]:
        for item in some:
            fail("quickly", item)
            yield item, f"quickly {item}" if item % 2 else None

    def work(item: int) -> str:
        fail("slowly", item)
        return slowly(item)

    before = threading.active_count()
    with pytest.raises(Unavailable, match=where):
        list(both_ways(store, quickly, lambda _: True, work, items(), ITEMS))
    assert threading.active_count() == before


def test_whoever_wants_no_more_closes_the_quick_way_and_waits_for_what_has_begun(store: Store) -> None:
    closed, released, begun, done = threading.Event(), threading.Event(), [], []

    def quickly(items: Iterator[int]) -> Iterator[tuple[int, str | None]]:
        try:
            for item in items:
                yield item, f"quickly {item}" if item == 20 else None
        finally:
            closed.set()

    def work(item: int) -> str:
        begun.append(item)
        assert released.wait(30)
        done.append(item)
        return slowly(item)

    running = both_ways(store, quickly, lambda _: True, work, range(ITEMS), ITEMS)
    next(running)
    threading.Timer(0.2, released.set).start()
    running.close()
    assert closed.is_set()
    assert sorted(begun) == sorted(done)
    assert len(done) < 20


def test_not_many_more_items_are_taken_than_can_be_done(store: Store) -> None:
    """As by `Store.map`, so that neither items nor results are ever held whole."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10_000):
            taken.append(item)
            yield item

    running = both_ways(store, all_quickly, lambda _: False, slowly, items(), 10_000)
    next(running)
    running.close()
    assert len(taken) < 1_000
