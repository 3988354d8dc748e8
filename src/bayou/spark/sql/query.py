"""Run one query: open it, check it, and read its result as a stream of rows or have Spark's tasks write it.

`open_query` is the entry point. Errors of Spark about the query, and errors that a worker met while it read content,
become one line (`query_errors`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow
from msgspec import Struct
from msgspec.structs import replace

from bayou.core import errors
from bayou.core.deadline import Deadline
from bayou.core.errors import QueryInvalid, SparkFailed
from bayou.core.progress import Progress
from bayou.repo import LOCAL, Repo
from bayou.spark.arrow import tasks_of
from bayou.spark.progress import watching
from bayou.spark.server.control import START_S
from bayou.spark.session import interrupt_at_deadline, log_hint, log_of, spark_session
from bayou.spark.shared_fs import require_shared
from bayou.spark.sql import parquet
from bayou.spark.sql.base import BaseView, base_view
from bayou.spark.sql.content import ContentSource, Grant, grant_for
from bayou.spark.sql.plan_check import require_read_only, restrict_session, to_frame
from bayou.spark.sql.read_only import parse_read_only
from bayou.spark.sql.views import RANGE, VIEWS, ContentPlan, create_views
from bayou.state.connection import Connection

if TYPE_CHECKING:
    import pandas
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_WORKER_ERROR = re.compile(rf"^{re.escape(errors.__name__)}\.\w+: (.+)$", re.MULTILINE)
_MOST_CHARACTERS = 400

_VIEWS_HINT = f"there are the views {', '.join(VIEWS)}"

ColumnsOf = Callable[[], Mapping[str, Sequence[str]]]
"""Returns the columns of the views that a query names; called only for an error's hint."""


@contextmanager
def query_errors(columns_of: ColumnsOf, log: Path | None) -> Iterator[None]:
    """Turn Spark's errors about a query, and errors that Bayou's workers raised, into one line; let others through."""
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415  (AnalysisException: also a syntax error)

    try:
        yield
    except AnalysisException as error:
        raise _invalid(error, columns_of) from error
    except PySparkException as error:
        raised = _WORKER_ERROR.search(str(error)) or _WORKER_ERROR.search(_stack_trace(error))
        if raised is not None:
            raise SparkFailed(raised[1][:_MOST_CHARACTERS], hint=_hint(raised[1], log)) from error
        if _is_query_error(error.getCondition() or ""):
            raise SparkFailed(f"the query failed: {sentence(str(error))}", hint=log_hint(log)) from error
        raise


def sentence(text: str) -> str:
    """Return the first sentence of a message of Spark, without error class, SQLSTATE, query and stack trace."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "the query cannot be run")
    line = _STATE.sub("", _CLASS.sub("", line)).partition(". ")[0].rstrip(".")
    return (line[:1].lower() + line[1:])[:_MOST_CHARACTERS]


def _is_query_error(condition: str) -> bool:
    """Return whether an error of a running job comes from the query (a division by zero), and not from the engine."""
    return bool(condition) and not condition.startswith(("INTERNAL_ERROR", "UDF", "PYTHON", "FAILED_EXECUTE"))


def _invalid(error: PySparkException, columns_of: ColumnsOf) -> QueryInvalid:
    condition, parameters = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        return QueryInvalid(f"there is no view {parameters.get('relationName', '')}".rstrip(), hint=_VIEWS_HINT)
    if condition.startswith("UNRESOLVED_COLUMN"):
        columns = "; ".join(f"{view}: {', '.join(names)}" for view, names in columns_of().items())
        return QueryInvalid(
            f"there is no column {parameters.get('objectName', '')}".rstrip(), hint=columns or _VIEWS_HINT
        )
    return QueryInvalid(sentence(str(error)))


def silence() -> None:
    """Keep the client's log of each failed query off the terminal: the command prints one line."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _stack_trace(error: Exception) -> str:
    """Return the server's stack trace, at the end of which a worker's own traceback is."""
    trace = getattr(error, "getStackTrace", None)
    return str(trace() or "") if trace is not None else ""


def _hint(message: str, log: Path | None) -> str:
    if any(part in message for part in ("is missing", "is not what was saved", "bytes that were pushed")):
        return "bayou datastore verify shows what is damaged; a query that names content_error gets a row for it"
    return log_hint(log)


Row = tuple[object, ...]


def to_rows(table: pyarrow.Table) -> Iterator[Row]:
    """Yield the rows of an Arrow table: maps as dicts, times with their zone, invalid UTF-8 replaced."""
    yield from zip(*(_values(column) for column in table.itercolumns()), strict=True)


def _values(column: Any) -> list[object]:
    try:
        found: list[object] = column.to_pylist(maps_as_pydicts="strict")
        return found
    except UnicodeDecodeError:
        return _decode_text(column)


def _decode_text(column: Any) -> list[object]:
    """Return a text column whose bytes are not all UTF-8, with U+FFFD for each invalid byte."""
    if not pyarrow.types.is_string(column.type):
        raise QueryInvalid("the result has text that is not UTF-8", hint="try_validate_utf8(…) makes it null")
    # A cast to binary would check the text again; the buffers of both types are the same.
    binary = [
        pyarrow.Array.from_buffers(pyarrow.binary(), len(chunk), chunk.buffers(), offset=chunk.offset)
        for chunk in column.chunks
    ]
    return [None if text is None else text.decode(errors="replace") for chunk in binary for text in chunk.to_pylist()]


ArrowTable: TypeAlias = "pyarrow.Table"
PandasFrame: TypeAlias = "pandas.DataFrame"

_STAGE = "asking"
_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_MAY_READ_CONTENT = re.compile(r"\bcontent(?:_error)?\b|\*", re.IGNORECASE)
_ASKS_FOR_ERRORS = re.compile(r"\bcontent_error\b", re.IGNORECASE)

_TASK_BYTES = 64 << 20
TASK_ROWS = 5000
_TASKS_PER_SLOT = 4
"""A task that reads content from the store gets so many bytes; there are more tasks if cores would be idle."""


class Column(Struct, frozen=True):
    """A column of a result: its name, and the name of its Spark type."""

    name: str
    type: str

    @property
    def number(self) -> bool:
        """Whether the column holds numbers."""
        return self.type.partition("(")[0] in _NUMBERS


class Query(Struct, frozen=True):
    """A query that Spark has analysed and Bayou has checked; it has read nothing yet."""

    _spark: SparkSession
    _frame: DataFrame
    _columns_of: ColumnsOf
    columns: Sequence[Column]

    def rows(self, progress: Progress | None = None) -> Generator[Row, None, None]:
        """Yield the rows as they arrive, a batch at a time; this process never holds the whole result."""
        with closing(self.tables(progress)) as tables:
            for table in tables:
                yield from to_rows(table)

    def tables(self, progress: Progress | None = None) -> Generator[ArrowTable, None, None]:
        """Yield the result as Arrow tables, as Spark sends them."""
        plan = self._frame._plan
        with self._running(), watching(self._spark, progress, _STAGE):
            for table in self._spark.client.to_table_as_iterator(plan.to_proto(self._spark.client), plan.observations):
                if isinstance(table, pyarrow.Table):  # the schema comes first
                    yield table

    def to_pandas(self) -> PandasFrame:
        """Return the whole result as a pandas DataFrame, with the types that Spark gives its columns."""
        with self._running():
            return self._frame.toPandas()

    def write_parquet(self, target: Path, *, directory: bool, progress: Progress | None = None) -> int:
        """Have tasks write the result, as one file or as a directory with a file per task; return the number of rows.

        `target` is complete when this returns. If this raises, it has not changed `target`.
        """
        self.require_distinct_columns()
        with parquet.staging(target, directory=directory) as parts:
            require_shared(self._spark, parts.parent, "the directory that the result goes to")
            with self._running(), watching(self._spark, progress, _STAGE):
                parquet.write(self._spark, self._frame, parts)
            return parquet.publish(parts, target, directory=directory)

    def require_distinct_columns(self) -> None:
        """Raise `QueryInvalid` if two columns have the same name: JSON and Parquet would lose one of them."""
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise QueryInvalid(f"two columns are called {name}", hint="name each with AS")

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Translate errors while the query runs; stop it on the server if the caller gives up, as by Ctrl-C."""
        from grpc import RpcError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            with query_errors(self._columns_of, log_of(self._spark)):
                yield
        except (KeyboardInterrupt, GeneratorExit):
            with suppress(RpcError, PySparkException):  # closing the session, which follows, stops the query as well
                self._spark.interruptAll()
            raise


@contextmanager
def open_query(
    repo: Repo,
    text: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    deadline: Deadline | None = None,
    connection: Connection | None = None,
) -> Iterator[Query]:
    """Open a query over a repo's catalog and base, and close its session at the end.

    The caller refreshes the catalog first and keeps it open meanwhile. `parameters` are the values of `:name`s in the
    text. Raise `QueryInvalid` before anything is read. Once the deadline passes or is cancelled, this stops the query
    on the server and raises that.
    """
    question = parse_read_only(text, parameters)
    names = " ".join([text, *map(str, (parameters or {}).values())])  # IDENTIFIER(:name) names a view or column, too
    # Only a query that names the column, or all columns, can need the store.
    grant = grant_for(repo) if _MAY_READ_CONTENT.search(names) else Grant(refused="the query does not name content")
    source = ContentSource(repo.tree_root, base_view(repo, connection), grant)
    content = ContentPlan(source, tolerant=_ASKS_FOR_ERRORS.search(names) is not None)
    catalog = repo.root / LOCAL / "catalog.db"
    with spark_session(repo.config.spark, deadline=_to_open(deadline)) as spark, interrupt_at_deadline(spark, deadline):
        silence()
        named = _named_views(names)
        if named:
            require_shared(spark, repo.root / LOCAL, "the catalog")
            if not repo.tree_root.is_relative_to(repo.root / LOCAL):
                require_shared(spark, repo.tree_root, "the tree")
        views = create_views(spark, named or VIEWS, catalog, content)

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
                if content.source.base.absent > RANGE and _reads_much_content(frame):
                    # The query is a relation of names, which Spark looks up when it runs: it finds the new views.
                    tasks = _content_tasks(content.source.base, tasks_of(spark))
                    create_views(spark, named or VIEWS, catalog, replace(content, tasks=tasks))
            columns = [Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        yield Query(spark, frame, columns_of, columns)


def _reads_much_content(frame: DataFrame) -> bool:
    """Return whether a query may read the content of many rows: its plan reads content and has no final LIMIT."""
    plan = frame._explain_string()
    return "bayou_content(" in plan and "CollectLimit" not in plan


def _content_tasks(base: BaseView, slots: int) -> int:
    """Return among how many tasks to divide the rows whose content is in the store."""
    size = base.root.bytes if base.root is not None else 0
    return max(size // _TASK_BYTES, min(slots * _TASKS_PER_SLOT, base.absent // TASK_ROWS), 1)


def _to_open(deadline: Deadline | None) -> Deadline | None:
    """Return the deadline for opening a session: the usual time, at most until `deadline`."""
    return None if deadline is None else Deadline.after(min(START_S, deadline.remaining()), deadline.cancelled)


def _named_views(text: str) -> list[str]:
    """Return the views that a query names: it can read no other."""
    return [name for name in VIEWS if re.search(rf"\b{name}\b", text, re.IGNORECASE)]


class WrittenResult(Struct, frozen=True):
    """A written result: its columns, rows and bytes."""

    columns: Sequence[Column]
    rows: int
    size: int


def save_result(
    repo: Repo,
    text: str,
    parameters: Mapping[str, Any],
    target: Path,
    deadline: Deadline,
    connection: Connection | None = None,
) -> WrittenResult:
    """Run a query over a repo and have tasks write the result to the Parquet file `target`.

    Raise what `open_query` raises. After a passed or cancelled deadline nothing runs on Spark.
    """
    with open_query(repo, text, parameters, deadline=deadline, connection=connection) as query:
        rows = query.write_parquet(target, directory=False)
        deadline.remaining()  # joining the parts in this process checks no deadline
    return WrittenResult(query.columns, rows, target.stat().st_size)
