"""What a result's columns hold, as Python has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow

from bayou.core.errors import QueryInvalid

Row = tuple[object, ...]


def to_rows(table: pyarrow.Table) -> Iterator[Row]:
    """Yield the rows of an Arrow table: maps as dicts, times with their zone, text always readable."""
    yield from zip(*(_values(column) for column in table.itercolumns()), strict=True)


def _values(column: Any) -> list[object]:
    try:
        found: list[object] = column.to_pylist(maps_as_pydicts="strict")
        return found
    except UnicodeDecodeError:
        return _readable(column)


def _readable(column: Any) -> list[object]:
    """Return text that Spark made of bytes which are none, with a mark in place of each that cannot be read."""
    if not pyarrow.types.is_string(column.type):
        raise QueryInvalid("the result has text that is not UTF-8", hint="try_validate_utf8(…) makes it null")
    # Arrow would look at the text again on the way to bytes; its buffers are the same.
    binary = [
        pyarrow.Array.from_buffers(pyarrow.binary(), len(chunk), chunk.buffers(), offset=chunk.offset)
        for chunk in column.chunks
    ]
    return [None if one is None else one.decode(errors="replace") for chunk in binary for one in chunk.to_pylist()]
