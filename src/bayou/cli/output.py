"""What a command prints: lines and tables for people, or exactly one JSON document for scripts.

Results go to stdout, everything else to stderr. A renderer makes `Line`s and `Table`s and never prints itself.

Numbers, sizes and times as people read them, and as people type them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar, TextIO, cast

import click
from msgspec import Struct

from bayou.core.text import visible, visible_lines

if TYPE_CHECKING:
    from bayou.cli.progress import Bar


def paint(text: str, color: str, on: bool) -> str:
    return click.style(text, fg=color) if on and not os.environ.get("NO_COLOR") else text


class Line(Struct, frozen=True):
    """One line. A label says what it is about, and puts it on stderr; `-q` leaves it out unless it must be read.

    `many`: the text has newlines, and they are ours.
    """

    text: str
    label: str | None = None
    always: bool = False
    many: bool = False

    COLORS: ClassVar[Mapping[str, str]] = {
        "error": "red",
        "conflict": "yellow",
        "warning": "yellow",
        "hint": "cyan",
        "note": "cyan",
        "needs": "yellow",
    }


class Table(Struct, frozen=True):
    """Rows under headings. Columns in `right` hold numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()


Part = Line | Table


def say(text: str) -> Line:
    """Tell what was done."""
    return Line(text)


def show(text: str) -> Line:
    """Print what was asked for."""
    return Line(text, always=True)


def show_text(text: str) -> Line:
    """Print what was asked for, of many lines: a newline in it must never come from a value."""
    return Line(text, always=True, many=True)


def warn(text: str) -> Line:
    return Line(text, "warning")


def note(text: str) -> Line:
    """Mention what was done on the way."""
    return Line(text, "note")


def hint(text: str) -> Line:
    """Name the next thing to type."""
    return Line(text, "hint")


def fail(text: str) -> Line:
    return Line(text, "error", always=True)


class Output(Struct, frozen=True):
    """Where a command's result goes."""

    json: bool
    quiet: bool
    verbose: int
    warnings: Sequence[str] = ()
    """Warnings of any part of the program; a JSON document has them beside those of its own report."""

    def emit(self, document: Mapping[str, object], parts: Iterable[Part]) -> None:
        """Print the document, or the parts; never both."""
        if self.json:
            from json import dumps  # noqa: PLC0415

            if self.warnings:
                own = cast("Sequence[str]", document.get("warnings", ()))
                document = {**document, "warnings": [*self.warnings, *own]}
            self._write(sys.stdout, dumps(document, indent=2 if sys.stdout.isatty() else None))
            return
        for part in parts:
            if isinstance(part, Table):
                self._table(part)
            elif part.always or not self.quiet:
                self._line(part)

    def tell(self, text: str) -> None:
        """Say at once, on stderr, what a person waits for; a script reads the outcome."""
        if not self.json and not self.quiet:
            sys.stderr.write(f"{visible(text)}\n")
            sys.stderr.flush()

    def progress(self) -> Bar:
        """Return a bar for whoever waits at a terminal; elsewhere it never shows."""
        from bayou.cli.progress import Bar  # noqa: PLC0415

        watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not self.quiet and not self.json
        return Bar(delay_s=1.0 if watched else None)

    def _line(self, line: Line) -> None:
        stream = sys.stderr if line.label else sys.stdout
        label = ""
        if line.label:
            label = paint(f"{line.label}:", Line.COLORS[line.label], stream.isatty()) + " "
        self._write(stream, label + (visible_lines if line.many else visible)(line.text))

    def _table(self, table: Table) -> None:
        if sys.stdout.isatty():
            _rich_table(table)
            return
        sys.stdout.writelines(f"{row}\n" for row in _aligned(table))

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(f"{text}\n")


def _aligned(table: Table) -> Iterable[str]:
    """Hot: column by column, since a list may have a hundred thousand rows."""
    columns = []
    for heading, *cells in zip(table.headings, *table.rows, strict=True):
        column = [heading, *map(visible, cells)]
        width = max(map(len, column))
        columns.append([cell.rjust(width) if heading in table.right else cell.ljust(width) for cell in column])
    return ("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def _rich_table(table: Table) -> None:
    from rich.console import Console  # noqa: PLC0415  (60 ms: only for somebody who looks)
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    for heading in table.headings:
        drawn.add_column(heading, justify="right" if heading in table.right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(visible(cell)) for cell in row))
    Console(highlight=False).print(drawn)


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", re.ASCII)
_STEP = 1000.0


def count(number: int, one: str, many: str | None = None) -> str:
    """Return `1 file`, `2 files`, `1,204 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Return `512 B`, `1.2 KB`, `12 KB`, `3.4 GB`."""
    if number < _STEP:
        return f"{number} B"
    value = float(number)
    for unit in ("KB", "MB", "GB", "TB", "PB"):
        value /= _STEP
        if round(value) < _STEP or unit == "PB":
            break
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"


def first_line(error: str) -> str:
    """Return the line of an error that is for people; a traceback may follow it."""
    return error.partition("\n")[0]


def files(number: int, total: int) -> str:
    """Return `3 files (12 KB)`."""
    return f"{count(number, 'file')} ({size(total)})"


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90`, `90s`, `5m`, `24h`, `7d` or `2w`, or None if it is none of these."""
    found = _DURATION.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found else None


def moment(text: str) -> str:
    """Return a time, given as `clock.format_ms` writes it, as people get it: to the second, in their own zone.

    What somebody else has written, in whatever form, is left as it is.
    """
    if not _MOMENT.fullmatch(text):
        return text
    try:
        return _minute(text[:16]) + text[16:19]
    except ValueError:  # the 31st of February
        return text


@cache
def _minute(text: str) -> str:
    """Return a minute of UTC in this machine's zone; zones differ by whole minutes."""
    from datetime import datetime  # noqa: PLC0415

    return f"{datetime.fromisoformat(f'{text}Z').astimezone():%Y-%m-%d %H:%M}"
