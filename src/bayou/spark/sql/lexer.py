"""The lexical grammar of Spark SQL (4.3): the tokens of a statement, and its text without comments.

Spark nests bracketed comments, continues a line comment after a backslash, takes a long s (U+017F) for the letter S in
a keyword and replaces `${env:NAME}` before it reads anything. So Bayou does not send what was typed, but the tokens
that it has checked; text that Spark could read differently, in a comment or a blank, is not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from bayou.core.errors import QueryInvalid

Kind = Literal["word", "name", "text", "number", "sign"]

_TOKEN = re.compile(
    r"""
    (?P<gap> [ \t\n\f\r\x0b\u00a0\u1680\u2000-\u200a\u2028\u202f\u205f\u3000]+ | --(?:\\\n|[^\r\n])*)
    | (?P<comment> /\*(?!\+))
    | (?P<text> [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.)*+' | "(?:[^"\\]|\\.)*+")
    | (?P<name> `(?:[^`]|``)*+`)
    | (?P<number> (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[bB][dD]|[lLsSyYfFdD])?(?![A-Za-z0-9_]))
    | (?P<word> [A-Za-z_][A-Za-z0-9_]*+(?!://))
    | (?P<sign> /\*\+ | \*/ | \|> | [-+*/%~&|^<>=!?.,;:()\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*(?!\+)|\*/")
_QUOTES = frozenset("'\"`")


class Token(Struct, frozen=True):
    """A bare word, a name in backquotes, a literal text, a number or a sign; `gap` if a blank precedes it."""

    kind: Kind
    text: str
    gap: bool

    @property
    def word(self) -> str:
        """The word in lower case, to compare with keywords; empty for any other token."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def identifier(self) -> str:
        """The name that the token can be, bare or in quotes, in lower case; empty for a number or a sign."""
        match self.kind:
            case "word":
                return self.text.lower()
            case "name":
                return self.text[1:-1].replace("``", "`").lower()
            case "text":  # a name where spark.sql.ansi.doubleQuotedIdentifiers is set
                return self.text.lstrip("rR")[1:-1].lower()
        return ""

    def is_sign(self, text: str) -> bool:
        """Return whether the token is this sign."""
        return self.kind == "sign" and self.text == text


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a statement; raise `QueryInvalid` for text that is no token of SQL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise QueryInvalid("the query holds text that is not Unicode") from None
    return list(_tokens(text))


def spell(tokens: Sequence[Token]) -> str:
    """Return the text of some tokens, with one blank wherever there was a blank or a comment."""
    return "".join(f" {token.text}" if token.gap else token.text for token in tokens).strip()


def _tokens(text: str) -> Iterator[Token]:
    at, gap = 0, False
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _unknown(text, at)
        at = found.end()
        if found.lastgroup == "comment":
            at = _end_of_comment(text, at)
        if found.lastgroup in ("gap", "comment"):
            gap = True
            continue
        kind: Kind = found.lastgroup  # type: ignore[assignment]  # the other groups are the kinds
        yield Token(kind, _inert(kind, found[0]), gap)
        gap = False


def _end_of_comment(text: str, at: int) -> int:
    """Return the end of the bracketed comment whose text begins at `at`: comments nest, hints inside them do not."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise QueryInvalid("a comment has no end", hint="Spark nests comments: each /* needs its own */")


def _inert(kind: Kind, text: str) -> str:
    """Keep Spark from replacing `${…}` by a variable of the server: such a literal becomes two, which Spark joins."""
    if "${" not in text:
        return text
    if kind != "text":
        raise QueryInvalid("a name has ${ in it", hint="Spark would put a variable there")
    quote = text[-1]
    opening = text[: text.index(quote) + 1]
    return text.replace("${", f"${quote} {opening}{{")


def _unknown(text: str, at: int) -> QueryInvalid:
    if text[at] in _QUOTES:
        return QueryInvalid(f"a {text[at]} is not closed")
    found = re.compile(r"[A-Za-z0-9_]+(?:://)?|.", re.DOTALL).match(text, at)
    what = found[0] if found is not None else ""
    return QueryInvalid(f"{what!r} is not SQL", hint="names with other signs than A-Z, 0-9 and _ need backquotes: `…`")
