"""Types and outputs of models as people read them.

Types and outputs of models as JSON has them; like `documents`, a contract for scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from bayou.cli.output import Part, Table, fail, first_line, hint, moment, say, show, size
from bayou.cli.render.datastore import Document

if TYPE_CHECKING:
    from bayou.data.catalog.rows import OutputRow
    from bayou.data.outputs import Output
    from bayou.models.types import ModelType, OutputSpec, Types


def types_text(found: Types) -> Iterator[Part]:
    cells = [(kind.name, ", ".join(kind.methods), kind.description) for kind in found.values()]
    yield Table(("type", "methods", "description"), cells)
    for error in found.bad:
        yield fail(error.message)
        if error.hint:
            yield hint(error.hint)


def type_text(kind: ModelType) -> Iterator[Part]:
    yield show(f"{kind.name}: {kind.description}" if kind.description else kind.name)
    for method in kind.methods.values():
        yield show("")
        yield show(f"{method.name}: {method.description}" if method.description else method.name)
        rows = list(_arguments(method.arguments))
        if rows:
            yield Table(("argument", "type", "default", "description"), rows)
        for made in method.outputs:
            yield show(f"makes {made.name}{_kept(made)}")


def ran_text(output: Output) -> Iterator[Part]:
    took = f" in {output.duration_s:.1f} s" if output.duration_s is not None else ""
    yield say(f"{output.model} {output.method}: {output.status}{took}")
    if output.data:
        cells = [(made.name, str(made.version), size(made.size)) for made in output.data]
        yield Table(("data", "version", "size"), cells, frozenset({"version", "size"}))
    if output.error is not None:
        yield fail(first_line(output.error))
        if any(made.name == "log" for made in output.data):
            yield hint(f"all that it printed: `bayou data get {output.model} log`")


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
            ", ".join(f"{made.name} {made.version}" for made in row.data),
            first_line(row.error or ""),
        )
        for row in rows
    ]
    yield Table(("output", "method", "status", "started", "took", "data", "error"), cells, frozenset({"took"}))


def _arguments(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, said in schema.get("properties", {}).items():
        default = json.dumps(said["default"]) if "default" in said else "required" if name in required else ""
        yield name, _type(said), default, said.get("description", "")


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _kept(made: OutputSpec) -> str:
    said = [made.content_type, made.lifetime and f"lives {made.lifetime}", made.keep and f"keeps {made.keep}"]
    words = [word for word in (*said, "while it runs" if made.streaming else None) if word]
    return f" ({', '.join(words)})" if words else ""


def types_json(found: Types) -> Document:
    document: dict[str, object] = {
        "types": [
            {"type": kind.name, "description": kind.description, "methods": list(kind.methods)}
            for kind in found.values()
        ]
    }
    if found.bad:
        document["problems"] = [error.message for error in found.bad]
    return document


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


def ran_json(output: Output) -> Document:
    return {
        "output_id": output.id,
        "status": output.status,
        "data": [asdict(made) for made in output.data],
        "duration_s": output.duration_s,
        "error": output.error,
    }


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
                "data": [asdict(made) for made in row.data],
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
