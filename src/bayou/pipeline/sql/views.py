"""The views of a session: each a source of rows that workers read, and the columns that a query sees of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bayou.index.node import Ref
from bayou.pipeline.arrow import ENTRIES, ddl, entries_to_batch
from bayou.pipeline.sql import catalog
from bayou.pipeline.sql.base import BaseView
from bayou.pipeline.sql.catalog import Rows
from bayou.pipeline.sql.content import ContentSource, content_column
from bayou.pipeline.sql.tables import OUTPUT, RUN, VERSION, VIEWS, CatalogTable

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

Part = TypeVar("Part")
Batches = Callable[[Iterator["RecordBatch"]], Iterator["RecordBatch"]]


def create_views(spark: SparkSession, names: Iterable[str], file: Path, content: ContentSource) -> dict[str, DataFrame]:
    """Make some of the views in a session, and return them. No row is read yet."""
    made = {name: _view(spark, name, file, content) for name in names}
    for name, view in made.items():
        view.createOrReplaceTempView(name)
    return made


def _view(spark: SparkSession, name: str, file: Path, content: ContentSource) -> DataFrame:
    match name:
        case "data":
            return _with_content(_table(spark, file, VERSION, "latest"), name, content)
        case "versions":
            return _with_content(_table(spark, file, VERSION), name, content)
        case "outputs":
            return _table(spark, file, OUTPUT).selectExpr(*VIEWS[name])
        case "runs":
            return _table(spark, file, RUN).selectExpr(*VIEWS[name])
    return _entries(spark, content.base)


def _with_content(source: DataFrame, view: str, content: ContentSource) -> DataFrame:
    """Show a source of versions with their content, which is read for exactly those rows whose content is used."""
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf  # noqa: PLC0415
    from pyspark.sql.types import BinaryType  # noqa: PLC0415

    with warnings.catch_warnings():
        # It would rather be told by annotations, which would have to load pyarrow with this package.
        warnings.simplefilter("ignore", UserWarning)
        read = arrow_udf(content_column(content), BinaryType(), ArrowUDFType.SCALAR_ITER)
    shown = source.selectExpr(*VIEWS[view], "CAST(deleted AS BOOLEAN) AS _deleted")
    made = shown.withColumn("content", read("path", "size", "sha256", "streaming", "_deleted"))
    return made.drop("_deleted")


def _table(spark: SparkSession, file: Path, table: CatalogTable, where: str = "TRUE") -> DataFrame:
    condition = table.derived.get(where, where)
    parts = catalog.ranges(file, table)
    return read_parts(spark, parts, partial(_read_rows, file, table, condition), table.schema)


def _read_rows(file: Path, table: CatalogTable, condition: str, rows: Rows) -> Iterator[RecordBatch]:
    return catalog.read(file, table, rows, condition)


def _entries(spark: SparkSession, view: BaseView) -> DataFrame:
    # The last part has no leaves: it stands for what is newer than any leaf.
    found = read_parts(spark, [*view.parts(), ()], partial(_read_entries, view), ddl(ENTRIES))
    return found.selectExpr(*VIEWS["entries"])


def _read_entries(view: BaseView, part: Sequence[Ref]) -> Iterator[RecordBatch]:
    for entries in view.scan(part) if part else [view.recent()]:
        yield entries_to_batch(entries)


def read_parts(
    spark: SparkSession, parts: Sequence[Part], read: Callable[[Part], Iterator[RecordBatch]], schema: str
) -> DataFrame:
    """Return what `read` makes of every part, a task for each."""
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    return numbers.mapInArrow(_reader(parts, read), schema)


def _reader(parts: Sequence[Part], read: Callable[[Part], Iterator[RecordBatch]]) -> Batches:
    def run(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(parts[number])

    return run
