"""What evaluating a CEL expression can cost at most: told from its words and from the size of what it is given (V25).

CEL has no loops but its macros, and no variables but theirs. So without a macro time and memory are at most words times
input, and once more times the values that it adds up, since each addition copies what it has. A macro goes through a
list. That has at most as many elements as the input has values, times the lists that are added up; a macro that stands
in another is gone through for each element of that one. For each element the evaluator copies what the macro has so
far: that is as long as the input if the macro is made of its elements alone, and else as long as both lists together.
`map` can make each element as many times as large as it names it, and the next `map` can do so again.

The words of a CEL expression. Enough to see what it asks for; what it means is for the evaluator to say.
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


class Token(NamedTuple):
    """One word, and where it begins."""

    kind: Kind
    text: str
    at: int

    @property
    def string(self) -> str | None:
        """The text that this stands for, if that is plain to see."""
        found = _PLAIN_TEXT.fullmatch(self.text) if self.kind == "text" else None
        return found[2] if found is not None else None

    @property
    def integer(self) -> int | None:
        """The number that this stands for, if that is plain to see."""
        return int(self.text) if self.kind == "number" and _PLAIN_NUMBER.fullmatch(self.text) else None

    def sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs

    def named(self, *names: str) -> bool:
        return self.kind == "name" and self.text in names


def key_order(words: Sequence[Token]) -> dict[str, int]:
    """Rank the keys of the maps that an expression writes down, in the order in which it names them."""
    ranks: dict[str, int] = {}
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        if before.sign("{", ",") and word.string is not None and after.sign(":"):
            ranks.setdefault(word.string, len(ranks))
    return ranks


def token_at(source: str, at: int) -> str | None:
    """Return the word, the gap or the comment that begins at a place; None if nothing of CEL does."""
    found = _TOKEN.match(source, at)
    return None if found is None else found[0]


@functools.lru_cache(64)
def tokens(source: str) -> Sequence[Token] | None:
    """Return the words of an expression; None if it has something else in it. Several ask for those of one."""
    found: list[Token] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            return None
        kind = match.lastgroup
        if kind != "gap":
            found.append(Token(kind, match[0], at))  # type: ignore[arg-type]
        at = match.end()
    return tuple(found)


MACROS = ("all", "exists", "exists_one", "map", "filter")
FUNCTIONS = (
    *("bytes", "contains", "double", "duration", "dyn", "endsWith", "has", "int", "matches", "size", "startsWith"),
    *("string", "timestamp", "type", "uint"),
    *("getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds"),
    *("getMinutes", "getMonth", "getSeconds"),
    *("hasValue", "none", "of", "or", "orValue", "value"),
)
"""What is known to take time that is linear in its arguments, but for `matches`."""

_LONGEST_PATTERN = 100
_VALUE = 64
"""What a value weighs besides its text: about the bytes that it takes in Python."""


class Weight(NamedTuple):
    """How many values there are, and what they weigh in all."""

    values: int
    total: int


class Cost(Struct, frozen=True):
    """Bounds of one expression, and what the values that stand in it weigh (`own`).

    `power` is that of the length of a list to which the cost grows, `growth` how many times larger than the input the
    macros, one after the other, can make a value.
    """

    words: int
    macros: int
    power: int
    additions: int
    growth: int
    own: Weight

    def allows(self, given: Weight) -> bool:
        """Say whether the expression is cheap over such input."""
        larger = (self.additions + 1) * self.growth
        longest = (given.values + self.own.values) * larger
        passes: int = max(1, self.macros) * longest**self.power
        return self.words * passes * larger * (given.total + self.own.total) <= limits.EXPRESSION_STEPS

    @property
    def most(self) -> int:
        """The weight of input above which the expression is never cheap."""
        return limits.EXPRESSION_STEPS // max(1, self.words) - self.own.total


def cost_of(source: str, functions: Iterable[str] = ()) -> Cost | None:
    """Return what bounds the cost of an expression; None where that cannot be told from its words.

    `functions` are of the caller: their answers count as input, and are weighed when they come.
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
            within.append(_opened(words, at))
            macros += [one for one in within[-1:] if one is not None]
            depth = max(depth, sum(one is not None for one in within))
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
            closed = closed and (bool(meant) or not around or word.text in _WORDS)
            for macro in meant:
                macro.named += 1
    if any(macro.element is None for macro in macros):
        return None
    growth = math.prod(max(1, macro.named - 1) for macro in macros if macro.grows)
    own = Weight(len(words), len(source) + _VALUE * len(words))
    return Cost(len(words), len(macros), depth if depth < 2 and closed else depth + 1, additions, growth, own)


_WORDS = ("true", "false", "null", "in")


class _Macro:
    """A macro whose end has not come: what it calls an element, and how often that was named, there included."""

    def __init__(self, element: str | None, *, grows: bool) -> None:
        self.element = element
        self.grows = grows
        self.named = 0


def _opened(words: Sequence[Token], at: int) -> _Macro | None:
    """Return the macro that a parenthesis opens; None if it opens something else."""
    if not (at and words[at - 1].named(*MACROS)):
        return None
    inside = words[at + 1 : at + 3]
    plain = len(inside) == 2 and inside[0].kind == "name" and inside[1].sign(",")
    return _Macro(inside[0].text if plain else None, grows=words[at - 1].text == "map")


def weigh(values: Iterable[Any], most: int) -> Weight:
    """Return what values weigh, with all that is in them; where that is above `most`, only that it is."""
    count = total = 0
    level = [*values]
    while level:
        count += len(level)
        total += _VALUE * len(level)
        if total > most:
            break
        below: list[Any] = []
        for value in level:
            kind = type(value)  # hot: asked for every field of every row, and an ABC takes long to answer
            if kind is str or kind is bytes:
                total += len(value)
            elif kind is dict:
                below += value
                below += value.values()
            elif kind is list:
                below += value
            elif kind not in _SCALARS:
                below += _within(value)
        level = below
    return Weight(count, total)


_SCALARS = frozenset({int, float, bool, type(None), datetime})


def _within(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return [*value] if isinstance(value, list | tuple) else [str(value)]


def _plain_pattern(words: Sequence[Token]) -> bool:
    """Say whether the argument of `matches` is a pattern that compiles at once: a short text without repetitions."""
    if len(words) < 2 or not words[1].sign(")") or words[0].kind != "text":
        return False
    return len(words[0].text) <= _LONGEST_PATTERN and "{" not in words[0].text
