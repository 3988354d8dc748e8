"""Record files: YAML that is read at the speed of JSON.

`dump` writes one top-level key per line, and its value as JSON, which is YAML too. So people and YAML tools can read
and write these files, and a catalog reads a hundred thousand of them in a moment. `load` accepts any other YAML as
well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from bayou.core import limits
from bayou.core.documents import Unreadable, check_value, decode_text, read_yaml
from bayou.core.errors import RecordDamaged, UsageError

_PLAIN_KEY = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Keys that YAML would not read as text."""

_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON allows in a string and YAML does not, or takes for the end of a line."""

_BARE_EXPONENT = re.compile(r'("(?:[^"\\]|\\.)*")|(?<![\d.])(\d+)(?=[eE])')
"""A string, which stays as it is, or a number with an exponent and no point, which YAML would read as text."""

_NO_DUMP = "only numbers, texts, truth values, null, and lists and mappings of these, can be kept"


def dump(fields: Mapping[str, object]) -> bytes:
    """Return the file of a record. `UsageError` for values that JSON does not have: NaN, bytes, surrogates.

    YAML tools read keys of at most a thousand characters.
    """
    try:
        return "".join(f"{_key(key)}: {_value(value)}\n" for key, value in fields.items()).encode()
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise UsageError(f"not a record: {error}", hint=_NO_DUMP) from None


def load(data: bytes, where: str = "the record", most: int = limits.RECORD_BYTES) -> dict[str, Any]:
    """Return the fields of a record's file; `RecordDamaged`, naming `where`, if it has no mapping of names.

    A file that a person wrote by hand, in any YAML, is fine. No bytes make this raise another error (V25).
    """
    try:
        text = decode_text(data, most)
        fields = _fast(text)
        if fields is None:
            fields = read_yaml(data, most)
        elif _may_be_hostile(text):
            check_value(fields)
    except Unreadable as error:
        raise damaged(where, str(error)) from None
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise damaged(where, "it is no mapping of names to values")
    return fields


def damaged(where: str, why: str) -> RecordDamaged:
    """Return the error for a record's file that cannot be read."""
    return RecordDamaged(
        f"{where} cannot be read: {why}", hint="bayou datastore verify says whether it is what was stored"
    )


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key not in _YAML_WORDS else _value(key)


def _value(value: object) -> str:
    text = _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", _encode(value))
    return _BARE_EXPONENT.sub(lambda found: found[1] or f"{found[2]}.0", text)


def _no_constant(text: str) -> None:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_decode = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite).decode
_BETWEEN = "\x00"
"""Separates the values when all are decoded in one call, so that a value cannot span two lines."""

_MAX_LINES = 10_000
"""Far more keys than a record has. A hostile file may consist of line ends, and each line takes memory."""

_join = f',"\\u{ord(_BETWEEN):04x}",'.join


def _fast(text: str) -> dict[str, Any] | None:
    """Parse a file as `dump` writes it; None if it has another form.

    Hot: the values are decoded in one call, which takes a third of the time of one call for each.
    """
    if text.count("\n") > _MAX_LINES:
        return None
    lines = text.split("\n")
    if lines.pop():
        return None
    parts = [line.partition(": ") for line in lines]
    keys = [key for key, _, _ in parts]
    try:
        values = _decode(f"[{_join([value for _, _, value in parts])}]")
    except (ValueError, RecursionError):
        return None
    whole = len(values) == max(0, 2 * len(keys) - 1) and values[1::2] == [_BETWEEN] * (len(keys) - 1)
    if not whole or not all(map(_PLAIN_KEY.fullmatch, keys)) or len(set(keys)) < len(keys):
        return None
    return dict(zip(keys, values[::2], strict=True))


def _may_be_hostile(text: str) -> bool:
    """Return whether a text may have what `check_value` refuses. Hot: checking the text is cheaper than its values."""
    return (
        text.count("[") + text.count("{") >= limits.DEPTH
        or text.count(",") > limits.VALUES // 2
        or "\\u" in text  # it may be half of a surrogate pair
    )
