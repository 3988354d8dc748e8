"""One CEL expression over the fields of a version: checked before any row is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayou.core.errors import QueryInvalid
from bayou.core.text import did_you_mean
from bayou.records.catalog.rows import VersionRow
from bayou.records.query.bounded import BoundedProgram
from bayou.records.query.cost import FUNCTIONS, MACROS
from bayou.records.query.fields import CONTENT, FIELDS, KNOWN
from bayou.records.query.times import parse_time
from bayou.records.query.tokens import Token, key_order, tokens

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_ENDS = ("&&", "||", ")", "]", "}", ",", "?", ":")
_BEGINS = ("&&", "||", "(", "[", "{", ",", "?", ":")
_OF_TEXT = ("startsWith", "endsWith", "contains", "matches")
TYPES = ("bool", "bytes", "double", "int", "list", "map", "null_type", "optional", "string", "uint")
_TIME_AS_TEXT = "__created_at"


class Expression:
    """A compiled expression. `what` names it in errors."""

    def __init__(self, source: str, what: str) -> None:
        self.words = tokens(source) or []
        self._program = BoundedProgram(_rewritten(source, self.words), what)
        bound = set(bound_names(self.words))
        used = [name for name in self._program.variables() if name not in bound and name not in TYPES]
        for name in used:
            if name not in KNOWN and name != _TIME_AS_TEXT:
                raise _unknown("field", name, KNOWN)
        for name in self._program.functions():
            if name.isidentifier() and not name.startswith("_") and name not in FUNCTIONS:
                raise _unknown("function", name, FUNCTIONS)
        self._fields = {name: FIELDS[name].value for name in used if name in FIELDS}
        if _TIME_AS_TEXT in used:
            self._fields[_TIME_AS_TEXT] = lambda row: row.created_at
        self.content = tuple(name for name in used if name in CONTENT)
        """What has to be read of a version's content, if anything."""
        self.order = key_order(self.words)
        """In which order the keys of maps are shown: the one in which the expression names them."""
        self.tags = _asked_tags(self.words)
        """The tags that are asked for by name; None where it matters which there are. Missing ones are null."""

    def evaluate(self, row: VersionRow, content: Mapping[str, Any]) -> Any:
        """Return what the expression comes to; one of `FAILURES` if it comes to nothing."""
        values: dict[str, Any] = {name: value(row) for name, value in self._fields.items()}
        if self.tags and "tags" in values:
            values["tags"] = dict.fromkeys(self.tags) | values["tags"]
        return self._program.execute({**values, **{name: content[name] for name in self.content}})


def _rewritten(source: str, words: Sequence[Token]) -> str:
    """Let times be compared with plain texts: what CEL sees are timestamps, or, for functions of texts, a text."""
    changes: dict[int, tuple[Token, str]] = {}
    for at, word in enumerate(words):
        before, after = [*reversed(words[max(0, at - 3) : at])], words[at + 1 : at + 4]
        if word.named("timestamp") and len(after) > 2 and after[0].sign("(") and after[2].sign(")"):
            moment = parse_time(after[1].string or "")
            if moment is not None:
                changes[after[1].at] = after[1], f'"{moment.isoformat()}"'
        elif word.named("created_at") and not (before and before[0].sign(".")):
            if len(after) > 1 and after[0].sign(".") and after[1].named(*_OF_TEXT):
                changes[word.at] = word, _TIME_AS_TEXT
            for text in _compared(before, after):
                changes[text.at] = text, _timestamp(text)
    for at in sorted(changes, reverse=True):
        token, meant = changes[at]
        source = source[:at] + meant + source[at + len(token.text) :]
    return source


def _compared(before: Sequence[Token], after: Sequence[Token]) -> Iterator[Token]:
    """Yield the texts that a word is directly compared with, on either side."""
    for near, ends in ((after, _ENDS), (before, _BEGINS)):
        compared = len(near) > 1 and near[0].sign(*COMPARISONS) and near[1].string is not None
        if compared and (len(near) == 2 or near[2].sign(*ends)):
            yield near[1]


def _timestamp(token: Token) -> str:
    moment = parse_time(token.string or "")
    if moment is None:
        raise QueryInvalid(
            f"created_at is compared with {token.text}, which is no time",
            hint='write it like "2026-01-31" or "2026-01-31T12:00:00Z"',
        )
    return f'timestamp("{moment.isoformat()}")'


def bound_names(words: Sequence[Token]) -> Iterator[str]:
    """Yield the names that macros bind: `x` in `tags.exists(x, x == "a")`."""
    for dot, macro, open_, name, comma in zip(words, words[1:], words[2:], words[3:], words[4:], strict=False):
        if dot.sign(".") and macro.named(*MACROS) and open_.sign("(") and name.kind == "name" and comma.sign(","):
            yield name.text


def _asked_tags(words: Sequence[Token]) -> frozenset[str] | None:
    asked: set[str] = set()
    for at, word in enumerate(words):
        if not word.named("tags") or (at and words[at - 1].sign(".")):
            continue
        key = tag_key(words[at:])
        if key is None or (at > 1 and words[at - 2].named("has")):
            return None
        asked.add(key)
    return frozenset(asked)


def tag_key(words: Sequence[Token]) -> str | None:
    """Return the tag that `tags.key` or `tags["key"]` asks for; None if the words begin otherwise."""
    if len(words) > 2 and words[1].sign(".") and words[2].kind == "name":
        return None if len(words) > 3 and words[3].sign("(") else words[2].text
    if len(words) > 3 and words[1].sign("[") and words[3].sign("]"):
        return words[2].string
    return None


def _unknown(what: str, name: str, known: Sequence[str]) -> QueryInvalid:
    near = did_you_mean(name, known, "")
    return QueryInvalid(f"there is no {what} {name}", hint=f"{near} {what}s are {', '.join(known)}".lstrip())
