"""The words of a CEL expression. Enough to see what it asks for; what it means is for the evaluator to say."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

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
