"""Workflows and models for tests, written as people write them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from bayou.models import Definition, create_model
from bayou.repo import Repo
from bayou.workflows.definition import Workflow, parse_source
from bayou.workflows.read import WorkflowProblem, read_workflow

ID = "7f3c0000-0000-4000-8000-000000000000"


def text(jobs: str, head: str = "", name: str = "nightly", workflow_id: str = ID) -> str:
    """Return a workflow's file: `jobs` is the YAML below `jobs:`."""
    body = textwrap.indent(textwrap.dedent(jobs).strip("\n"), "  ")
    return f"id: {workflow_id}\nname: {name}\n{textwrap.dedent(head).lstrip()}jobs:\n{body}\n"


def lay(repo: Repo, jobs: str, head: str = "", name: str = "nightly", workflow_id: str = ID) -> Path:
    """Write a workflow's file."""
    file = repo.root / "workflows" / f"{name}.yaml"
    file.write_text(text(jobs, head, name, workflow_id))
    return file


def read(jobs: str, head: str = "") -> tuple[Workflow | None, list[WorkflowProblem]]:
    return read_workflow(parse_source(text(jobs, head).encode(), "workflows/nightly.yaml"), "nightly")


def workflow(jobs: str, head: str = "") -> Workflow:
    """Return a workflow that has nothing wrong with it by itself."""
    found, problems = read(jobs, head)
    assert problems == []
    assert found is not None
    return found


def shell(repo: Repo, name: str, run: str = "true", **more: str) -> Definition:
    """Make a model that runs a command."""
    return create_model(repo, "command/shell", name, {"run": run, **more})
