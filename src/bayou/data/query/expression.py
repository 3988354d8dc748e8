"""CEL expressions over the fields of a version: checked before any row is read, and evaluated row by row.

`FIELDS` are the fields that the catalog's columns provide; `content` and `attributes` need the content itself. Times
may be written as plain strings: the expression is rewritten so that CEL compares timestamps. `as_json` converts a value
of CEL to JSON.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from bayou.core import limits
from bayou.core.clock import format_utc, parse_utc
from bayou.core.errors import QueryInvalid, RecordError
from bayou.core.text import did_you_mean
from bayou.data.catalog.rows import VersionRow
from bayou.data.query.cost import FUNCTIONS, MACROS, CelToken, key_order, tokens
from bayou.data.query.evaluator import BoundedProgram

if TYPE_CHECKING:
    from bayou.data.metadata import Metadata

Kind = Literal["text", "number", "truth", "time", "other"]

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_AFTER_TERM = ("&&", "||", ")", "]", "}", ",", "?", ":")
_BEFORE_TERM = ("&&", "||", "(", "[", "{", ",", "?", ":")
_TEXT_FUNCTIONS = ("startsWith", "endsWith", "contains", "matches")
TYPES = ("bool", "bytes", "double", "int", "list", "map", "null_type", "optional", "string", "uint")
_TIME_AS_TEXT = "__created_at"
_YEAR_OR_MONTH = re.compile(r"(\d{4})(?:-(\d{2}))?")


class Field(Struct, frozen=True):
    """One field. A `nullable` field may be null, which CEL cannot order or pass to functions."""

    kind: Kind
    value: Callable[[VersionRow], Any]
    nullable: bool = False


def time_of(row: VersionRow) -> datetime:
    """Return the creation time of a version as a value that CEL compares."""
    return datetime.fromisoformat(row.created_at)


def _owner(row: VersionRow) -> Mapping[str, str | None]:
    names = ("model", "model_id", "type", "repo", "output", "run", "workflow", "job", "step")
    return {name: getattr(row, name) for name in names}


FIELDS: Mapping[str, Field] = {
    "model": Field("text", lambda row: row.model),
    "model_id": Field("text", lambda row: row.model_id),
    "type": Field("text", lambda row: row.type),
    "name": Field("text", lambda row: row.name),
    "version": Field("number", lambda row: row.version),
    "latest": Field("truth", lambda row: row.latest),
    "size": Field("number", lambda row: row.size),
    "content_type": Field("text", lambda row: row.content_type),
    "tags": Field("other", lambda row: dict(row.tags)),
    "created_at": Field("time", time_of),
    "lifetime": Field("text", lambda row: row.lifetime, nullable=True),
    "owner": Field("other", _owner),
    "run": Field("text", lambda row: row.run, nullable=True),
    "workflow": Field("text", lambda row: row.workflow, nullable=True),
    "job": Field("text", lambda row: row.job, nullable=True),
    "step": Field("text", lambda row: row.step, nullable=True),
}
"""The fields that need nothing but the catalog."""

CONTENT = ("content", "attributes")
"""Fields that need the content: as text (or bytes), and as a JSON object (empty if it is none)."""

KNOWN = (*FIELDS, *CONTENT)


def parse_time(text: str) -> datetime | None:
    """Parse a year, a month, a day or a time, in UTC unless it has a zone; None if it is none of them."""
    part = _YEAR_OR_MONTH.fullmatch(text)
    try:
        return parse_utc(f"{part[1]}-{part[2] or '01'}-01" if part is not None else text)
    except ValueError:
        return None


def as_record(moment: datetime) -> str | None:
    """Return a moment as records write it; None if it is more precise than they are."""
    if moment.microsecond % 1000:
        return None
    return format_utc(moment)


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
        """The fields of `CONTENT` that the expression uses."""
        self.order = key_order(self.words)
        """The order in which keys of maps are shown: that in which the expression names them."""
        self.tags = _tags_used(self.words)
        """The tags that are used by name, null if missing; None if the expression depends on which tags exist."""

    def evaluate(self, row: VersionRow, content: Mapping[str, Any]) -> Any:
        """Return the value of the expression; raise one of `FAILURES` if it has none."""
        values: dict[str, Any] = {name: value(row) for name, value in self._fields.items()}
        if self.tags and "tags" in values:
            values["tags"] = dict.fromkeys(self.tags) | values["tags"]
        return self._program.execute({**values, **{name: content[name] for name in self.content}})


def _rewritten(source: str, words: Sequence[CelToken]) -> str:
    """Rewrite an expression so that times compare with plain strings: as timestamps, or as text for text functions."""
    changes: dict[int, tuple[CelToken, str]] = {}
    for at, word in enumerate(words):
        before, after = [*reversed(words[max(0, at - 3) : at])], words[at + 1 : at + 4]
        if word.named("timestamp") and len(after) > 2 and after[0].sign("(") and after[2].sign(")"):
            moment = parse_time(after[1].string or "")
            if moment is not None:
                changes[after[1].at] = after[1], f'"{moment.isoformat()}"'
        elif word.named("created_at") and not (before and before[0].sign(".")):
            if len(after) > 1 and after[0].sign(".") and after[1].named(*_TEXT_FUNCTIONS):
                changes[word.at] = word, _TIME_AS_TEXT
            for text in _compared(before, after):
                changes[text.at] = text, _timestamp(text)
    for at in sorted(changes, reverse=True):
        token, replacement = changes[at]
        source = source[:at] + replacement + source[at + len(token.text) :]
    return source


def _compared(before: Sequence[CelToken], after: Sequence[CelToken]) -> Iterator[CelToken]:
    """Yield the string literals that a word is directly compared with, on either side."""
    for near, ends in ((after, _AFTER_TERM), (before, _BEFORE_TERM)):
        compared = len(near) > 1 and near[0].sign(*COMPARISONS) and near[1].string is not None
        if compared and (len(near) == 2 or near[2].sign(*ends)):
            yield near[1]


def _timestamp(token: CelToken) -> str:
    moment = parse_time(token.string or "")
    if moment is None:
        raise QueryInvalid(
            f"created_at is compared with {token.text}, which is no time",
            hint='write it like "2026-01-31" or "2026-01-31T12:00:00Z"',
        )
    return f'timestamp("{moment.isoformat()}")'


def bound_names(words: Sequence[CelToken]) -> Iterator[str]:
    """Yield the names that macros bind: `x` in `tags.exists(x, x == "a")`."""
    for dot, macro, open_, name, comma in zip(words, words[1:], words[2:], words[3:], words[4:], strict=False):
        if dot.sign(".") and macro.named(*MACROS) and open_.sign("(") and name.kind == "name" and comma.sign(","):
            yield name.text


def _tags_used(words: Sequence[CelToken]) -> frozenset[str] | None:
    used: set[str] = set()
    for at, word in enumerate(words):
        if not word.named("tags") or (at and words[at - 1].sign(".")):
            continue
        key = tag_key(words[at:])
        if key is None or (at > 1 and words[at - 2].named("has")):
            return None
        used.add(key)
    return frozenset(used)


def tag_key(words: Sequence[CelToken]) -> str | None:
    """Return the key of `tags.key` or `tags["key"]`; None if the words begin with something else."""
    if len(words) > 2 and words[1].sign(".") and words[2].kind == "name":
        return None if len(words) > 3 and words[3].sign("(") else words[2].text
    if len(words) > 3 and words[1].sign("[") and words[3].sign("]"):
        return words[2].string
    return None


def _unknown(what: str, name: str, known: Sequence[str]) -> QueryInvalid:
    near = did_you_mean(name, known, "")
    return QueryInvalid(f"there is no {what} {name}", hint=f"{near} {what}s are {', '.join(known)}".lstrip())


def content_of(data: bytes) -> Mapping[str, Any]:
    """Return the fields of `CONTENT`: the content, as text if it is UTF-8, and its JSON object, if it is one."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"content": data, "attributes": {}}
    return {"content": text, "attributes": _attributes(text)}


def is_readable(version: VersionRow | Metadata) -> bool:
    """Say whether an expression can read the content; that of a version of many files is its manifest."""
    return version.files is not None or version.size <= limits.CONTENT_BYTES


def check_size(version: VersionRow | Metadata) -> None:
    """Raise `RecordError` if content is too large for an expression."""
    if not is_readable(version):
        raise RecordError(f"its content has {version.size} bytes, more than an expression can ask for")


def _attributes(text: str) -> dict[str, Any]:
    if len(text) > limits.ATTRIBUTES_BYTES or not text.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def as_json(value: Any, order: Mapping[str, int] | None = None) -> Any:
    """Convert a value to JSON: times as records write them, durations in seconds, bytes in base 64.

    The order of keys in a map of CEL differs from process to process. The result has the keys of `order` first, as it
    ranks them, then the others by name.
    """
    match value:
        case datetime():
            return as_record(value) or value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return base64.b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            converted = {str(key): as_json(element, order) for key, element in value.items()}
            rank = order or {}
            return dict(sorted(converted.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))
        case list() | tuple():
            return [as_json(element, order) for element in value]
        case None | bool() | int() | str():
            return value
        case _:  # an optional value
            return as_json(value.value(), order) if value.has_value() else None
