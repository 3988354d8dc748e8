"""JSON schemas of others: checked without a request, and within bounds of time and memory (V23, V25).

A schema refers to nothing but its own parts: there is nobody who would fetch a URL or a file. `pattern` runs in
Python's `re`, which backtracks and cannot be interrupted, and references can make a small schema an endless one. So
this process checks only what is plain: no reference, no pattern but the simplest, and little of both sides. All else
is checked in a process of its own, which has limits and can be killed (`bayou.data.query.evaluator`).

Whether arguments are what a method takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from bayou.core import limits
from bayou.core.errors import DeadlinePassed
from bayou.core.text import did_you_mean
from bayou.models.expressions.evaluate import redact
from bayou.models.expressions.scan import Path, has_expression
from bayou.models.types.schema import Schema

Place = tuple[str | int, ...]
Finding = tuple[Place, str, str | None, bool]
"""Where something is wrong, what, what to do about it, and whether that is sure before expressions are evaluated."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value has schemas under names of the author's."""

_DATA = ("const", "default", "enum", "examples")
"""Keywords whose value is no schema."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMING = ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary")
_COSTLY = (*_REFERENCES, "patternProperties", "unevaluatedProperties", "unevaluatedItems", "uniqueItems")
_ATOM = r"(?:[\w .:/@-]|\\[dwsDWS.\-/]|\[\^?[\w .:/@-]+\])"
_PLAIN_PATTERN = rf"\^?(?:{_ATOM}(?:\{{\d{{1,2}}\}})?){{0,40}}(?:{_ATOM}[*+?])?{_ATOM}{{0,20}}\$?"
"""A pattern with one repetition of one character: it takes at most as many steps as a text has pairs of characters."""

_LONGEST_PATTERN = 100
_PLAIN_CHECKS = 200_000
"""Parts of a schema, times values: what takes well under a second."""

_PLAIN_STEPS = 20_000_000
"""Patterns, times pairs of characters: the same."""

_SHOWN = 200


def unusable(schema: object) -> Iterator[tuple[Place, str]]:
    """Yield what a schema must not have: references out of it, and names that would change what `#` means."""
    for place, found in _schemas(schema):
        for key in _REFERENCES:
            if key in found and not (isinstance(found[key], str) and _LOCAL.fullmatch(found[key])):
                yield (*place, key), f"{key} may only name a part of this schema, as #/properties/x"
        for key in _NAMING:
            if key in found:
                yield (*place, key), f"{key} is not read: a schema here has no name of its own"


_LOCAL = re.compile(r"#(?:/[^\s]{0,1000})?")


def findings(schema: Schema, value: object, secrets: frozenset[str] = frozenset()) -> list[Finding]:
    """Return what is wrong with a value, or that it cannot be told, since the schema is none.

    The check redacts `secrets` itself, before it shortens what it says of a value.
    """
    for place, problem in unusable(schema):
        return [((), f"the schema cannot be used: {'.'.join(map(str, place))}: {problem}", None, True)]
    return [
        (tuple(place), message, hint, settled)
        for place, message, hint, settled in _bounded(_findings, schema, value, sorted(secrets))
    ]


def schema_findings(schema: object) -> list[tuple[Place, str]]:
    """Return the first thing that keeps a schema from being one, with its place; nothing if it is one."""
    for place, problem in unusable(schema):
        return [(place, problem)]
    return [(tuple(place), message) for place, message, *_ in _bounded(_schema_findings, schema, None, [])]


def _bounded(
    check: Callable[[Any, Any, list[str]], list[Any]], schema: object, value: object, secrets: list[str]
) -> list[Any]:
    if _is_plain(schema, value):
        return check(schema, value, secrets)
    from bayou.data.query.evaluator import call_in_child  # noqa: PLC0415  (hardly ever needed)

    try:
        found: list[Any] = call_in_child(__name__, check.__name__, schema, value, secrets)
    except DeadlinePassed:
        return [[(), f"the schema takes more than {limits.EXPRESSION_SECONDS:g} s to check", None, True]]
    except EOFError:
        return [[(), "the schema takes more memory than it may, or too long", None, True]]
    return found


def _findings(schema: Any, value: object, secrets: list[str]) -> list[Any]:

    hidden = frozenset(secrets)
    return _guarded(lambda: [finding_of(error, hidden) for error in _validator(schema).iter_errors(value)])


def _schema_findings(schema: Any, _value: object, _secrets: list[str]) -> list[Any]:
    from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415

    def check() -> list[Any]:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            return [[list(error.path), " ".join(error.message.split())[:_SHOWN], None, True]]
        return []

    return _guarded(check)


def _guarded(check: Callable[[], list[Any]]) -> list[Any]:
    """Run a check; what the validator raises over a schema that is none is a finding."""
    from jsonschema.exceptions import UndefinedTypeCheck, UnknownType  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        return check()
    except RecursionError:
        return [[(), "the schema refers to itself without end", None, True]]
    except Unresolvable as error:
        return [[(), f"the schema has no part {error.ref}", None, True]]
    except (
        UndefinedTypeCheck,
        UnknownType,
        re.error,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
    ) as error:
        # Draft202012Validator takes a schema on trust, and raises whatever comes of one that is none.
        return [[(), f"the schema cannot be used: {' '.join(str(error).split())[:_SHOWN]}", None, True]]


_OF_NO_SCHEMA = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def _validator(schema: Any) -> Any:
    """Return a validator that fetches nothing: its registry has nothing in it, and retrieves nothing."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415  (it takes longer to load than most commands do)
    from referencing import Registry  # noqa: PLC0415

    registry: Any = Registry()
    return Draft202012Validator(schema, registry=registry)


def _is_plain(schema: object, value: object) -> bool:
    """Say whether a schema is checked against a value in a moment, whatever is in both."""
    parts = patterns = 0
    for _, found in _schemas(schema):
        parts += 1 + len(found)
        if any(key in found for key in _COSTLY):
            return False
        pattern = found.get("pattern")
        patterns += pattern is not None
        if pattern is not None and not _is_plain_pattern(pattern):
            return False
    count, pairs = _measured(value)
    return parts * count <= _PLAIN_CHECKS and patterns * pairs <= _PLAIN_STEPS and parts <= _PLAIN_CHECKS // 100


def _is_plain_pattern(pattern: object) -> bool:
    return (
        isinstance(pattern, str)
        and len(pattern) <= _LONGEST_PATTERN
        and re.fullmatch(_PLAIN_PATTERN, pattern, re.ASCII) is not None
    )


def _measured(value: object) -> tuple[int, int]:
    """Return how many values there are in one, and how many pairs of characters their texts have."""
    count = pairs = 0
    level = [value]
    while level and count <= _PLAIN_CHECKS:
        count += len(level)
        below: list[object] = []
        for one in level:
            if isinstance(one, str):
                pairs += len(one) ** 2
            elif isinstance(one, Mapping):
                below += one.keys()
                below += one.values()
            elif isinstance(one, list | tuple):
                below += one
        level = below
    return count, pairs


def _schemas(schema: object) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield every schema within one, and its place."""
    waiting: list[tuple[Place, object]] = [((), schema)]
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, list | tuple):
            waiting += [((*place, at), one) for at, one in enumerate(found)]
        if not isinstance(found, Mapping):
            continue
        yield place, found
        for key, value in found.items():
            if key in _MAPS and isinstance(value, Mapping):
                waiting += [((*place, key, name), one) for name, one in value.items()]
            elif key not in _DATA:
                waiting.append(((*place, key), value))


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


class ArgumentProblem(Struct, frozen=True):
    """What is wrong with arguments, and where: the keys that lead to it. `hint` says what to do, if that is known."""

    path: Path
    message: str
    hint: str | None = None


def problems(
    schema: Schema, arguments: Mapping[str, object], *, evaluated: bool = True, secrets: frozenset[str] = frozenset()
) -> list[ArgumentProblem]:
    """Return all that is wrong with arguments, in the order of the places; no message tells one of the `secrets`.

    Before they are `evaluated`, whatever an expression could still put right is passed over.
    """
    found = [
        ArgumentProblem(path, message, hint)
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


def _problem(error: Any, secrets: frozenset[str]) -> ArgumentProblem:
    path = tuple(error.absolute_path)
    match error.validator:
        case "additionalProperties" if error.validator_value is False:
            return _unknown(path, error)
        case "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            return ArgumentProblem(path, f"{_named((*path, missing))} is missing")
        case "type":
            kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
            wanted = " or ".join(_KINDS.get(kind, str(kind)) for kind in kinds)
            return ArgumentProblem(
                path, f"{_named(path)} must be {wanted}, not {_shown(redact(error.instance, secrets))}"
            )
        case "enum":
            wanted = ", ".join(_shown(value) for value in error.validator_value)
            return ArgumentProblem(
                path, f"{_named(path)} must be one of {wanted}, not {_shown(redact(error.instance, secrets))}"
            )
    return ArgumentProblem(path, f"{_named(path)}: {' '.join(redact(error.message, secrets).split())[:_LONGEST]}")


def _unknown(path: Path, error: Any) -> ArgumentProblem:
    known = list(error.schema.get("properties", {}))
    name = next(name for name in error.instance if name not in known)
    hint = did_you_mean(name, known, f"there are {', '.join(known)}" if known else "it takes none")
    return ArgumentProblem((*path, name), f"unknown argument {_named((*path, name))}", hint)


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "the arguments"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
