"""Whether a statement is a question: one that looks, and changes nothing (V15)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from bayou.errors import QueryInvalid

_QUESTIONS = frozenset({"select", "with", "values", "from", "table", "show", "describe", "desc", "explain"})
_ASSIGNED = ("into", "overwrite")
_HINT = "data is looked at with SELECT, WITH, VALUES, SHOW, DESCRIBE and EXPLAIN only"

_WORD = re.compile(
    r"""
    (?P<gap>\s+ | --[^\r\n]* | /\*.*?\*/)      # what Spark passes over
    | [rR]'[^']*' | [rR]"[^"]*"               # texts
    | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*"
    | `[^`]*`                                 # a name, whatever it looks like
    | (?P<word>\w+)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def check_question(text: str) -> None:
    """Raise `QueryInvalid` for a statement that is no question.

    Spark has two that begin like one: WITH … INSERT and FROM … INSERT.
    """
    words = list(_words(text))
    first = next((word for word in words if word != "("), "")
    if first not in _QUESTIONS:
        what = f"{first.upper()} is no query" if first.isidentifier() else "there is no query"
        raise QueryInvalid(what, hint=_HINT)
    for word, after in pairwise(words):
        if first in ("with", "from") and word == "insert" and after in _ASSIGNED:
            raise QueryInvalid("INSERT is no query", hint=f"{_HINT}; a column of that name needs quotes")


def _words(text: str) -> Iterator[str]:
    """Yield the bare words and signs of a statement, in lower case; a text and a quoted name are signs."""
    for found in _WORD.finditer(text):
        if found["gap"] is None:
            yield found[0].lower() if found["word"] else found[0][0]
