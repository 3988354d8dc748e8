"""One query: opened, looked at, and read as a stream of rows or written by Spark's own tasks.

What goes wrong with a query, said in one line: what SQL says of it, or what a worker ran into.

What a result's columns hold, as Python has it.

The result of a query as one file of Parquet, for whoever keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow
from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import QueryInvalid, SparkFailed
from bayou.core.progress import Progress
from bayou.repo import LOCAL, Repo
from bayou.spark.progress import watching
from bayou.spark.server.control import START_S
from bayou.spark.session import interrupt_at_deadline, log_of, spark_session
from bayou.spark.shared_fs import require_shared
from bayou.spark.sql import parquet
from bayou.spark.sql.base import base_view
from bayou.spark.sql.content import ContentSource, Grant, grant_for
from bayou.spark.sql.plan_check import require_read_only, restrict_session, to_frame
from bayou.spark.sql.read_only import parse_read_only
from bayou.spark.sql.views import VIEWS, create_views

if TYPE_CHECKING:
    import pandas
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_OURS = re.compile(r"^bayou\.errors\.\w+: (.+)$", re.MULTILINE)
_LONGEST = 400

_THERE_ARE = f"there are the views {', '.join(VIEWS)}"

ColumnsOf = Callable[[], Mapping[str, Sequence[str]]]
"""Says which columns the views have, if somebody asks."""


@contextmanager
def query_errors(columns_of: ColumnsOf, log: Path | None) -> Iterator[None]:
    """Turn what Spark says of a query, or what a worker of ours raised, into one line; let all else through."""
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415  (also what cannot be parsed)

    try:
        yield
    except AnalysisException as error:
        raise _invalid(error, columns_of) from error
    except PySparkException as error:
        said = _OURS.search(str(error)) or _OURS.search(_traces(error))
        if said is not None:
            raise SparkFailed(said[1][:_LONGEST], hint=_hint(said[1], log)) from error
        if _is_of_the_query(error.getCondition() or ""):
            raise SparkFailed(f"the query failed: {sentence(str(error))}", hint=_see(log)) from error
        raise


def sentence(text: str) -> str:
    """Return the first sentence of a message, without its class, its state, the query itself and a stack of Java."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "the query cannot be run")
    line = _STATE.sub("", _CLASS.sub("", line)).partition(". ")[0].rstrip(".")
    return (line[:1].lower() + line[1:])[:_LONGEST]


def _is_of_the_query(condition: str) -> bool:
    """Whether an error of a running job is about what was asked (a division by zero), and not about the engine."""
    return bool(condition) and not condition.startswith(("INTERNAL_ERROR", "UDF", "PYTHON", "FAILED_EXECUTE"))


def _invalid(error: PySparkException, columns_of: ColumnsOf) -> QueryInvalid:
    condition, told = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        return QueryInvalid(f"there is no view {told.get('relationName', '')}".rstrip(), hint=_THERE_ARE)
    if condition.startswith("UNRESOLVED_COLUMN"):
        columns = "; ".join(f"{view}: {', '.join(names)}" for view, names in columns_of().items())
        return QueryInvalid(f"there is no column {told.get('objectName', '')}".rstrip(), hint=columns or _THERE_ARE)
    return QueryInvalid(sentence(str(error)))


def silence() -> None:
    """Keep what Spark's client logs of every failed query off the terminal: it is said in one line."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _traces(error: Exception) -> str:
    """Return what the server knows besides the message: a worker's own words stand at the end of it."""
    trace = getattr(error, "getStackTrace", None)
    return str(trace() or "") if trace is not None else ""


def _hint(said: str, log: Path | None) -> str:
    if "is missing" in said or "is not what was saved" in said or "bytes that were pushed" in said:
        return "bayou datastore verify shows what is damaged"
    return _see(log)


def _see(log: Path | None) -> str:
    return "the log of the Spark server says more" if log is None else f"its log says more: {log}"


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
    question = parse_read_only(text, parameters)
    said = " ".join([text, *map(str, (parameters or {}).values())])  # IDENTIFIER(:name) is a name as well
    # Only a query that names the column, or all columns, can need the store.
    grant = grant_for(repo) if _MAY_READ_CONTENT.search(said) else Grant(refused="the query does not name content")
    source = ContentSource(repo.tree_root, base_view(repo), grant)
    with spark_session(repo.config.spark, deadline=_to_open(deadline)) as spark, interrupt_at_deadline(spark, deadline):
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


class Saved(Struct, frozen=True):
    """What was written: its columns, and how much of it there is."""

    columns: Sequence[Column]
    rows: int
    size: int


def save_result(repo: Repo, text: str, parameters: Mapping[str, Any], target: Path, deadline: Deadline) -> Saved:
    """Ask a question of what a repo's catalog knows, and let tasks write the answer to `target`.

    Raises what `open_query` does; once the deadline passes, or is cancelled, also that, and nothing goes on on Spark.
    """
    with open_query(repo, text, parameters, deadline=deadline) as query:
        rows = query.write_parquet(target, directory=False)
        deadline.remaining()  # the parts are joined here, where nothing watches the time
    return Saved(query.columns, rows, target.stat().st_size)
