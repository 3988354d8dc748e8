"""The records of `workflow` commands as scripts get them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from bayou.cli.documents import Document

if TYPE_CHECKING:
    from bayou.data.catalog.rows import RunRow
    from bayou.data.runs import Run
    from bayou.workflows.definition import Workflow
    from bayou.workflows.find import DeletedWorkflow, WorkflowListing
    from bayou.workflows.read import WorkflowProblem


def made(workflow: Workflow) -> Document:
    return {"id": workflow.id, "name": workflow.name, "path": workflow.path}


def workflows(found: WorkflowListing) -> Document:
    document: dict[str, object] = {"workflows": [made(one) for one in found.workflows]}
    if found.bad:
        document["problems"] = [error.message for error in found.bad]
    return document


def workflow(found: Workflow) -> Document:
    return {**made(found), "definition": found.source.value}


def validated(problems: Sequence[WorkflowProblem]) -> Document:
    told = [{"where": one.where, "message": one.message, "hint": one.hint} for one in problems]
    return {"valid": not problems, "problems": told}


def outcome(run: Run, duration_s: float | None) -> Document:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "status": run.status,
        "jobs": run.to_document()["jobs"],
        "duration_s": duration_s,
    }


def run(found: Run) -> Document:
    return {
        **outcome(found, _seconds(found.started_at, found.finished_at)),
        "workflow_id": found.workflow_id,
        "started_at": found.started_at,
        "finished_at": found.finished_at,
        "inputs": dict(found.inputs),
        "tags": dict(found.tags),
        "failed_step": found.failed_step,
        "by": found.by,
    }


def runs(rows: Sequence[RunRow], total: int) -> Document:
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


def deleted(found: DeletedWorkflow) -> Document:
    return {"id": found.id, "runs_deleted": found.runs_deleted}


def _seconds(begin: str, end: str | None) -> float | None:
    """Return how long something took; None if it goes on, or if somebody else's times cannot be read."""
    if end is None:
        return None
    try:
        return round((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds(), 3)
    except (ValueError, TypeError):
        return None
