"""Compare two trees, visiting only nodes whose digests differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from bayou.index.entry import Entry
from bayou.index.node import Ref
from bayou.index.span import EVERYTHING, Span, Spans
from bayou.index.tree import NodeSource, Tree, branches, leaves


class Change(Struct, frozen=True):
    """One path whose entries differ; None where there is none."""

    path: str
    old: Entry | None
    new: Entry | None


def diff(old: Tree, new: Tree, span: Span | Spans = EVERYTHING) -> Iterator[Change]:
    """Yield what differs between two trees in a range, in order of path. They may come from different sources."""
    left, right = _Side(old, span), _Side(new, span)
    while True:
        _drop_shared(left, right)
        if left.level <= 0 and right.level <= 0:
            break
        level = max(left.level, right.level)
        for side in (left, right):
            if side.level == level:
                side.descend()
    yield from _compare(left.entries(), right.entries())


class _Side:
    """The nodes of one tree, at one level, that may hold a difference."""

    def __init__(self, tree: Tree, span: Span | Spans) -> None:
        self._source: NodeSource = tree.source
        self._span = span
        self.level = -1 if tree.root is None else tree.root.level
        self.refs: Sequence[Ref] = [] if tree.root is None else [tree.root]

    def descend(self) -> None:
        nodes = branches(self._source, self.level, self.refs)
        self.refs = [row for node in nodes for row in node.rows if self._span.touches(row)]
        self.level -= 1

    def entries(self) -> Iterator[Entry]:
        for leaf in leaves(self._source, self.refs):
            yield from self._span.rows(leaf)


def _drop_shared(left: _Side, right: _Side) -> None:
    """Forget nodes that both sides have: they hold the same entries, and their paths are nowhere else."""
    shared = {ref.digest for ref in left.refs} & {ref.digest for ref in right.refs}
    if shared:
        for side in (left, right):
            side.refs = [ref for ref in side.refs if ref.digest not in shared]


def _compare(olds: Iterator[Entry], news: Iterator[Entry]) -> Iterator[Change]:
    old, new = next(olds, None), next(news, None)
    while old is not None or new is not None:
        if old is not None and (new is None or old.path < new.path):
            yield Change(old.path, old, None)
            old = next(olds, None)
        elif new is not None and (old is None or new.path < old.path):
            yield Change(new.path, None, new)
            new = next(news, None)
        elif old is not None and new is not None:
            if old != new:
                yield Change(old.path, old, new)
            old, new = next(olds, None), next(news, None)
