"""One query: opened, looked at, and read as a stream of rows or written by Spark's own tasks."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow

from bayou.config import SparkConfig
from bayou.errors import QueryInvalid
from bayou.pipeline.server.environment import is_local
from bayou.pipeline.session import log_of, spark_session
from bayou.pipeline.sql import parquet
from bayou.pipeline.sql.base import base_view
from bayou.pipeline.sql.content import ContentSource
from bayou.pipeline.sql.failure import ColumnsOf, query_errors, silence
from bayou.pipeline.sql.grant import Grant, grant_for
from bayou.pipeline.sql.tables import VIEWS
from bayou.pipeline.sql.values import Row, to_rows
from bayou.pipeline.sql.views import create_views
from bayou.repo import LOCAL, Repo

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_COMMENTS = re.compile(r"\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\(", re.DOTALL)
_QUESTIONS = frozenset({"select", "with", "values", "from", "table", "show", "describe", "desc", "explain"})
_MAY_READ_CONTENT = re.compile(r"\bcontent\b|\*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result: its name, and whether it holds numbers."""

    name: str
    number: bool


@dataclass(frozen=True, slots=True)
class Query:
    """A query that Spark has understood. Nothing has been read for it yet."""

    _spark: SparkSession
    _frame: DataFrame
    _columns_of: ColumnsOf
    columns: Sequence[Column]

    def rows(self) -> Generator[Row, None, None]:
        """Yield the result as it comes, a batch at a time; it is never held whole here."""
        plan = self._frame._plan
        with self._running():
            for table in self._spark.client.to_table_as_iterator(plan.to_proto(self._spark.client), plan.observations):
                if isinstance(table, pyarrow.Table):  # and not the schema, which comes first
                    yield from to_rows(table)

    def write_parquet(self, target: Path, *, directory: bool) -> int:
        """Let tasks write the result: one file, or a directory of one for each task. Return how many rows it has.

        Whole when this returns; if it raises, there is nothing new at `target`.
        """
        self.distinct()
        with parquet.staging(target, directory=directory) as parts:
            with self._running():
                parquet.write(self._spark, self._frame, parts)
            return parquet.publish(parts, target, directory=directory)

    def distinct(self) -> None:
        """Refuse a result in which two columns have one name, for a form in which one of them would be lost."""
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise QueryInvalid(f"two columns are called {name}", hint="name each with AS")

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run something on the server; whoever is interrupted, or has seen enough, stops it there too."""
        from grpc import RpcError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            with query_errors(self._columns_of, log_of(self._spark)):
                yield
        except (KeyboardInterrupt, GeneratorExit):
            with suppress(RpcError, PySparkException):  # the end of the session, which follows, stops it as well
                self._spark.interruptAll()
            raise


@contextmanager
def open_query(repo: Repo, text: str) -> Iterator[Query]:
    """Open a query over what a repo has, as its catalog knows it: refresh that first, and keep it open meanwhile.

    `QueryInvalid` says what is wrong with it, before anything is read.
    """
    _check(text)
    # Only a query that names the column, or all columns, can need the store.
    grant = grant_for(repo) if _MAY_READ_CONTENT.search(text) else Grant(refused="the query does not name content")
    source = ContentSource(repo.tree_root, base_view(repo), grant)
    with spark_session(repo.config.spark) as spark:
        silence()
        named = _named(text)
        views = create_views(spark, named or VIEWS, repo.root / LOCAL / "catalog.db", source)

        def columns_of() -> dict[str, list[str]]:
            return {name: list(views[name].columns) for name in named}

        with query_errors(columns_of, log_of(spark)):
            frame = spark.sql(text)
            columns = [Column(field.name, _is_number(field.dataType)) for field in frame.schema.fields]
        yield Query(spark, cast("DataFrame", frame), columns_of, columns)


def shared_files_needed(config: SparkConfig) -> str | None:
    """Say what a query needs of a Spark that is not on this machine alone; None where it is."""
    if config.remote is None and (config.master is None or is_local(config.master)):
        return None
    return "the repo (its tree and its catalog) must be on a file system that the workers of this Spark share"


def _check(text: str) -> None:
    """Refuse what is no question: a query changes nothing (V15)."""
    at = 0
    while found := _COMMENTS.match(text, at):
        at = found.end()
    word = re.match(r"\w*", text[at:])
    assert word is not None
    if word[0].lower() not in _QUESTIONS:
        what = f"{word[0].upper()} is no query" if word[0] else "there is no query"
        raise QueryInvalid(what, hint="data is looked at with SELECT, WITH, VALUES, SHOW, DESCRIBE and EXPLAIN only")


def _named(text: str) -> list[str]:
    """Return the views that a query names: it cannot be about any other."""
    return [name for name in VIEWS if re.search(rf"\b{name}\b", text, re.IGNORECASE)]


def _is_number(kind: object) -> bool:
    from pyspark.sql.types import NumericType  # noqa: PLC0415

    return isinstance(kind, NumericType)
