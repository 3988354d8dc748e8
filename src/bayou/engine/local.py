"""Run jobs on threads of this process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from itertools import islice
from queue import Empty, Full, Queue
from typing import Generic, NamedTuple

from bayou.core.deadline import Deadline
from bayou.core.progress import Progress, ScaledProgress
from bayou.engine.job import Job, Part, Result, Row

THREADS = 8
"""Parts that run at once. They wait for a store most of the time; each may send many requests at once besides."""

_PARTS_PER_THREAD = 4
"""A part that takes long then holds up no more than its own thread."""

_AT_ONCE = 500
"""Rows that cross from a worker to the driver together."""

_WAITING = 16
"""Batches of rows that wait for the driver before the workers do: what is held of a result that is folded slowly."""

_WAKE_S = 0.1
"""How soon a thread that waits for the queue notices that it is to stop."""


class LocalExecutor:
    """Runs parts on a bounded number of threads, and folds rows as they come. An `engine.job.Executor`.

    With one thread, that is the caller's.
    """

    engine = "local"

    def __init__(
        self, *, deadline: Deadline | None = None, progress: Progress | None = None, threads: int = THREADS
    ) -> None:
        self._deadline = deadline
        self._progress = progress
        self.slots = threads

    def run(self, job: Job[Part, Row, Result]) -> Result:
        parts = job.parts(self.slots * _PARTS_PER_THREAD)
        stage = job.stage
        shown = None
        if self._progress is not None:
            self._progress.begin(stage.what, stage.files, stage.bytes)
            shown = ScaledProgress(self._progress, stage)
        try:
            found = self._rows_here(job, parts, shown) if self.slots == 1 else self._rows(job, parts, shown)
            with closing(found) as rows:
                return job.fold(rows)
        finally:
            if self._progress is not None:
                self._progress.end()

    def _rows_here(
        self, job: Job[Part, Row, Result], parts: Sequence[Part], shown: ScaledProgress | None
    ) -> Generator[Row, None, None]:
        """Yield the rows of all parts, one after the other: a second thread would only wait for the first."""
        for done, part in enumerate(parts, 1):
            rows = iter(job.run(part))
            while some := list(islice(rows, _AT_ONCE)):
                if self._deadline is not None:
                    self._deadline.remaining()  # V12
                yield from some
            if shown is not None:
                shown.reach(done / len(parts))

    def _rows(
        self, job: Job[Part, Row, Result], parts: Sequence[Part], shown: ScaledProgress | None
    ) -> Generator[Row, None, None]:
        """Yield the rows of all parts; closing it stops the parts that run."""
        crew = _Crew(job, parts)
        crew.start(min(self.slots, len(parts)))
        done = 0
        try:
            while done < len(parts):
                if self._deadline is not None:
                    self._deadline.remaining()  # V12
                found = crew.take()
                if found is None:
                    continue
                if found.error is not None:
                    raise found.error
                yield from found.rows
                if found.last:
                    done += 1
                    if shown is not None:
                        shown.reach(done / len(parts))
        finally:
            crew.stop()


class _Batch(NamedTuple, Generic[Row]):
    """Some rows of a part; the last of its batches says so. Or the error that ended a part."""

    rows: Sequence[Row] = ()
    last: bool = False
    error: BaseException | None = None


class _Crew(Generic[Part, Row, Result]):
    """The threads of one job: each takes the next part until there is none, or until they are to stop."""

    def __init__(self, job: Job[Part, Row, Result], parts: Sequence[Part]) -> None:
        self._job = job
        self._parts = deque(parts)
        self._found: Queue[_Batch[Row]] = Queue(_WAITING)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, threads: int) -> None:
        for number in range(threads):
            thread = threading.Thread(target=self._work, name=f"bayou-job-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self) -> _Batch[Row] | None:
        """Return the next batch; None if there was none for a moment, so that the driver can look at its deadline."""
        try:
            return self._found.get(timeout=_WAKE_S)
        except Empty:
            return None

    def stop(self) -> None:
        """Stop all parts and wait for their threads: each ends after the request that it is in, which has a limit."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                part = self._parts.popleft()
            except IndexError:
                return
            try:
                self._run(part)
            except BaseException as error:  # noqa: BLE001  (the driver raises it)
                self._put(_Batch(error=error))
                return

    def _run(self, part: Part) -> None:
        rows = iter(self._job.run(part))
        while some := list(islice(rows, _AT_ONCE)):
            if not self._put(_Batch(some)):
                return
        self._put(_Batch(last=True))

    def _put(self, batch: _Batch[Row]) -> bool:
        """Hand rows to the driver; return False if the job is over."""
        while not self._stopped.is_set():
            with suppress(Full):
                self._found.put(batch, timeout=_WAKE_S)
                return True
        return False
