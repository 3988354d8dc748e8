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


def decode(data: Buffer, level: int, ref: Ref, *, ours: bool = False) -> Node:
    """Read a node and prove that it is what `ref` says; else raise `NodeDamaged` that names it.

    `ours`: the bytes come from this machine's own state, where only nodes get that this client wrote or proved. Others
    are parsed by a process of its own (V25).
    """
    from bayou.index import parquet  # noqa: PLC0415

    return parquet.decode(data, level, ref, ours=ours)


def prepare() -> None:
    """Start the process that parses nodes of a store, while one is fetched."""
    from bayou.index import parser  # noqa: PLC0415

    parser.prepare()
