"""Finding, creating and deleting workflows. Finding reads only definitions, and sends no request."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from shlex import quote

from msgspec import Struct

from bayou.config import write_file
from bayou.core.errors import ModelInvalid, WorkflowExists, WorkflowInvalid, WorkflowNotFound
from bayou.data.layout import evaluated_workflow_path
from bayou.data.records import Records
from bayou.models.definition import check_name
from bayou.repo import Repo, leads_out
from bayou.workflows.definition import FOLDER, SUFFIX, Workflow, read_source
from bayou.workflows.read import WorkflowProblem, check_graph, nearest_hint, read_workflow

_TEMPLATE = """\
id: {id}
name: {name}
# inputs:
#   host: {{type: string, default: localhost}}
jobs:
  - name: main
    steps:
      # A step is a method of a model, or an assertion. With a model that `bayou model create command/shell NAME` made:
      #   - {{name: usage, model: NAME, method: execute, inputs: {{run: "df -k ."}}}}
      # A step does not wait for those above it, nor for their success, unless it has depends_on: [usage].
      - name: ready
        assert: ${{{{ 1 + 1 == 2 }}}}
"""


class WorkflowListing(Struct, frozen=True):
    """Every workflow that can be read, and an error for each other file."""

    workflows: tuple[Workflow, ...]
    bad: tuple[WorkflowInvalid, ...]


def list_workflows(repo: Repo) -> WorkflowListing:
    """Read every workflow, in order of name. A damaged workflow hides no other."""
    good, bad = [], []
    for name in workflow_names(repo):
        try:
            good.append(load_workflow(repo, name))
        except WorkflowInvalid as error:
            bad.append(error)
    return WorkflowListing(tuple(good), tuple(bad))


def find_workflow(repo: Repo, text: str) -> Workflow:
    """Return the workflow with this name or id; `WorkflowNotFound`, or `WorkflowInvalid` with file and line."""
    names = workflow_names(repo)
    if text in names:
        return load_workflow(repo, text)
    for workflow in list_workflows(repo).workflows:
        if workflow.id == text:
            return workflow
    hint = nearest_hint(text, names, "workflows here") if names else "make one with `bayou workflow create NAME`"
    raise WorkflowNotFound(f"there is no workflow {text}", hint=hint)


def load_workflow(repo: Repo, name: str) -> Workflow:
    """Read one workflow; `WorkflowInvalid` has the first problem, and says whether there are more."""
    workflow, problems = examine(repo, name)
    if problems:
        raise invalid(name, problems, all_known=False)
    assert workflow is not None  # else there is a problem
    return workflow


def examine(repo: Repo, name: str) -> tuple[Workflow | None, list[WorkflowProblem]]:
    """Read one workflow, and return all problems of its file alone; `WorkflowInvalid` if it is not YAML."""
    workflow, problems = read_workflow(read_source(repo.root, f"{FOLDER}/{name}{SUFFIX}"), name)
    return workflow, [*problems, *(check_graph(workflow) if workflow is not None else ())]


def invalid(name: str, problems: Sequence[WorkflowProblem], *, all_known: bool) -> WorkflowInvalid:
    """Return one error for the problems of a workflow; it counts them if they are `all_known`.

    The file alone does not show what is wrong with models, methods and arguments.
    """
    first, *others = problems
    if not others:
        return WorkflowInvalid(str(first), hint=first.hint)
    more = f"{len(others)} more" if all_known else "more"
    every = f"`bayou workflow validate {name}` tells all"
    return WorkflowInvalid(f"{first} (and {more})", hint=every if first.hint is None else f"{first.hint}; {every}")


def workflow_names(repo: Repo) -> list[str]:
    """Return the names of all workflows, in order. Files that begin with a dot belong to editors or file systems."""
    folder = repo.root / FOLDER
    if not folder.is_dir():
        return []
    return sorted(
        file.name.removesuffix(SUFFIX)
        for file in folder.iterdir()
        if file.name.endswith(SUFFIX) and not file.name.startswith(".") and file.is_file()
    )


def create_workflow(repo: Repo, name: str) -> Workflow:
    """Write a new workflow that can run as it is, atomically; `WorkflowExists` if the file exists."""
    try:
        check_name(name)
    except ModelInvalid as error:
        raise WorkflowInvalid(error.message.replace("a model", "a workflow"), hint=error.hint) from None
    file = repo.root / FOLDER / f"{name}{SUFFIX}"
    if leads_out(repo.root, f"{FOLDER}/{name}{SUFFIX}"):
        raise WorkflowInvalid(f"{FOLDER}/{name}{SUFFIX} leads out of the repo, through a link", hint="remove the link")
    file.parent.mkdir(parents=True, exist_ok=True)
    import yaml  # noqa: PLC0415

    quoted = yaml.safe_dump(name, allow_unicode=True, width=1000).splitlines()[0]
    try:
        write_file(file, _TEMPLATE.format(id=uuid.uuid4(), name=quoted), create=True)
    except FileExistsError:
        raise WorkflowExists(
            f"there is a workflow {name} already: {FOLDER}/{name}{SUFFIX}",
            hint=f"see it with `bayou workflow get {quote(name)}`",
        ) from None
    return load_workflow(repo, name)


class DeletedWorkflow(Struct, frozen=True):
    """The report of a deletion: how many records of runs went. Data and outputs belong to models, and stay."""

    id: str
    runs_deleted: int


def delete_workflow(records: Records, workflow: Workflow) -> DeletedWorkflow:
    """Delete a workflow with the records of its runs and its evaluated definitions.

    V19: its file goes last, so that a call that was killed can be repeated.
    """
    records.catalog.refresh()
    rows, _ = records.catalog.runs(workflow=workflow.id)
    runs = [row for row in rows if row.workflow_id == workflow.id]
    evaluated = [evaluated_workflow_path(workflow.id, run_id) for run_id in (None, *(row.run_id for row in runs))]
    paths = [row.path for row in runs]
    records.tree.delete_many([*paths, *filter(records.tree.exists, evaluated)])
    records.context.update_catalog([], paths)
    (records.repo.root / workflow.path).unlink(missing_ok=True)
    return DeletedWorkflow(workflow.id, len(runs))
