"""`bayou data sql`: a question in Spark SQL about everything there is. The one command of `data` that loads Spark."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from bayou.cli.commands.session import annotated, reading
from bayou.cli.options import Command, Common
from bayou.cli.output import Line, count, say
from bayou.cli.render import sql as render_sql
from bayou.core.atomic_file import atomic_file
from bayou.core.errors import UsageError
from bayou.core.text import visible_lines

if TYPE_CHECKING:
    from bayou.core.progress import Progress
    from bayou.spark.sql.query import Query, Row

_FORMATS = ("table", "json", "csv", "parquet")
_ENDINGS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet"}


@click.command(cls=Command)
@click.argument("query")
@click.option(
    "form",
    "--format",
    type=click.Choice(_FORMATS),
    help="How to print it: a table, JSON (an object on each line), CSV or Parquet; else as FILE ends, or a table.",
)
@click.option("target", "-o", "--output", metavar="FILE", help="Write it to FILE, whole or not at all.")
@click.pass_obj
def sql(common: Common, query: str, form: str | None, target: str | None) -> None:
    """Ask in Spark SQL about data, versions, outputs, runs and entries.

    These are views: data has the latest version of each item, versions all of them, entries what the store holds, as of
    the last sync. data and versions have a column content, in bytes (string(content) is its text), which is read, and
    fetched where it is not here, only if the query uses it. Parquet goes to FILE, or with FILE/ to a directory.
    """
    form = _form(common, form, target)
    with reading(common) as (records, told):
        from bayou.spark.sql.query import open_query  # noqa: PLC0415  (pyarrow, grpc: 1 s)

        with open_query(records.repo, query) as opened:
            if target is None:
                _print(common, opened, form, told)
            else:
                with common.output.progress() as bar:
                    total = _write(opened, form, target, bar)
                document = {"path": target, "format": form, "total": total}
                common.output.emit(annotated(document, told), [say(f"wrote {count(total, 'row')} to {target}"), *told])


def _form(common: Common, form: str | None, target: str | None) -> str:
    """Return the format; refuse what contradicts itself before anything is opened."""
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
    return form or _ENDINGS.get(Path(target).suffix.lower(), "table")


def _print(common: Common, query: Query, form: str, told: list[Line]) -> None:
    if common.json:
        query.require_distinct_columns()
        with closing(query.rows()) as rows:
            render_sql.document(query.columns, rows, sys.stdout, annotated({}, told))
        return
    if form == "json":
        query.require_distinct_columns()
    with common.output.progress() as bar, closing(query.rows(bar)) as rows:
        first = list(islice(rows, 1))
        bar.close()  # from here the terminal is the result's
        total = _render(query, chain(first, rows), form, sys.stdout)
    sys.stdout.flush()
    common.output.emit({}, told)
    if form == "table":
        common.output.tell(count(total, "row"))


def _render(query: Query, rows: Iterable[Row], form: str, stream: TextIO) -> int:
    if form == "json":
        return render_sql.json_lines(query.columns, rows, stream)
    if form == "csv":
        return render_sql.csv(query.columns, rows, _Shown(stream) if stream.isatty() else stream)
    width = os.get_terminal_size().columns if stream is sys.stdout and stream.isatty() else None
    return render_sql.table(query.columns, rows, stream, width)


def _write(query: Query, form: str, target: str, progress: Progress) -> int:
    if form == "parquet":
        return query.write_parquet(Path(target), directory=target.endswith("/"), progress=progress)
    if form == "json":
        query.require_distinct_columns()
    with _whole(Path(target)) as stream, closing(query.rows(progress)) as rows:
        return _render(query, rows, form, stream)


class _Shown:
    """A terminal, which gets what it would obey made visible; a file and a pipe get values as they are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible_lines(text))


@contextmanager
def _whole(target: Path) -> Iterator[TextIO]:
    """Open a file that appears at `target` when all is written; if that fails, what was there is still there."""
    with atomic_file(target) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield stream
        stream.detach()  # flushes, and leaves the file open
