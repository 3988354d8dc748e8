"""Nodes of an index tree (leaves and branches), the references that name them, and the digest over their rows.

The digest is over the rows and not over the file, so that it does not depend on the Parquet writer. It leaves out the
children's `node` names, which differ between commits that hold the same entries.
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

_DOMAIN = b"bayou-node-2"
_NULL = b"\xff\xff\xff\xff"
_NO_PACK = 4 * _NULL
_length = struct.Struct(">I").pack
_integer = struct.Struct(">Iq").pack
_numbers = struct.Struct(">IqIq").pack

MAX_LEVEL = 63
REPAIR = "bayou datastore verify --repair"


class Child(Struct, frozen=True):
    """A row of a branch: describes one node below it."""

    first: str
    last: str
    node: str
    digest: Digest
    entries: int
    bytes: int


class Root(Struct, frozen=True):
    """The reference of a head to the top node of its tree."""

    node: Label
    digest: Digest
    level: Annotated[int, Meta(ge=0, le=MAX_LEVEL)]
    entries: Total
    bytes: Total

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.level, self.node)


class Pointer(Struct, frozen=True):
    """The reference of a log row to the root of that commit: enough to find the node and to verify it."""

    level: Count
    node: Label

    @property
    def digest(self) -> Digest:
        return digest_of(self.node)


Ref = Child | Root | Pointer
"""A reference to a node: all have `node` (its name) and `digest`."""


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
    """Add numbers of rows. A row may hold any number (V25), and the sum must still fit into the parent's row."""
    return min(max(sum(numbers), 0), limits.SUM_MAX)


def leaf(rows: Sequence[Entry]) -> Leaf:
    """Return a leaf of these entries, with its digest."""
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
        add(_NULL if row.at is None else _length(len(raw := row.at.encode())) + raw)
        if row.pack is None and row.offset is row.stored is row.method is None:
            add(_NO_PACK)
        else:
            add(_NULL if row.pack is None else _length(len(raw := row.pack.encode())) + raw)
            for number in (row.offset, row.stored, row.method):
                add(_NULL if number is None else _integer(8, number))
    return Leaf(tuple(rows), sha256(b"".join(parts)).digest())


def branch(level: int, rows: Sequence[Child]) -> Branch:
    """Return a branch of these children, with its digest."""
    parts = [_DOMAIN, level.to_bytes(1, "big")]
    add = parts.append
    for row in rows:
        add(_length(len(raw := row.first.encode())) + raw)
        add(_length(len(raw := row.last.encode())) + raw)
        add(_length(len(row.digest)) + row.digest)
        add(_numbers(8, row.entries, 8, row.bytes))
    return Branch(level, tuple(rows), sha256(b"".join(parts)).digest())


def name(digest: Digest, commit: str) -> str:
    """Return a node's name. It contains the commit, so that an unreachable node never becomes reachable again."""
    return f"{digest.hex()}-{commit}"


def is_name(text: str) -> bool:
    """Return whether `text` is a node's name, so that its key can be no other object's."""
    return keys.parse_node(keys.node(text)) == text


def digest_of(text: str) -> Digest:
    """Return the digest in a node's name."""
    return bytes.fromhex(text[:64])


def child_of(node: Node, named: str) -> Child:
    """Return the row that describes a node in the branch above it."""
    return Child(node.first, node.last, named, node.digest, node.entries, node.bytes)


def root_of(level: int, child: Child) -> Root:
    """Return the root whose top node is the only node of a level."""
    return Root(child.node, child.digest, level, child.entries, child.bytes)


def damaged(node: str, why: str) -> NodeDamaged:
    """Return the error for a damaged node, with its reason and a hint."""
    return NodeDamaged(f"index node {node} is damaged: {why}", hint=f"rebuild the index with `{REPAIR}`")


def verify(node: Node, ref: Ref) -> None:
    """Raise `NodeDamaged` unless a node has the digest, counts and range that `ref` claims."""
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
