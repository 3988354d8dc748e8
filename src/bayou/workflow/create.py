"""Making a workflow."""

from __future__ import annotations

import uuid

from bayou.config import write_file
from bayou.core.errors import ModelInvalid, WorkflowExists, WorkflowInvalid
from bayou.models.definition import check_name
from bayou.repo import Repo, leads_out
from bayou.workflow.definition import FOLDER, SUFFIX, Workflow
from bayou.workflow.find import load_workflow

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
      - name: ready
        assert: ${{{{ 1 + 1 == 2 }}}}
"""


def create_workflow(repo: Repo, name: str) -> Workflow:
    """Write a new workflow that runs as it is, whole or not at all; `WorkflowExists` if there is one."""
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
            hint="see it with `bayou workflow get NAME`",
        ) from None
    return load_workflow(repo, name)
