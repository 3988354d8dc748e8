"""Sources of rows for Spark: parts and a function that reads a part, as a Python data source or as a kernel.

The inputs of a reader, credentials included, travel inside the pickled class or kernel. An option of a data source
would be part of the plan, and Spark logs plans (V26). `files` is such a source: the files of a tree, by stat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from msgspec import Struct
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bayou.core.ids import ulid
from bayou.engine.parts import groups
from bayou.spark.arrow import INT, TEXT, batches_of_rows, ddl
from bayou.worktree.scan import ScannedFile, SkippedPath, scan, subtrees

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

Read = Callable[[Any], Iterator[pyarrow.RecordBatch]]
"""Read one part. Spark pickles the function, and a worker calls it, maybe twice for one part."""


class _Plan(Struct, frozen=True):
    """The parts of a source and the function that reads them; its `repr` shows neither, as Spark logs it."""

    name: str
    schema: pyarrow.Schema
    parts: Sequence[Any]
    read: Read

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.parts)} parts>"


class _Source(DataSource):
    """A data source with its plan in the class, because Spark creates the instances."""

    plan: _Plan

    @classmethod
    def name(cls) -> str:
        return cls.plan.name

    def schema(self) -> str:
        return ddl(self.plan.schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.plan)


class _Reader(DataSourceReader):
    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(at) for at in range(len(self._plan.parts))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._plan.read(self._plan.parts[partition.value])


def load(spark: SparkSession, what: str, schema: pyarrow.Schema, parts: Sequence[Any], read: Read) -> DataFrame:
    """Return a data frame of the batches that `read` yields for each part, one task per part."""
    # Without parts Spark would make one of its own and read it; an empty part has no rows.
    plan = _Plan(f"bayou_{what}_{ulid().lower()}", schema, parts or [()], read)
    # A new class is pickled by value, with its plan, and not by name.
    spark.dataSource.register(type(f"_{plan.name}", (_Source,), {"plan": plan}))
    return spark.read.format(plan.name).load()


def read_parts(spark: SparkSession, schema: pyarrow.Schema, parts: Sequence[Any], read: Read) -> DataFrame:
    """Return the same as `load`, without a data source.

    For a data source Spark starts two Python processes before the first task, which takes a second.
    """
    count = max(1, len(parts))
    return spark.range(0, count, 1, count).mapInArrow(_Parts(parts, read), ddl(schema))


class _Parts(Struct, frozen=True):
    """A kernel: from the numbers of parts to the batches of those parts."""

    parts: Sequence[Any]
    read: Read

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for found in batches:
            for number in found.column(0).to_pylist():
                if number < len(self.parts):
                    yield from self.read(self.parts[number])


FILES = pyarrow.schema(
    {
        "path": TEXT,
        "size": INT,
        "mtime_ns": INT,
        "ctime_ns": INT,
        "inode": INT,
        "skipped": TEXT,
        "reason": TEXT,
    }
)
"""A file with its stat; or, if `skipped` is set, something that is no payload, with the reason."""

TEMPORARY = "temporary"
"""The value of `skipped` for the temporary file of a write that is in progress or was killed."""

_BATCH_ROWS = 1000


def files(spark: SparkSession, root: Path, tasks: int) -> DataFrame:
    """Return the files of a tree (`FILES`), read by workers; they must see its directory."""
    return load(spark, "files", FILES, groups(subtrees(root, tasks * 4), tasks), partial(read, root))


def read(root: Path, subtrees: Sequence[str | None]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the files at and below some paths."""
    temporaries: list[str] = []
    found = (_row(entry) for subtree in subtrees for entry in scan(root, subtree, temporaries))
    left = ((path, None, None, None, None, TEMPORARY, "") for path in temporaries)  # complete only after the scan
    return batches_of_rows(FILES, chain(found, left), _BATCH_ROWS)


def _row(entry: ScannedFile | SkippedPath) -> tuple[object, ...]:
    if isinstance(entry, SkippedPath):
        return entry.path, None, None, None, None, entry.kind, entry.reason
    stat = entry.stat
    return entry.path, stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, None, None
