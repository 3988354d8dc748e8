"""Finding expressions in texts and values, and the names that expressions can use (`EvaluationScope`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct, field

from bayou.core import limits
from bayou.core.errors import ExpressionInvalid
from bayou.core.structs import SelectiveStruct
from bayou.data.query.cost import token_at

if TYPE_CHECKING:
    from bayou.models.expressions.evaluate import DataLookup

OPEN, CLOSE = "${{", "}}"
NAMES = ("inputs", "env", "run", "data", "steps")

Path = tuple[str | int, ...]
"""The path of a value inside another: the keys and positions that lead to it."""


def _environment() -> Mapping[str, str]:
    return dict(os.environ)


class EvaluationScope(SelectiveStruct, frozen=True):
    """The values of the names that expressions can use. `more` has further names, such as a loop's item.

    `data` answers `data.latest` and the like; None where expressions cannot use data.
    """

    unshown: ClassVar[tuple[str, ...]] = ("env",)

    inputs: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=_environment)
    run: Mapping[str, object] = field(default_factory=dict)
    steps: Mapping[str, object] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    data: DataLookup | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*NAMES, *self.more)


class Code(Struct, frozen=True):
    """One expression, without its delimiters."""

    source: str


Template = tuple[str | Code, ...]


def has_expression(value: object) -> bool:
    """Return whether an expression occurs anywhere in a value."""
    return any(True for _ in texts(value))


def texts(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield each text of a value that has an expression, with its path. Keys are never evaluated."""
    match value:
        case str():
            if OPEN in value:
                yield path, value
        case Mapping():
            for key, element in value.items():
                yield from texts(element, (*path, key))
        case list() | tuple():
            for at, element in enumerate(value):
                yield from texts(element, (*path, at))


def parse(text: str, where: str) -> Template:
    """Split a text into literal parts and expressions; `ExpressionInvalid` if an expression has no end."""
    parts: list[str | Code] = []
    at = 0
    while (begin := text.find(OPEN, at)) >= 0:
        if begin > at:
            parts.append(text[at:begin])
        end = _end(text, begin + len(OPEN))
        if end < 0:
            problem = f"an expression has no end: {text[begin:][:40]!r}"
            raise ExpressionInvalid(f"{where}: {problem}", hint="close it with }}")
        parts.append(Code(text[begin + len(OPEN) : end].strip()))
        at = end + len(CLOSE)
    if at < len(text):
        parts.append(text[at:])
    return tuple(parts)


def _end(text: str, begin: int) -> int:
    """Return where an expression ends: at the first }} that is neither inside a string nor a part of a map.

    This reads the tokens once, since a text can have any number of }} in it.
    """
    first = text.find(CLOSE, begin)
    depth, at = 0, begin
    while first >= 0 and at < len(text) and at - begin <= limits.EXPRESSION_CHARACTERS:
        if depth == 0 and text.startswith(CLOSE, at):
            return at
        word = token_at(text, at)
        if word is None:
            break
        if word.startswith("//") and depth == 0 and CLOSE in word:
            return at + word.index(CLOSE)
        depth += (word == "{") - (word == "}")
        at += len(word)
    return first  # not CEL: compiling it raises the error
