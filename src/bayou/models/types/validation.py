"""Validating arguments against JSON schemas, without requests and within bounds of time and memory (V23, V25).

Schemas are foreign input. A schema may refer only to its own parts: no validator here fetches a URL or a file.
`pattern` runs in Python's `re`, which backtracks and cannot be interrupted, and references can make a small schema an
endless one. So this process checks only simple schemas: no references, only the simplest patterns, and few values. A
child process, which has limits and can be killed, checks all others (`bayou.data.query.evaluator`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from bayou.core import limits
from bayou.core.documents import KeyPath
from bayou.core.errors import DeadlinePassed
from bayou.core.text import did_you_mean
from bayou.models.expressions.evaluate import redact
from bayou.models.expressions.scan import Path, has_expression
from bayou.models.types.schema import Schema

Finding = tuple[KeyPath, str, str | None, bool]
"""Path, message and hint of an error, and whether it is certain before expressions are evaluated."""

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names to schemas."""

_NOT_SCHEMAS = ("const", "default", "enum", "examples")
"""Keywords whose value is no schema."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDENTIFIERS = ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary")
_COSTLY = (*_REFERENCES, "patternProperties", "unevaluatedProperties", "unevaluatedItems", "uniqueItems")
_ATOM = r"(?:[\w .:/@-]|\\[dwsDWS.\-/]|\[\^?[\w .:/@-]+\])"
_PLAIN_PATTERN = rf"\^?(?:{_ATOM}(?:\{{\d{{1,2}}\}})?){{0,40}}(?:{_ATOM}[*+?])?{_ATOM}{{0,20}}\$?"
"""A pattern with one repetition of one atom: matching takes at most as many steps as a text has pairs of characters."""

_MAX_PATTERN = 100
_MAX_CHECKS = 200_000
"""Parts of a schema times values: so many take well under a second."""

_MAX_STEPS = 20_000_000
"""Patterns times pairs of characters: so many take well under a second."""

_LOCAL = re.compile(r"#(?:/[^\s]{0,1000})?")
_MAX_SHOWN = 200
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
    """An error in arguments: the path of keys to it, and what is wrong. `hint` says what to do, if that is known."""

    path: Path
    message: str
    hint: str | None = None


def problems(
    schema: Schema, arguments: Mapping[str, object], *, evaluated: bool = True, secrets: frozenset[str] = frozenset()
) -> list[ArgumentProblem]:
    """Return all errors in arguments, in the order of their paths; no message contains one of the `secrets`.

    Before the arguments are `evaluated`, errors that an expression could still correct are left out.
    """
    found = [
        ArgumentProblem(path, message, hint)
        for path, message, hint, certain in findings(schema, arguments, secrets)
        if evaluated or certain
    ]
    return sorted(found, key=lambda problem: [str(key) for key in problem.path])


def coerce(texts: Mapping[str, str], schema: Schema) -> dict[str, object]:
    """Convert what was typed as `name=value` to the types of the schema: numbers, lists and so on, written as JSON.

    A value that the schema accepts as text stays text, and so does a value that is not JSON: validation reports it.
    """
    wanted = schema.get("properties", {})
    return {name: _coerced(text, wanted.get(name, {})) for name, text in texts.items()}


def unusable(schema: object) -> Iterator[tuple[KeyPath, str]]:
    """Yield what a schema must not have: references out of it, and identifiers that would change what `#` means."""
    for key_path, found in _schemas(schema):
        for key in _REFERENCES:
            if key in found and not (isinstance(found[key], str) and _LOCAL.fullmatch(found[key])):
                yield (*key_path, key), f"{key} may only name a part of this schema, as #/properties/x"
        for key in _IDENTIFIERS:
            if key in found:
                yield (*key_path, key), f"{key} is not read: a schema here has no name of its own"


def findings(schema: Schema, value: object, secrets: frozenset[str] = frozenset()) -> list[Finding]:
    """Return what is wrong with a value, or that the schema itself is invalid.

    The check redacts `secrets` before it shortens a value for a message.
    """
    for key_path, problem in unusable(schema):
        return [((), f"the schema cannot be used: {'.'.join(map(str, key_path))}: {problem}", None, True)]
    return [
        (tuple(key_path), message, hint, certain)
        for key_path, message, hint, certain in _bounded(_findings, schema, value, sorted(secrets))
    ]


def schema_findings(schema: object) -> list[tuple[KeyPath, str]]:
    """Return the first error of a schema, with its path; nothing if the schema is valid."""
    for key_path, problem in unusable(schema):
        return [(key_path, problem)]
    return [(tuple(key_path), message) for key_path, message, *_ in _bounded(_schema_findings, schema, None, [])]


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
    return _schema_errors_as_findings(
        lambda: [found for error in _validator(schema).iter_errors(value) for found in findings_of(error, hidden)]
    )


def _schema_findings(schema: Any, _value: object, _secrets: list[str]) -> list[Any]:
    from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415

    def check() -> list[Any]:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            return [[list(error.path), " ".join(error.message.split())[:_MAX_SHOWN], None, True]]
        return []

    return _schema_errors_as_findings(check)


def _schema_errors_as_findings(check: Callable[[], list[Any]]) -> list[Any]:
    """Run a check; errors that the validator raises because of an invalid schema become findings."""
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
        # Draft202012Validator does not check its schema first, and raises these errors for an invalid one.
        return [[(), f"the schema cannot be used: {' '.join(str(error).split())[:_MAX_SHOWN]}", None, True]]


def _validator(schema: Any) -> Any:
    """Return a validator that fetches nothing: its registry is empty, and cannot retrieve."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415  (importing it takes longer than most commands)
    from referencing import Registry  # noqa: PLC0415

    registry: Any = Registry()
    return Draft202012Validator(schema, registry=registry)


def _is_plain(schema: object, value: object) -> bool:
    """Return whether checking a value against a schema is sure to be fast."""
    parts = patterns = 0
    for _, found in _schemas(schema):
        parts += 1 + len(found)
        if any(key in found for key in _COSTLY):
            return False
        pattern = found.get("pattern")
        patterns += pattern is not None
        if pattern is not None and not _is_plain_pattern(pattern):
            return False
    count, pairs = _measure(value)
    return parts * count <= _MAX_CHECKS and patterns * pairs <= _MAX_STEPS and parts <= _MAX_CHECKS // 100


def _is_plain_pattern(pattern: object) -> bool:
    return (
        isinstance(pattern, str)
        and len(pattern) <= _MAX_PATTERN
        and re.fullmatch(_PLAIN_PATTERN, pattern, re.ASCII) is not None
    )


def _measure(value: object) -> tuple[int, int]:
    """Return how many values a value contains, and how many pairs of characters their texts have."""
    count = pairs = 0
    level = [value]
    while level and count <= _MAX_CHECKS:
        count += len(level)
        below: list[object] = []
        for element in level:
            if isinstance(element, str):
                pairs += len(element) ** 2
            elif isinstance(element, Mapping):
                below += element.keys()
                below += element.values()
            elif isinstance(element, list | tuple):
                below += element
        level = below
    return count, pairs


def _schemas(schema: object) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Yield a schema and every schema inside it, each with its path."""
    waiting: list[tuple[KeyPath, object]] = [((), schema)]
    while waiting:
        key_path, found = waiting.pop()
        if isinstance(found, list | tuple):
            waiting += [((*key_path, at), element) for at, element in enumerate(found)]
        if not isinstance(found, Mapping):
            continue
        yield key_path, found
        for key, value in found.items():
            if key in _SCHEMA_MAPS and isinstance(value, Mapping):
                waiting += [((*key_path, key, name), element) for name, element in value.items()]
            elif key not in _NOT_SCHEMAS:
                waiting.append(((*key_path, key), value))


def _coerced(text: str, schema: Schema) -> object:
    if not schema or schema.get("type") == "string" or has_expression(text):
        return text
    if not findings(schema, text):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def findings_of(error: Any, secrets: frozenset[str]) -> list[Finding]:
    """Return a validator's error as findings, one for each name; certain, unless an expression could still correct it.

    The validator has one error for all unknown names, and one for each missing name, which does not say which.
    """
    certain = error.validator in ("required", "additionalProperties") or not has_expression(error.instance)
    return [(found.path, found.message, found.hint, certain) for found in _problems(error, secrets)]


def _problems(error: Any, secrets: frozenset[str]) -> list[ArgumentProblem]:
    path = tuple(error.absolute_path)
    match error.validator:
        case "additionalProperties" if error.validator_value is False:
            return _unknown(path, error)
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            name = next((name for name in missing if error.message.startswith(f"{name!r} ")), missing[0])
            return [ArgumentProblem(path, f"{_named((*path, name))} is missing")]
        case "type":
            kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
            wanted = " or ".join(_KINDS.get(kind, str(kind)) for kind in kinds)
            return [
                ArgumentProblem(path, f"{_named(path)} must be {wanted}, not {_shown(redact(error.instance, secrets))}")
            ]
        case "enum":
            wanted = ", ".join(_shown(value) for value in error.validator_value)
            return [
                ArgumentProblem(
                    path, f"{_named(path)} must be one of {wanted}, not {_shown(redact(error.instance, secrets))}"
                )
            ]
    return [ArgumentProblem(path, f"{_named(path)}: {' '.join(redact(error.message, secrets).split())[:_MAX_SHOWN]}")]


def _unknown(path: Path, error: Any) -> list[ArgumentProblem]:
    known = list(error.schema.get("properties", {}))
    patterns = list(error.schema.get("patternProperties", {}))
    otherwise = f"there are {', '.join(known)}" if known else "it takes none"
    return [
        ArgumentProblem(
            (*path, name), f"unknown argument {_named((*path, name))}", did_you_mean(name, known, otherwise)
        )
        for name in error.instance
        if name not in known and not any(re.search(pattern, name) for pattern in patterns)
    ]


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "the arguments"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
