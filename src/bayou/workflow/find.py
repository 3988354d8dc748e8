"""Finding workflows: by name, by id, all of them. No request is sent, and nothing but definitions is read."""

from __future__ import annotations

from msgspec import Struct

from bayou.core.errors import WorkflowInvalid, WorkflowNotFound
from bayou.repo import Repo
from bayou.workflow.definition import FOLDER, SUFFIX, Workflow
from bayou.workflow.graph import check_graph
from bayou.workflow.read import Problem, nearest, read_workflow
from bayou.workflow.source import read_source


class WorkflowListing(Struct, frozen=True):
    """Every workflow that can be read, and an error for each that cannot."""

    workflows: tuple[Workflow, ...]
    bad: tuple[WorkflowInvalid, ...]


def list_workflows(repo: Repo) -> WorkflowListing:
    """Read every workflow, by name. One that is damaged hides no other."""
    good, bad = [], []
    for name in workflow_names(repo):
        try:
            good.append(load_workflow(repo, name))
        except WorkflowInvalid as error:
            bad.append(error)
    return WorkflowListing(tuple(good), tuple(bad))


def find_workflow(repo: Repo, text: str) -> Workflow:
    """Return the workflow of this name or id; `WorkflowNotFound`, or `WorkflowInvalid` with the place."""
    names = workflow_names(repo)
    if text in names:
        return load_workflow(repo, text)
    for workflow in list_workflows(repo).workflows:
        if workflow.id == text:
            return workflow
    hint = nearest(text, names, "workflows here") if names else "make one with `bayou workflow create`"
    raise WorkflowNotFound(f"there is no workflow {text}", hint=hint)


def load_workflow(repo: Repo, name: str) -> Workflow:
    """Read one workflow; `WorkflowInvalid` tells the first thing that is wrong with it, and how many more are."""
    workflow, problems = examine(repo, name)
    if problems:
        raise invalid(name, problems)
    assert workflow is not None  # what is not one has a problem
    return workflow


def examine(repo: Repo, name: str) -> tuple[Workflow | None, list[Problem]]:
    """Read one workflow, and tell everything that is wrong with its file by itself; `WorkflowInvalid` for no YAML."""
    workflow, problems = read_workflow(read_source(repo.root, f"{FOLDER}/{name}{SUFFIX}"), name)
    return workflow, problems or (check_graph(workflow) if workflow is not None else [])


def invalid(name: str, problems: list[Problem]) -> WorkflowInvalid:
    """Make one error of what is wrong with a workflow."""
    first, *others = problems
    if others:
        many = f"there is more to it ({len(others)})" if first.hint is None else first.hint
        return WorkflowInvalid(
            f"{first} (and {len(others)} more)", hint=f"{many}; `bayou workflow validate {name}` tells all"
        )
    return WorkflowInvalid(str(first), hint=first.hint)


def workflow_names(repo: Repo) -> list[str]:
    """Return the names of all workflows here, in order. What begins with a dot is an editor's or a file system's."""
    folder = repo.root / FOLDER
    if not folder.is_dir():
        return []
    return sorted(
        file.name.removesuffix(SUFFIX)
        for file in folder.iterdir()
        if file.name.endswith(SUFFIX) and not file.name.startswith(".") and file.is_file()
    )
