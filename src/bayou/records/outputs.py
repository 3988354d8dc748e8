"""Outputs: what came of running a model's methods, one file each.

`outputs/<type…>/<model-id>/<id>.yaml`. Lists are answered by the catalog, without a look at any file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from bayou.core.errors import RecordNotFound
from bayou.records import document
from bayou.records.catalog.derive import derive, output_row
from bayou.records.catalog.rows import Made, OutputRow
from bayou.records.context import Context
from bayou.records.layout import output_path
from bayou.records.names import check_id, check_tags
from bayou.records.owner import ModelRef


class Output(Struct, frozen=True):
    """One run of a method. `data` is what it saved; `run` to `step` say for which workflow, if for one.

    `model`, `model_id` and `type` are those of the model that it is saved for.
    """

    id: str
    method: str
    status: str
    started_at: str
    finished_at: str | None = None
    duration_s: float | None = None
    inputs: Mapping[str, object] = field(default_factory=dict)
    data: tuple[Made, ...] = ()
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
        return {**asdict(self), "data": [asdict(made) for made in self.data]}

    @classmethod
    def from_document(cls, fields: Mapping[str, Any], path: str) -> Output:
        """Check the fields of an output's file; `RecordDamaged` names it, and what is wrong with it."""
        row = output_row(path, fields)
        inputs = fields.get("inputs") or {}
        if not isinstance(inputs, dict):
            raise document.damaged(path, "its inputs are no mapping")
        return cls(inputs=inputs, **asdict(row) | {"data": row.data})


class OutputRepository:
    """The outputs of one datastore."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def save(self, model: ModelRef, output: Output) -> Output:
        """Write an output, or write it again with what is known by now; return it as it is kept."""
        check_id(output.id, "an output")
        check_tags(output.tags)
        kept = replace(output, model=model.name, model_id=model.id, type=model.type)
        path = output_path(model.type, model.id, output.id)
        data = document.dump(kept.to_document())
        row = derive(path, data)
        self._context.tree.write(path, data)
        self._context.tell([row])
        return kept

    def get(self, output_id: str) -> Output:
        """Return an output, whosever it is; `RecordNotFound` if there is none."""
        self._context.catalog.refresh()
        row = self._context.catalog.output(output_id)
        data = self._context.load(row.path) if row is not None else None
        if row is None or data is None:
            raise RecordNotFound(
                f"there is no output {output_id}", hint="bayou datastore sync --pull brings what others made"
            )
        return Output.from_document(document.load(data, row.path), row.path)

    def list(self, model: ModelRef) -> list[OutputRow]:
        """Return the outputs of a model in short, the newest first."""
        self._context.catalog.refresh()
        return self._context.catalog.outputs(model.id)
