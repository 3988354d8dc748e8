"""Requests that nobody has to wait for (V12, V14)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from bayou.core.errors import Cancelled, NotFound
from bayou.objectstore import open_store
from bayou.objectstore.threads import ThreadPool, run_interruptible
from tests.sync import children


@pytest.fixture
def forever() -> Iterator[threading.Event]:
    """An event that somebody waits for in vain, until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_the_main_thread_makes_no_call_itself() -> None:
    assert run_interruptible(threading.current_thread) is not threading.main_thread()


def test_one_thread_serves_the_main_thread_as_long_as_it_is_free() -> None:
    assert run_interruptible(threading.current_thread) is run_interruptible(threading.current_thread)


def test_another_thread_makes_its_calls_itself() -> None:
    made: list[threading.Thread] = []
    thread = threading.Thread(target=lambda: made.append(run_interruptible(threading.current_thread)))
    thread.start()
    thread.join()

    assert made == [thread]


def test_what_a_call_raises_comes_out() -> None:
    def fail() -> None:
        raise NotFound("no")

    with pytest.raises(NotFound):
        run_interruptible(fail)


def test_a_signal_is_raised_while_a_call_hangs_and_the_next_call_goes_through(forever: threading.Event) -> None:
    entered = threading.Event()

    def hang() -> None:
        entered.set()
        forever.wait()

    def interrupt() -> None:
        entered.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    def raising(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raising)
    helper = threading.Thread(target=interrupt)
    helper.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_interruptible(hang)
    finally:
        signal.signal(signal.SIGUSR1, before)
        helper.join()

    assert run_interruptible(lambda: "answer") == "answer"


def test_a_fork_starts_threads_of_its_own() -> None:
    body = """
from bayou.objectstore.threads import run_interruptible
run_interruptible(lambda: 1)
child = os.fork()
if child == 0:
    os._exit(run_interruptible(lambda: 7))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert children.output(body).strip() == "7"


def test_a_process_ends_while_a_thread_is_inside_a_call() -> None:
    body = """
import threading
from bayou.objectstore.threads import ThreadPool
inside = threading.Event()
ThreadPool(1).submit(lambda: (inside.set(), threading.Event().wait()))
inside.wait()
print("done")
"""
    assert children.output(body).strip() == "done"


def test_a_crew_waits_for_what_has_begun_and_drops_the_rest() -> None:
    crew, gate, begun, done = ThreadPool(1), threading.Event(), threading.Event(), []

    def work(number: int) -> None:
        begun.set()
        gate.wait()
        done.append(number)

    futures = [crew.submit(partial(work, number)) for number in range(3)]
    begun.wait()
    threading.Timer(0.05, gate.set).start()
    crew.cancel_and_join(futures, threading.Event())

    assert done == [0]
    assert [future.cancelled() for future in futures] == [False, True, True]


def test_a_crew_that_is_told_to_stop_is_not_waited_for(forever: threading.Event) -> None:
    crew, begun, stop = ThreadPool(1), threading.Event(), threading.Event()
    future = crew.submit(lambda: (begun.set(), forever.wait()))
    begun.wait()
    stop.set()

    crew.cancel_and_join([future], stop)

    assert not future.done()


def test_a_map_as_completed_does_not_wait_for_the_first() -> None:
    store, rest = open_store("memory://bucket"), threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert rest.wait(30)
        return number

    found = []
    for number in store.map_as_completed(work, range(200), threads=4):
        found.append(number)
        if len(found) == 199:
            rest.set()
    assert found[-1] == 0
    assert sorted(found) == list(range(200))


def test_an_interrupted_map_waits_for_nobody_once_its_deadline_is_cancelled(forever: threading.Event) -> None:
    from bayou.core.deadline import Deadline

    deadline = Deadline.after(3600)
    store = open_store("memory://bucket").within(deadline)
    results = store.map(lambda number: number if number == 0 else forever.wait(), range(5))
    assert next(results) == 0
    deadline.cancel()

    results.close()  # type: ignore[attr-defined]

    with pytest.raises(Cancelled):
        deadline.remaining()
