"""The part of an expression that SQL can answer.

Only terms joined by && at the top level become SQL conditions, and only those that are false in SQL exactly where they
are false in CEL. `false && anything` is false in CEL, even if the rest fails, so asking SQL first loses no result and
no failure. CEL evaluates the whole expression for every row that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bayou.data.catalog.catalog import IS_LATEST, Where
from bayou.data.query.cost import CelToken
from bayou.data.query.expression import COMPARISONS, FIELDS, Expression, Field, as_record, parse_time, tag_key

Tokens = Sequence[CelToken]

_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TAG = "EXISTS (SELECT 1 FROM json_each(tags) WHERE key = ? AND value = ?)"


def push_down(expression: Expression) -> Where:
    """Return conditions that hold for every version for which the expression is not false."""
    where = Where()
    where.add("NOT deleted")
    for term in _terms(expression.words):
        if not any(push(term, where) for push in _PUSHDOWNS):
            _tag(term, where, expression)
    return where


def _terms(words: Tokens) -> Iterator[Tokens]:
    """Yield the terms that && joins at the top level, without parentheses around them."""
    words = _without_parentheses(words)
    depth, begin = 0, 0
    parts: list[Tokens] = []
    for at, word in enumerate(words):
        depth += word.sign("(", "[", "{") - word.sign(")", "]", "}")
        if depth == 0 and word.sign("||", "?"):
            return
        if depth == 0 and word.sign("&&"):
            parts.append(words[begin:at])
            begin = at + 1
    if not parts:
        yield words
        return
    for part in (*parts, words[begin:]):
        yield from _terms(part)


def _without_parentheses(words: Tokens) -> Tokens:
    while len(words) > 1 and words[0].sign("(") and _closing_parenthesis(words) == len(words) - 1:
        words = words[1:-1]
    return words


def _closing_parenthesis(words: Tokens) -> int:
    depth = 0
    for at, word in enumerate(words):
        depth += word.sign("(", "[", "{") - word.sign(")", "]", "}")
        if depth == 0:
            return at
    return -1


def _latest(term: Tokens, where: Where) -> bool:
    """latest, !latest"""
    if len(term) == 1 and term[0].named("latest"):
        where.add(IS_LATEST)
    elif len(term) == 2 and term[0].sign("!") and term[1].named("latest"):
        where.add(f"NOT ({IS_LATEST})")
    else:
        return False
    return True


def _comparison(term: Tokens, where: Where) -> bool:
    """name == "a", 5 < size, created_at >= timestamp("2026-01-01T00:00:00Z"), run == null"""
    for name, sign, literal in _sides(term):
        field = FIELDS.get(name)
        if field is not None and _compare(name, field, sign, literal, where):
            return True
    return False


def _sides(term: Tokens) -> Iterator[tuple[str, str, Tokens]]:
    if len(term) > 2 and term[0].kind == "name" and term[1].sign(*COMPARISONS):
        yield term[0].text, term[1].text, term[2:]
    if len(term) > 2 and term[-1].kind == "name" and term[-2].sign(*COMPARISONS):
        yield term[-1].text, _MIRRORED[term[-2].text], term[:-2]


def _compare(name: str, field: Field, sign: str, literal: Tokens, where: Where) -> bool:
    if len(literal) == 1 and literal[0].named("null"):
        if field.nullable and sign in ("==", "!="):
            where.add(f"{name} IS {'NOT ' if sign == '!=' else ''}NULL")
            return True
        return False
    if field.kind == "truth":
        if len(literal) == 1 and sign in ("==", "!=") and literal[0].named("true", "false"):
            where.add(IS_LATEST if literal[0].named("true") == (sign == "==") else f"NOT ({IS_LATEST})")
            return True
        return False
    value = _value(field, literal)
    if value is None:
        return False
    if not field.nullable or sign == "==":
        where.add(f"{name} {'=' if sign == '==' else sign} ?", value)
    else:
        # Null differs from every text, and cannot be ordered: CEL fails on it, so the row must stay.
        where.add(f"({name} IS NULL OR {name} {sign} ?)", value)
    return True


def _value(field: Field, literal: Tokens) -> str | int | None:
    """Return the value that a column is compared with; None if SQL and CEL might compare it differently."""
    if field.kind == "text" and len(literal) == 1:
        return literal[0].string
    if field.kind == "number":
        if len(literal) == 1:
            return literal[0].integer
        number = literal[1].integer if len(literal) == 2 and literal[0].sign("-") else None
        return None if number is None else -number
    if field.kind == "time":
        if len(literal) == 4 and literal[0].named("timestamp") and literal[1].sign("(") and literal[3].sign(")"):
            literal = literal[2:3]
        moment = parse_time(literal[0].string or "") if len(literal) == 1 else None
        return None if moment is None else as_record(moment)
    return None


def _prefix(term: Tokens, where: Where) -> bool:
    """name.startsWith("a")"""
    match term:
        case [field, dot, function, open_, text, close] if (
            field.kind == "name"
            and dot.sign(".")
            and function.named("startsWith")
            and open_.sign("(")
            and close.sign(")")
        ):
            found, prefix = FIELDS.get(field.text), text.string
            if found is None or found.kind not in ("text", "time") or not prefix:
                return False
            from bayou.index.key_range import KeyRange  # noqa: PLC0415  (only for its order of texts)

            span = KeyRange.under(prefix)
            end, values = ("", [span.start]) if span.end is None else (f" AND {field.text} < ?", [span.start, span.end])
            null = f"{field.text} IS NULL OR " if found.nullable else ""
            where.add(f"({null}({field.text} >= ?{end}))", *values)
            return True
        case _:
            return False


def _membership(term: Tokens, where: Where) -> bool:
    """name in ["a", "b"]"""
    if len(term) < 4 or not (
        term[0].kind == "name" and term[1].named("in") and term[2].sign("[") and term[-1].sign("]")
    ):
        return False
    field = FIELDS.get(term[0].text)
    listed = term[3:-1:2]
    if field is None or field.kind not in ("text", "number") or not all(token.sign(",") for token in term[4:-1:2]):
        return False
    values = [_value(field, [token]) for token in listed]
    if None in values or not values or len(term) % 2 == 0:
        return False
    where.add(f"{term[0].text} IN ({', '.join('?' * len(values))})", *values)
    return True


def _tag(term: Tokens, where: Where, expression: Expression) -> None:
    """tags.env == "prod", tags["env"] != "prod"; where a missing tag is null"""
    key = tag_key(term) if term and term[0].named("tags") and expression.tags is not None else None
    rest = term[3:] if key is not None and term[1].sign(".") else term[4:]
    if key is None or len(rest) != 2 or not rest[0].sign("==", "!="):
        return
    value = rest[1].string
    if value is not None:
        where.add(_TAG if rest[0].sign("==") else f"NOT {_TAG}", key, value)


_PUSHDOWNS: tuple[Callable[[Tokens, Where], bool], ...] = (_latest, _comparison, _prefix, _membership)
