"""Evaluated definitions: what a model or a workflow really was when it ran.

`definitions-evaluated/<type…>/<model-id>/<output-id>.yaml`, `workflows-evaluated/<workflow-id>/<run-id>.yaml` (or
`evaluated.yaml`, without a run). That a model was deleted on purpose is recorded beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayou.core.clock import now
from bayou.core.errors import RecordNotFound
from bayou.records import document
from bayou.records.context import Context
from bayou.records.layout import deleted_model_path, evaluated_definition_path, evaluated_workflow_path
from bayou.records.names import check_id
from bayou.records.owner import ModelRef


class EvaluatedRepository:
    """The evaluated definitions of one datastore."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def save_definition(self, model: ModelRef, output_id: str, evaluated: Mapping[str, object]) -> None:
        """Keep what a model was when it made an output."""
        path = evaluated_definition_path(model.type, model.id, check_id(output_id, "an output"))
        self._context.tree.write(path, document.dump(evaluated))

    def get_definition(self, model: ModelRef, output_id: str) -> dict[str, Any]:
        """Return what a model was when it made an output; `RecordNotFound` if nobody kept it."""
        path = evaluated_definition_path(model.type, model.id, check_id(output_id, "an output"))
        return self._load(path, f"evaluated definition of {model.name} for output {output_id}")

    def save_workflow(self, workflow_id: str, run_id: str | None, evaluated: Mapping[str, object]) -> None:
        """Keep what a workflow was when it ran, or (None) what it was evaluated to without a run."""
        self._context.tree.write(_workflow_path(workflow_id, run_id), document.dump(evaluated))

    def get_workflow(self, workflow_id: str, run_id: str | None = None) -> dict[str, Any]:
        """Return what a workflow was when it ran, or was last evaluated to; `RecordNotFound` if nobody kept it."""
        return self._load(_workflow_path(workflow_id, run_id), f"evaluated workflow {workflow_id}")

    def record_deleted(self, model: ModelRef) -> None:
        """Record that a model was deleted on purpose: then its data is nobody's, wherever it is (F118)."""
        fields = {"id": model.id, "name": model.name, "type": model.type, "deleted_at": now()}
        self._context.tree.write(deleted_model_path(model.type, model.id), document.dump(fields))

    def was_deleted(self, kind: str, model_id: str) -> bool:
        """Say whether it is recorded that a model was deleted."""
        return self._context.tree.exists(deleted_model_path(kind, model_id))

    def _load(self, path: str, what: str) -> dict[str, Any]:
        data = self._context.load(path)
        if data is None:
            raise RecordNotFound(f"there is no {what}", hint="bayou datastore sync --pull brings what others made")
        return document.load(data, path)


def _workflow_path(workflow_id: str, run_id: str | None) -> str:
    check_id(workflow_id, "a workflow")
    return evaluated_workflow_path(workflow_id, run_id if run_id is None else check_id(run_id, "a run"))
