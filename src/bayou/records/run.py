"""One run of a workflow, as its file has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from bayou.records import document
from bayou.records.catalog.derive import made_in, maybe_text_in, number_in, records_in, run_row, text_in
from bayou.records.catalog.rows import Made


class Step(Struct, frozen=True):
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
    steps: tuple[Step, ...] = ()


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


def _fields(record: Run | Job | Step | Made) -> dict[str, Any]:
    """Return the fields of one record, in order, as they are."""
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _step_fields(step: Step) -> dict[str, Any]:
    return {**_fields(step), "data": [_fields(made) for made in step.data]}


def _job(path: str, found: Mapping[str, Any]) -> Job:
    steps = tuple(_step(path, one) for one in records_in(path, found, "steps"))
    return Job(text_in(path, found, "name"), text_in(path, found, "status"), steps)


def _step(path: str, found: Mapping[str, Any]) -> Step:
    """Check the fields of a step; what a later Bayou may have added is passed over."""
    return Step(
        name=text_in(path, found, "name"),
        status=text_in(path, found, "status"),
        **{key: maybe_text_in(path, found, key) for key in ("model", "method", "output", "error")},
        duration_s=number_in(path, found, "duration_s"),
        data=tuple(made_in(path, one) for one in records_in(path, found, "data")),
    )
