"""Render the graph of a workflow or a run: as indented text, as a Mermaid flowchart, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from bayou.cli.output import Document, Part, show
from bayou.cli.render.workflow import MARKS

if TYPE_CHECKING:
    from bayou.workflows.graph import Graph, GraphEdge, GraphStep

_CLASSES = {
    "succeeded": "fill:#d5f0d5,stroke:#2e7d32",
    "failed": "fill:#f8d7da,stroke:#b71c1c",
    "cancelled": "fill:#fff3cd,stroke:#8a6d00",
    "running": "fill:#d7e8fb,stroke:#0d47a1",
}


def graph_json(graph: Graph) -> Document:
    document: dict[str, object] = {
        "workflow": graph.name,
        "run_id": graph.run_id,
        "status": graph.status,
        "steps": [
            {**asdict(step), "executions": [{"name": name, "status": status} for name, status in step.executions]}
            for step in graph.steps
        ],
        "edges": [
            {"from": edge.source, "to": edge.target, "when": edge.when, "kind": edge.kind} for edge in graph.edges
        ],
    }
    return document


def graph_text(graph: Graph) -> Iterator[Part]:
    """Show jobs and steps in the order of the file, each with what it waits for."""
    yield show(f"{graph.name}: run {graph.run_id} {graph.status}" if graph.run_id else graph.name)
    for job in graph.jobs:
        yield show(f"  {job}{_after(graph, job, 'job')}")
        for step in graph.steps:
            if step.job == job:
                mark = f"{MARKS.get(step.status, '?')} " if step.status is not None else ""
                yield show(f"    {mark}{step.name}{_does(step)}{_after(graph, f'{job}/{step.name}', 'step')}")
                for name, status in step.executions:
                    yield show(f"      {MARKS.get(status, '?')} {name}")


def graph_mermaid(graph: Graph) -> Iterator[Part]:
    """Show a flowchart: a box for each job, a node for each step."""
    yield show("flowchart TD")
    nodes = {f"{step.job}/{step.name}": f"s{at}" for at, step in enumerate(graph.steps)}
    boxes = {job: f"j{at}" for at, job in enumerate(graph.jobs)}
    for job in graph.jobs:
        yield show(f"    subgraph {boxes[job]}[{_quoted(job)}]")
        for step in graph.steps:
            if step.job == job:
                does = f"{step.model} {step.method}" if step.model else "assert"
                state = f"<br/>{step.status}" if step.status else ""
                style = f":::{step.status}" if step.status in _CLASSES else ""
                label = _quoted(step.name, f"<br/>{_escaped(does)}{state}")
                yield show(f"        {nodes[f'{job}/{step.name}']}[{label}]{style}")
        yield show("    end")
    for edge in graph.edges:
        ids = boxes if edge.kind == "job" else nodes
        if edge.source in ids and edge.target in ids:
            arrow = "-->" if edge.when == "succeeded" else f"-. {edge.when} .->"
            yield show(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
    used = {step.status for step in graph.steps}
    for status, style in _CLASSES.items():
        if status in used:
            yield show(f"    classDef {status} {style}")


def _does(step: GraphStep) -> str:
    return f" ({step.model} {step.method})" if step.model else ""


def _after(graph: Graph, target: str, kind: str) -> str:
    edges = [edge for edge in graph.edges if edge.target == target and edge.kind == kind]
    return f"  ← {', '.join(map(_named, edges))}" if edges else ""


def _named(edge: GraphEdge) -> str:
    name = edge.source.partition("/")[2] if edge.kind == "step" else edge.source
    return name if edge.when == "succeeded" else f"{name} ({edge.when})"


def _quoted(text: str, more: str = "") -> str:
    return f'"{_escaped(text)}{more}"'


def _escaped(text: str) -> str:
    """Return text for a label, in which Mermaid reads quotes and signs of HTML."""
    for sign, entity in (("#", "#35;"), ("&", "#38;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(sign, entity)
    return text
