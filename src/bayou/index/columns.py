"""The columns of a node's Parquet file as plain Python values.

The parser behind this can end its whole process on bytes that are made for it. Call it only on files that this client
has written or proved before, or in the child process of `index.parser` (V25).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arro3.core import Array, DataType, Field, RecordBatch, Schema
from arro3.io import read_parquet

from bayou.core import limits

TEXT = DataType.string()
INT = DataType.int64()
HASH = DataType.binary(32)
TIME = DataType.timestamp("ms", tz="UTC")

LEAF = Schema(
    [
        Field("path", TEXT, nullable=False),
        Field("push", TEXT, nullable=True),
        Field("size", INT, nullable=False),
        Field("sha256", HASH, nullable=True),
        Field("etag", TEXT, nullable=True),
        Field("version", TEXT, nullable=True),
        Field("modified", TIME, nullable=False),
    ]
)
BRANCH = Schema(
    [
        Field("first", TEXT, nullable=False),
        Field("last", TEXT, nullable=False),
        Field("node", TEXT, nullable=False),
        Field("digest", HASH, nullable=False),
        Field("entries", INT, nullable=False),
        Field("bytes", INT, nullable=False),
    ]
)

Columns = Sequence[list[Any]]
"""In the order of the schema. Hashes are bytes, times are ms since 1970."""

_AT_ONCE = 4096


class BadColumns(ValueError):
    """A Parquet file that can be read and is no node: the message says why, in one line."""


def read_columns(data: bytes, level: int) -> Columns:
    """Return the columns of a node; `BadColumns`, or whatever the parser raises, if they are not a node's."""
    schema = BRANCH if level else LEAF
    columns: list[list[Any]] = [[] for _ in schema.names]
    rows = size = 0
    for batch in read_parquet(data, batch_size=_AT_ONCE):
        # V25: a file of few bytes can unpack to any number of rows, so they are counted before they become values.
        rows += batch.num_rows
        size += batch.nbytes
        if rows > limits.NODE_ROWS or size > limits.NODE_TEXT:
            raise BadColumns(f"it has more than {limits.NODE_ROWS} rows, or {limits.NODE_TEXT} bytes of them")
        if sorted(batch.schema.names) != sorted(schema.names):
            raise BadColumns(f"its columns are {', '.join(batch.schema.names)[:200]}")
        for column, name in zip(columns, schema.names, strict=True):
            column += _values(batch, schema.field(name))
    return columns


def _values(batch: RecordBatch, field: Field) -> list[Any]:
    """Return one column as Python values, whatever width and encoding its writer chose."""
    column: Array = batch.column(field.name)
    if not _fits(column.type, field.type):
        raise BadColumns(f"its column {field.name} is of type {' '.join(str(column.type).split())[:100]}")
    if DataType.is_timestamp(field.type):
        column = column.cast(TIME).cast(INT)
    elif not DataType.is_fixed_size_binary(column.type):
        column = column.cast(DataType.binary() if DataType.is_fixed_size_binary(field.type) else field.type)
    values = list(column.to_pylist())
    if not field.nullable and None in values:
        raise BadColumns(f"its column {field.name} has a row without a value")
    return values


def _fits(found: DataType, wanted: DataType) -> bool:
    """Whether a column's type can hold exactly what ours does."""
    if DataType.is_null(found):
        return True
    if wanted == TEXT:
        if DataType.is_dictionary(found) and found.value_type is not None:
            found = found.value_type
        return DataType.is_string(found) or DataType.is_large_string(found) or DataType.is_string_view(found)
    if wanted == HASH:
        kinds = (DataType.is_binary, DataType.is_large_binary, DataType.is_binary_view, DataType.is_fixed_size_binary)
        return any(kind(found) for kind in kinds)
    if wanted == TIME:
        return DataType.is_timestamp(found)
    return DataType.is_integer(found)
