"""Results that are read while nobody asks for them: so a job runs on while this process does something else."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from bayou.quick import dataclass

T = TypeVar("T")

_LOOK_S = 0.2
_FAREWELL_S = 1.0


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


class Ahead(Generic[T]):
    """Reads a source to its end by a thread of its own, from now on. What it raises is raised where it is read here.

    All that nobody has asked for yet is held.
    """

    def __init__(self, source: Iterable[T]) -> None:
        self._found: SimpleQueue[T | _End] = SimpleQueue()
        self._thread = threading.Thread(target=self._read, args=(source,), name="bayou-spark-results", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            found = self._next()
            if not isinstance(found, _End):
                yield found
            elif found.error is not None:
                raise found.error
            else:
                return

    def leave(self) -> None:
        """Give the thread a moment to end, once its source is made to end."""
        self._thread.join(_FAREWELL_S)

    def _next(self) -> T | _End:
        """Wait in short sleeps: a signal that comes just before Python falls asleep would wait until it wakes up."""
        while True:
            try:
                return self._found.get(timeout=_LOOK_S)
            except Empty:
                pass

    def _read(self, source: Iterable[T]) -> None:
        try:
            for one in source:
                self._found.put(one)
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            self._found.put(_End(error))
        else:
            self._found.put(_End(None))
