"""One run of a workflow, as its file has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from bayou.errors import RecordDamaged
from bayou.quick import dataclass
from bayou.records.catalog.derive import run_row
from bayou.records.catalog.rows import Made


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did: which method of which model, and what that saved."""

    name: str
    status: str
    model: str | None = None
    method: str | None = None
    output: str | None = None
    duration_s: float | None = None
    error: str | None = None
    data: tuple[Made, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    status: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
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
        try:
            jobs = tuple(_job(one) for one in fields.get("jobs") or ())
            inputs = dict(fields.get("inputs") or {})
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise RecordDamaged(f"{path} cannot be read: {error}", hint="bayou datastore verify") from None
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
    return {name: getattr(record, name) for name in record.__slots__}


def _step_fields(step: Step) -> dict[str, Any]:
    return {**_fields(step), "data": [_fields(made) for made in step.data]}


def _job(found: Mapping[str, Any]) -> Job:
    return Job(found["name"], found["status"], tuple(_step(one) for one in found.get("steps") or ()))


def _step(found: Mapping[str, Any]) -> Step:
    return Step(**{**found, "data": tuple(Made(**one) for one in found.get("data") or ())})
