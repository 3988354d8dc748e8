"""Render workflows and their runs, as text and as JSON (a contract for scripts)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    note,
    problems_text,
    say,
    show,
    show_text,
    size,
    with_problems,
)

if TYPE_CHECKING:
    from bayou.cli.logs import StepLog
    from bayou.data.catalog.rows import RunRow
    from bayou.data.runs import Run, StepRecord
    from bayou.workflows.definition import Workflow
    from bayou.workflows.find import DeletedWorkflow, WorkflowListing
    from bayou.workflows.read import WorkflowProblem

Logs = Mapping[tuple[str, str], Sequence[Mapping[str, object]]]
"""Where the logs of steps are, by job and step, as documents have it: the last one is that of the last attempt."""

MARKS = {"succeeded": "✓", "failed": "✗", "skipped": "-", "cancelled": "!", "running": "…", "pending": " "}


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
    return with_problems({"workflows": [created_json(workflow) for workflow in found.workflows]}, found.bad)


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


def step_text(job: str, record: StepRecord, *, again: bool) -> str:
    """Return the line that reports a step while a workflow runs; `again`: this run of it has begun the step before."""
    if record.status == "running" and again and record.attempts:
        last = record.attempts[-1].error or "no reason is known"
        return (
            f"{MARKS['running']} {job} / {record.name}: attempt {len(record.attempts)} failed, another follows: {last}"
        )
    took = f" ({record.duration_s:.1f} s)" if record.duration_s is not None else ""
    error = f": {first_line(record.error)}" if record.error else ""
    return f"{MARKS.get(record.status, ' ')} {job} / {record.name}: {record.status}{took}{error}"


def outcome_text(run: Run, duration_s: float, failures: Iterable[Part] = ()) -> Iterator[Part]:
    """Show the end of a run: its steps, what they saved, why some failed, and how to go on after that."""
    yield from _steps(run)
    yield from failures
    yield say(f"{run.workflow} {run.status} after {duration_s:.1f} s: run {run.run_id}")
    if run.status == "failed":
        yield hint(f"go on from there with `bayou workflow resume {run.run_id}`")


def outcome_json(run: Run, duration_s: float | None) -> Document:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "status": run.status,
        "jobs": run.to_document()["jobs"],
        "duration_s": duration_s,
    }


def run_text(found: Run, logs: Logs) -> Iterator[Part]:
    yield show(f"run: {found.run_id}")
    yield show(f"workflow: {found.workflow}")
    yield show(f"status: {found.status}")
    end = f", ended {moment(found.finished_at)}" if found.finished_at else ""
    yield show(f"began {moment(found.started_at)}{end}, by {found.by or 'an unknown user'}")
    for key, value in found.inputs.items():
        yield show(f"input {key}: {value}")
    yield from _steps(found, logs)
    for job in found.jobs:
        for step in job.steps:
            for number, attempt in enumerate(step.attempts, 1):
                yield show(f"{job.name} / {step.name}, attempt {number}: {attempt.status}: {attempt.error or ''}")
            if step.error is not None:
                yield fail(f"{job.name} / {step.name}: {first_line(step.error)}")
    if any(logs.values()):
        yield hint(f"what the steps printed: `bayou workflow run logs {found.run_id}`")


def run_json(found: Run, logs: Logs) -> Document:
    fields = outcome_json(found, _seconds(found.started_at, found.finished_at))
    jobs = [
        {
            **job,
            "steps": [
                {**step, "log": logs[job["name"], step["name"]][-1] if logs.get((job["name"], step["name"])) else None}
                for step in job["steps"]
            ],
        }
        for job in found.to_document()["jobs"]
    ]
    return {
        **fields,
        "jobs": jobs,
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
    failed = next((row for row in rows if row.status == "failed"), None)
    if failed is not None:
        yield hint(f"why one failed: `bayou workflow run logs {failed.run_id}`")
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


def logs_end_text(run: Run, steps: Sequence[StepLog], *, follow: bool) -> Iterator[Part]:
    """Show, below the logs of a run, why steps failed, and how to go on."""
    failed = {(one.job, one.record.name): one.record for one in steps if one.record.error is not None}
    for (job, name), record in failed.items():
        yield fail(f"{job} / {name} {record.status}: {first_line(record.error or '')}")
    if not any(one.log is not None for one in steps):
        statuses = {(one.job, one.record.name): one.record.status for one in steps}
        only = [f"{job} / {name}: {status}, no log" for (job, name), status in statuses.items()]
        what = only[0] if len(only) == 1 else "no step has a log"
        yield note(f"run {run.run_id} ({run.workflow}, {run.status}): {what}")
    elif not any(one.log is not None and one.log.size for one in steps):
        yield note(f"run {run.run_id} ({run.workflow}, {run.status}): the steps printed nothing")
    if run.status == "running" and follow:
        yield note("the run is marked as running, but no process works on it here")
        yield hint("`bayou datastore sync --pull` brings what a run of another machine has pushed")
    elif follow:
        yield say(f"{run.workflow} {run.status}: run {run.run_id}")
    if run.status == "failed":
        yield hint(f"go on from there with `bayou workflow resume {run.run_id}`")


def deleted_text(workflow: Workflow, found: DeletedWorkflow) -> Iterator[Part]:
    yield say(f"deleted the workflow {workflow.name}, with the records of {count(found.runs_deleted, 'run')}")


def deleted_json(found: DeletedWorkflow) -> Document:
    return {"id": found.id, "runs_deleted": found.runs_deleted}


def _steps(run: Run, logs: Logs | None = None) -> Iterator[Part]:
    """Show a table of steps; with `logs`, also which version of its model's data is the log of each."""
    headings = ["job", "step", "model", "status", "took", "data"]
    cells = [
        [
            job.name,
            step.name,
            step.model or "",
            step.status,
            f"{step.duration_s:.1f} s" if step.duration_s is not None else "",
            ", ".join(f"{saved.name} {saved.version} ({size(saved.size)})" for saved in step.data),
        ]
        for job in run.jobs
        for step in job.steps
    ]
    if logs is not None:
        headings.append("log")
        names = [(job.name, step.name) for job in run.jobs for step in job.steps]
        for row, name in zip(cells, names, strict=True):
            row.append(", ".join(f"{log['name']} {log['version']}" for log in logs.get(name, ())))
    yield Table(headings, cells, frozenset({"took"}))


def _seconds(begin: str, end: str | None) -> float | None:
    """Return how long something took; None if it goes on, or if a time that another program wrote cannot be read."""
    if end is None:
        return None
    try:
        return round((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds(), 3)
    except (ValueError, TypeError):
        return None
