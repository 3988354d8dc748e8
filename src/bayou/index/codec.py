"""Nodes as bytes. What writes and reads them, and Arrow with it, is loaded with the first: most syncs need none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayou.index.node import Node, Ref

if TYPE_CHECKING:
    from typing_extensions import Buffer


def encode(node: Node) -> bytes:
    """Write a node as a sealed Parquet file."""
    from bayou.index import parquet  # noqa: PLC0415

    return parquet.encode(node)


def decode(data: Buffer, level: int, ref: Ref) -> Node:
    """Read a node and prove that it is what `ref` says; else raise `NodeDamaged` that names it."""
    from bayou.index import parquet  # noqa: PLC0415

    return parquet.decode(data, level, ref)
