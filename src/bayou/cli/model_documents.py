"""Types and outputs of models as JSON has them; like `documents`, a contract for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from bayou.cli.documents import Document

if TYPE_CHECKING:
    from bayou.data.catalog.rows import OutputRow
    from bayou.data.outputs import Output
    from bayou.models.types import ModelType, Types


def types(found: Types) -> Document:
    document: dict[str, object] = {
        "types": [
            {"type": kind.name, "description": kind.description, "methods": list(kind.methods)}
            for kind in found.values()
        ]
    }
    if found.bad:
        document["problems"] = [error.message for error in found.bad]
    return document


def type_(kind: ModelType) -> Document:
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


def ran(output: Output) -> Document:
    return {
        "output_id": output.id,
        "status": output.status,
        "data": [asdict(made) for made in output.data],
        "duration_s": output.duration_s,
        "error": output.error,
    }


def outputs(rows: Iterable[OutputRow]) -> Document:
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
