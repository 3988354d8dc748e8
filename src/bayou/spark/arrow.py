"""Arrow batches: convert records to batches and back, stream results, and balance rows among tasks.

Columns are text, int64, binary, boolean, double and times in µs. `batches` streams a result and never holds all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import pyarrow
from arro3.core import Array, DataType
from msgspec import Struct

from bayou.core import limits
from bayou.core.iterators import batched
from bayou.index.entry import Entry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.session import SparkSession

TEXT = pyarrow.string()
INT = pyarrow.int64()
BYTES = pyarrow.binary()
TIME = pyarrow.timestamp("us", tz="UTC")

ENTRIES = pyarrow.schema(
    {
        "path": TEXT,
        "push": TEXT,
        "size": INT,
        "sha256": BYTES,
        "etag": TEXT,
        "version": TEXT,
        "modified": TIME,
        "at": TEXT,
        "pack": TEXT,
        "offset": INT,
        "stored": INT,
        "method": INT,
    }
)

_NAMES = {
    TEXT: "string",
    INT: "bigint",
    BYTES: "binary",
    TIME: "timestamp",
    pyarrow.bool_(): "boolean",
    pyarrow.float64(): "double",
}


def ddl(schema: pyarrow.Schema) -> str:
    """Return a schema as a DDL string of Spark."""
    return ", ".join(f"{field.name} {_NAMES[field.type]}" for field in schema)


def array(values: Sequence[object], kind: pyarrow.DataType) -> pyarrow.Array:
    """Return plain values as an array.

    `pyarrow.array` of a list imports pandas, which every worker of every session would do anew; arro3 imports nothing.
    """
    return pyarrow.array(Array(values, type=DataType.from_arrow(kind)))


def binary_array(values: Sequence[bytes | None]) -> pyarrow.Array:
    """Return large values as an array, for which each is copied once."""
    present = array([value is not None for value in values], pyarrow.bool_()).buffers()[1]
    ends = struct.pack(f"={len(values) + 1}i", 0, *accumulate(0 if value is None else len(value) for value in values))
    buffers = [present, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(filter(None, values)))]
    return pyarrow.Array.from_buffers(BYTES, len(values), buffers)


def batch(schema: pyarrow.Schema, columns: Iterable[Sequence[object]]) -> pyarrow.RecordBatch:
    """Return a batch of columns, which are in the schema's order; times are in ms, as in Bayou's records."""
    arrays = [
        array([None if ms is None else ms * 1000 for ms in column], INT).cast(TIME)  # type: ignore[operator]
        if field.type == TIME
        else array(column, field.type)
        for field, column in zip(schema, columns, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def batches_of_rows(
    schema: pyarrow.Schema, found: Iterable[Sequence[object]], size: int
) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows, whose values are in the schema's order, in batches of `size`."""
    for some in batched(found, size):
        yield batch(schema, list(zip(*some, strict=True)))


def rows(found: pyarrow.RecordBatch, names: Iterable[str]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a batch as plain values of these columns, in this order; times in ms."""
    return zip(*(_values(found.column(name)) for name in names), strict=True)


def _values(column: pyarrow.Array) -> list[object]:
    if pyarrow.types.is_timestamp(column.type):
        return [None if us is None else us // 1000 for us in column.cast(TIME).cast(INT).to_pylist()]
    values: list[object] = column.to_pylist()
    return values


def entries_to_batch(entries: Sequence[Entry]) -> pyarrow.RecordBatch:
    """Return entries as a batch.

    A size or time out of range, which no code acts on (V25), becomes the nearest value that overflows no sum.
    """
    columns = {name: [getattr(entry, name) for entry in entries] for name in ENTRIES.names}
    columns["size"] = [min(max(size, -1), limits.SIZE_MAX + 1) for size in columns["size"]]
    first, last = limits.TIME_MS[0] - 1, limits.TIME_MS[-1] + 1
    columns["modified"] = [min(max(moment, first), last) for moment in columns["modified"]]
    return batch(ENTRIES, columns.values())


def batch_to_entries(found: pyarrow.RecordBatch) -> Iterator[Entry]:
    return (Entry(*row) for row in rows(found, ENTRIES.names))  # type: ignore[arg-type]


def key_bytes(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def key_text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")


def batches(spark: SparkSession, frame: DataFrame) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches of a data frame as they arrive, in the order of its partitions. `Row`s would cost far more."""
    plan = cast("ConnectFrame", frame)._plan
    for found in spark.client.to_table_as_iterator(plan.to_proto(spark.client), plan.observations):
        if isinstance(found, pyarrow.Table):  # the schema comes first
            yield from found.to_batches()


def tasks_of(spark: SparkSession) -> int:
    """Return a number of tasks that keeps the cluster busy: the configured number of shuffle partitions."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


Read = Callable[[Any], Iterator[pyarrow.RecordBatch]]
"""Read one part. Spark pickles the function, and a worker calls it, maybe twice for one part."""


def read_parts(spark: SparkSession, schema: pyarrow.Schema, parts: Sequence[Any], read: Read) -> DataFrame:
    """Return a data frame of the batches that `read` yields for each part, one task per part.

    The parts, and the credentials of a store, travel inside the pickled kernel. An option of a data source would be
    part of the plan, and Spark logs plans (V26); it would also start two Python processes before the first task.
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
