"""Deleting a workflow."""

from __future__ import annotations

from msgspec import Struct

from bayou.data.layout import evaluated_workflow_path
from bayou.data.records import Records
from bayou.workflow.definition import Workflow


class DeletedWorkflow(Struct, frozen=True):
    """What went with a workflow: records of its runs. Data and outputs are their models', and stay."""

    id: str
    runs_deleted: int


def delete_workflow(records: Records, workflow: Workflow) -> DeletedWorkflow:
    """Delete a workflow with the records of its runs and all that it was evaluated to.

    V19: its file goes last, so that a call which was killed can be repeated.
    """
    records.catalog.refresh()
    rows, _ = records.catalog.runs(workflow=workflow.id)
    runs = [row for row in rows if row.workflow_id == workflow.id]
    evaluated = [evaluated_workflow_path(workflow.id, run_id) for run_id in (None, *(row.run_id for row in runs))]
    paths = [row.path for row in runs]
    records.tree.delete_many([*paths, *filter(records.tree.exists, evaluated)])
    records.context.tell([], paths)
    (records.repo.root / workflow.path).unlink(missing_ok=True)
    return DeletedWorkflow(workflow.id, len(runs))
