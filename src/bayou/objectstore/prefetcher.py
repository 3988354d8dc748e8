"""Results that are read while nobody asks for them: so work goes on while this thread does something else."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

_LOOK_S = 0.2
_FAREWELL_S = 1.0
_TOGETHER = 32


class _End(Struct, frozen=True):
    error: BaseException | None


class Prefetcher(Generic[T]):
    """Reads a source to its end by a thread of its own, from now on. What it raises is raised where it is read here.

    All that nobody has asked for yet is held; with `most`, no more than that.
    """

    def __init__(self, source: Iterable[T], most: int | None = None, *, name: str = "bayou-ahead") -> None:
        self._found: SimpleQueue[T | _End] = SimpleQueue()
        self._room = threading.Semaphore(most) if most is not None else None
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(source,), name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return (found for found in self.polled() if found is not None)

    def polled(self) -> Iterator[T | None]:
        """Yield what is read, and None whenever nothing has come for a moment: so the caller can look elsewhere.

        Waits in short sleeps: a signal that comes just before Python falls asleep would wait until it wakes up.
        """
        while True:
            try:
                found = self._found.get(timeout=_LOOK_S)
            except Empty:
                yield None
                continue
            if not isinstance(found, _End):
                if self._room is not None:
                    self._room.release()
                yield found
            elif found.error is not None:
                raise found.error
            else:
                return

    def left(self) -> Iterator[T]:
        """Yield what has been read and nobody has asked for; to be called after `leave`."""
        while not self._found.empty():
            found = self._found.get()
            if not isinstance(found, _End):
                yield found

    def leave(self) -> None:
        """Want no more; give the thread a moment to end, which it does with what it is reading."""
        self._unwanted.set()
        self._thread.join(_FAREWELL_S)

    def _read(self, source: Iterable[T]) -> None:
        try:
            items = iter(source)
            while self._has_room():
                try:
                    self._found.put(next(items))
                except StopIteration:
                    break
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            self._found.put(_End(error))
        else:
            self._found.put(_End(None))
        finally:
            if isinstance(source, Generator):
                source.close()

    def _has_room(self) -> bool:
        """Wait until there is room for more; False if nobody wants it."""
        while self._room is not None and not self._room.acquire(timeout=_LOOK_S):
            if self._unwanted.is_set():
                return False
        return not self._unwanted.is_set()


def prefetch(source: Iterable[T], most: int, *, name: str) -> Generator[T, None, None]:
    """Yield what a source yields, read by a thread of its own, up to `most` before anybody asks.

    They are handed over some at a time: two threads that hand over one thing after another mostly wait for each other.
    """
    ahead = Prefetcher(_some(source), max(1, most // _TOGETHER), name=name)
    try:
        for some in ahead:
            yield from some
    except KeyboardInterrupt:
        ahead.leave()
        for some in ahead.left():
            yield from some  # as with any failure: it is here, and need not be fetched again
        raise
    finally:
        ahead.leave()


def _some(source: Iterable[T]) -> Generator[list[T], None, None]:
    some: list[T] = []
    try:
        for one in source:
            some.append(one)
            if len(some) == _TOGETHER:
                yield some
                some = []
    except Exception:
        if some:
            yield some  # what came before a failure is told before it
        raise
    finally:
        if isinstance(source, Generator):
            source.close()
    if some:
        yield some
