"""The graph of a workflow, or of a run: its steps, what waits for what, and, of a run, what came of each.

The graph of a run is that of the workflow when it ran, from its evaluated definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import BayouError
from bayou.data import document
from bayou.data.layout import evaluated_workflow_path
from bayou.workflows.definition import Job, Workflow, parse_source
from bayou.workflows.read import read_workflow

if TYPE_CHECKING:
    from bayou.data.records import Records
    from bayou.data.runs import Run


class GraphStep(Struct, frozen=True):
    """A step of a graph. `status` and `executions` (those of a `for_each` step, by name) are of a run."""

    job: str
    name: str
    model: str | None
    method: str | None
    status: str | None = None
    executions: tuple[tuple[str, str], ...] = ()


class GraphEdge(Struct, frozen=True):
    """A dependency: between steps, `job/step`, or between jobs (`kind`). `when` is how the first must have ended."""

    source: str
    target: str
    when: str
    kind: str


class Graph(Struct, frozen=True):
    """Jobs in the order of the file, with their steps, and all dependencies."""

    name: str
    jobs: tuple[str, ...]
    steps: tuple[GraphStep, ...]
    edges: tuple[GraphEdge, ...]
    run_id: str | None = None
    status: str | None = None


def graph_of_workflow(workflow: Workflow) -> Graph:
    """Return the graph of a workflow as its file defines it."""
    steps = tuple(GraphStep(job.name, step.name, step.model, step.method) for job, step in workflow.steps())
    return Graph(workflow.name, tuple(job.name for job in workflow.jobs), steps, tuple(_edges(workflow.jobs)))


def graph_of_run(records: Records, run: Run) -> Graph:
    """Return the graph of a run; without dependencies if its evaluated definition is not here."""
    jobs = _jobs_of_run(records, run)
    steps = []
    for job in run.jobs:
        known = {step.name for found in jobs if found.name == job.name for step in found.steps}
        by_step: dict[str, list[tuple[str, str]]] = {}
        models = {}
        for record in job.steps:
            name = record.name if record.name in known else record.name.partition("[")[0]
            by_step.setdefault(name, []).append((record.name, record.status))
            models[name] = (record.model, record.method)
        for name, executions in by_step.items():
            status = _worst([status for _, status in executions])
            looped = tuple(executions) if executions[0][0] != name else ()
            steps.append(GraphStep(job.name, name, *models[name], status, looped))
    names = tuple(job.name for job in run.jobs)
    return Graph(run.workflow, names, tuple(steps), tuple(_edges(jobs)), run.run_id, run.status)


def _jobs_of_run(records: Records, run: Run) -> tuple[Job, ...]:
    try:
        evaluated = records.evaluated.get_workflow(run.workflow_id, run.run_id)
        source = parse_source(document.dump(evaluated), evaluated_workflow_path(run.workflow_id, run.run_id))
    except BayouError:
        return ()
    workflow, _ = read_workflow(source, run.workflow)
    return workflow.jobs if workflow is not None else ()


def _edges(jobs: tuple[Job, ...]) -> Iterator[GraphEdge]:
    for job in jobs:
        for edge in job.depends_on:
            yield GraphEdge(edge.on, job.name, edge.when, "job")
        for step in job.steps:
            for edge in step.depends_on:
                yield GraphEdge(f"{job.name}/{edge.on}", f"{job.name}/{step.name}", edge.when, "step")


def _worst(statuses: list[str]) -> str:
    """Return the status that says most about a loop: what is not over, then what went wrong."""
    order = ("running", "pending", "failed", "cancelled", "succeeded", "skipped")
    return min(statuses, key=lambda status: order.index(status) if status in order else -1)
