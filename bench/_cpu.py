"""Processor time of servers that a command uses but does not wait for.

Spark's server starts Python daemons, whose workers end a minute after their last task, and no parent adds up the time
of a worker that has ended. So each process is looked at now and again, and what it was last seen to have counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

EVERY = 5.0
"""Seconds between two looks: of a process that ends, at most so much is missed."""


class Process(Struct, frozen=True):
    """A process and its own user and system seconds; `started` tells it from another one of the same id."""

    pid: int
    parent: int
    started: int
    cpu: float


def processes() -> dict[int, Process]:
    """Return all processes, where the system tells (Linux); elsewhere none."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(path.parent.name)
        found[pid] = Process(pid, int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / ticks)
    return found


def tree_of(roots: Iterable[int], known: Mapping[int, Process]) -> set[Process]:
    """Return the processes of these ids and all their descendants."""
    inside = {pid for pid in roots if pid in known}
    while more := {one.pid for one in known.values() if one.parent in inside} - inside:
        inside |= more
    return {known[pid] for pid in inside}


class Tally:
    """Adds up what processes have used since the first look at them, also of those that have ended since."""

    def __init__(self, before: Iterable[Process]) -> None:
        self._before = {(one.pid, one.started): one.cpu for one in before}
        self._last = dict(self._before)

    def look(self, now: Iterable[Process]) -> None:
        self._last |= {(one.pid, one.started): one.cpu for one in now}

    @property
    def seconds(self) -> float:
        return sum(cpu - self._before.get(key, 0.0) for key, cpu in self._last.items())


class Meter:
    """Measure, while the block runs, the processes below `roots()`, which may change; then `seconds` has the sum."""

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._tally = Tally(self._now())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._tally.look(self._now())
        self.seconds = self._tally.seconds

    def _now(self) -> set[Process]:
        roots = [*self._roots()]
        return tree_of(roots, processes()) if roots else set()

    def _watch(self) -> None:
        while not self._ended.wait(EVERY):
            self._tally.look(self._now())
