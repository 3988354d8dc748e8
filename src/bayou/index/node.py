"""Nodes of an index tree, what names them, and the digest over their rows.

The digest is over the rows and not over a file, so that it does not depend on who wrote the Parquet. It leaves out
the children's `node` names, which differ between commits that hold the same entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct

from bayou.core import limits
from bayou.core.errors import NodeDamaged
from bayou.core.structs import Count, Label, Total
from bayou.index.entry import Entry
from bayou.objectstore import keys

Digest: TypeAlias = bytes

_DOMAIN = b"bayou-node-1"
_NULL = b"\xff\xff\xff\xff"
_length = struct.Struct(">I").pack
_integer = struct.Struct(">Iq").pack
_numbers = struct.Struct(">IqIq").pack

MAX_LEVEL = 63
REPAIR = "bayou datastore verify --repair"


class Child(Struct, frozen=True):
    """What a branch says of one node below it."""

    first: str
    last: str
    node: str
    digest: Digest
    entries: int
    bytes: int


class Root(Struct, frozen=True):
    """What a head says of the top node of its tree."""

    node: Label
    digest: Digest
    level: Annotated[int, Meta(ge=0, le=MAX_LEVEL)]
    entries: Total
    bytes: Total

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.level, self.node)


class Pointer(Struct, frozen=True):
    """What a row of the log says of an earlier root: enough to find it and to prove it."""

    level: Count
    node: Label

    @property
    def digest(self) -> Digest:
        return digest_of(self.node)


Ref = Child | Root | Pointer
"""Whatever names a node: all have `node` and `digest`."""


class Leaf(Struct, frozen=True):
    """Entries in strictly increasing order of their paths; at least one."""

    rows: tuple[Entry, ...]
    digest: Digest
    level: ClassVar[int] = 0

    @property
    def first(self) -> str:
        return self.rows[0].path

    @property
    def last(self) -> str:
        return self.rows[-1].path

    @property
    def entries(self) -> int:
        return len(self.rows)

    @property
    def bytes(self) -> int:
        return _sum(row.size for row in self.rows)


class Branch(Struct, frozen=True):
    """Children in order, none overlapping the next; at least two."""

    level: int
    rows: tuple[Child, ...]
    digest: Digest

    @property
    def first(self) -> str:
        return self.rows[0].first

    @property
    def last(self) -> str:
        return self.rows[-1].last

    @property
    def entries(self) -> int:
        return _sum(row.entries for row in self.rows)

    @property
    def bytes(self) -> int:
        return _sum(row.bytes for row in self.rows)


Node = Leaf | Branch


def _sum(numbers: Iterable[int]) -> int:
    """Add what rows say. One of them may say anything (V25), and their parent's row still has to hold the sum."""
    return min(max(sum(numbers), 0), limits.SUM_MAX)


def leaf(rows: Sequence[Entry]) -> Leaf:
    """Make a leaf, with its digest."""
    parts = [_DOMAIN, b"\0"]
    add = parts.append
    # Hot: a call for each field would double the time of building a million entries.
    for row in rows:
        add(_length(len(raw := row.path.encode())) + raw)
        add(_NULL if row.push is None else _length(len(raw := row.push.encode())) + raw)
        add(_integer(8, row.size))
        add(_NULL if row.sha256 is None else _length(len(row.sha256)) + row.sha256)
        add(_NULL if row.etag is None else _length(len(raw := row.etag.encode())) + raw)
        add(_NULL if row.version is None else _length(len(raw := row.version.encode())) + raw)
        add(_integer(8, row.modified))
    return Leaf(tuple(rows), sha256(b"".join(parts)).digest())


def branch(level: int, rows: Sequence[Child]) -> Branch:
    """Make a branch, with its digest."""
    parts = [_DOMAIN, level.to_bytes(1, "big")]
    add = parts.append
    for row in rows:
        add(_length(len(raw := row.first.encode())) + raw)
        add(_length(len(raw := row.last.encode())) + raw)
        add(_length(len(row.digest)) + row.digest)
        add(_numbers(8, row.entries, 8, row.bytes))
    return Branch(level, tuple(rows), sha256(b"".join(parts)).digest())


def name(digest: Digest, commit: str) -> str:
    """Name a node: a commit's nodes are its own, so an unreachable one can never become reachable again."""
    return f"{digest.hex()}-{commit}"


def is_name(text: str) -> bool:
    """Whether `text` can name a node, and so cannot lead anywhere else."""
    return keys.parse_node(keys.node(text)) == text


def digest_of(text: str) -> Digest:
    """Read the digest from a node's name."""
    return bytes.fromhex(text[:64])


def child_of(node: Node, named: str) -> Child:
    """Describe a node for the branch above it."""
    return Child(node.first, node.last, named, node.digest, node.entries, node.bytes)


def root_of(level: int, child: Child) -> Root:
    """Describe the only node of a level for the head."""
    return Root(child.node, child.digest, level, child.entries, child.bytes)


def damaged(node: str, why: str) -> NodeDamaged:
    """Say what is wrong with a node, and what to do."""
    return NodeDamaged(f"index node {node} is damaged: {why}", hint=f"rebuild the index with `{REPAIR}`")


def verify(node: Node, ref: Ref) -> None:
    """Raise `NodeDamaged` unless the node is what `ref` says of it."""
    if node.digest != ref.digest:
        raise damaged(ref.node, f"its rows have the digest {node.digest.hex()}")
    if isinstance(ref, Pointer):
        return
    claims: list[tuple[str, int | str, int | str]] = [
        ("entries", ref.entries, node.entries),
        ("bytes", ref.bytes, node.bytes),
    ]
    if isinstance(ref, Child):
        claims += [("first", ref.first, node.first), ("last", ref.last, node.last)]
    for what, claimed, found in claims:
        if claimed != found:
            raise damaged(ref.node, f"{what} is {found!r}, and its parent says {claimed!r}")
