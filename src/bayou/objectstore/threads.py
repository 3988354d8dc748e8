"""Requests on threads that nobody has to wait for: a signal, or the end of the process, is not held up by a server that
does not answer (V12, V14).

Python raises nothing in a thread that is inside a request, and waits at its end for threads that are not daemons.

The threads that obstore works with: one set for a process, made with its first request.

A request runs on the thread that makes it; obstore's own threads only serve the connections. As many of them as there
are cores, which is what it takes by itself, wake each other up for nothing: with half as many, ten thousand small files
take a tenth less time.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

import obstore
from obstore.store import MemoryStore

T = TypeVar("T")
R = TypeVar("R")

_LOOK_S = 0.05


def run_interruptible(call: Callable[[], R]) -> R:
    """Make a call on another thread if this one is the main thread, which then waits as one that can be interrupted.

    Whoever is interrupted leaves the call behind, and with it the thread that is still inside it.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    crew = _idle.pop() if _idle else ThreadPool(1)
    future = crew.submit(call)
    try:
        return outcome(future)
    finally:
        if future.done():
            _idle.append(crew)
        else:
            crew.retire()


def watched(call: Callable[[], R], look: Callable[[], object]) -> R:
    """Make a call on another thread, and ask `look` now and then whether to wait any longer.

    What `look` raises ends the wait (V12); the call is then left behind, with the thread that is still inside it.
    """
    crew = _idle.pop() if _idle else ThreadPool(1)
    future = crew.submit(call)
    try:
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():
                    return future.result()
                look()
    finally:
        if future.done():
            _idle.append(crew)
        else:
            crew.retire()


def call_with_timeout(seconds: float, call: Callable[[], R]) -> R:
    """Make a call on another thread, and wait no longer than that for it; `TimeoutError`: it is left behind."""
    crew = ThreadPool(1)
    future = crew.submit(call)
    crew.retire()
    return outcome(future, time.monotonic() + seconds)


def outcome(future: Future[R], until: float = math.inf) -> R:
    """Wait for a call, and return what it returned or raise what it raised; a signal ends the wait.

    In short sleeps: one that comes just before Python falls asleep would wait until it wakes up. `TimeoutError` if it
    is not done by a moment of the monotonic clock.
    """
    while True:
        try:
            return future.result(_LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()
            if time.monotonic() > until:
                raise


def in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int, ahead: int, stop: threading.Event
) -> Iterator[R]:
    """Yield `function(item)` for each item, in order, computed by so many threads; see `Store.map`.

    Once `stop` is set, nobody waits for calls that are under way.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    pending: deque[Future[R]] = deque()
    crew = ThreadPool(threads)
    try:
        pending.extend(crew.submit(partial(function, item)) for item in first)
        pending.extend(crew.submit(partial(function, item)) for item in islice(source, threads * ahead))
        while pending:
            yield outcome(pending.popleft())
            pending.extend(crew.submit(partial(function, item)) for item in islice(source, 1))
    finally:
        crew.dismiss(pending, stop)


class ThreadPool:
    """Threads that make calls, at most so many at once; each begins when it is first needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Let somebody make a call."""
        future: Future[R] = Future()
        self._work.put((future, call))  # type: ignore[arg-type]
        if len(self._threads) < self._size:
            thread = threading.Thread(target=self._toil, name=f"bayou-store-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def dismiss(self, pending: Iterable[Future[R]], stop: threading.Event) -> None:
        """Drop the calls that have not begun, and wait for those that have; not any longer once `stop` is set."""
        for future in pending:
            future.cancel()
        self.retire()
        for thread in self._threads:
            while thread.is_alive() and not stop.is_set():
                thread.join(_LOOK_S)

    def retire(self) -> None:
        """Let every thread end with the call that it is in."""
        for _ in self._threads:
            self._work.put(None)

    def _toil(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                _carry_out(future, call)
            del work, future, call  # nobody's result is kept alive by an idle thread


def _carry_out(future: Future[R], call: Callable[[], R]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  (it is raised where the call was asked for)
        future.set_exception(error)
    else:
        future.set_result(result)


_idle: list[ThreadPool] = []
"""Who waits for the main thread's next call. A fork has none of our threads, only what we remember of them."""

os.register_at_fork(after_in_child=_idle.clear)


_NAME = "TOKIO_WORKER_THREADS"
_made = threading.Event()
_lock = threading.Lock()


def begin() -> None:
    """Make obstore's threads, unless there are some; what the environment says of their number counts."""
    if _made.is_set():
        return
    with _lock:
        if not _made.is_set():
            _make()
            _made.set()


def _make() -> None:
    if _NAME in os.environ:
        return
    # Only as long as it takes: programs that we start have obstores of their own.
    os.environ[_NAME] = str(max(1, _cores() // 2))
    try:
        obstore.list(MemoryStore()).collect()
    finally:
        del os.environ[_NAME]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
