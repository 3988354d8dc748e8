"""Nodes as Parquet files, which every engine reads.

A node has a seal: the SHA-256 of its own file (with the seal's 64 characters as zeros) under `bayou.sha256` in the
footer's key-value metadata. The seal shows accidental damage before a parser sees the file. A hostile file can have a
valid seal too, and can crash the parser, so a child process (`index.node_parser`) parses the nodes of a store. In this
process, `read_columns` parses only sealed files that this client has written or verified before (V25). Either way the
rows must be in order and have the digest that the parent names.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from arro3.core import Array, DataType, Field, RecordBatch, Schema
from arro3.io import read_parquet, write_parquet

from bayou.core import limits
from bayou.index import node_parser
from bayou.index.entry import Entry
from bayou.index.node import Branch, Child, Leaf, Node, Ref, branch, damaged, digest_of, is_name, leaf, verify

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEXT = DataType.string()
INT = DataType.int64()
HASH = DataType.binary(32)
METHOD = DataType.int8()
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
        Field("at", TEXT, nullable=True),
        Field("pack", TEXT, nullable=True),
        Field("offset", INT, nullable=True),
        Field("stored", INT, nullable=True),
        Field("method", METHOD, nullable=True),
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
"""The columns of a node, in the order of the schema. Hashes are bytes, times are ms since 1970."""

_BATCH_ROWS = 4096

_TEXT, _NUMBER = (str, None), (int, None)
_LEAF_KINDS = (str, _TEXT, int, (bytes, None), _TEXT, _TEXT, int, _TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER)
_BRANCH_KINDS = (str, str, str, bytes, int, int)
_MAGIC = b"PAR1"
_SEAL = "bayou.sha256"
_OPEN = b"0" * 64
_MARK = _SEAL.encode() + b"\x18\x40"
"""The key as Thrift encodes it, followed by the length of a string of 64 characters."""
_HASH_BYTES = 32


def encode(node: Node) -> bytes:
    """Return a node as a sealed Parquet file."""
    schema = LEAF if isinstance(node, Leaf) else BRANCH
    arrays = [_array([getattr(row, name) for row in node.rows], schema.field(name).type) for name in schema.names]
    out = io.BytesIO()
    write_parquet(
        RecordBatch.from_arrays(arrays, schema=schema),
        out,
        compression="zstd(1)",
        # Nearly all values are distinct, except for pushes and packs: one commit writes many entries.
        dictionary_enabled=False,
        column_dictionary_enabled={"push": True, "pack": True, "method": True} if schema is LEAF else None,
        key_value_metadata={_SEAL: _OPEN.decode()},
        skip_arrow_metadata=True,
    )
    data = out.getvalue()
    at = data.rindex(_MARK) + len(_MARK)
    return b"".join((data[:at], sha256(data).hexdigest().encode(), data[at + len(_OPEN) :]))


def decode(data: Buffer, level: int, ref: Ref, *, ours: bool = False) -> Node:
    """Parse a node and verify it against `ref`; else raise `NodeDamaged`.

    `ours`: the bytes come from the local state, which holds only nodes that this client has written or verified.
    """
    raw = bytes(data)
    sealed = _check_file(raw, ref)
    columns = _parse_here(raw, level, ref) if ours and sealed else _parse_in_child(raw, level, ref)
    node = _leaf(columns, ref) if level == 0 else _branch(columns, level, ref)
    verify(node, ref)
    return node


def _array(values: Sequence[Any], kind: DataType) -> Array:
    if DataType.is_timestamp(kind):
        return Array(values, type=INT).cast(kind)
    return Array(values, type=kind)


def _check_file(data: bytes, ref: Ref) -> bool:
    """Check the size, the frame of a Parquet file and the seal; return whether there is a seal."""
    if len(data) > limits.NODE_BYTES:
        raise damaged(ref.node, f"it has {len(data)} bytes, and at most {limits.NODE_BYTES} are read")
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC or footer < 4:
        raise damaged(ref.node, f"its {len(data)} bytes are not a Parquet file")
    at = data.rfind(_MARK, footer) + len(_MARK)
    if at < len(_MARK):
        return False  # another engine wrote it
    seal = data[at : at + len(_OPEN)]
    if sha256(b"".join((data[:at], _OPEN, data[at + len(_OPEN) :]))).hexdigest().encode() != seal:
        raise damaged(ref.node, "its bytes have changed since they were written")
    return True


def _parse_here(data: bytes, level: int, ref: Ref) -> Columns:
    """Parse a node in this process."""
    try:
        return read_columns(data, level)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise damaged(ref.node, f"its Parquet cannot be read: {' '.join(str(error).split())[:300]}") from error


def _parse_in_child(data: bytes, level: int, ref: Ref) -> Columns:
    """Parse a node in the child process."""
    try:
        columns = node_parser.parse(data, level)
        for at, kind in enumerate(_BRANCH_KINDS if level else _LEAF_KINDS):
            if kind in (bytes, (bytes, None)) and at < len(columns):
                columns[at] = [value if value is None else bytes.fromhex(value) for value in columns[at]]
    except (node_parser.Unparsable, ValueError, TypeError) as error:
        raise damaged(ref.node, " ".join(str(error).split())) from error
    return columns


def _leaf(columns: Sequence[list[Any]], ref: Ref) -> Leaf:
    _check_columns(columns, _LEAF_KINDS, ref)
    rows = tuple(map(Entry, *columns))
    last = ""
    for row in rows:
        if row.path <= last:  # also refuses an empty path
            raise damaged(ref.node, f"{row.path!r} comes after {last!r}")
        last = row.path
    if not rows:
        raise damaged(ref.node, "it is empty")
    return leaf(rows)


def _branch(columns: Sequence[list[Any]], level: int, ref: Ref) -> Branch:
    _check_columns(columns, _BRANCH_KINDS, ref)
    rows = tuple(map(Child, *columns))
    last = ""
    for row in rows:
        if row.last < row.first or row.first <= last:
            raise damaged(ref.node, f"its child from {row.first!r} to {row.last!r} overlaps or is out of order")
        if not is_name(row.node) or digest_of(row.node) != row.digest:
            raise damaged(ref.node, f"its child is named {row.node!r}")
        if row.entries < 1 or row.bytes < 0:
            raise damaged(ref.node, f"its child {row.node} has {row.entries} entries of {row.bytes} bytes")
        last = row.last
    if len(rows) < 2:
        raise damaged(ref.node, f"a branch with {len(rows)} children")
    return branch(level, rows)


def _check_columns(columns: Sequence[list[Any]], kinds: Sequence[Any], ref: Ref) -> None:
    """Raise `NodeDamaged` unless the columns are those of a node and each value is of its column's kind."""
    if len(columns) != len(kinds) or len({len(column) for column in columns}) != 1:
        raise damaged(ref.node, "its columns are not those of a node")
    for at, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        wanted = {kind} if isinstance(kind, type) else {kind[0], type(None)}
        if not set(map(type, column)) <= wanted:
            raise damaged(ref.node, f"its column {at + 1} has a value of another kind")
        if str in wanted and any(value is not None and len(value) > limits.TEXT_LENGTH for value in column):
            raise damaged(ref.node, f"its column {at + 1} has a text of more than {limits.TEXT_LENGTH} characters")
        if bytes in wanted and any(value is not None and len(value) != _HASH_BYTES for value in column):
            raise damaged(ref.node, f"its column {at + 1} has a value that is not {_HASH_BYTES} bytes")


class BadColumns(ValueError):
    """A Parquet file that can be read and is not a node; the message says why, in one line."""


def read_columns(data: bytes, level: int) -> Columns:
    """Return the columns of a node; raise `BadColumns`, or the parser's error, if they are not a node's.

    Call it only on files that this client has written or verified before, or in the child process (V25).
    """
    schema = BRANCH if level else LEAF
    columns: list[list[Any]] = [[] for _ in schema.names]
    rows = size = 0
    for batch in read_parquet(data, batch_size=_BATCH_ROWS):
        # V25: a file of few bytes can unpack to any number of rows, so rows are counted before they become values.
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
    """Return whether a column of the type `found` can hold exactly the values of the type `wanted`."""
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
