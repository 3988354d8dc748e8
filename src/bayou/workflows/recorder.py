"""The record of a run while it runs: saved as it goes on, carried by the steps' pushes.

It is saved at the start, after each step and at the end. What a step's push does not carry within a few seconds gets
a push of its own, so that peers can follow a long step without a commit for every line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import BayouError
from bayou.data.records import Records
from bayou.data.runs import Job, Run
from bayou.data.runs import StepRecord as Record
from bayou.models.expressions.evaluate import redact
from bayou.sync.report import SyncReport
from bayou.workflows.state import RUNNING, Key, State

EVERY_S = 3.0
"""How long a change may wait for a step's push to carry it."""

OnStep = Callable[[str, Record], None]
"""Told, from any thread, the job and the record of a step that has begun or ended."""


class Recorder:
    """Keeps the state of one run and its record in step. Safe to use from many threads.

    A save takes a while, and nobody waits for it but those whose change it has: one save may be for many.
    """

    def __init__(
        self, records: Records, state: State, run: Run, *, every_s: float = EVERY_S, on_step: OnStep | None = None
    ) -> None:
        self._records = records
        self._run = run
        self._every_s = every_s
        self._on_step = on_step
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._secrets: frozenset[str] = frozenset()
        self._changed, self._saved, self._carried = 1, 0, 0
        self._closed = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.state = state
        self.unpushed: BayouError | None = None
        self.reports: list[SyncReport] = []

    @property
    def run(self) -> Run:
        """The run as it was last saved."""
        return self._run

    @property
    def secrets(self) -> frozenset[str]:
        """What must not be told: values of the environment that went into something."""
        return self._secrets

    def hide(self, secrets: Iterable[str]) -> None:
        """Keep these values of the environment out of the record."""
        with self._lock:
            self._secrets = self._secrets.union(secrets)

    def begin(self) -> None:
        """Save the record for the first time, and begin to push it now and then."""
        self._save(self._changed)
        if not self._records.repo.offline and self._records.repo.config.datastore.url is not None:
            self._thread = threading.Thread(target=self._follow, name="bayou-run-record", daemon=True)
            self._thread.start()

    def records_of(self, key: Key) -> dict[str, Record]:
        """Return what a step has come to so far."""
        with self._lock:
            return dict(self.state.records[key])

    def expand(self, key: Key, records: Iterable[Record]) -> None:
        """Let the times that a `for_each` runs its step take the place of the step."""
        self._change(lambda: self.state.expand(key, records))

    def skip(self, key: Key) -> None:
        """Note that a step does not run, by the guard of its job."""
        self._change(lambda: self.state.skip(key))

    def started(self, key: Key, record: Record) -> None:
        """Note that a step has begun; the record says so when it is next saved."""
        self._put(key, replace(record, status=RUNNING))

    def ended(self, key: Key, record: Record) -> int:
        """Note what a step has come to, and save the record; return a mark for `carried`.

        When nothing is left to do, what is saved is the end of the run: so it rides on the last step's push (F037).
        """
        mark = self._put(key, record)
        self._save(mark)
        return mark

    def carried(self, mark: int, *reports: SyncReport | None) -> None:
        """Note that a push which began after `mark` was given has come through."""
        with self._lock:
            self._carried = max(self._carried, mark)
            self.reports += [report for report in reports if report is not None]

    def failed_push(self, error: BayouError) -> None:
        """Note that a push failed; what it had is in the journal, and goes up with the next."""
        self.unpushed = error

    def finish(self) -> None:
        """Save the end of the run, and push whatever no push has carried yet."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if not self.state.over():  # something was cancelled, and nothing begins after that
            self._change(self.state.cancel)
        self._save(self._changed)
        self._closed = True
        if self._saved > self._carried or self.unpushed is not None:
            self.unpushed = None
            self._push()

    def cancel(self) -> None:
        """Save that the run was cancelled, with all that had not ended. Nothing is pushed: a signal came."""
        self._stop.set()
        if not self._closed:
            self._change(self.state.cancel)
            self._save(self._changed)
            self._closed = True

    def _put(self, key: Key, record: Record) -> int:
        mark = self._change(lambda: self.state.put(key, record), settles=record.status != RUNNING)
        if self._on_step is not None:
            self._on_step(key[0], _redacted(record, self._secrets))
        return mark

    def _change(self, change: Callable[[], None], *, settles: bool = True) -> int:
        """Change the state, with all that follows from it; return the mark of the change."""
        with self._lock:
            if not self._closed:  # a step that did not stop in time has no say any more
                change()
                if settles:
                    self.state.settle()
                self._changed += 1
            return self._changed

    def _save(self, mark: int) -> None:
        """Write the record, unless one that has the change of this mark is written already."""
        with self._saving:  # no older record is written after a newer one
            with self._lock:
                if self._closed or self._saved >= mark:
                    return
                run, current = self._snapshot(), self._changed
            self._records.runs.save(run)
            with self._lock:
                self._run, self._saved = run, current

    def _snapshot(self) -> Run:
        """Return the record as the state has it now; the caller holds the lock."""
        jobs = tuple(
            Job(job.name, job.status, tuple(_redacted(step, self._secrets) for step in job.steps))
            for job in self.state.jobs()
        )
        run = replace(self._run, jobs=jobs)
        if not self.state.over():
            return run
        return replace(
            run,
            status=self.state.run_status(),
            finished_at=run.finished_at or now(),
            failed_step=self.state.failed_step(),
        )

    def _follow(self) -> None:
        while not self._stop.wait(self._every_s):
            self._save(self._changed)
            if self._saved > self._carried:
                self._push()

    def _push(self) -> None:
        mark = self._saved
        try:
            self.carried(mark, self._records.sync.push_changed())
        except BayouError as error:
            error.message = f"what was written here could not be pushed: {error.message}"
            error.hint = error.hint or "it is kept here: `bayou datastore sync --push` pushes it"
            self.failed_push(error)


def _redacted(record: Record, secrets: frozenset[str]) -> Record:
    """Return a record that tells no secret; the names of steps never do."""
    return replace(
        record,
        model=redact(record.model, secrets) if record.model else None,
        error=redact(record.error, secrets) if record.error else None,
    )
