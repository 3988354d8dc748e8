"""Render the rows of a SQL query as a table, as JSON or as CSV.

Each function writes the rows while they arrive: no result has to fit into memory.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

from bayou.core.clock import format_utc
from bayou.core.text import visible, visible_json

if TYPE_CHECKING:
    from bayou.spark.sql.query import Column

Row = Sequence[object]
T = TypeVar("T")


class Writable(Protocol):
    """A stream that takes text."""

    def write(self, text: str, /) -> int: ...


_SAMPLE = 200
"""The first rows decide the widths of a table; later cells that are wider are cut."""

_WIDEST, _NARROWEST = 60, 8
_GAP = "  "


def plain(value: object) -> object:
    """Return a value as JSON can have it: bytes as Base64, times in ISO 8601, NaN and infinities as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return _moment(value)
        case date() | time():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case Mapping():
            return {str(key): plain(member) for key, member in value.items()}
        case list() | tuple():
            return [plain(member) for member in value]
    return str(value)


def _moment(value: datetime) -> str:
    exact = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.isoformat(timespec=exact) if value.tzinfo is None else format_utc(value, exact)


def json_lines(columns: Sequence[Column], rows: Iterable[Row], stream: TextIO) -> int:
    """Write each row as a JSON object on its own line; return the number of rows."""
    return _write_all(_objects(columns, rows), lambda text: stream.write(f"{text}\n"))


def document(columns: Sequence[Column], rows: Iterable[Row], stream: TextIO, besides: Mapping[str, object]) -> None:
    """Write one JSON document: `{results, total}`, and the members of `besides`."""
    stream.write('{"results": [')
    total = 0
    for total, text in enumerate(_objects(columns, rows), 1):
        stream.write(f"{', ' if total > 1 else ''}{text}")
    rest = json.dumps({"total": total, **besides})
    stream.write(f"], {rest[1:]}\n")


def _objects(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[str]:
    names = [column.name for column in columns]
    for row in rows:
        yield visible_json(json.dumps(dict(zip(names, map(plain, row), strict=True)), ensure_ascii=False))


def csv(columns: Sequence[Column], rows: Iterable[Row], stream: Writable) -> int:
    """Write a line of names, then a line for each row; return the number of rows. Null is an empty field."""
    from csv import writer  # noqa: PLC0415

    lines = writer(stream, lineterminator="\n")
    lines.writerow([column.name for column in columns])
    return _write_all(rows, lambda row: lines.writerow(map(_field, row)))


def _field(value: object) -> object:
    found = plain(value)
    if found is None or (isinstance(found, str | int | float) and not isinstance(found, bool)):
        return found
    return json.dumps(found, ensure_ascii=False)


def table(columns: Sequence[Column], rows: Iterable[Row], stream: TextIO, width: int | None) -> int:
    """Write aligned columns; return the number of rows. With a `width`, the columns fit a terminal that wide."""
    cells = ([_cell(value) for value in row] for row in rows)
    first = list(islice(cells, _SAMPLE))
    names = [column.name for column in columns]
    widths = fit([max(map(len, column)) for column in zip(names, *first, strict=True)], width)

    def write(row: Sequence[str]) -> None:
        padded = (
            _cut(cell, wide).rjust(wide) if column.number else _cut(cell, wide).ljust(wide)
            for column, cell, wide in zip(columns, row, widths, strict=True)
        )
        stream.write(f"{_GAP.join(padded).rstrip()}\n")

    write([visible(name) for name in names])
    return _write_all(chain(first, cells), write)


def _write_all(items: Iterable[T], write: Callable[[T], object]) -> int:
    """Write every item; return the number of items."""
    number = 0
    for item in items:
        write(item)
        number += 1
    return number


def fit(wanted: Sequence[int], width: int | None) -> list[int]:
    """Return the widths of columns: each at most `_WIDEST`, and together at most `width`, if that is possible."""
    widths = [min(cells, _WIDEST) for cells in wanted]
    if width is None:
        return widths
    spare = width - len(_GAP) * (len(widths) - 1)
    while sum(widths) > spare and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _cell(value: object) -> str:
    """Return a value on one line, as people read it."""
    match value:
        case None:
            return "null"
        case str():
            return _line(value)
        case bytes():
            try:
                return _line(value[: 4 * _WIDEST].decode())
            except UnicodeDecodeError:
                return f"({len(value)} bytes)"
    found = plain(value)
    return _line(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))


def _line(text: str) -> str:
    return visible(text[: 4 * _WIDEST])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
