"""The local executor: it runs the parts of a job on threads of this process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from itertools import islice, takewhile
from queue import Empty, Full, Queue
from typing import Generic, NamedTuple

from msgspec.structs import replace

from bayou.core.deadline import Deadline
from bayou.core.progress import Progress, ScaledProgress
from bayou.engine.job import Job, Part, Result, Row

THREADS = 8
"""Parts that run at the same time. They mostly wait for a store; each part may also send many requests at once."""

_PARTS_PER_THREAD = 4
"""More parts than threads, so that one slow part delays only its own thread."""

_BATCH_ROWS = 500
"""Rows that a worker hands to the driver together."""

_QUEUED_BATCHES = 16
"""Batches that may wait for the driver; then the workers wait. It bounds the memory of a slow `fold`."""

_POLL_S = 0.1
"""How often a thread that waits for the queue checks whether it must stop."""


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
            shown = ScaledProgress(self._progress, replace(stage, bytes=None) if stage.counts_bytes else stage)
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
            while some := list(islice(rows, _BATCH_ROWS)):
                if self._deadline is not None:
                    self._deadline.remaining()  # V12
                yield from some
            if shown is not None:
                shown.reach(done / len(parts))

    def _rows(
        self, job: Job[Part, Row, Result], parts: Sequence[Part], shown: ScaledProgress | None
    ) -> Generator[Row, None, None]:
        """Yield the rows of all parts; closing it stops the parts that run."""
        workers = _JobThreads(job, parts)
        workers.start(min(self.slots, len(parts)))
        done = 0
        try:
            while done < len(parts):
                if self._deadline is not None:
                    self._deadline.remaining()  # V12
                found = workers.take()
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
            workers.stop()


class _Batch(NamedTuple, Generic[Row]):
    """Some rows of a part (`last`: its last ones), or the error that ended a part."""

    rows: Sequence[Row] = ()
    last: bool = False
    error: BaseException | None = None


class _JobThreads(Generic[Part, Row, Result]):
    """The threads of one job: each runs the next part until none is left, or until `stop`."""

    def __init__(self, job: Job[Part, Row, Result], parts: Sequence[Part]) -> None:
        self._job = job
        self._parts = deque(parts)
        self._found: Queue[_Batch[Row]] = Queue(_QUEUED_BATCHES)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, threads: int) -> None:
        for number in range(threads):
            thread = threading.Thread(target=self._work, name=f"bayou-job-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self) -> _Batch[Row] | None:
        """Return the next batch; None if none came for a moment, so that the driver can check its deadline."""
        try:
            return self._found.get(timeout=_POLL_S)
        except Empty:
            return None

    def stop(self) -> None:
        """Stop all parts and wait for their threads: each ends after its current request, which has a time limit."""
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
        # A row may take long, as the hash of a large file: a part that is stopped ends after the current one.
        rows = takewhile(lambda _: not self._stopped.is_set(), self._job.run(part))
        while batch := list(islice(rows, _BATCH_ROWS)):
            if not self._put(_Batch(batch)):
                return
        self._put(_Batch(last=True))

    def _put(self, batch: _Batch[Row]) -> bool:
        """Hand a batch to the driver; return False if the job was stopped."""
        while not self._stopped.is_set():
            with suppress(Full):
                self._found.put(batch, timeout=_POLL_S)
                return True
        return False
