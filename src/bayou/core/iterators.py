"""Helpers for iterators: batches, and reading ahead on a thread.

`prefetch` lets a source work (read, download) while the consumer does something else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

_POLL_S = 0.2
_CLOSE_S = 1.0
_BATCH = 32
BATCH_S = 0.5
"""Seconds after which an item is handed over with those before it: a slow source would keep them back for long."""


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`, the last one shorter. Only the current batch has been read from `items`.

    This is `itertools.batched` of Python 3.12 for 3.11, with lists: callers slice and join the batches.
    """
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def prefetch(source: Iterable[T], most: int, *, name: str) -> Generator[T | None, None, None]:
    """Yield the items of a source, which a thread reads up to `most` items ahead, and None whenever none has come for a
    moment.

    The thread hands over batches: two threads that exchange single items mostly wait for each other.
    """
    batches = Prefetcher(_batches(source), max(1, most // _BATCH), name=name)
    try:
        for batch in batches.poll():
            if batch is None:
                yield None
            else:
                yield from batch
    except KeyboardInterrupt:
        batches.close()
        for batch in batches.unread():
            yield from batch  # as after any failure: these items are here and need not be fetched again
        raise
    finally:
        batches.close()


class _End(Struct, frozen=True):
    error: BaseException | None


class Prefetcher(Generic[T]):
    """Reads a source to its end on a thread that starts at once; raises the source's exceptions to the consumer.

    It holds all items that the consumer has not read yet, or at most `most` of them: then the thread waits.
    """

    def __init__(self, source: Iterable[T], most: int | None = None, *, name: str = "bayou-ahead") -> None:
        self._queue: SimpleQueue[T | _End] = SimpleQueue()
        self._free_slots = threading.Semaphore(most) if most is not None else None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(source,), name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return (item for item in self.poll() if item is not None)

    def poll(self) -> Iterator[T | None]:
        """Yield items, and None whenever none has come for a moment, so that the caller can do something else.

        The wait is a sequence of short sleeps: a signal that arrives just before Python blocks would otherwise stay
        pending until an item comes.
        """
        while True:
            try:
                item = self._queue.get(timeout=_POLL_S)
            except Empty:
                yield None
                continue
            if not isinstance(item, _End):
                if self._free_slots is not None:
                    self._free_slots.release()
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return

    def ready(self) -> Iterator[T]:
        """Yield the items that are here, and wait for no other; the source's end is for a later caller."""
        while not self._queue.empty():
            item = self._queue.get()
            if isinstance(item, _End):
                self._queue.put(item)
                return
            if self._free_slots is not None:
                self._free_slots.release()
            yield item

    def unread(self) -> Iterator[T]:
        """Yield the items that the thread has read and the consumer has not; call it after `close`."""
        while not self._queue.empty():
            item = self._queue.get()
            if not isinstance(item, _End):
                yield item

    def close(self) -> None:
        """Stop reading, and wait a moment for the thread, which ends after the item that it is reading."""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _read(self, source: Iterable[T]) -> None:
        try:
            items = iter(source)
            while self._wait_for_slot():
                try:
                    self._queue.put(next(items))
                except StopIteration:
                    break
        except BaseException as error:  # noqa: BLE001  (raised in the consumer's thread)
            self._queue.put(_End(error))
        else:
            self._queue.put(_End(None))
        finally:
            if isinstance(source, Generator):
                source.close()

    def _wait_for_slot(self) -> bool:
        """Wait until there is room for one more item; return False if the consumer has closed the prefetcher."""
        while self._free_slots is not None and not self._free_slots.acquire(timeout=_POLL_S):
            if self._closed.is_set():
                return False
        return not self._closed.is_set()


def _batches(source: Iterable[T]) -> Generator[list[T], None, None]:
    """Yield batches as `batched` does, but after a failure first the items that came before it; close a generator."""
    batch: list[T] = []
    last = time.monotonic()
    try:
        for item in source:
            batch.append(item)
            if len(batch) == _BATCH or time.monotonic() - last >= BATCH_S:
                yield batch
                batch, last = [], time.monotonic()
    except Exception:
        if batch:
            yield batch
        raise
    finally:
        if isinstance(source, Generator):
            source.close()
    if batch:
        yield batch
