"""Render workflows and their runs, as text and as JSON (a contract for scripts)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from bayou.cli.output import (
    Document,
    Part,
    Table,
    count,
    fail,
    first_line,
    hint,
    moment,
    problems_text,
    say,
    show,
    show_text,
    size,
)

if TYPE_CHECKING:
    from bayou.data.catalog.rows import RunRow
    from bayou.data.runs import Run, StepRecord
    from bayou.workflows.definition import Workflow
    from bayou.workflows.find import DeletedWorkflow, WorkflowListing
    from bayou.workflows.read import WorkflowProblem

_MARKS = {"succeeded": "✓", "failed": "✗", "skipped": "-", "cancelled": "!", "running": "…", "pending": " "}


def created_text(workflow: Workflow) -> Iterator[Part]:
    yield say(f"{workflow.name} is a workflow now: {workflow.path}")
    yield hint(f"run it with `bayou workflow run {workflow.name}`")


def created_json(workflow: Workflow) -> Document:
    return {"id": workflow.id, "name": workflow.name, "path": workflow.path}


def workflows_text(found: WorkflowListing) -> Iterator[Part]:
    if found.workflows:
        rows = [
            (
                workflow.name,
                ", ".join(workflow.inputs),
                str(len(workflow.jobs)),
                str(sum(1 for _ in workflow.steps())),
                workflow.id,
            )
            for workflow in found.workflows
        ]
        yield Table(("name", "inputs", "jobs", "steps", "id"), rows, frozenset({"jobs", "steps"}))
    elif not found.bad:
        yield say("no workflows")
        yield hint("make one with `bayou workflow create NAME`")
    yield from problems_text(found.bad)


def workflows_json(found: WorkflowListing) -> Document:
    document: dict[str, object] = {"workflows": [created_json(workflow) for workflow in found.workflows]}
    if found.bad:
        document["problems"] = [error.message for error in found.bad]
    return document


def workflow_json(found: Workflow) -> Document:
    return {**created_json(found), "definition": found.source.value}


def evaluated_text(document: Document) -> Iterator[Part]:
    """Show a workflow, or a workflow with its expressions evaluated, as YAML."""
    import yaml  # noqa: PLC0415

    yield show_text(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120).rstrip())


def validated_text(names: Sequence[str], problems: Sequence[WorkflowProblem]) -> Iterator[Part]:
    for problem in problems:
        yield fail(f"{problem.where}: {problem.message}")
        if problem.hint:
            yield hint(problem.hint)
    if not problems:
        yield say(f"{names[0]} is valid" if len(names) == 1 else f"{count(len(names), 'workflow')}, all valid")


def validated_json(problems: Sequence[WorkflowProblem]) -> Document:
    return {
        "valid": not problems,
        "problems": [{"where": found.where, "message": found.message, "hint": found.hint} for found in problems],
    }


def step_text(job: str, record: StepRecord) -> str:
    """Return the line that reports a step while a workflow runs."""
    took = f" ({record.duration_s:.1f} s)" if record.duration_s is not None else ""
    error = f": {first_line(record.error)}" if record.error else ""
    return f"{_MARKS.get(record.status, ' ')} {job} / {record.name}: {record.status}{took}{error}"


def outcome_text(run: Run, duration_s: float) -> Iterator[Part]:
    """Show the end of a run: its steps, what they saved, and how to go on after a failure."""
    yield from _steps(run)
    yield say(f"{run.workflow} {run.status} after {duration_s:.1f} s: run {run.run_id}")
    if run.status == "failed":
        if run.failed_step is not None:
            yield fail(f"{run.failed_step} failed")
        yield hint(f"go on from there with `bayou workflow resume {run.run_id}`")


def outcome_json(run: Run, duration_s: float | None) -> Document:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "status": run.status,
        "jobs": run.to_document()["jobs"],
        "duration_s": duration_s,
    }


def run_text(found: Run) -> Iterator[Part]:
    yield show(f"run: {found.run_id}")
    yield show(f"workflow: {found.workflow}")
    yield show(f"status: {found.status}")
    end = f", ended {moment(found.finished_at)}" if found.finished_at else ""
    yield show(f"began {moment(found.started_at)}{end}, by {found.by or 'an unknown user'}")
    for key, value in found.inputs.items():
        yield show(f"input {key}: {value}")
    yield from _steps(found)


def run_json(found: Run) -> Document:
    return {
        **outcome_json(found, _seconds(found.started_at, found.finished_at)),
        "workflow_id": found.workflow_id,
        "started_at": found.started_at,
        "finished_at": found.finished_at,
        "inputs": dict(found.inputs),
        "tags": dict(found.tags),
        "failed_step": found.failed_step,
        "by": found.by,
    }


def runs_text(rows: Sequence[RunRow], total: int) -> Iterator[Part]:
    if not rows:
        yield say("no runs")
        return
    cells = [
        (
            row.run_id,
            row.workflow,
            row.status,
            moment(row.started_at),
            moment(row.finished_at) if row.finished_at else "",
            row.failed_step or "",
        )
        for row in rows
    ]
    yield Table(("run", "workflow", "status", "began", "ended", "failed step"), cells)
    if len(rows) < total:
        yield hint(f"{total - len(rows):,} more: say which with --limit, --since, --status or a text")


def runs_json(rows: Sequence[RunRow], total: int) -> Document:
    return {
        "runs": [
            {
                "run_id": row.run_id,
                "workflow": row.workflow,
                "status": row.status,
                "started_at": row.started_at,
                "finished_at": row.finished_at,
                "failed_step": row.failed_step,
            }
            for row in rows
        ],
        "total": total,
    }


def deleted_text(workflow: Workflow, found: DeletedWorkflow) -> Iterator[Part]:
    yield say(f"deleted the workflow {workflow.name}, with the records of {count(found.runs_deleted, 'run')}")


def deleted_json(found: DeletedWorkflow) -> Document:
    return {"id": found.id, "runs_deleted": found.runs_deleted}


def _steps(run: Run) -> Iterator[Part]:
    cells = [
        (
            job.name,
            step.name,
            step.status,
            f"{step.duration_s:.1f} s" if step.duration_s is not None else "",
            ", ".join(f"{saved.name} {saved.version} ({size(saved.size)})" for saved in step.data),
            first_line(step.error or ""),
        )
        for job in run.jobs
        for step in job.steps
    ]
    yield Table(("job", "step", "status", "took", "data", "error"), cells, frozenset({"took"}))


def _seconds(begin: str, end: str | None) -> float | None:
    """Return how long something took; None if it goes on, or if a time that another program wrote cannot be read."""
    if end is None:
        return None
    try:
        return round((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds(), 3)
    except (ValueError, TypeError):
        return None
