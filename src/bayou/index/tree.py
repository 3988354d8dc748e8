"""A tree of nodes, and what it needs from whoever keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol, TypeVar, cast

from msgspec import Struct

from bayou.index.node import Branch, Leaf, Node, Ref, Root

T = TypeVar("T")
R = TypeVar("R")


class NodeSource(Protocol):
    """Where nodes are read from."""

    def load(self, level: int, ref: Ref) -> Node:
        """Return the node that `ref` names, proven to be what it says; else `NodeMissing` or `NodeDamaged`."""

    def map(self, fn: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """Apply `fn`, which loads nodes, to each item: in order, several at once, only few ahead of the reader."""


class NodeSink(Protocol):
    """Where new nodes go."""

    def save(self, node: Node) -> str:
        """Take a node and return its name. It need not be stored before `flush`."""

    def flush(self) -> None:
        """Store every node taken so far; return when all of them can be read."""


class Tree(Struct, frozen=True):
    """One version of an index: a root (None: no entries) and where its nodes are."""

    source: NodeSource
    root: Root | None


def leaves(source: NodeSource, refs: Iterable[Ref]) -> Iterator[Leaf]:
    """Load leaves, in order, a few ahead."""
    return cast("Iterator[Leaf]", source.map(partial(source.load, 0), refs))


def branches(source: NodeSource, level: int, refs: Iterable[Ref]) -> Iterator[Branch]:
    """Load branches of one level, in order, a few ahead."""
    return cast("Iterator[Branch]", source.map(partial(source.load, level), refs))
