"""Records of workflow runs: `workflow-runs/<workflow-id>/<run-id>.yaml`. The catalog alone answers searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from bayou.core.errors import IdAmbiguous, RecordNotFound
from bayou.data import document
from bayou.data.catalog.derive import (
    derive,
    number_in,
    optional_text_in,
    records_in,
    run_row,
    saved_version_in,
    text_in,
)
from bayou.data.catalog.rows import RunRow, SavedVersion
from bayou.data.context import DataContext
from bayou.data.layout import check_id, check_tags, run_path

LATEST = "latest"
"""The word that a user types instead of the id of the newest run or output."""

SHOWN = 10
"""An error lists so many ids that begin alike."""


class Attempt(Struct, frozen=True):
    """An attempt at a step before its last one. `output` is None if the method did not begin."""

    status: str
    output: str | None = None
    duration_s: float | None = None
    error: str | None = None


class StepRecord(Struct, frozen=True):
    """The record of one step: the method and model that ran, and the versions that it saved.

    All that is the step's last attempt; `attempts` are those before it, of this run and of what it resumed.
    """

    name: str
    status: str
    model: str | None = None
    method: str | None = None
    output: str | None = None
    duration_s: float | None = None
    error: str | None = None
    data: tuple[SavedVersion, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class JobRecord(Struct, frozen=True):
    """The record of one job of a run."""

    name: str
    status: str
    steps: tuple[StepRecord, ...] = ()


class Run(Struct, frozen=True):
    """One run of a workflow. It is saved again after each step."""

    run_id: str
    workflow_id: str
    workflow: str
    status: str
    started_at: str
    finished_at: str | None = None
    inputs: Mapping[str, object] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[JobRecord, ...] = ()
    failed_step: str | None = None
    by: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the fields of the run's file. Hot: a run of many steps is saved after each of them."""
        jobs = [{**_fields(job), "steps": [_step_fields(step) for step in job.steps]} for job in self.jobs]
        return {**_fields(self), "inputs": dict(self.inputs), "tags": dict(self.tags), "jobs": jobs}

    @classmethod
    def from_document(cls, fields: Mapping[str, Any], path: str) -> Run:
        """Check the fields of a run's file; `RecordDamaged` names the file and what is wrong."""
        row = run_row(path, fields)
        inputs = fields.get("inputs") or {}
        if not isinstance(inputs, dict) or not all(isinstance(name, str) for name in inputs):
            raise document.damaged(path, "its inputs are no mapping")
        jobs = tuple(_job(path, job) for job in records_in(path, fields, "jobs"))
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


def _fields(record: Run | JobRecord | StepRecord | Attempt | SavedVersion) -> dict[str, Any]:
    """Return the fields of a struct, in order, without converting their values."""
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _step_fields(step: StepRecord) -> dict[str, Any]:
    return {
        **_fields(step),
        "data": [_fields(version) for version in step.data],
        "attempts": [_fields(attempt) for attempt in step.attempts],
    }


def _job(path: str, found: Mapping[str, Any]) -> JobRecord:
    steps = tuple(_step(path, step) for step in records_in(path, found, "steps"))
    return JobRecord(text_in(path, found, "name"), text_in(path, found, "status"), steps)


def _step(path: str, found: Mapping[str, Any]) -> StepRecord:
    """Check the fields of a step. Fields that a later Bayou may have added are ignored."""
    return StepRecord(
        name=text_in(path, found, "name"),
        status=text_in(path, found, "status"),
        **{key: optional_text_in(path, found, key) for key in ("model", "method", "output", "error")},
        duration_s=number_in(path, found, "duration_s"),
        data=tuple(saved_version_in(path, version) for version in records_in(path, found, "data")),
        attempts=tuple(_attempt(path, attempt) for attempt in records_in(path, found, "attempts")),
    )


def _attempt(path: str, found: Mapping[str, Any]) -> Attempt:
    return Attempt(
        status=text_in(path, found, "status"),
        **{key: optional_text_in(path, found, key) for key in ("output", "error")},
        duration_s=number_in(path, found, "duration_s"),
    )


class RunRepository:
    """The workflow runs of one datastore."""

    def __init__(self, context: DataContext) -> None:
        self._context = context

    def save(self, run: Run) -> None:
        """Write a run's record, for the first time or again."""
        check_id(run.run_id, "a run")
        check_id(run.workflow_id, "a workflow")
        check_tags(run.tags)
        path = run_path(run.workflow_id, run.run_id)
        data = document.dump(run.to_document())
        row = derive(path, data)
        self._context.tree.write(path, data)
        self._context.update_catalog([row])

    def find(self, text: str) -> RunRow:
        """Return the catalog's row of a run: by its id, by a prefix that no other run's id has, or `latest`.

        `RecordNotFound` if there is none, `IdAmbiguous` if several ids begin so.
        """
        self._context.catalog.refresh()
        catalog = self._context.catalog
        exact = catalog.run(text)
        if exact is not None:
            return exact
        if text == LATEST:
            rows, _ = catalog.runs(limit=1)
        else:
            rows = catalog.runs_by_prefix(text.upper(), SHOWN + 1) if text else []  # ids of Bayou are in upper case
        if not rows:
            raise _not_found(text)
        if len(rows) > 1:
            names = [f"{row.run_id} ({row.workflow}, {row.status}, {row.started_at})" for row in rows]
            raise ambiguous(text, "runs", names)
        return rows[0]

    def get(self, run_id: str) -> Run:
        """Return a run, given as `find` takes it."""
        row = self.find(run_id)
        data = self._context.load(row.path)
        if data is None:
            raise _not_found(run_id)
        return Run.from_document(document.load(data, row.path), row.path)

    def delete(self, run_id: str) -> None:
        """Delete a run's record; data with the lifetime `run` expires with it."""
        self._context.catalog.refresh()
        row = self._context.catalog.run(run_id)
        if row is None:
            raise _not_found(run_id)
        self._context.tree.delete(row.path)
        self._context.update_catalog([], [row.path])

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
        """Return the catalog's rows of the runs that match all arguments, the newest first, and how many match in all.

        `workflow` is the name or id of a workflow, `since` a time as records write it.
        """
        self._context.catalog.refresh()
        return self._context.catalog.runs(
            text=text, status=status, since=since, workflow=workflow, tags=tags, limit=limit
        )


def ambiguous(text: str, what: str, names: Sequence[str]) -> IdAmbiguous:
    """Return the error for the beginning of an id that several have; it lists them."""
    many = f"more than {SHOWN}" if len(names) > SHOWN else len(names)
    return IdAmbiguous(
        f"{text} is the beginning of {many} {what}: {', '.join(names[:SHOWN])}", hint="type more of the id"
    )


_PULL = "with a store, `bayou datastore sync --pull` brings what others have run"


def _not_found(run_id: str) -> RecordNotFound:
    if run_id == LATEST:
        return RecordNotFound("there are no runs here", hint=f"`bayou workflow run NAME` makes one; {_PULL}")
    return RecordNotFound(
        f"there is no run {run_id}",
        hint=f"`bayou workflow run search` lists runs; {_PULL}",
    )
