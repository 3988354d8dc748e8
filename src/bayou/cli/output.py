"""The output of a command: lines and tables for people, or exactly one JSON document for scripts.

Results go to stdout, everything else to stderr. The renderers (`bayou.cli.render`) return `Line`s and `Table`s and a
`Document`; `CommandOutput.emit` prints one or the other. The second half of the module formats numbers, sizes and
times.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar, TextIO, TypeVar, cast

import click
from msgspec import Struct

from bayou.core.text import count as count  # noqa: PLC0414  (the renderers import it from here, beside `size`)
from bayou.core.text import visible, visible_lines

if TYPE_CHECKING:
    from bayou.cli.progress import Bar
    from bayou.core.errors import BayouError

T = TypeVar("T")
Document = Mapping[str, object]

FEW = 10
"""Without `-v`, a list in a text ends after so many lines."""

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", re.ASCII)
_STEP = 1000.0
_GAP = "  "


class Line(Struct, frozen=True):
    """A line of text. A line with a label goes to stderr; `-q` leaves out lines that are not `always` printed.

    `many`: the text consists of several lines, so its newlines are printed; elsewhere they become visible escapes.
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
    """Rows under headings. The columns in `right` are aligned to the right, as numbers are."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()


Part = Line | Table


def say(text: str) -> Line:
    """Report what the command did."""
    return Line(text)


def show(text: str) -> Line:
    """Print the result that the user asked for, also with `-q`."""
    return Line(text, always=True)


def show_text(text: str) -> Line:
    """Print a result of several lines: the caller makes sure that no newline in it comes from a value."""
    return Line(text, always=True, many=True)


def warn(text: str) -> Line:
    return Line(text, "warning")


def note(text: str) -> Line:
    """Mention a side effect."""
    return Line(text, "note")


def hint(text: str) -> Line:
    """Name the command to type next."""
    return Line(text, "hint")


def fail(text: str) -> Line:
    return Line(text, "error", always=True)


class CommandOutput(Struct, frozen=True):
    """Prints the result of a command, as its options ask for."""

    json: bool
    quiet: bool
    verbose: int
    warnings: Sequence[str] = ()
    """Warnings of the whole process; `emit` adds them to the warnings of the document."""

    def emit(self, document: Mapping[str, object], parts: Iterable[Part]) -> None:
        """Print the document (with `--json`) or the parts, never both."""
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

    def notify(self, text: str) -> None:
        """Print to stderr at once what a person waits for; with `--json` or `-q` nothing."""
        if not self.json and not self.quiet:
            sys.stderr.write(f"{visible(text)}\n")
            sys.stderr.flush()

    def progress(self, *, closing: bool = True) -> Bar:
        """Return a progress bar, which appears on a terminal only; `closing`: a line at its end says what was moved."""
        from bayou.cli.progress import Bar  # noqa: PLC0415

        watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not self.quiet and not self.json
        return Bar(delay_s=1.0 if watched else None, closing=closing)

    def _line(self, line: Line) -> None:
        stream = sys.stderr if line.label else sys.stdout
        label = ""
        if line.label:
            label = colorize(f"{line.label}:", Line.COLORS[line.label], stream.isatty()) + " "
        self._write(stream, label + (visible_lines if line.many else visible)(line.text))

    def _table(self, table: Table) -> None:
        if sys.stdout.isatty():
            from shutil import get_terminal_size  # noqa: PLC0415

            bold = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
            lines = _terminal_table(table, get_terminal_size().columns, bold=bold)
            sys.stdout.writelines(f"{line}\n" for line in lines)
            return
        sys.stdout.writelines(f"{row}\n" for row in _aligned(table))

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(f"{text}\n")


def _aligned(table: Table) -> Iterable[str]:
    """Return aligned lines. Works by column, which is fast: a list may have a hundred thousand rows."""
    columns = []
    for heading, *cells in zip(table.headings, *table.rows, strict=True):
        column = [heading, *map(visible, cells)]
        width = max(map(len, column))
        columns.append([cell.rjust(width) if heading in table.right else cell.ljust(width) for cell in column])
    return ("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def _terminal_table(table: Table, width: int, *, bold: bool) -> Iterator[str]:
    """Yield the lines of a table for a terminal: no line is too long if words allow it, and no word is ever broken.

    Columns without a value are left out, and long texts wrap between words. If even that is too wide, each row becomes
    a block of lines, one for each column.
    """
    from rich.cells import cell_len  # noqa: PLC0415  (only on a terminal)

    cells = [[visible(cell) for cell in row] for row in table.rows]
    used = [at for at in range(len(table.headings)) if any(row[at] for row in cells)]
    headings = [table.headings[at] for at in used]
    rows = [[row[at] for at in used] for row in cells]
    columns = list(zip(headings, *rows, strict=True))
    natural = [max(map(cell_len, column)) for column in columns]
    least = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    if sum(least) > room:
        yield from _blocks(headings, rows, width, cell_len, bold=bold)
        return
    widths = list(least)
    for at in sorted(range(len(widths)), key=lambda at: natural[at] - least[at]):
        widths[at] += min(natural[at] - least[at], room - sum(widths))
    for number, row in enumerate([headings, *rows]):
        wrapped = [_wrapped(cell, widths[at], cell_len) for at, cell in enumerate(row)]
        for line in range(max(map(len, wrapped), default=0)):
            padded = []
            for at, lines in enumerate(wrapped):
                text = lines[line] if line < len(lines) else ""
                space = " " * (widths[at] - cell_len(text))
                padded.append(space + text if headings[at] in table.right else text + space)
            yield _styled(_GAP.join(padded).rstrip(), bold=bold and number == 0)


def _wrapped(text: str, width: int, length: Callable[[str], int]) -> list[str]:
    """Return a text in lines of at most `width` cells, divided between words only."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if length(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _blocks(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, length: Callable[[str], int], *, bold: bool
) -> Iterator[str]:
    """Yield each row as lines of a heading and a value, with an empty line between rows."""
    margin = max(map(len, headings))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for heading, cell in zip(headings, row, strict=True):
            if cell:
                first, *more = _wrapped(cell, width - margin - len(_GAP), length)
                yield f"{_styled(heading.ljust(margin), bold=bold)}{_GAP}{first}"
                yield from (f"{' ' * margin}{_GAP}{line}" for line in more)


def _styled(text: str, *, bold: bool) -> str:
    return click.style(text, bold=True) if bold else text


def colorize(text: str, color: str, on: bool) -> str:
    """Return text in a color, unless `on` is false, the user sets NO_COLOR, or the terminal is dumb."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return click.style(text, fg=color) if on and not plain else text


def limited(items: Sequence[T], verbose: bool, line: Callable[[T], Line], total: int | None = None) -> Iterator[Line]:
    """Yield a line for each item, or for the first `FEW`, and count the rest; `total` if `items` are not all."""
    shown = items if verbose else items[:FEW]
    yield from map(line, shown)
    if total is None:
        yield from more(len(items) - len(shown))
    else:
        yield warn(f"and {total - len(shown):,} more" + ("" if verbose else f"; -v lists the first {len(items):,}"))


def more(number: int) -> Iterator[Line]:
    """Yield a line that counts what a list left out, if it left out anything."""
    if number:
        yield warn(f"and {number:,} more; -v lists all")


def problems_text(errors: Iterable[BayouError]) -> Iterator[Line]:
    """Yield the message and the hint of each error."""
    for error in errors:
        yield fail(error.message)
        if error.hint:
            yield hint(error.hint)


def with_problems(document: Document, errors: Sequence[BayouError]) -> Document:
    """Add the messages of errors to the document of a list, if there are any."""
    return {**document, "problems": [error.message for error in errors]} if errors else document


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
    """Return the first line of an error, its message; a traceback may follow it."""
    return error.partition("\n")[0]


def files(number: int, total: int) -> str:
    """Return `3 files (12 KB)`."""
    return f"{count(number, 'file')} ({size(total)})"


def age(seconds: float) -> str:
    """Return how long ago something was: `40 s`, `12 min`, `2 h`, `3 d`."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def moment(text: str) -> str:
    """Return a time, given as `clock.format_ms` writes it, in the zone of this machine, to the second.

    A text of another form, which another program wrote, is returned as it is.
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
