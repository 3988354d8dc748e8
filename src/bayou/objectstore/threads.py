"""Threads for requests that a caller can abandon: a signal or the end of the process waits for no server (V12, V14).

Python delivers a signal to the main thread only between bytecodes, so not while that thread is inside a request, and
the interpreter waits at exit for all threads that are not daemons. Requests therefore run on daemon threads, and the
waiting thread polls: it abandons a request by no longer waiting for it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_POLL_S = 0.05


def run_interruptible(call: Callable[[], R]) -> R:
    """Run a call so that a signal can interrupt the wait for it.

    The main thread runs the call on another thread and waits; any other thread runs the call itself. An interrupted
    wait abandons the call and the thread that is still inside it.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    return _run_pooled(call, wait_for_result)


def run_cancellable(call: Callable[[], R], check_cancelled: Callable[[], object]) -> R:
    """Run a call on another thread, and call `check_cancelled` about every 50 ms until the call is done.

    An exception from `check_cancelled` ends the wait (V12) and abandons the call and its thread.
    """
    return _run_pooled(call, lambda future: wait_for_result(future, check_cancelled=check_cancelled))


def wait_for_result(future: Future[R], check_cancelled: Callable[[], object] | None = None) -> R:
    """Return the result of a future or raise its exception; a signal ends the wait.

    The wait is a sequence of short sleeps: a signal that arrives just before Python blocks would otherwise stay pending
    until the call is done.
    """
    while True:
        try:
            return future.result(_POLL_S)
        except TimeoutError:
            if future.done():
                return future.result()
            if check_cancelled is not None:
                check_cancelled()


def map_in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int, ahead: int, stop: threading.Event
) -> Iterator[R]:
    """Yield `function(item)` for each item, in order, computed by `threads` threads; see `Store.map`.

    Once `stop` is set, closing the iterator no longer waits for calls in progress.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    pending: deque[Future[R]] = deque()
    pool = ThreadPool(threads)
    try:
        pending.extend(pool.submit(partial(function, item)) for item in first)
        pending.extend(pool.submit(partial(function, item)) for item in islice(source, threads * ahead))
        while pending:
            yield wait_for_result(pending.popleft())
            pending.extend(pool.submit(partial(function, item)) for item in islice(source, 1))
    finally:
        pool.cancel_and_join(pending, stop)


def map_as_completed(
    function: Callable[[T], R], items: Iterable[T], threads: int, ahead: int, stop: threading.Event
) -> Iterator[R]:
    """Yield `function(item)` for each item as soon as it is there, in any order; otherwise as `map_in_order`."""
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    pending: set[Future[R]] = set()
    completed: SimpleQueue[Future[R]] = SimpleQueue()
    pool = ThreadPool(threads)

    def submit(item: T) -> None:
        future = pool.submit(partial(function, item))
        pending.add(future)
        future.add_done_callback(completed.put)

    try:
        for item in chain(first, islice(source, threads * ahead)):
            submit(item)
        while pending:
            future = _wait_for_next(completed)
            pending.discard(future)
            yield future.result()
            for item in islice(source, 1):
                submit(item)
    finally:
        pool.cancel_and_join(pending, stop)


def _wait_for_next(completed: SimpleQueue[Future[R]]) -> Future[R]:
    """Return the next future that is done; a signal ends the wait, as in `wait_for_result`."""
    while True:
        with suppress(Empty):
            return completed.get(timeout=_POLL_S)


class ThreadPool:
    """At most `size` daemon threads that run calls; the pool starts a thread only when a call needs it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Queue a call, and return the future of its result."""
        future: Future[R] = Future()
        self._queue.put((future, call))  # type: ignore[arg-type]
        if len(self._threads) < self._size:
            thread = threading.Thread(target=self._run, name=f"bayou-store-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def cancel_and_join(self, pending: Iterable[Future[R]], stop: threading.Event) -> None:
        """Cancel the calls that have not begun, and wait for those that have, unless `stop` is set."""
        for future in pending:
            future.cancel()
        self.close()
        for thread in self._threads:
            while thread.is_alive() and not stop.is_set():
                thread.join(_POLL_S)

    def close(self) -> None:
        """Let every thread end after its current call."""
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                _set_outcome(future, call)
            del work, future, call  # an idle thread must not keep a result alive


def _run_pooled(call: Callable[[], R], wait: Callable[[Future[R]], R]) -> R:
    """Run a call on an idle thread; the thread becomes idle again only if the call is done when the wait ends."""
    pool = _idle.pop() if _idle else ThreadPool(1)
    future = pool.submit(call)
    try:
        return wait(future)
    finally:
        if future.done():
            _idle.append(pool)
        else:
            pool.close()


def _set_outcome(future: Future[R], call: Callable[[], R]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  (raised in the thread that waits for the future)
        future.set_exception(error)
    else:
        future.set_result(result)


_idle: list[ThreadPool] = []
"""Pools of one thread that wait for the next call. A forked child inherits this list, but not the threads."""

os.register_at_fork(after_in_child=_idle.clear)
