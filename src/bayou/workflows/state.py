"""`State`: the status of every step of a run, and which steps may begin now. Nothing here runs anything.

A step with `for_each` is one record until its elements are known, and then one record for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.errors import WorkflowInvalid
from bayou.data.runs import Attempt, JobRecord, Run
from bayou.data.runs import StepRecord as Record
from bayou.models import Definition
from bayou.models.expressions.evaluate import redact
from bayou.workflows.definition import Edge, Job, Step, Workflow

PENDING, RUNNING = "pending", "running"
SUCCEEDED, FAILED, SKIPPED, CANCELLED = "succeeded", "failed", "skipped", "cancelled"
_ENDED = frozenset({SUCCEEDED, FAILED, SKIPPED, CANCELLED})
_MAX_LABEL = 80
_MAX_ERROR = 500

MAX_ATTEMPTS = 50
"""So many earlier attempts are recorded for a step: a run can be resumed for ever."""

Verdict = Literal["wait", "go", "skip"]
Key = tuple[str, str]
"""The name of a job, and of a step in it."""


class LoopElement(Struct, frozen=True):
    """One element of a `for_each`: its key (in a list its index, from 0), and its value."""

    key: str | int
    value: Any

    def fields(self) -> Mapping[str, Any]:
        """Return the value of `each` in expressions."""
        return {"key": self.key, "value": self.value}


class Task(Struct, frozen=True, eq=False):
    """One execution of a step: the element of its `for_each`, if any, and its model (None: an assertion)."""

    job: Job
    step: Step
    name: str
    each: LoopElement | None
    model: Definition | None

    @property
    def key(self) -> Key:
        return self.job.name, self.step.name


class State(Struct):
    """The records of one run so far: by step, one for each execution. At first, every step has one pending record."""

    workflow: Workflow
    records: dict[Key, dict[str, Record]] = field(default_factory=dict)
    attempts: dict[tuple[Key, str], tuple[Attempt, ...]] = field(default_factory=dict)
    """The attempts of a run that is resumed, by step and name."""
    _jobs: dict[str, Job] = field(default_factory=dict)
    _allowed: dict[Key, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = list(self.workflow.steps())
        self.records = {(job.name, step.name): {step.name: blank(step)} for job, step in steps}
        self._jobs = {job.name: job for job in self.workflow.jobs}
        self._allowed = {(job.name, step.name): step.allow_failure for job, step in steps}

    def put(self, key: Key, record: Record) -> None:
        self.records[key][record.name] = record

    def expand(self, key: Key, records: Iterable[Record]) -> None:
        """Replace the record of a `for_each` step by one record for each element."""
        self.records[key] = {record.name: record for record in records}

    def step_status(self, key: Key) -> str:
        """Return the combined status of a step's executions; a step without elements has succeeded."""
        return _combined_status(record.status for record in self.records[key].values())

    def job_status(self, job: Job) -> str:
        """Return the status of a job; a failure that is allowed counts as success."""
        return _combined_status(self._effective_status(job, step) for step in job.steps)

    def run_status(self) -> str:
        found = _combined_status(self.job_status(job) for job in self.workflow.jobs)
        return SUCCEEDED if found == SKIPPED else found

    def failed_step(self) -> str | None:
        """Return the first step that made the run fail."""
        for job, step in self.workflow.steps():
            for record in self.records[job.name, step.name].values():
                if record.status == FAILED and not step.allow_failure:
                    return record.name
        return None

    def job_verdict(self, job: Job) -> Verdict:
        """Return whether a job may begin, by its dependencies; its guard is not evaluated here."""
        return _verdict(job.depends_on, lambda name: (self.job_status(self._jobs[name]), False))

    def step_verdict(self, job: Job, step: Step) -> Verdict:
        """Return whether a step may begin, by its dependencies in its job; its guard is not evaluated here."""
        return _verdict(
            step.depends_on,
            lambda name: (self.step_status((job.name, name)), self._allowed[job.name, name]),
        )

    def skip(self, key: Key) -> None:
        """Mark a step as skipped."""
        for record in self.records[key].values():
            self.put(key, replace(record, status=SKIPPED))

    def skip_unreachable(self) -> None:
        """Skip every step that can no longer begin because of its dependencies, and the steps that depend on it."""
        again = True
        while again:
            again = False
            for job in self.workflow.jobs:
                pending = [step for step in job.steps if self.step_status((job.name, step.name)) == PENDING]
                if not pending:
                    continue
                verdict = self.job_verdict(job)
                for step in pending:
                    if verdict == "skip" or self.step_verdict(job, step) == "skip":
                        self.skip((job.name, step.name))
                        again = True

    def finished(self) -> bool:
        """Return whether every step has ended."""
        return all(has_ended(record.status) for records in self.records.values() for record in records.values())

    def cancel(self) -> None:
        """Mark every step that has not ended as cancelled."""
        for key, records in self.records.items():
            for record in list(records.values()):
                if not has_ended(record.status):
                    self.put(key, replace(record, status=CANCELLED))

    def keep(self, earlier: Run) -> dict[tuple[Key, str], Record]:
        """Keep the records that succeeded in an earlier attempt; return them, by step and name.

        The records of a `for_each` step are put in once the step is expanded.
        """
        kept: dict[tuple[Key, str], Record] = {}
        for job in earlier.jobs:
            for record in job.steps:
                key = job.name, record.name.partition("[")[0]
                if record.status in (FAILED, CANCELLED) and (record.output or record.error):
                    self.attempts[key, record.name] = (*record.attempts, attempt_of(record))[-MAX_ATTEMPTS:]
                else:
                    self.attempts[key, record.name] = record.attempts
                if record.status == SUCCEEDED and key in self.records:
                    kept[key, record.name] = record
                    if record.name in self.records[key]:
                        self.put(key, record)
        return kept

    def earlier_attempts(self, key: Key, name: str) -> tuple[Attempt, ...]:
        """Return what came of a step before the run was resumed."""
        return self.attempts.get((key, name), ())

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return the jobs for the record of the run."""
        return tuple(
            JobRecord(
                job.name,
                self.job_status(job),
                tuple(record for step in job.steps for record in self.records[job.name, step.name].values()),
            )
            for job in self.workflow.jobs
        )

    def _effective_status(self, job: Job, step: Step) -> str:
        status = self.step_status((job.name, step.name))
        return SUCCEEDED if status == FAILED and step.allow_failure else status


def blank(step: Step, name: str | None = None, model: str | None = None) -> Record:
    """Return the record of a step that has not begun."""
    return Record(name=name or step.name, status=PENDING, model=model or step.model, method=step.method)


def attempt_of(record: Record, secrets: Collection[str] = ()) -> Attempt:
    """Return a record of a step as an earlier attempt: only the first line of its error, redacted (V26)."""
    error = redact(record.error, secrets).partition("\n")[0][:_MAX_ERROR] if record.error else None
    return Attempt(record.status, record.output, record.duration_s, error)


def has_ended(status: str) -> bool:
    return status in _ENDED


def elements(found: Any, where: str) -> list[LoopElement]:
    """Return the elements of an evaluated `for_each`; `WorkflowInvalid` if it is neither a list nor a mapping."""
    if isinstance(found, Mapping):
        return [LoopElement(str(key), value) for key, value in found.items()]
    if isinstance(found, list | tuple):
        return [LoopElement(at, value) for at, value in enumerate(found)]
    raise WorkflowInvalid(f"{where}: for_each evaluates to neither a list nor a mapping", hint="like [web, db]")


def names(step: str, found: list[LoopElement], secrets: Collection[str] = ()) -> list[str]:
    """Return the name of each execution of a step, `step[key]`; short texts of a list, if they differ, are the keys.

    If a name would contain a secret, all are numbered (V26).
    """
    labels = [str(each.key) for each in found]
    plain = [each.value for each in found if isinstance(each.value, str) and 0 < len(each.value) <= _MAX_LABEL]
    if found and isinstance(found[0].key, int) and len(set(plain)) == len(found) and all(map(str.isprintable, plain)):
        labels = plain
    if redact(labels, secrets) != labels:
        labels = [str(at) for at in range(len(found))]
    return [f"{step}[{label}]" for label in labels]


def _combined_status(statuses: Iterable[str]) -> str:
    """Return the combined status: running while one runs, pending until one has begun, else the worst."""
    found = set(statuses)
    if not found:
        return SUCCEEDED
    if found == {PENDING}:
        return PENDING
    for status in (RUNNING, PENDING):
        if status in found:
            return RUNNING
    for status in (CANCELLED, FAILED):
        if status in found:
            return status
    return SKIPPED if found == {SKIPPED} else SUCCEEDED


def _verdict(edges: Iterable[Edge], end: Callable[[str], tuple[str, bool]]) -> Verdict:
    verdict: Verdict = "go"
    for edge in edges:
        status, allowed = end(edge.on)
        # After a cancellation nothing begins; waiting steps are cancelled too.
        if not has_ended(status) or status == CANCELLED:
            verdict = "wait"
        elif not _satisfies(edge, status, allowed):
            return "skip"
    return verdict


def _satisfies(edge: Edge, status: str, allowed: bool) -> bool:
    match edge.when:
        case "always":
            return True
        case "failed":
            return status == FAILED
        case "succeeded":
            return status == SUCCEEDED or (status == FAILED and allowed)
