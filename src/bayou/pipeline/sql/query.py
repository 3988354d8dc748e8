"""One query: opened, looked at, and read as a stream of rows or written by Spark's own tasks."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow
from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import QueryInvalid
from bayou.core.progress import Progress
from bayou.pipeline.bound import ended_by
from bayou.pipeline.progress import watching
from bayou.pipeline.server.control import START_S
from bayou.pipeline.session import log_of, spark_session
from bayou.pipeline.shared import require_shared
from bayou.pipeline.sql import parquet
from bayou.pipeline.sql.base import base_view
from bayou.pipeline.sql.content import ContentSource
from bayou.pipeline.sql.failure import ColumnsOf, query_errors, silence
from bayou.pipeline.sql.grant import Grant, grant_for
from bayou.pipeline.sql.plan import require_read_only, restrict_session, to_frame
from bayou.pipeline.sql.question import check_question
from bayou.pipeline.sql.tables import VIEWS
from bayou.pipeline.sql.values import Row, to_rows
from bayou.pipeline.sql.views import create_views
from bayou.repo import LOCAL, Repo

if TYPE_CHECKING:
    import pandas
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

ArrowTable: TypeAlias = "pyarrow.Table"
PandasFrame: TypeAlias = "pandas.DataFrame"

_ASKING = "asking"
_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_MAY_READ_CONTENT = re.compile(r"\bcontent\b|\*", re.IGNORECASE)


class Column(Struct, frozen=True):
    """A column of a result: its name, and its type, as Spark calls it."""

    name: str
    type: str

    @property
    def number(self) -> bool:
        """Whether it holds numbers."""
        return self.type.partition("(")[0] in _NUMBERS


class Query(Struct, frozen=True):
    """A query that Spark has understood. Nothing has been read for it yet."""

    _spark: SparkSession
    _frame: DataFrame
    _columns_of: ColumnsOf
    columns: Sequence[Column]

    def rows(self, progress: Progress | None = None) -> Generator[Row, None, None]:
        """Yield the result as it comes, a batch at a time; it is never held whole here."""
        with closing(self.tables(progress)) as tables:
            for table in tables:
                yield from to_rows(table)

    def tables(self, progress: Progress | None = None) -> Generator[ArrowTable, None, None]:
        """Yield the result as Arrow tables, as Spark sends them."""
        plan = self._frame._plan
        with self._running(), watching(self._spark, progress, _ASKING):
            for table in self._spark.client.to_table_as_iterator(plan.to_proto(self._spark.client), plan.observations):
                if isinstance(table, pyarrow.Table):  # and not the schema, which comes first
                    yield table

    def to_pandas(self) -> PandasFrame:
        """Return the whole result in pandas, with the types that Spark gives its columns."""
        with self._running():
            return self._frame.toPandas()

    def write_parquet(self, target: Path, *, directory: bool, progress: Progress | None = None) -> int:
        """Let tasks write the result: one file, or a directory of one for each task. Return how many rows it has.

        Whole when this returns; if it raises, there is nothing new at `target`.
        """
        self.distinct()
        with parquet.staging(target, directory=directory) as parts:
            require_shared(self._spark, parts.parent, "the directory that the result goes to")
            with self._running(), watching(self._spark, progress, _ASKING):
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
def open_query(
    repo: Repo, text: str, parameters: Mapping[str, Any] | None = None, *, deadline: Deadline | None = None
) -> Iterator[Query]:
    """Open a query over what a repo has, as its catalog knows it: refresh that first, and keep it open meanwhile.

    `parameters` are the values of its `:name`s. `QueryInvalid` says what is wrong with it, before anything is read.
    Once the deadline passes, or is cancelled, whatever runs for it on Spark is stopped, and that is raised.
    """
    question = check_question(text, parameters)
    said = " ".join([text, *map(str, (parameters or {}).values())])  # IDENTIFIER(:name) is a name as well
    # Only a query that names the column, or all columns, can need the store.
    grant = grant_for(repo) if _MAY_READ_CONTENT.search(said) else Grant(refused="the query does not name content")
    source = ContentSource(repo.tree_root, base_view(repo), grant)
    with spark_session(repo.config.spark, deadline=_to_open(deadline)) as spark, ended_by(spark, deadline):
        silence()
        named = _named(said)
        if named:
            require_shared(spark, repo.root / LOCAL, "the catalog")
            if not repo.tree_root.is_relative_to(repo.root / LOCAL):
                require_shared(spark, repo.tree_root, "the tree")
        views = create_views(spark, named or VIEWS, repo.root / LOCAL / "catalog.db", source)

        def columns_of() -> dict[str, list[str]]:
            return {name: list(views[name].columns) for name in named}

        with query_errors(columns_of, log_of(spark)):
            if question.query is not None:
                restrict_session(spark)
                require_read_only(spark, question.query, parameters or {})
            if question.command:
                frame = cast("DataFrame", spark.sql(question.statement, dict(parameters) if parameters else None))
            else:
                frame = to_frame(spark, question.statement, parameters or {})
            columns = [Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        yield Query(spark, frame, columns_of, columns)


def _to_open(deadline: Deadline | None) -> Deadline | None:
    """Return by when a session must be open: in its usual time, and by the deadline."""
    return None if deadline is None else Deadline.after(min(START_S, deadline.remaining()), deadline.cancelled)


def _named(text: str) -> list[str]:
    """Return the views that a query names: it cannot be about any other."""
    return [name for name in VIEWS if re.search(rf"\b{name}\b", text, re.IGNORECASE)]
