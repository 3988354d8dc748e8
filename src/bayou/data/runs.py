"""One run of a workflow, as its file has it.

Runs of workflows: `workflow-runs/<workflow-id>/<run-id>.yaml`. Searches are answered by the catalog alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from bayou.core.errors import RecordNotFound
from bayou.data import document
from bayou.data.catalog.derive import derive, made_in, maybe_text_in, number_in, records_in, run_row, text_in
from bayou.data.catalog.rows import Made, RunRow
from bayou.data.context import DataContext
from bayou.data.layout import check_id, check_tags, run_path


class StepRecord(Struct, frozen=True):
    """What one step did: which method of which model, and what that saved."""

    name: str
    status: str
    model: str | None = None
    method: str | None = None
    output: str | None = None
    duration_s: float | None = None
    error: str | None = None
    data: tuple[Made, ...] = ()


class Job(Struct, frozen=True):
    name: str
    status: str
    steps: tuple[StepRecord, ...] = ()


class Run(Struct, frozen=True):
    """A workflow's run. It is saved again whenever more is known of it."""

    run_id: str
    workflow_id: str
    workflow: str
    status: str
    started_at: str
    finished_at: str | None = None
    inputs: Mapping[str, object] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    failed_step: str | None = None
    by: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the fields of the run's file. Hot: a run of many steps is saved after each of them."""
        jobs = [{**_fields(job), "steps": [_step_fields(step) for step in job.steps]} for job in self.jobs]
        return {**_fields(self), "inputs": dict(self.inputs), "tags": dict(self.tags), "jobs": jobs}

    @classmethod
    def from_document(cls, fields: Mapping[str, Any], path: str) -> Run:
        """Check the fields of a run's file; `RecordDamaged` names it, and what is wrong with it."""
        row = run_row(path, fields)
        inputs = fields.get("inputs") or {}
        if not isinstance(inputs, dict) or not all(isinstance(name, str) for name in inputs):
            raise document.damaged(path, "its inputs are no mapping")
        jobs = tuple(_job(path, one) for one in records_in(path, fields, "jobs"))
        return cls(
            run_id=row.run_id,
            workflow_id=row.workflow_id,
            workflow=row.workflow,
            status=row.status,
            started_at=row.started_at,
            finished_at=row.finished_at,
            inputs=inputs,
            tags=row.tags,
            jobs=jobs,
            failed_step=row.failed_step,
            by=row.by,
        )


def _fields(record: Run | Job | StepRecord | Made) -> dict[str, Any]:
    """Return the fields of one record, in order, as they are."""
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _step_fields(step: StepRecord) -> dict[str, Any]:
    return {**_fields(step), "data": [_fields(made) for made in step.data]}


def _job(path: str, found: Mapping[str, Any]) -> Job:
    steps = tuple(_step(path, one) for one in records_in(path, found, "steps"))
    return Job(text_in(path, found, "name"), text_in(path, found, "status"), steps)


def _step(path: str, found: Mapping[str, Any]) -> StepRecord:
    """Check the fields of a step; what a later Bayou may have added is passed over."""
    return StepRecord(
        name=text_in(path, found, "name"),
        status=text_in(path, found, "status"),
        **{key: maybe_text_in(path, found, key) for key in ("model", "method", "output", "error")},
        duration_s=number_in(path, found, "duration_s"),
        data=tuple(made_in(path, one) for one in records_in(path, found, "data")),
    )


class RunRepository:
    """The workflow runs of one datastore."""

    def __init__(self, context: DataContext) -> None:
        self._context = context

    def save(self, run: Run) -> None:
        """Write a run's record, or write it again with what is known by now."""
        check_id(run.run_id, "a run")
        check_id(run.workflow_id, "a workflow")
        check_tags(run.tags)
        path = run_path(run.workflow_id, run.run_id)
        data = document.dump(run.to_document())
        row = derive(path, data)
        self._context.tree.write(path, data)
        self._context.tell([row])

    def get(self, run_id: str) -> Run:
        """Return a run; `RecordNotFound` if there is none."""
        row = self._row(run_id)
        data = self._context.load(row.path)
        if data is None:
            raise _not_found(run_id)
        return Run.from_document(document.load(data, row.path), row.path)

    def delete(self, run_id: str) -> None:
        """Delete a run's record; data whose lifetime is that of the run expires with it."""
        path = self._row(run_id).path
        self._context.tree.delete(path)
        self._context.tell([], [path])

    def search(
        self,
        text: str | None = None,
        *,
        status: str | None = None,
        since: str | None = None,
        workflow: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[list[RunRow], int]:
        """Return the runs that fit all that is said, in short, the newest first, and how many fit in all.

        `workflow` is the name or id of one, `since` a time as records have it.
        """
        self._context.catalog.refresh()
        return self._context.catalog.runs(
            text=text, status=status, since=since, workflow=workflow, tags=tags, limit=limit
        )

    def _row(self, run_id: str) -> RunRow:
        self._context.catalog.refresh()
        row = self._context.catalog.run(run_id)
        if row is None:
            raise _not_found(run_id)
        return row


def _not_found(run_id: str) -> RecordNotFound:
    return RecordNotFound(f"there is no run {run_id}", hint="bayou datastore sync --pull brings what others have run")
