"""`Recorder`: keeps the record of a run up to date while it runs.

The record is saved at the start, after each step and at the end. The pushes of the steps' sessions push it too. A
change that none of them pushes within a few seconds gets a push of its own, so that peers can follow a long step
without a commit for every line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import BayouError
from bayou.data.records import Records
from bayou.data.runs import JobRecord, Run
from bayou.data.runs import StepRecord as Record
from bayou.models.expressions.evaluate import redact
from bayou.sync.report import SyncReport
from bayou.workflows.state import RUNNING, Key, State

EVERY_S = 3.0
"""How long a change may wait for the push of a step."""

OnStep = Callable[[str, Record], None]
"""Called, from any thread, with the job and the record of a step that has begun or ended."""


class Recorder:
    """Changes the state of one run, and saves its record. Many threads may use it.

    Changes are numbered. A save takes a while, and only threads whose change it contains wait for it: one save may be
    for many changes.
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
        self._changed, self._saved, self._pushed = 1, 0, 0
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
    def is_saved(self) -> bool:
        return self._saved > 0

    @property
    def secrets(self) -> frozenset[str]:
        """Values of the environment that expressions have used; the record must not contain them (V26)."""
        return self._secrets

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Redact these values of the environment from the record."""
        with self._lock:
            self._secrets = self._secrets.union(secrets)

    def begin(self) -> None:
        """Save the record for the first time, and start the thread that pushes it regularly."""
        self._save(self._changed)
        if not self._records.repo.offline and self._records.repo.config.datastore.url is not None:
            self._thread = threading.Thread(target=self._push_regularly, name="bayou-run-record", daemon=True)
            self._thread.start()

    def records_of(self, key: Key) -> dict[str, Record]:
        """Return the records of a step so far."""
        with self._lock:
            return dict(self.state.records[key])

    def expand(self, key: Key, records: Iterable[Record]) -> None:
        """Replace the record of a `for_each` step by one record for each element."""
        self._change(lambda: self.state.expand(key, records))

    def skip(self, key: Key) -> None:
        """Mark a step as skipped, because of its job's guard."""
        self._change(lambda: self.state.skip(key))

    def started(self, key: Key, record: Record) -> None:
        """Mark a step as running; the next save writes that."""
        self._put(key, replace(record, status=RUNNING))

    def ended(self, key: Key, record: Record) -> int:
        """Put the record of a step that has ended, and save; return the number of the change, for `pushed`.

        After the last step this saves the end of the run, so that the last step's push contains it (F037).
        """
        change = self._put(key, record)
        self._save(change)
        return change

    def retrying(self, key: Key, record: Record) -> int:
        """Put the record of a step whose method failed and is to run again, and save; return as `ended` does."""
        change = self._put(key, replace(record, status=RUNNING))
        self._save(change)
        return change

    def pushed(self, change: int, *reports: SyncReport | None) -> None:
        """Remember that a push that began after a change was saved has succeeded."""
        with self._lock:
            self._pushed = max(self._pushed, change)
            self.reports += [report for report in reports if report is not None]

    def push_failed(self, error: BayouError) -> None:
        """Remember that a push failed; its changes are in the journal, and the next push has them."""
        self.unpushed = error

    def finish(self) -> None:
        """Save the end of the run, and push what no push has contained yet."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if not self.state.finished():  # a step was cancelled, and nothing begins after that
            self._change(self.state.cancel)
        self._save(self._changed)
        self._closed = True
        if self._saved > self._pushed or self.unpushed is not None:
            self.unpushed = None
            self._push()

    def cancel(self) -> None:
        """Save that the run, and every step that had not ended, was cancelled. After a signal nothing is pushed."""
        self._stop.set()
        if not self._closed:
            self._change(self.state.cancel)
            self._save(self._changed)
            self._closed = True

    def _put(self, key: Key, record: Record) -> int:
        change = self._change(lambda: self.state.put(key, record), may_skip=record.status != RUNNING)
        if self._on_step is not None:
            self._on_step(key[0], _redacted(record, self._secrets))
        return change

    def _change(self, apply: Callable[[], None], *, may_skip: bool = True) -> int:
        """Change the state, and skip what can no longer begin; return the number of the change."""
        with self._lock:
            if not self._closed:  # a step that did not stop in time can change nothing any more
                apply()
                if may_skip:
                    self.state.skip_unreachable()
                self._changed += 1
            return self._changed

    def _save(self, change: int) -> None:
        """Write the record, unless a record with this change is written already."""
        with self._saving:  # no older record is written after a newer one
            with self._lock:
                if self._closed or self._saved >= change:
                    return
                run, current = self._snapshot(), self._changed
            self._records.runs.save(run)
            with self._lock:
                self._run, self._saved = run, current

    def _snapshot(self) -> Run:
        """Return the record of the current state; the caller holds the lock."""
        jobs = tuple(
            JobRecord(job.name, job.status, tuple(_redacted(step, self._secrets) for step in job.steps))
            for job in self.state.jobs()
        )
        run = replace(self._run, jobs=jobs)
        if not self.state.finished():
            return run
        return replace(
            run,
            status=self.state.run_status(),
            finished_at=run.finished_at or now(),
            failed_step=self.state.failed_step(),
        )

    def _push_regularly(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._save(self._changed)
                if self._saved > self._pushed:
                    self._push()
            except Exception:
                # After a signal the state is closed while this thread may be pushing; `finish` pushes once more.
                if not self._stop.is_set():
                    raise

    def _push(self) -> None:
        change = self._saved
        try:
            self.pushed(change, self._records.sync.push_changed())
        except BayouError as error:
            self.push_failed(error)


def _redacted(record: Record, secrets: frozenset[str]) -> Record:
    """Return a record without secrets; the names of steps never contain any."""
    return replace(
        record,
        model=redact(record.model, secrets) if record.model else None,
        error=redact(record.error, secrets) if record.error else None,
    )
