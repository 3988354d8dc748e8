"""Checking expressions before anything is evaluated: their syntax, and the names and inputs that they use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import ExpressionInvalid, QueryInvalid
from bayou.core.text import did_you_mean
from bayou.data.query.cost import CelToken, tokens
from bayou.models.expressions.scan import NAMES, Code, Path, parse, texts

if TYPE_CHECKING:
    from bayou.data.query.evaluator import BoundedProgram

_MAX_SHOWN = 200
DATA_FUNCTIONS = ("latest", "version", "query")

Where = Callable[[Path], str]
"""Returns the file and line of a value, for messages."""


class FoundExpression(Struct, frozen=True):
    """An expression, and its path in the value."""

    path: Path
    source: str


def uses(value: object, where: Where) -> list[FoundExpression]:
    """Return every expression in a value."""
    return [
        FoundExpression(path, part.source)
        for path, text in texts(value)
        for part in parse(text, where(path))
        if isinstance(part, Code)
    ]


def check(value: object, where: Where, names: Collection[str] = NAMES) -> None:
    """Raise `ExpressionInvalid` for the first expression with a syntax error or an unknown name."""
    for found in uses(value, where):
        compiled(found.source, where(found.path), names)


def inputs_used(value: object, where: Where) -> frozenset[str]:
    """Return the inputs that expressions use by name, as `inputs.host` or `inputs["host"]`."""
    named: set[str] = set()
    for found in uses(value, where):
        named.update(keys_used("inputs", found.source) or ())
    return frozenset(named)


def keys_used(name: str, source: str) -> frozenset[str] | None:
    """Return the keys of a map that an expression uses; None if they are computed, as in `env[inputs.which]`."""
    words = tokens(source)
    if words is None:
        return None
    used: set[str] = set()
    for at, word in enumerate(words):
        if word.named(name) and not (at and words[at - 1].sign(".")):
            key = _key(words[at + 1 : at + 5])
            if key is None:
                return None
            used.add(key)
    return frozenset(used)


def compiled(source: str, where: str, names: Collection[str]) -> BoundedProgram:
    """Compile an expression; `ExpressionInvalid` if its syntax, or a name or function in it, is wrong."""
    from bayou.data.query.cost import FUNCTIONS  # noqa: PLC0415
    from bayou.data.query.evaluator import BoundedProgram  # noqa: PLC0415  (only if there is an expression)
    from bayou.data.query.expression import TYPES, bound_names  # noqa: PLC0415

    if not source:
        raise ExpressionInvalid(f"{where}: an expression is empty", hint='write one, as ${{ inputs.host + ":80" }}')
    try:
        program = BoundedProgram(source, f"{where}: {_shown(source)!r}", DATA_FUNCTIONS)
    except QueryInvalid as error:
        raise ExpressionInvalid(error.message, hint="expressions are CEL, as ${{ inputs.host }}") from None
    local = {*bound_names(tokens(source) or []), *TYPES}
    for name in program.variables():
        if name not in names and name not in local:
            raise _unknown(where, "name", name, tuple(names))
    for name in _called(program):
        if name not in FUNCTIONS and name not in DATA_FUNCTIONS:
            raise _unknown(where, "function", name, (*DATA_FUNCTIONS, *FUNCTIONS))
    return program


def _shown(source: str) -> str:
    return source if len(source) <= _MAX_SHOWN else f"{source[:_MAX_SHOWN]}…"


def _called(program: BoundedProgram) -> Iterator[str]:
    return (name for name in program.functions() if name.isidentifier() and not name.startswith("_"))


def _key(words: Sequence[CelToken]) -> str | None:
    """Return the key of `.key` or `["key"]`; None for anything else."""
    if len(words) > 1 and words[0].sign(".") and words[1].kind == "name":
        return None if len(words) > 2 and words[2].sign("(") else words[1].text
    if len(words) > 2 and words[0].sign("[") and words[2].sign("]"):
        return words[1].string
    return None


def _unknown(where: str, what: str, name: str, known: tuple[str, ...]) -> ExpressionInvalid:
    hint = did_you_mean(name, known, f"there are {', '.join(known)}")
    return ExpressionInvalid(f"{where}: there is no {what} {name}", hint=hint)
