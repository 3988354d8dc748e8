"""Nodes as Parquet, which every engine reads.

The parser that reads Parquet here ends the whole process on some kinds of damage, so it is shown only bytes that are
known to be whole: a node carries a seal, the SHA-256 of its own file (with the seal's 64 characters as zeros) under
`bayou.sha256` in the footer's key-value metadata. Files without a seal, as another engine writes them, are read in a
slower way that survives damage. Either way the rows must be in order and have the digest that the parent names.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from arro3.core import Array, DataType, Field, RecordBatch, Schema, Table
from arro3.io import read_parquet, write_parquet

from bayou.index.entry import Entry
from bayou.index.node import Branch, Child, Leaf, Node, Ref, branch, damaged, digest_of, is_name, leaf, verify

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEXT = DataType.string()
_INT = DataType.int64()
_HASH = DataType.binary(32)
_TIME = DataType.timestamp("ms", tz="UTC")

_LEAF = Schema(
    [
        Field("path", _TEXT, nullable=False),
        Field("push", _TEXT, nullable=True),
        Field("size", _INT, nullable=False),
        Field("sha256", _HASH, nullable=True),
        Field("etag", _TEXT, nullable=True),
        Field("version", _TEXT, nullable=True),
        Field("modified", _TIME, nullable=False),
    ]
)
_BRANCH = Schema(
    [
        Field("first", _TEXT, nullable=False),
        Field("last", _TEXT, nullable=False),
        Field("node", _TEXT, nullable=False),
        Field("digest", _HASH, nullable=False),
        Field("entries", _INT, nullable=False),
        Field("bytes", _INT, nullable=False),
    ]
)

_MAGIC = b"PAR1"
_SEAL = "bayou.sha256"
_OPEN = b"0" * 64
_MARK = _SEAL.encode() + b"\x18\x40"
"""How Thrift writes the key, and then a string of 64 characters."""


def encode(node: Node) -> bytes:
    """Write a node as a sealed Parquet file."""
    schema = _LEAF if isinstance(node, Leaf) else _BRANCH
    arrays = [_array([getattr(row, name) for row in node.rows], schema.field(name).type) for name in schema.names]
    out = io.BytesIO()
    write_parquet(
        RecordBatch.from_arrays(arrays, schema=schema),
        out,
        compression="zstd(1)",
        # Nearly every value is its own, but for the pushes: one commit writes many entries.
        dictionary_enabled=False,
        column_dictionary_enabled={"push": True} if schema is _LEAF else None,
        key_value_metadata={_SEAL: _OPEN.decode()},
        skip_arrow_metadata=True,
    )
    data = out.getvalue()
    at = data.rindex(_MARK) + len(_MARK)
    return b"".join((data[:at], sha256(data).hexdigest().encode(), data[at + len(_OPEN) :]))


def decode(data: Buffer, level: int, ref: Ref) -> Node:
    """Read a node and prove that it is what `ref` says; else raise `NodeDamaged` that names it."""
    table = _parse(bytes(data), ref)
    node = _leaf(table, ref) if level == 0 else _branch(table, level, ref)
    verify(node, ref)
    return node


def _array(values: Sequence[Any], kind: DataType) -> Array:
    if DataType.is_timestamp(kind):
        return Array(values, type=_INT).cast(kind)
    return Array(values, type=kind)


def _parse(data: bytes, ref: Ref) -> Table:
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC or footer < 4:
        raise damaged(ref.node, f"its {len(data)} bytes are not a Parquet file")
    at = data.rfind(_MARK, footer) + len(_MARK)
    if at < len(_MARK):
        from bayou.index.unsealed import read_unsealed  # noqa: PLC0415  (asyncio is 20 ms, and this is rare)

        return read_unsealed(data, ref)
    seal = data[at : at + len(_OPEN)]
    if sha256(b"".join((data[:at], _OPEN, data[at + len(_OPEN) :]))).hexdigest().encode() != seal:
        raise damaged(ref.node, "its bytes have changed since they were written")
    return read_parquet(data, batch_size=1 << 16).read_all()


def _leaf(table: Table, ref: Ref) -> Leaf:
    rows = tuple(map(Entry, *_columns(table, _LEAF, ref)))
    last = None
    for row in rows:
        if last is not None and row.path <= last:
            raise damaged(ref.node, f"{row.path!r} comes after {last!r}")
        if row.size < 0:
            raise damaged(ref.node, f"{row.path!r} has a negative size")
        last = row.path
    if not rows:
        raise damaged(ref.node, "it is empty")
    return leaf(rows)


def _branch(table: Table, level: int, ref: Ref) -> Branch:
    rows = tuple(map(Child, *_columns(table, _BRANCH, ref)))
    last = None
    for row in rows:
        if row.last < row.first or (last is not None and row.first <= last):
            raise damaged(ref.node, f"its child from {row.first!r} to {row.last!r} overlaps or is out of order")
        if not is_name(row.node) or digest_of(row.node) != row.digest:
            raise damaged(ref.node, f"its child is named {row.node!r}")
        if row.entries < 1 or row.bytes < 0:
            raise damaged(ref.node, f"its child {row.node} has {row.entries} entries of {row.bytes} bytes")
        last = row.last
    if len(rows) < 2:
        raise damaged(ref.node, f"a branch with {len(rows)} children")
    return branch(level, rows)


def _columns(table: Table, schema: Schema, ref: Ref) -> list[list[Any]]:
    """Return the columns as Python values, whatever widths and encodings their writer chose."""
    if sorted(table.column_names) != sorted(schema.names):
        raise damaged(ref.node, f"its columns are {', '.join(table.column_names)}")
    columns: list[list[Any]] = []
    for name in schema.names:
        field = schema.field(name)
        column = table.column(name)
        if not _fits(column.type, field.type):
            raise damaged(ref.node, f"its column {name} is of type {str(column.type).strip()}")
        if DataType.is_timestamp(field.type):
            column = column.cast(_TIME).cast(_INT)
        elif not DataType.is_fixed_size_binary(column.type):
            column = column.cast(DataType.binary() if DataType.is_fixed_size_binary(field.type) else field.type)
        values = list(column.to_pylist())
        if not field.nullable and None in values:
            raise damaged(ref.node, f"its column {name} has a row without a value")
        if DataType.is_fixed_size_binary(field.type) and any(
            value is not None and len(value) != 32 for value in values
        ):
            raise damaged(ref.node, f"its column {name} has a value that is not 32 bytes")
        columns.append(values)
    return columns


def _fits(found: DataType, wanted: DataType) -> bool:
    """Whether a column's type can hold exactly what ours does."""
    if DataType.is_null(found):
        return True
    if wanted == _TEXT:
        if DataType.is_dictionary(found) and found.value_type is not None:
            found = found.value_type
        return DataType.is_string(found) or DataType.is_large_string(found) or DataType.is_string_view(found)
    if wanted == _HASH:
        kinds = (DataType.is_binary, DataType.is_large_binary, DataType.is_binary_view, DataType.is_fixed_size_binary)
        return any(kind(found) for kind in kinds)
    if wanted == _TIME:
        return DataType.is_timestamp(found)
    return DataType.is_integer(found)
