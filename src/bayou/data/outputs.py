"""Outputs of methods, and the evaluated definitions that they ran with.

An output is the record of one run of a model's method, `outputs/<type…>/<model-id>/<id>.yaml`; the catalog answers
lists of them without opening a file. An evaluated definition is what a model or a workflow was, expressions replaced by
values, when it ran: `definitions-evaluated/<type…>/<model-id>/<output-id>.yaml`,
`workflows-evaluated/<workflow-id>/<run-id>.yaml` (`evaluated.yaml` without a run). The record that a model was deleted
on purpose is beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from bayou.core.clock import now
from bayou.core.errors import RecordNotFound
from bayou.data import document
from bayou.data.catalog.derive import derive, output_row
from bayou.data.catalog.rows import OutputRow, SavedVersion
from bayou.data.context import DataContext
from bayou.data.layout import (
    ModelRef,
    check_id,
    check_tags,
    deleted_model_path,
    evaluated_definition_path,
    evaluated_workflow_path,
    output_path,
)
from bayou.data.runs import LATEST, SHOWN, ambiguous


class Output(Struct, frozen=True):
    """One run of a method. `data` has the versions that it saved; `run` to `step` name the workflow step, if any.

    `OutputRepository.save` sets `model`, `model_id` and `type`.
    """

    id: str
    method: str
    status: str
    started_at: str
    finished_at: str | None = None
    duration_s: float | None = None
    inputs: Mapping[str, object] = field(default_factory=dict)
    data: tuple[SavedVersion, ...] = ()
    error: str | None = None
    run: str | None = None
    workflow: str | None = None
    job: str | None = None
    step: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    model_id: str = ""
    type: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return the fields of the output's file."""
        return {**asdict(self), "data": [asdict(version) for version in self.data]}

    @classmethod
    def from_document(cls, fields: Mapping[str, Any], path: str) -> Output:
        """Check the fields of an output's file; `RecordDamaged` names the file and what is wrong."""
        row = output_row(path, fields)
        inputs = fields.get("inputs") or {}
        if not isinstance(inputs, dict):
            raise document.damaged(path, "its inputs are no mapping")
        return cls(inputs=inputs, **asdict(row) | {"data": row.data})


class OutputRepository:
    """The outputs of one datastore."""

    def __init__(self, context: DataContext) -> None:
        self._context = context

    def save(self, model: ModelRef, output: Output) -> Output:
        """Write an output, for the first time or again; return it as the file has it."""
        check_id(output.id, "an output")
        check_tags(output.tags)
        saved = replace(output, model=model.name, model_id=model.id, type=model.type)
        path = output_path(model.type, model.id, output.id)
        data = document.dump(saved.to_document())
        row = derive(path, data)
        self._context.tree.write(path, data)
        self._context.update_catalog([row])
        return saved

    def get(self, output_id: str) -> Output:
        """Return an output of any model; `RecordNotFound` if there is none."""
        self._context.catalog.refresh()
        row = self._context.catalog.output(output_id)
        data = self._context.load(row.path) if row is not None else None
        if row is None or data is None:
            raise RecordNotFound(
                f"there is no output {output_id}", hint="bayou datastore sync --pull brings what others made"
            )
        return Output.from_document(document.load(data, row.path), row.path)

    def find(self, model: ModelRef, text: str = LATEST) -> OutputRow:
        """Return the row of a model's output: by its id, by a prefix that no other output's id has, or `latest`.

        `RecordNotFound` if there is none, `IdAmbiguous` if several ids begin so.
        """
        self._context.catalog.refresh()
        catalog = self._context.catalog
        if text == LATEST:
            rows = catalog.outputs(model.id, 1)
        else:
            rows = catalog.outputs_by_prefix(model.id, text.lower(), SHOWN + 1) if text else []
            rows = [row for row in rows if row.id == text] or rows
        if not rows:
            if text == LATEST:
                hint = f"no method of it has run here: `bayou model run {model.name} METHOD`"
                raise RecordNotFound(f"{model.name} has no outputs", hint=hint)
            hint = f"`bayou model outputs {model.name}` lists them"
            raise RecordNotFound(f"{model.name} has no output {text}", hint=hint)
        if len(rows) > 1:
            names = [f"{row.id} ({row.method}, {row.status}, {row.started_at})" for row in rows]
            raise ambiguous(text, "outputs", names)
        return rows[0]

    def list(self, model: ModelRef) -> list[OutputRow]:
        """Return the catalog's rows of a model's outputs, the newest first."""
        self._context.catalog.refresh()
        return self._context.catalog.outputs(model.id)


class EvaluatedRepository:
    """The evaluated definitions of one datastore."""

    def __init__(self, context: DataContext) -> None:
        self._context = context

    def save_definition(self, model: ModelRef, output_id: str, evaluated: Mapping[str, object]) -> None:
        """Save the evaluated definition with which a model made an output."""
        path = evaluated_definition_path(model.type, model.id, check_id(output_id, "an output"))
        self._context.tree.write(path, document.dump(evaluated))

    def get_definition(self, model: ModelRef, output_id: str) -> dict[str, Any]:
        """Return the evaluated definition of an output's model; `RecordNotFound` if there is none."""
        path = evaluated_definition_path(model.type, model.id, check_id(output_id, "an output"))
        return self._load(path, f"evaluated definition of {model.name} for output {output_id}")

    def save_workflow(self, workflow_id: str, run_id: str | None, evaluated: Mapping[str, object]) -> None:
        """Save the evaluated definition of a workflow's run, or (None) of an evaluation without a run."""
        self._context.tree.write(_workflow_path(workflow_id, run_id), document.dump(evaluated))

    def get_workflow(self, workflow_id: str, run_id: str | None = None) -> dict[str, Any]:
        """Return the evaluated definition of a run, or (None) of the last evaluation; or raise `RecordNotFound`."""
        return self._load(_workflow_path(workflow_id, run_id), f"evaluated workflow {workflow_id}")

    def record_deleted(self, model: ModelRef) -> None:
        """Record that a model was deleted on purpose: every machine may then prune its data (F118)."""
        fields = {"id": model.id, "name": model.name, "type": model.type, "deleted_at": now()}
        self._context.tree.write(deleted_model_path(model.type, model.id), document.dump(fields))

    def was_deleted(self, kind: str, model_id: str) -> bool:
        """Return whether a record exists that a model was deleted."""
        return self._context.tree.exists(deleted_model_path(kind, model_id))

    def _load(self, path: str, what: str) -> dict[str, Any]:
        data = self._context.load(path)
        if data is None:
            raise RecordNotFound(f"there is no {what}", hint="bayou datastore sync --pull brings what others made")
        return document.load(data, path)


def _workflow_path(workflow_id: str, run_id: str | None) -> str:
    check_id(workflow_id, "a workflow")
    return evaluated_workflow_path(workflow_id, run_id if run_id is None else check_id(run_id, "a run"))
