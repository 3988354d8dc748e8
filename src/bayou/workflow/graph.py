"""What waits for what: unknown names, cycles, and what has ended before a step begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bayou.core.documents import Source
from bayou.workflow.definition import Edge, Job, Step, Workflow
from bayou.workflow.read import Problem, nearest


def check_graph(workflow: Workflow) -> list[Problem]:
    """Return the edges that lead nowhere, and those that lead in a circle."""
    problems = list(_check(workflow.source, workflow.jobs, "job"))
    for job in workflow.jobs:
        problems += _check(workflow.source, job.steps, "step")
    return problems


def before(workflow: Workflow, job: Job, step: Step) -> list[tuple[Job, Step]]:
    """Return the steps that have surely ended when a step begins: those it waits for, through others too.

    They are in the order of the file; those of the step's own job come last.
    """
    jobs = ancestors(job.name, {one.name: one.depends_on for one in workflow.jobs})
    steps = ancestors(step.name, {one.name: one.depends_on for one in job.steps})
    earlier = [(one, each) for one in workflow.jobs if one.name in jobs for each in one.steps]
    return earlier + [(job, one) for one in job.steps if one.name in steps]


def ancestors(name: str, edges: Mapping[str, Sequence[Edge]]) -> set[str]:
    """Return all that comes before `name`, near or far."""
    found: set[str] = set()
    waiting = [edge.on for edge in edges.get(name, ())]
    while waiting:
        one = waiting.pop()
        if one not in found and one in edges:
            found.add(one)
            waiting += [edge.on for edge in edges[one]]
    return found


def _check(source: Source, nodes: Sequence[Job | Step], kind: str) -> Iterator[Problem]:
    names = {node.name for node in nodes}
    for node in nodes:
        for edge in node.depends_on:
            if edge.on not in names:
                known = nearest(edge.on, sorted(names - {node.name}), f"{kind}s here")
                yield Problem(source.where(edge.place), f"{node.name} depends on a {kind} {edge.on}: none here", known)
    edges = {node.name: node.depends_on for node in nodes}
    told: set[str] = set()
    for node in nodes:
        circle = _circle(node.name, edges)
        if circle and not told & set(circle):
            told |= set(circle)
            where = next(edge for edge in node.depends_on if edge.on == circle[1])
            yield Problem(
                source.where(where.place),
                f"{kind}s wait for each other: {' → '.join(circle)}",
                "take one of these dependencies out",
            )


def _circle(name: str, edges: Mapping[str, Sequence[Edge]]) -> list[str] | None:
    """Return a way from a node back to itself, shortest first."""
    ways = [[name]]
    seen = {name}
    for way in ways:
        for edge in edges.get(way[-1], ()):
            if edge.on == name:
                return [*way, name]
            if edge.on not in seen:
                seen.add(edge.on)
                ways.append([*way, edge.on])
    return None
