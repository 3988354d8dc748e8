"""What a workflow is given: defaults, texts of a command line, and a schema for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayou.core.errors import InputInvalid
from bayou.models.expressions import has_expression
from bayou.models.types import coerce, problems
from bayou.models.types.validation import schema_findings
from bayou.workflow.definition import Workflow
from bayou.workflow.read import Problem


def check_schemas(workflow: Workflow) -> Iterator[Problem]:
    """Yield what is wrong with the schemas of inputs, and with their defaults."""
    if not workflow.inputs:
        return
    example = "like {type: string, default: localhost}"
    for name, schema in workflow.inputs.items():
        wrong_schema = schema_findings(schema)
        if wrong_schema:
            place, message = wrong_schema[0]
            where = workflow.source.where(("inputs", name, *place))
            yield Problem(where, f"{name} is no JSON schema: {message}", example)
            continue
        if "default" not in schema:
            continue
        where = workflow.source.where(("inputs", name, "default"))
        if has_expression(schema["default"]):
            yield Problem(where, f"the default of {name} is an expression", "inputs are given; steps may compute")
            continue
        wrong = problems(_schema({name: schema}), {name: schema["default"]})
        if wrong:
            yield Problem(where, f"the default does not fit: {wrong[0].message}", wrong[0].hint)


def resolve_inputs(
    workflow: Workflow, given: Mapping[str, Any], texts: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the value of every input: of `texts` (a command line's) or `given`, else its default.

    A text stands for the number, truth value, list or mapping that its schema asks for. `InputInvalid` names an input
    that is missing, unknown, or of the wrong type. Values are never evaluated.
    """
    if not (workflow.inputs or given or texts):
        return {}
    schema = _schema(workflow.inputs)
    defaults = {name: one["default"] for name, one in workflow.inputs.items() if "default" in one}
    values = {**defaults, **given, **coerce(texts or {}, schema)}
    wrong = problems(schema, values)
    if wrong:
        place = workflow.source.where(("inputs", *wrong[0].path))
        hint = wrong[0].hint or f"see {place}; give it with --input NAME=VALUE"
        raise InputInvalid(f"inputs of {workflow.name}: {wrong[0].message}", hint=hint)
    return values


def _schema(inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    required = [name for name, schema in inputs.items() if "default" not in schema]
    return {"type": "object", "properties": dict(inputs), "required": required, "additionalProperties": False}
