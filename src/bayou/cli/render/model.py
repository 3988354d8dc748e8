"""Render the definitions, types and outputs of models, as text and as JSON (a contract for scripts)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from bayou.cli.output import (
    Document,
    Part,
    Table,
    count,
    fail,
    first_line,
    hint,
    moment,
    note,
    problems_text,
    say,
    show,
    size,
    with_problems,
)

if TYPE_CHECKING:
    from bayou.data.catalog.rows import OutputRow, VersionRow
    from bayou.data.outputs import Output
    from bayou.models import Definition, DeletedModel, ModelListing
    from bayou.models.types import ModelType, OutputSpec, Types
    from bayou.models.types.schema import Method


def created_text(definition: Definition, kind: ModelType | None) -> Iterator[Part]:
    yield say(f"{definition.name} is a model of type {definition.type} now: {definition.path}")
    if kind is not None and kind.methods:
        yield from _first_run(definition, next(iter(kind.methods.values())))
    else:
        yield note(f"no type {definition.type} is defined here, so the model has no methods: it owns data")
        yield hint(f"give it data with `bayou data put {quote(definition.name)} NAME FILE`")


def _first_run(definition: Definition, method: Method) -> Iterator[Part]:
    """Say how to run a method of a new model, with the arguments that the method needs and the model does not have."""
    run = f"bayou model run {quote(definition.name)} {method.name}"
    missing = [name for name in method.arguments.get("required", []) if name not in definition.arguments]
    if not missing:
        yield hint(f"run it with `{run}`")
        return
    what = "argument" if len(missing) == 1 else "arguments"
    yield note(f"the method {method.name} needs the {what} {' and '.join(missing)}, which the model does not have yet")
    arguments = ", ".join(f"{name}: …" for name in missing)
    inputs = " ".join(f"--input {name}=…" for name in missing)
    yield hint(f"write `arguments: {{{arguments}}}` into {definition.path}, or run it with `{run} {inputs}`")


def created_json(definition: Definition) -> Document:
    return {"id": definition.id, "type": definition.type, "name": definition.name, "path": definition.path}


def models_text(found: ModelListing) -> Iterator[Part]:
    if found.models:
        yield Table(("name", "type", "id"), [(model.name, model.type, model.id) for model in found.models])
    elif not found.bad:
        yield say("no models")
        yield hint("make one with `bayou model create TYPE NAME`")
    yield from problems_text(found.bad)


def models_json(found: ModelListing) -> Document:
    models = [{"id": model.id, "type": model.type, "name": model.name} for model in found.models]
    return with_problems({"models": models}, found.bad)


def model_text(document: Document) -> Iterator[Part]:
    """Show the JSON of a definition as YAML, key by key."""
    for key, value in document.items():
        yield show(f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


def model_json(definition: Definition) -> Document:
    return {
        "id": definition.id,
        "type": definition.type,
        "name": definition.name,
        "path": definition.path,
        "arguments": dict(definition.arguments),
        "methods": dict(definition.methods),
        "tags": dict(definition.tags),
    }


def deleted_text(definition: Definition, deleted: DeletedModel) -> Iterator[Part]:
    with_data = f", and {count(deleted.data_deleted, 'version')} of its data" if deleted.data_deleted else ""
    yield say(f"deleted the model {definition.name}{with_data}")


def deleted_json(deleted: DeletedModel) -> Document:
    return {"id": deleted.id, "data_deleted": deleted.data_deleted}


def types_text(found: Types) -> Iterator[Part]:
    cells = [(kind.name, ", ".join(kind.methods), kind.description) for kind in found.values()]
    yield Table(("type", "methods", "description"), cells)
    yield from problems_text(found.bad)


def types_json(found: Types) -> Document:
    types = [
        {"type": kind.name, "description": kind.description, "methods": list(kind.methods)} for kind in found.values()
    ]
    return with_problems({"types": types}, found.bad)


def type_text(kind: ModelType) -> Iterator[Part]:
    yield show(f"{kind.name}: {kind.description}" if kind.description else kind.name)
    for method in kind.methods.values():
        yield show("")
        yield show(f"{method.name}: {method.description}" if method.description else method.name)
        rows = list(_arguments(method.arguments))
        if rows:
            yield Table(("argument", "type", "default", "description"), rows)
        for output in method.outputs:
            yield show(f"makes {output.name}{_retention(output)}")


def type_json(kind: ModelType) -> Document:
    return {
        "type": kind.name,
        "description": kind.description,
        "methods": [
            {
                "name": method.name,
                "description": method.description,
                "arguments": dict(method.arguments),
                "outputs": [asdict(output) for output in method.outputs],
                "keep_failed": method.keep_failed,
            }
            for method in kind.methods.values()
        ],
    }


def ran_text(output: Output) -> Iterator[Part]:
    took = f" in {output.duration_s:.1f} s" if output.duration_s is not None else ""
    yield say(f"{output.model} {output.method}: {output.status}{took}")
    if output.data:
        cells = [(saved.name, str(saved.version), size(saved.size)) for saved in output.data]
        yield Table(("data", "version", "size"), cells, frozenset({"version", "size"}))


def ran_json(output: Output) -> Document:
    return {
        "output_id": output.id,
        "status": output.status,
        "data": [asdict(saved) for saved in output.data],
        "duration_s": output.duration_s,
        "error": output.error,
    }


def log_end_text(row: OutputRow, log: VersionRow | None) -> Iterator[Part]:
    """Show, below a log, what came of the method that printed it."""
    if row.error is not None:
        yield fail(f"{row.model} {row.method} {row.status}: {first_line(row.error)}")
    if log is None:
        yield note(
            f"{row.model} {row.method} ({row.id}, {row.status}) has no log: it printed nothing, or it is deleted"
        )
    elif not log.size:
        yield note(f"{row.model} {row.method} ({row.id}, {row.status}) printed nothing")


def outputs_text(rows: Sequence[OutputRow]) -> Iterator[Part]:
    if not rows:
        yield say("no outputs")
        return
    cells = [
        (
            row.id,
            row.method,
            row.status,
            moment(row.started_at),
            f"{row.duration_s:.1f} s" if row.duration_s is not None else "",
            ", ".join(f"{saved.name} {saved.version}" for saved in row.data),
            first_line(row.error or ""),
        )
        for row in rows
    ]
    yield Table(("output", "method", "status", "started", "took", "data", "error"), cells, frozenset({"took"}))
    failed = next((row for row in rows if row.status == "failed"), None)
    if failed is not None:
        yield hint(f"why one failed: `bayou model logs {quote(failed.model)} {failed.id[:8]}`")


def outputs_json(rows: Iterable[OutputRow]) -> Document:
    return {
        "outputs": [
            {
                "output_id": row.id,
                "method": row.method,
                "status": row.status,
                "started_at": row.started_at,
                "finished_at": row.finished_at,
                "duration_s": row.duration_s,
                "data": [asdict(saved) for saved in row.data],
                "error": row.error,
                "run": row.run,
                "workflow": row.workflow,
                "job": row.job,
                "step": row.step,
                "tags": dict(row.tags),
            }
            for row in rows
        ]
    }


def _arguments(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, argument in schema.get("properties", {}).items():
        default = json.dumps(argument["default"]) if "default" in argument else "required" if name in required else ""
        yield name, _type(argument), default, argument.get("description", "")


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _retention(output: OutputSpec) -> str:
    facts = (
        output.content_type,
        output.lifetime and f"lives {output.lifetime}",
        output.keep and f"keeps {output.keep}",
        "while it runs" if output.streaming else None,
    )
    text = ", ".join(fact for fact in facts if fact)
    return f" ({text})" if text else ""
