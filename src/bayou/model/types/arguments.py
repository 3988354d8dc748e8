"""Whether arguments are what a method takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from bayou.core.text import did_you_mean
from bayou.model.expressions.redact import redact
from bayou.model.expressions.scan import Path, has_expression
from bayou.model.types.spec import Schema
from bayou.model.types.validation import Finding, findings

_LONGEST = 200
_KINDS = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}


class Problem(Struct, frozen=True):
    """What is wrong with arguments, and where: the keys that lead to it. `hint` says what to do, if that is known."""

    path: Path
    message: str
    hint: str | None = None


def problems(
    schema: Schema, arguments: Mapping[str, object], *, evaluated: bool = True, secrets: frozenset[str] = frozenset()
) -> list[Problem]:
    """Return all that is wrong with arguments, in the order of the places; no message tells one of the `secrets`.

    Before they are `evaluated`, whatever an expression could still put right is passed over.
    """
    found = [
        Problem(path, message, hint)
        for path, message, hint, settled in findings(schema, arguments, secrets)
        if evaluated or settled
    ]
    return sorted(found, key=lambda problem: [str(key) for key in problem.path])


def coerce(texts: Mapping[str, str], schema: Schema) -> dict[str, object]:
    """Return what was typed as `name=value` as the schema wants it: numbers, lists and so on, written as JSON.

    What wants to be a text stays one, and so does what is no JSON: the schema will say what is wrong with it.
    """
    wanted = schema.get("properties", {})
    return {name: _coerced(text, wanted.get(name, {})) for name, text in texts.items()}


def _coerced(text: str, schema: Schema) -> object:
    if not schema or schema.get("type") == "string" or has_expression(text):
        return text
    if not findings(schema, text):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def finding_of(error: Any, secrets: frozenset[str]) -> Finding:
    """Return what a validator found, in words; settled, unless an expression in the value could still put it right."""
    settled = error.validator in ("required", "additionalProperties") or not has_expression(error.instance)
    found = _problem(error, secrets)
    return found.path, found.message, found.hint, settled


def _problem(error: Any, secrets: frozenset[str]) -> Problem:
    path = tuple(error.absolute_path)
    match error.validator:
        case "additionalProperties" if error.validator_value is False:
            return _unknown(path, error)
        case "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            return Problem(path, f"{_named((*path, missing))} is missing")
        case "type":
            kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
            wanted = " or ".join(_KINDS.get(kind, str(kind)) for kind in kinds)
            return Problem(path, f"{_named(path)} must be {wanted}, not {_shown(redact(error.instance, secrets))}")
        case "enum":
            wanted = ", ".join(_shown(value) for value in error.validator_value)
            return Problem(
                path, f"{_named(path)} must be one of {wanted}, not {_shown(redact(error.instance, secrets))}"
            )
    return Problem(path, f"{_named(path)}: {' '.join(redact(error.message, secrets).split())[:_LONGEST]}")


def _unknown(path: Path, error: Any) -> Problem:
    known = list(error.schema.get("properties", {}))
    name = next(name for name in error.instance if name not in known)
    hint = did_you_mean(name, known, f"there are {', '.join(known)}" if known else "it takes none")
    return Problem((*path, name), f"unknown argument {_named((*path, name))}", hint)


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "the arguments"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
