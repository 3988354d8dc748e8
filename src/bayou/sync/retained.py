"""What a collection must leave alone: all that a root names which was current within the grace (V5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct

from bayou.core.clock import parse_ms
from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.index.check import try_load
from bayou.index.head import Head, iter_log
from bayou.index.log import LogRow, older_pages
from bayou.index.node import Branch, Pointer, Ref, Root
from bayou.index.node_store import StoreNodes
from bayou.objectstore.store import Store


class Retained(Struct, frozen=True):
    """What roots name: nodes and pages of the log that stay, and the leaves that tell which objects do, each once.

    `current` are leaves of the current root, all of which must be read; `recent` those that other retained roots have
    besides; `earlier` those of roots in the head's log that no retained root has: what only they name was once indexed.
    """

    current: Sequence[Ref]
    recent: Sequence[Ref]
    earlier: Sequence[Ref]
    nodes: frozenset[str]
    pages: frozenset[str]


def retained(store: Store, head: Head, before: int) -> Retained:
    """Return what roots name that were current at some time since `before`. Only branches are read.

    Of earlier roots as far as they can be read: an earlier collection may have taken their nodes. What of the current
    one cannot be read is raised: then nothing can be told from garbage.
    """
    source, nodes = StoreNodes(store), set[str]()
    current = _leaves(source, head.root, nodes, strict=True)
    recent = [ref for row in _within(store, head, before) for ref in _leaves(source, row.root, nodes)]
    _leaves(source, head.trash, nodes, strict=True)
    named = frozenset(nodes)
    earlier = [ref for row in head.log for ref in _leaves(source, row.root, nodes)]
    return Retained(current, recent, earlier, named, _pages(store, head))


def _leaves(source: StoreNodes, root: Root | Pointer | None, nodes: set[str], *, strict: bool = False) -> list[Ref]:
    """Return what names the leaves of a tree; nodes that were met before, with all below them, are left out."""
    refs: list[Ref] = [root] if root is not None else []
    for level in range(root.level if root is not None else 0, -1, -1):
        refs = [ref for ref in refs if ref.node not in nodes]
        nodes.update(ref.node for ref in refs)
        if level == 0:
            break
        below: list[Ref] = []
        for node in source.map(partial(try_load, source, level), refs):
            if isinstance(node, Branch):
                below += node.rows
            elif strict and isinstance(node, NodeMissing | NodeDamaged):
                raise node
        refs = below
    return refs


def _pages(store: Store, head: Head) -> frozenset[str]:
    return frozenset(page.id for page in older_pages(store, head.older, head.log[0].seq))


def _within(store: Store, head: Head, before: int) -> Iterator[LogRow]:
    """Yield the rows whose root was current at some time since `before`: those since, and the one before them.

    Writers' clocks differ: what the head has of the log is looked at row by row, older pages up to the first that is
    too old.
    """
    following: LogRow | None = None
    for number, row in enumerate(iter_log(store, head)):
        if following is None or parse_ms(following.at) >= before:
            yield row
        elif number >= len(head.log):
            return
        following = row
