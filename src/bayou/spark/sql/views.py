"""The views that queries read: the tables of the catalog and the entries of base, as workers read them.

`VIEWS` names the views and their columns. A worker needs nothing but the file of the catalog: it opens it read-only and
reads a range of rows as Arrow batches. The view `entries` comes from base (`sql.base`).
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import pyarrow
from msgspec import Struct

from bayou.core.errors import StateError
from bayou.index.node import Ref
from bayou.spark.arrow import ENTRIES, array, ddl, entries_to_batch
from bayou.spark.sql.base import BaseView
from bayou.spark.sql.content import CONTENT_DDL, LOCATION_DDL, ContentSource, content_column, location_column

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

Kind = Literal["string", "bigint", "double"]
"""The Spark type of a column of SQLite."""

_LATEST = """NOT deleted AND NOT EXISTS (
    SELECT 1 FROM version AS later
    WHERE later.type = version.type AND later.model_id = version.model_id AND later.name = version.name
    AND later.version > version.version AND NOT later.deleted
)"""

_MADE = "array<struct<name: string, version: bigint, size: bigint, sha256: string>>"


class CatalogTable(Struct, frozen=True):
    """A table of the catalog: its columns, and boolean columns that SQLite derives from them."""

    name: str
    columns: Mapping[str, Kind]
    derived: Mapping[str, str]

    @property
    def schema(self) -> str:
        """The columns as a DDL schema of Spark."""
        columns = [*self.columns.items(), *((name, "boolean") for name in self.derived)]
        return ", ".join(f"`{name}` {kind}" for name, kind in columns)

    @property
    def select(self) -> str:
        """The columns as the select list of SQLite."""
        derived = (f'{sql} AS "{name}"' for name, sql in self.derived.items())
        return ", ".join([*(f'"{name}"' for name in self.columns), *derived])


def _strings(*names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, "string")


VERSION = CatalogTable(
    "version",
    {
        **_strings("type", "model_id", "name"),
        "version": "bigint",
        **_strings("model", "id"),
        "size": "bigint",
        **_strings("sha256", "content_type", "created_at", "tags", "lifetime", "keep"),
        "streaming": "bigint",
        "deleted": "bigint",
        **_strings("renamed_to", "run", "workflow", "job", "step", "output", "repo"),
        "files": "bigint",
    },
    {"latest": _LATEST},
)
OUTPUT = CatalogTable(
    "output",
    {
        **_strings("type", "model_id", "id", "model", "method", "status", "started_at", "finished_at"),
        "duration_s": "double",
        **_strings("data", "error", "run", "workflow", "job", "step", "tags"),
    },
    {},
)
RUN = CatalogTable(
    "run",
    _strings("workflow_id", "run_id", "workflow", "status", "started_at", "finished_at", "failed_step", "by", "tags"),
    {},
)

_TAGS = "from_json(tags, 'map<string, string>') AS tags"


def _moment(name: str) -> str:
    """Return the SQL of a time column; a text that is no time becomes null, so that it makes no query fail."""
    return f"try_cast({name} AS TIMESTAMP) AS {name}"


_ITEM = (
    *("model", "type", "model_id", "name", "version", "id", "size", "sha256", "content_type"),
    *(_moment("created_at"), _TAGS, "lifetime", "keep", "CAST(streaming AS BOOLEAN) AS streaming"),
)
_MADE_BY = (
    *("renamed_to", "run", "workflow", "job", "step", "output", "repo"),
    "concat_ws('/', 'data', type, model_id, name, version, if(files IS NULL, 'raw', 'manifest.json')) AS path",
)

VIEWS: Mapping[str, tuple[str, ...]] = {
    "data": (*_ITEM, *_MADE_BY),
    "versions": (*_ITEM, "latest", "CAST(deleted AS BOOLEAN) AS deleted", *_MADE_BY),
    "outputs": (
        *("id", "model", "type", "model_id", "method", "status", _moment("started_at"), _moment("finished_at")),
        *("duration_s", f"from_json(data, '{_MADE}') AS data", "error", "run", "workflow", "job", "step", _TAGS),
    ),
    "runs": (
        *("run_id", "workflow", "workflow_id", "status", _moment("started_at"), _moment("finished_at")),
        *("failed_step", "`by`", _TAGS),
    ),
    "entries": (
        *("path", "push", "size", "lower(hex(sha256)) AS sha256", "etag", "version", "modified"),
        *("at", "pack", "offset", "stored", "method"),
    ),
}
"""The columns of each view, as Spark SQL over its source.

`data` and `versions` also have `content`; and `content_error`, which says why content cannot be read, in a query that
names it: as a column of all queries it would make `SELECT * EXCEPT (content)` read content.
"""

_NOWHERE = f"CAST(NULL AS STRUCT<{LOCATION_DDL}>)"

RANGE = 25_000
"""Rows of one task: a worker reads them in a fraction of a second, so that the last task is never long."""

_ARROW = {"string": pyarrow.string(), "bigint": pyarrow.int64(), "double": pyarrow.float64()}
_BATCH = 4096
_WAIT_S = 60.0


class Rows(Struct, frozen=True):
    """The rows of one table whose rowid lies in a range, both ends included."""

    first: int
    last: int


def ranges(catalog: Path, table: CatalogTable, size: int = RANGE) -> list[Rows]:
    """Divide a table into ranges of about `size` rows each; no range if it is empty."""
    with _open(catalog) as db:
        count, first, last = db.execute(f"SELECT count(*), min(rowid), max(rowid) FROM {table.name}").fetchone()
    if not count:
        return []
    step = -(-(last - first + 1) // -(-count // size))
    return [Rows(low, min(low + step - 1, last)) for low in range(first, last + 1, step)]


def read(catalog: Path, table: CatalogTable, rows: Rows, where: str = "TRUE") -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a range for which a condition holds, read by one statement."""
    schema = pyarrow.schema([(name, _ARROW[kind]) for name, kind in table.columns.items()])
    for name in table.derived:
        schema = schema.append(pyarrow.field(name, pyarrow.bool_()))
    statement = f"SELECT {table.select} FROM {table.name} WHERE rowid BETWEEN ? AND ? AND {where}"
    with _open(catalog) as db:
        found = db.execute(statement, (rows.first, rows.last))
        while batch := found.fetchmany(_BATCH):
            yield pyarrow.RecordBatch.from_arrays(list(_columns(batch, schema)), schema=schema)


def _columns(batch: Sequence[Sequence[Any]], schema: Any) -> Iterator[Any]:
    for values, kind in zip(zip(*batch, strict=True), schema.types, strict=True):
        yield array([bool(value) for value in values] if pyarrow.types.is_boolean(kind) else values, kind)


@contextmanager
def _open(catalog: Path) -> Iterator[sqlite3.Connection]:
    """Open the catalog read-only; raise `StateError` if it is missing, damaged or on another machine."""
    try:
        address = f"{catalog.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None)) as db:
            yield db
    except sqlite3.Error as error:
        raise StateError(
            f"the catalog cannot be read: {catalog}: {error}",
            hint="workers read it as a file: it must be on a file system that they share with this machine",
        ) from error


Part = TypeVar("Part")
Batches = Callable[[Iterator["RecordBatch"]], Iterator["RecordBatch"]]


class ContentPlan(Struct, frozen=True):
    """How a query reads content: where it is, whether there is a column `content_error`, and in how many tasks.

    `tasks` is None if content is read by the tasks that read the catalog. Otherwise Spark divides the rows among that
    many tasks, the rows of one pack to one task.
    """

    source: ContentSource
    tolerant: bool = False
    tasks: int | None = None


def create_views(spark: SparkSession, names: Iterable[str], file: Path, content: ContentPlan) -> dict[str, DataFrame]:
    """Create some of the views in a session, or replace them, and return them; read no row yet."""
    views = {name: _view(spark, name, file, content) for name in names}
    for name, view in views.items():
        view.createOrReplaceTempView(name)
    return views


def _view(spark: SparkSession, name: str, file: Path, content: ContentPlan) -> DataFrame:
    match name:
        case "data":
            return _with_content(_table(spark, file, VERSION, "latest"), name, content)
        case "versions":
            return _with_content(_table(spark, file, VERSION), name, content)
        case "outputs":
            return _table(spark, file, OUTPUT).selectExpr(*VIEWS[name])
        case "runs":
            return _table(spark, file, RUN).selectExpr(*VIEWS[name])
    return _entries(spark, content.source.base)


def _with_content(source: DataFrame, view: str, content: ContentPlan) -> DataFrame:
    """Return a view of versions with `content`, which Spark reads only for the rows whose content a query uses.

    Spark applies a query's conditions on other columns before the location is looked up and rows are divided.
    """
    shown = source.selectExpr(*VIEWS[view], "CAST(deleted AS BOOLEAN) AS _deleted", f"{_NOWHERE} AS _at")
    if content.tasks is not None:
        locate = _arrow_udf(location_column(content.source), LOCATION_DDL)
        located = shown.withColumn("_at", locate("path", "_deleted"))
        shown = located.selectExpr("*", "coalesce(_at.pack, path) AS _group").repartition(content.tasks, "_group")
    read = _arrow_udf(content_column(content.source, tolerant=content.tolerant), CONTENT_DDL)
    found = shown.withColumn("_read", read("path", "size", "sha256", "streaming", "_deleted", "_at.entry"))
    errors = ["_read.error AS content_error"] if content.tolerant else []
    return found.selectExpr("*", "_read.content AS content", *errors).drop("_deleted", "_at", "_group", "_read")


def _arrow_udf(function: Callable[..., Any], returns: str) -> Any:
    """Return a UDF of Arrow arrays. Its type is built here: pyspark would ask a server to parse the DDL, and takes the
    first session of this process for that, which may be closed by now."""
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf  # noqa: PLC0415
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType  # noqa: PLC0415

    kinds = {"string": StringType, "binary": BinaryType}
    fields = (field.split(" ") for field in returns.split(", "))
    schema = StructType([StructField(name, kinds[kind]()) for name, kind in fields])
    with warnings.catch_warnings():
        # pyspark prefers type annotations to the explicit type that it is given here.
        warnings.simplefilter("ignore", UserWarning)
        return arrow_udf(function, cast("Any", schema), ArrowUDFType.SCALAR_ITER)


def _table(spark: SparkSession, file: Path, table: CatalogTable, where: str = "TRUE") -> DataFrame:
    condition = table.derived.get(where, where)
    parts = ranges(file, table)
    return read_parts(spark, parts, partial(_read_rows, file, table, condition), table.schema)


def _read_rows(file: Path, table: CatalogTable, condition: str, rows: Rows) -> Iterator[RecordBatch]:
    return read(file, table, rows, condition)


def _entries(spark: SparkSession, view: BaseView) -> DataFrame:
    # The last part has no leaves: it stands for the entries that changed since the leaves were written.
    found = read_parts(spark, [*view.parts(), ()], partial(_read_entries, view), ddl(ENTRIES))
    return found.selectExpr(*VIEWS["entries"])


def _read_entries(view: BaseView, part: Sequence[Ref]) -> Iterator[RecordBatch]:
    for entries in view.scan(part) if part else [view.recent()]:
        yield entries_to_batch(entries)


def read_parts(
    spark: SparkSession, parts: Sequence[Part], read: Callable[[Part], Iterator[RecordBatch]], schema: str
) -> DataFrame:
    """Return a data frame of the batches that `read` yields for each part, one task per part."""
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    return numbers.mapInArrow(_reader(parts, read), schema)


def _reader(parts: Sequence[Part], read: Callable[[Part], Iterator[RecordBatch]]) -> Batches:
    def run(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(parts[number])

    return run
