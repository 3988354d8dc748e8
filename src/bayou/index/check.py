"""Read a whole tree and report everything that is wrong with it, instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from bayou.errors import NodeDamaged, NodeMissing
from bayou.index.node import Child, Node, Ref
from bayou.index.tree import NodeSource, Tree


@dataclass(frozen=True, slots=True)
class Damage:
    """A node that cannot be used, and the range of paths that is out of sight with it (None: the whole tree)."""

    node: str
    level: int
    first: str | None
    last: str | None
    error: NodeMissing | NodeDamaged


def check(tree: Tree) -> Iterator[Damage]:
    """Load every node that can be reached and yield the bad ones. Failures of the store itself are raised (V4)."""
    if tree.root is None:
        return
    refs: list[Ref] = [tree.root]
    for level in range(tree.root.level, -1, -1):
        below: list[Ref] = []
        outcomes = tree.source.map(partial(_try, tree.source, level), refs)
        for ref, outcome in zip(refs, outcomes, strict=True):
            if isinstance(outcome, NodeMissing | NodeDamaged):
                first, last = (ref.first, ref.last) if isinstance(ref, Child) else (None, None)
                yield Damage(ref.node, level, first, last, outcome)
            elif level:
                below += [row for row in outcome.rows if isinstance(row, Child)]
        refs = below


def _try(source: NodeSource, level: int, ref: Ref) -> Node | NodeMissing | NodeDamaged:
    try:
        return source.load(level, ref)
    except (NodeMissing, NodeDamaged) as error:
        return error
