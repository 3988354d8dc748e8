"""Nodes as Parquet, which every engine reads.

A node carries a seal, the SHA-256 of its own file (with the seal's 64 characters as zeros) under `bayou.sha256` in the
footer's key-value metadata: damage by accident is found before a parser sees it. Harm that is meant has a seal too, so
the bytes of a store are parsed by a process of its own (`index.parser`). In this process the parser sees only files
with a good seal that this client has written, or proved before. Either way the rows must be in order and have the
digest that the parent names.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from bayou.core import limits
from bayou.index import parser
from bayou.index.entry import Entry
from bayou.index.node import Branch, Child, Leaf, Node, Ref, branch, damaged, digest_of, is_name, leaf, verify

if TYPE_CHECKING:
    from arro3.core import Array, DataType
    from typing_extensions import Buffer

_LEAF_KINDS = (str, (str, None), int, (bytes, None), (str, None), (str, None), int)
_BRANCH_KINDS = (str, str, str, bytes, int, int)
_MAGIC = b"PAR1"
_SEAL = "bayou.sha256"
_OPEN = b"0" * 64
_MARK = _SEAL.encode() + b"\x18\x40"
"""How Thrift writes the key, and then a string of 64 characters."""
_HASH_BYTES = 32


def encode(node: Node) -> bytes:
    """Write a node as a sealed Parquet file."""
    from arro3.core import RecordBatch  # noqa: PLC0415  (whoever only reads what others wrote does without)
    from arro3.io import write_parquet  # noqa: PLC0415

    from bayou.index.columns import BRANCH, LEAF  # noqa: PLC0415

    schema = LEAF if isinstance(node, Leaf) else BRANCH
    arrays = [_array([getattr(row, name) for row in node.rows], schema.field(name).type) for name in schema.names]
    out = io.BytesIO()
    write_parquet(
        RecordBatch.from_arrays(arrays, schema=schema),
        out,
        compression="zstd(1)",
        # Nearly every value is its own, but for the pushes: one commit writes many entries.
        dictionary_enabled=False,
        column_dictionary_enabled={"push": True} if schema is LEAF else None,
        key_value_metadata={_SEAL: _OPEN.decode()},
        skip_arrow_metadata=True,
    )
    data = out.getvalue()
    at = data.rindex(_MARK) + len(_MARK)
    return b"".join((data[:at], sha256(data).hexdigest().encode(), data[at + len(_OPEN) :]))


def decode(data: Buffer, level: int, ref: Ref, *, ours: bool = False) -> Node:
    """Read a node and prove that it is what `ref` says; else raise `NodeDamaged` that names it.

    `ours`: the bytes come from this machine's own state, where only nodes get that this client wrote or proved.
    """
    raw = bytes(data)
    sealed = _check_file(raw, ref)
    columns = _parse_here(raw, level, ref) if ours and sealed else _parse_apart(raw, level, ref)
    node = _leaf(columns, ref) if level == 0 else _branch(columns, level, ref)
    verify(node, ref)
    return node


def _array(values: Sequence[Any], kind: DataType) -> Array:
    from arro3.core import Array, DataType  # noqa: PLC0415

    from bayou.index.columns import INT  # noqa: PLC0415

    if DataType.is_timestamp(kind):
        return Array(values, type=INT).cast(kind)
    return Array(values, type=kind)


def _check_file(data: bytes, ref: Ref) -> bool:
    """Check what is cheap and certain: the size, the frame of a Parquet file, the seal. Return whether there is one."""
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


def _parse_here(data: bytes, level: int, ref: Ref) -> Sequence[list[Any]]:
    from bayou.index.columns import read_columns  # noqa: PLC0415

    try:
        return read_columns(data, level)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise damaged(ref.node, f"its Parquet cannot be read: {' '.join(str(error).split())[:300]}") from error


def _parse_apart(data: bytes, level: int, ref: Ref) -> Sequence[list[Any]]:
    try:
        columns = parser.parse(data, level)
        for at, kind in enumerate(_BRANCH_KINDS if level else _LEAF_KINDS):
            if kind in (bytes, (bytes, None)) and at < len(columns):
                columns[at] = [value if value is None else bytes.fromhex(value) for value in columns[at]]
    except (parser.Unparsable, ValueError, TypeError) as error:
        raise damaged(ref.node, " ".join(str(error).split())) from error
    return columns


def _leaf(columns: Sequence[list[Any]], ref: Ref) -> Leaf:
    _check_columns(columns, _LEAF_KINDS, ref)
    rows = tuple(map(Entry, *columns))
    last = ""
    for row in rows:
        if row.path <= last:  # an empty path is none
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
    """Check that the columns are those of a node, each value of its kind: then nothing below can fail on them."""
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
