"""A Python data source of Spark whose parts and reader were made by the caller.

What a reader needs, credentials among it, travels inside the pickled class: an option would be part of the plan, and
plans are logged.

The files of a tree, by stat. Its directory must be where the workers see it.
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
from bayou.worktree.scan import Found, Skipped, places, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

Read = Callable[[Any], Iterator[pyarrow.RecordBatch]]
"""Read one part. Pickled, and called by a worker, maybe twice."""


class _Plan(Struct, frozen=True):
    """What is read and how; shows nothing of either."""

    name: str
    schema: pyarrow.Schema
    parts: Sequence[Any]
    read: Read

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.parts)} parts>"


class _Source(DataSource):
    """A data source with its plan in the class, as Spark makes the instances."""

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
    """Return a data frame of what `read` yields for each of the parts, one task each."""
    # Spark makes one of its own where there is no part, and would read that; nothing is in an empty one.
    plan = _Plan(f"bayou_{what}_{ulid().lower()}", schema, parts or [()], read)
    # A class of its own, so that it is pickled with all that it holds and not by its name.
    spark.dataSource.register(type(f"_{plan.name}", (_Source,), {"plan": plan}))
    return spark.read.format(plan.name).load()


def read_parts(spark: SparkSession, schema: pyarrow.Schema, parts: Sequence[Any], read: Read) -> DataFrame:
    """Return the same as `load`, without a data source: those are asked twice by processes that Spark starts for it
    before a first task begins, which takes a second."""
    count = max(1, len(parts))
    return spark.range(0, count, 1, count).mapInArrow(_Parts(parts, read), ddl(schema))


class _Parts(Struct, frozen=True):
    """A kernel: the numbers of parts to what is in them."""

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
"""A file with its stat; or, where `skipped` says how, something that is no payload, and why."""

TEMPORARY = "temporary"
"""How a write in progress is skipped, or what a killed one left."""

_AT_ONCE = 1000


def files(spark: SparkSession, root: Path, tasks: int) -> DataFrame:
    """Return what lies in a tree (`FILES`)."""
    return load(spark, "files", FILES, groups(places(root, tasks * 4), tasks), partial(read, root))


def read(root: Path, some: Sequence[str | None]) -> Iterator[pyarrow.RecordBatch]:
    """Yield what lies at and below some places."""
    temporaries: list[str] = []
    found = (_row(one) for place in some for one in scan(root, place, temporaries))
    left = ((path, None, None, None, None, TEMPORARY, "") for path in temporaries)  # read when the walk is over
    return batches_of_rows(FILES, chain(found, left), _AT_ONCE)


def _row(one: Found | Skipped) -> tuple[object, ...]:
    if isinstance(one, Skipped):
        return one.path, None, None, None, None, one.kind, one.reason
    stat = one.stat
    return one.path, stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, None, None
