"""The tokens of a CEL expression, and an upper bound on the cost of evaluating it, from tokens and input size (V25).

CEL has no loops but its macros, and no variables but theirs. So without a macro, time and memory are at most tokens
times input, times the number of additions, since each addition copies its operands. A macro iterates over a list, which
has at most as many elements as the input has values, times the lists that are added up; a macro inside another runs for
each element of the outer list. For each element CEL copies the macro's result so far: that is as long as the input if
the macro uses its elements alone, and otherwise as long as both lists together. `map` can multiply the size of an
element by the number of times that it names the element, and the next `map` can do so again.

The tokenizer sees enough to find names, literals and macros; the meaning of an expression is left to CEL.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from bayou.core import limits

Kind = Literal["text", "number", "name", "sign"]

_TOKEN = re.compile(
    r"""
    (?P<gap>[\s]+|//[^\n]*)
    |(?P<text>
        [rR][bB]?\"{3}.*?\"{3} | [rR][bB]?'{3}.*?'{3} | [rR][bB]?\"[^\"\n]*\" | [rR][bB]?'[^'\n]*'
        |[bB][rR]\"{3}.*?\"{3} | [bB][rR]'{3}.*?'{3} | [bB][rR]\"[^\"\n]*\" | [bB][rR]'[^'\n]*'
        |[bB]?\"{3}(?:\\.|[^\\])*?\"{3} | [bB]?'{3}(?:\\.|[^\\])*?'{3}
        |[bB]?\"(?:\\.|[^\"\\\n])*\" | [bB]?'(?:\\.|[^'\\\n])*'
    )
    |(?P<number>0[xX][0-9a-fA-F]+[uU]? | (?:\d+\.\d+|\.\d+|\d+)(?:[eE][+-]?\d+)?[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>==|!=|<=|>=|&&|\|\||[<>!?:.,()\[\]{}+\-*/%])
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_TEXT = re.compile(r"""(["'])((?:(?!\1)[^\\\n\0])*)\1""")
_PLAIN_NUMBER = re.compile(r"\d{1,18}")

MACROS = ("all", "exists", "exists_one", "map", "filter")
FUNCTIONS = (
    *("bytes", "contains", "double", "duration", "dyn", "endsWith", "has", "int", "matches", "size", "startsWith"),
    *("string", "timestamp", "type", "uint"),
    *("getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds"),
    *("getMinutes", "getMonth", "getSeconds"),
    *("hasValue", "none", "of", "or", "orValue", "value"),
)
"""Functions whose time is linear in their arguments, except `matches`."""

_MAX_PATTERN = 100
_VALUE_BYTES = 64
"""The weight of a value besides its text: about the bytes that it takes in Python."""

_KEYWORDS = ("true", "false", "null", "in")
_SCALARS = frozenset({int, float, bool, type(None), datetime})


class CelToken(NamedTuple):
    """One token of an expression, and where it begins."""

    kind: Kind
    text: str
    at: int

    @property
    def string(self) -> str | None:
        """The value of a string literal without escapes; None for any other token."""
        found = _PLAIN_TEXT.fullmatch(self.text) if self.kind == "text" else None
        return found[2] if found is not None else None

    @property
    def integer(self) -> int | None:
        """The value of a decimal integer literal; None for any other token."""
        return int(self.text) if self.kind == "number" and _PLAIN_NUMBER.fullmatch(self.text) else None

    def sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs

    def named(self, *names: str) -> bool:
        return self.kind == "name" and self.text in names


def key_order(words: Sequence[CelToken]) -> dict[str, int]:
    """Rank the keys of an expression's map literals in the order in which they occur."""
    ranks: dict[str, int] = {}
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        if before.sign("{", ",") and word.string is not None and after.sign(":"):
            ranks.setdefault(word.string, len(ranks))
    return ranks


def token_at(source: str, at: int) -> str | None:
    """Return the token, gap or comment that begins at a position; None if the text there is not CEL."""
    found = _TOKEN.match(source, at)
    return None if found is None else found[0]


@functools.lru_cache(64)
def tokens(source: str) -> Sequence[CelToken] | None:
    """Return the tokens of an expression; None if a part of it is not CEL. Cached: several callers share them."""
    found: list[CelToken] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            return None
        kind = match.lastgroup
        if kind != "gap":
            found.append(CelToken(kind, match[0], at))  # type: ignore[arg-type]
        at = match.end()
    return tuple(found)


class Weight(NamedTuple):
    """How many values there are, and their weight in all, about the bytes that they take."""

    values: int
    total: int


class Cost(Struct, frozen=True):
    """The bounds of one expression. `own` is the weight of its literals.

    The cost grows with the length of a list to the power `power`. `growth` is how many times larger than the input the
    macros together can make a value.
    """

    words: int
    macros: int
    power: int
    additions: int
    growth: int
    own: Weight

    def allows(self, given: Weight) -> bool:
        """Return whether the expression is cheap for input of such weight."""
        larger = (self.additions + 1) * self.growth
        longest = (given.values + self.own.values) * larger
        passes: int = max(1, self.macros) * longest**self.power
        return self.words * passes * larger * (given.total + self.own.total) <= limits.EXPRESSION_STEPS

    @property
    def most(self) -> int:
        """The weight of input above which the expression is never cheap."""
        return limits.EXPRESSION_STEPS // max(1, self.words) - self.own.total


def cost_of(source: str, functions: Iterable[str] = ()) -> Cost | None:
    """Return the bounds of an expression's cost; None if its tokens do not show them.

    `functions` are the caller's: their answers count as input, and are weighed when they come.
    """
    words = tokens(source)
    if words is None:
        return None
    known = {*FUNCTIONS, *functions}
    within: list[_Macro | None] = []
    macros: list[_Macro] = []
    depth = additions = 0
    closed = True
    for at, word in enumerate(words):
        if word.sign("("):
            within.append(_macro_at(words, at))
            macros += [macro for macro in within[-1:] if macro is not None]
            depth = max(depth, sum(macro is not None for macro in within))
        elif word.sign(")") and within:
            within.pop()
        elif word.sign("+"):
            additions += 1
        elif word.kind == "name" and words[at + 1 : at + 2] and words[at + 1].sign("("):
            plain = word.text != "matches" or _plain_pattern(words[at + 2 : at + 4])
            if word.text not in MACROS and (word.text not in known or not plain):
                return None
        elif word.kind == "name" and not (at and words[at - 1].sign(".")):
            around = [macro for macro in within if macro is not None]
            meant = [macro for macro in around if macro.element == word.text]
            closed = closed and (bool(meant) or not around or word.text in _KEYWORDS)
            for macro in meant:
                macro.named += 1
    if any(macro.element is None for macro in macros):
        return None
    growth = math.prod(max(1, macro.named - 1) for macro in macros if macro.grows)
    own = Weight(len(words), len(source) + _VALUE_BYTES * len(words))
    return Cost(len(words), len(macros), depth if depth < 2 and closed else depth + 1, additions, growth, own)


def weigh(values: Iterable[Any], most: int) -> Weight:
    """Return the weight of values with all their elements; if it is above `most`, any weight above it."""
    count = total = 0
    level = [*values]
    while level:
        count += len(level)
        total += _VALUE_BYTES * len(level)
        if total > most:
            break
        below: list[Any] = []
        for value in level:
            kind = type(value)  # hot: for every field of every row, and `isinstance` of an ABC is slow
            if kind is str or kind is bytes:
                total += len(value)
            elif kind is dict:
                below += value
                below += value.values()
            elif kind is list:
                below += value
            elif kind not in _SCALARS:
                below += _elements(value)
        level = below
    return Weight(count, total)


class _Macro:
    """An open macro: its name for an element, and how often that name occurred, its declaration included."""

    def __init__(self, element: str | None, *, grows: bool) -> None:
        self.element = element
        self.grows = grows
        self.named = 0


def _macro_at(words: Sequence[CelToken], at: int) -> _Macro | None:
    """Return the macro that a parenthesis opens; None if it opens something else."""
    if not (at and words[at - 1].named(*MACROS)):
        return None
    inside = words[at + 1 : at + 3]
    plain = len(inside) == 2 and inside[0].kind == "name" and inside[1].sign(",")
    return _Macro(inside[0].text if plain else None, grows=words[at - 1].text == "map")


def _elements(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return [*value] if isinstance(value, list | tuple) else [str(value)]


def _plain_pattern(words: Sequence[CelToken]) -> bool:
    """Return whether the argument of `matches` is cheap to compile: a short literal without counted repetitions."""
    if len(words) < 2 or not words[1].sign(")") or words[0].kind != "text":
        return False
    return len(words[0].text) <= _MAX_PATTERN and "{" not in words[0].text
