"""Reading JSON and YAML that somebody else wrote: bounded in bytes, depth and values before anything is built (V25).

Both readers raise `Unreadable`, whose text says what is wrong in one line; the caller turns it into its own error,
which names the object or the file. Neither raises anything else, whatever the bytes are.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from bayou import limits


class Unreadable(ValueError):
    """A document that is too large, too deep, not UTF-8, or not what it should be. Its text is one line."""


def decode_text(data: bytes, most: int) -> str:
    """Return UTF-8 text of at most `most` bytes."""
    if len(data) > most:
        raise Unreadable(f"it has {len(data)} bytes, and at most {most} are read")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 (at byte {error.start})") from None


def read_json(data: bytes, most: int) -> Any:
    """Return the value of a JSON document of at most `most` bytes: no NaN, no text that is not Unicode."""
    text = decode_text(data, most)
    try:
        value = _JSON.decode(text)
        check_value(value)
    except RecursionError:
        raise Unreadable(f"it nests deeper than {limits.DEPTH}") from None
    except ValueError as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"it is not JSON: {' '.join(str(error).split())}") from None
    return value


def check_value(value: object) -> None:
    """Refuse a parsed value that nests too deep, has too many values, or holds text that is not Unicode."""
    count = 0
    level: list[object] = [value]
    for _ in range(limits.DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not item.isascii() and not _is_unicode(item):
                raise Unreadable("it holds text that is not Unicode (a lone surrogate)")
        count += len(below)
        if count > limits.VALUES:
            raise Unreadable(f"it has more than {limits.VALUES} values")
        if not below:
            return
        level = below
    raise Unreadable(f"it nests deeper than {limits.DEPTH}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
