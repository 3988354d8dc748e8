"""`bayou data sql`: query all records in Spark SQL. This is the only command of `data` that loads Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from bayou.cli.content import open_text_file
from bayou.cli.options import Command, Common, FilePath
from bayou.cli.output import Line, count, say
from bayou.cli.render import sql as render_sql
from bayou.cli.session import emit_with_remarks, reading, with_remarks
from bayou.core.errors import UsageError
from bayou.core.text import visible_lines

if TYPE_CHECKING:
    from bayou.core.progress import Progress
    from bayou.spark.sql.query import Query, Row

_FORMATS = ("table", "json", "csv", "parquet")
_ENDINGS = {".txt": "table", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet"}


@click.command(cls=Command)
@click.argument("query")
@click.option(
    "form",
    "--format",
    type=click.Choice(_FORMATS),
    help="How to print it: a table, JSON (an object on each line), CSV or Parquet; else as FILE ends, or a table.",
)
@click.option(
    "target", "-o", "--output", type=FilePath(str), metavar="FILE", help="Write it to FILE, whole or not at all."
)
@click.pass_obj
def sql(common: Common, query: str, form: str | None, target: str | None) -> None:
    """Ask in Spark SQL about data, versions, outputs, runs and entries.

    These are views: data has the latest version of each item, versions all of them, entries what the store holds, as of
    the last sync. data and versions have a column content, in bytes (string(content) is its text), which is read, and
    fetched where it is not here, only if the query uses it. Parquet goes to FILE, or with FILE/ to a directory.
    """
    form = _format(common, form, target)
    with reading(common) as (records, remarks), ExitStack() as asking:
        with common.output.progress():  # Spark may have to start first
            from bayou.spark.sql.query import open_query  # noqa: PLC0415  (pyarrow, grpc: 1 s)

            opened = asking.enter_context(open_query(records.repo, query, connection=records.connection))
        if target is None:
            _print(common, opened, form, remarks)
        else:
            with common.output.progress() as bar:
                total = _write(opened, form, target, bar)
            document = {"path": target, "format": form, "total": total}
            emit_with_remarks(common, document, [say(f"wrote {count(total, 'row')} to {target}")], remarks)


def _format(common: Common, form: str | None, target: str | None) -> str:
    """Return the format; refuse options that contradict each other before anything is opened."""
    if target is None:
        if form == "parquet":
            raise UsageError("Parquet is not for a terminal or a pipe", hint="name a file: -o FILE")
        if common.json and form not in (None, "json"):
            raise UsageError(
                f"--json prints one JSON document, and no {form}", hint=f"leave out --json, or --format {form}"
            )
        return form or "table"
    if target.endswith("/") and form in (None, "parquet"):
        return "parquet"
    ending = Path(target).suffix.lower()
    if form is None and ending not in _ENDINGS:
        known = ", ".join(sorted(_ENDINGS))
        raise UsageError(
            f"the name {target} does not say which format to write: "
            + (f"the ending {ending} is unknown" if ending else "it has no ending"),
            hint=f"end it with one of {known}, or name the format: --format {'|'.join(_FORMATS)}",
        )
    return form or _ENDINGS[ending]


def _print(common: Common, query: Query, form: str, remarks: list[Line]) -> None:
    if common.json:
        query.require_distinct_columns()
        with closing(query.rows()) as rows:
            render_sql.document(query.columns, rows, sys.stdout, with_remarks({}, remarks))
        return
    if form == "json":
        query.require_distinct_columns()
    with common.output.progress() as bar, closing(query.rows(bar)) as rows:
        first = list(islice(rows, 1))
        bar.close()  # from here on, the terminal belongs to the result
        total = _render(query, chain(first, rows), form, sys.stdout)
    sys.stdout.flush()
    common.output.emit({}, remarks)
    if form == "table":
        common.output.notify(count(total, "row"))


def _render(query: Query, rows: Iterable[Row], form: str, stream: TextIO) -> int:
    if form == "json":
        return render_sql.json_lines(query.columns, rows, stream)
    if form == "csv":
        return render_sql.csv(query.columns, rows, _TerminalStream(stream) if stream.isatty() else stream)
    width = os.get_terminal_size().columns if stream is sys.stdout and stream.isatty() else None
    return render_sql.table(query.columns, rows, stream, width)


def _write(query: Query, form: str, target: str, progress: Progress) -> int:
    if form == "parquet":
        return query.write_parquet(Path(target), directory=target.endswith("/"), progress=progress)
    if form == "json":
        query.require_distinct_columns()
    with open_text_file(Path(target)) as stream, closing(query.rows(progress)) as rows:
        return _render(query, rows, form, stream)


class _TerminalStream:
    """Writes to a terminal with control characters made visible; files and pipes get values as they are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible_lines(text))
