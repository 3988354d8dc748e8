"""How far a run has come: what each step has come to, and what may begin now. Nothing here runs anything.

`for_each`: one step, run for each element of a list or of a mapping.

One time that a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.errors import WorkflowInvalid
from bayou.data.runs import Job as JobRecord
from bayou.data.runs import Run
from bayou.data.runs import StepRecord as Record
from bayou.models import Definition
from bayou.models.expressions.evaluate import redact
from bayou.workflows.definition import Edge, Job, Step, Workflow

PENDING, RUNNING = "pending", "running"
SUCCEEDED, FAILED, SKIPPED, CANCELLED = "succeeded", "failed", "skipped", "cancelled"
_ENDED = frozenset({SUCCEEDED, FAILED, SKIPPED, CANCELLED})

Verdict = Literal["wait", "go", "skip"]
Key = tuple[str, str]
"""A job's and a step's name."""


class State(Struct):
    """One run so far: for each step of the workflow, a record for each time that it is to run.

    Nothing has begun when it is made. Until a `for_each` has been expanded, its step is one record, which is pending.
    """

    workflow: Workflow
    records: dict[Key, dict[str, Record]] = field(default_factory=dict)
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
        """Let the times that a `for_each` runs its step take the place of the step."""
        self.records[key] = {record.name: record for record in records}

    def step_status(self, key: Key) -> str:
        """Return what a step has come to, all its times together; one that runs no times has succeeded."""
        return _together(record.status for record in self.records[key].values())

    def job_status(self, job: Job) -> str:
        """Return what a job has come to; a failure that is allowed is none."""
        return _together(self._counted(job, step) for step in job.steps)

    def run_status(self) -> str:
        found = _together(self.job_status(job) for job in self.workflow.jobs)
        return SUCCEEDED if found == SKIPPED else found

    def failed_step(self) -> str | None:
        """Return the first step that the run has failed for."""
        for job, step in self.workflow.steps():
            for record in self.records[job.name, step.name].values():
                if record.status == FAILED and not step.allow_failure:
                    return record.name
        return None

    def job_verdict(self, job: Job) -> Verdict:
        """Say whether a job may begin, by what it waits for; its guard has a word too."""
        return _verdict(job.depends_on, lambda name: (self.job_status(self._jobs[name]), False))

    def step_verdict(self, job: Job, step: Step) -> Verdict:
        """Say whether a step may begin, once its job may; its guard has a word too."""
        return _verdict(
            step.depends_on,
            lambda name: (self.step_status((job.name, name)), self._allowed[job.name, name]),
        )

    def skip(self, key: Key) -> None:
        """Note that a step will not run."""
        for record in self.records[key].values():
            self.put(key, replace(record, status=SKIPPED))

    def settle(self) -> None:
        """Skip whatever can no longer begin, by what it waits for, and what waits for that in turn."""
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

    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return all(has_ended(record.status) for records in self.records.values() for record in records.values())

    def cancel(self) -> None:
        """Note that whatever has not ended will not."""
        for key, records in self.records.items():
            for record in list(records.values()):
                if not has_ended(record.status):
                    self.put(key, replace(record, status=CANCELLED))

    def keep(self, earlier: Run) -> dict[tuple[Key, str], Record]:
        """Take over what succeeded in an earlier attempt; return it all, by step and name.

        Those of a `for_each` have their place once that is expanded.
        """
        kept: dict[tuple[Key, str], Record] = {}
        for job in earlier.jobs:
            for record in job.steps:
                key = job.name, record.name.partition("[")[0]
                if record.status == SUCCEEDED and key in self.records:
                    kept[key, record.name] = record
                    if record.name in self.records[key]:
                        self.put(key, record)
        return kept

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return the jobs as the run's record has them."""
        return tuple(
            JobRecord(
                job.name,
                self.job_status(job),
                tuple(record for step in job.steps for record in self.records[job.name, step.name].values()),
            )
            for job in self.workflow.jobs
        )

    def _counted(self, job: Job, step: Step) -> str:
        status = self.step_status((job.name, step.name))
        return SUCCEEDED if status == FAILED and step.allow_failure else status


def blank(step: Step, name: str | None = None, model: str | None = None) -> Record:
    """Return the record of a step that has not begun."""
    return Record(name=name or step.name, status=PENDING, model=model or step.model, method=step.method)


def has_ended(status: str) -> bool:
    return status in _ENDED


def _together(statuses: Iterable[str]) -> str:
    """Return what several have come to: they run while one does, and are pending until one has begun."""
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
        if not has_ended(status) or status == CANCELLED:  # after that nothing begins, and what waits is cancelled too
            verdict = "wait"
        elif not _opens(edge, status, allowed):
            return "skip"
    return verdict


def _opens(edge: Edge, status: str, allowed: bool) -> bool:
    match edge.when:
        case "always":
            return True
        case "failed":
            return status == FAILED
        case "succeeded":
            return status == SUCCEEDED or (status == FAILED and allowed)


_LONGEST = 80


class Each(Struct, frozen=True):
    """One element: its key (of a list: its index, from 0), and its value."""

    key: str | int
    value: Any

    def fields(self) -> Mapping[str, Any]:
        """Return what `each` is in expressions."""
        return {"key": self.key, "value": self.value}


def elements(found: Any, where: str) -> list[Each]:
    """Return the elements of what a `for_each` has come to; `WorkflowInvalid` if that is neither list nor mapping."""
    if isinstance(found, Mapping):
        return [Each(str(key), value) for key, value in found.items()]
    if isinstance(found, list | tuple):
        return [Each(at, value) for at, value in enumerate(found)]
    raise WorkflowInvalid(f"{where}: for_each has come to neither a list nor a mapping", hint="like [web, db]")


def names(step: str, found: list[Each], secrets: Collection[str] = ()) -> list[str]:
    """Name each time that a step runs, `step[key]`: short plain texts of a list name themselves, if they differ.

    Where a name would tell a secret, they are numbered.
    """
    labels = [str(one.key) for one in found]
    plain = [one.value for one in found if isinstance(one.value, str) and 0 < len(one.value) <= _LONGEST]
    if found and isinstance(found[0].key, int) and len(set(plain)) == len(found) and all(map(str.isprintable, plain)):
        labels = plain
    if redact(labels, secrets) != labels:
        labels = [str(at) for at in range(len(found))]
    return [f"{step}[{label}]" for label in labels]


class Task(Struct, frozen=True, eq=False):
    """A step, one of the times that its `for_each` makes of it, and the model whose method it is (None: it asserts)."""

    job: Job
    step: Step
    name: str
    each: Each | None
    model: Definition | None

    @property
    def key(self) -> Key:
        return self.job.name, self.step.name
