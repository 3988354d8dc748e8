"""Base as Spark's workers read it: its leaves on disk (`.bayou/state/nodes`), and the rows changed since then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from bayou.index.entry import Entry
from bayou.index.node import Pointer, Ref, Root
from bayou.index.node_store import NodeFiles
from bayou.index.tree import IndexTree, branches, find_many, leaves
from bayou.repo import Repo
from bayou.state.base import BaseNodes, load_root
from bayou.state.connection import Connection, connected
from bayou.state.database import load_entry, remote_of

LEAVES = 64
"""Leaves of one task: about 30,000 entries."""


class BaseView(Struct, frozen=True):
    """A snapshot of base: a root of the local nodes, and the rows changed since (None: deleted). It can be pickled.

    `absent` is how many entries the tree leaves in the store on purpose.
    """

    nodes: Path
    root: Root | None = None
    newer: Mapping[str, Entry | None] = field(default_factory=dict)
    absent: int = 0

    def lookup(self, paths: Iterable[str]) -> dict[str, Entry]:
        """Return the entries that base has for these paths."""
        wanted = set(paths)
        found = find_many(self._tree(), wanted - self.newer.keys())
        return found | {path: entry for path in wanted if (entry := self.newer.get(path)) is not None}

    def parts(self, size: int = LEAVES) -> list[Sequence[Ref]]:
        """Divide the leaves into parts; this reads branches only."""
        if self.root is None:
            return []
        tree = self._tree()
        refs: list[Ref] = [self.root]
        for level in range(self.root.level, 0, -1):
            refs = [row for branch in branches(tree.source, level, refs) for row in branch.rows]
        found = [Pointer(0, ref.node) for ref in refs]
        return [found[at : at + size] for at in range(0, len(found), size)]

    def scan(self, part: Sequence[Ref]) -> Iterator[Sequence[Entry]]:
        """Yield the entries of some leaves, without those that were changed since."""
        for leaf in leaves(self._tree().source, part):
            yield [entry for entry in leaf.rows if entry.path not in self.newer]

    def recent(self) -> list[Entry]:
        """Return the entries that were changed since the leaves were written."""
        return [entry for entry in self.newer.values() if entry is not None]

    def _tree(self) -> IndexTree:
        return IndexTree(BaseNodes(NodeFiles(self.nodes), ""), self.root)


def base_view(repo: Repo, connection: Connection | None = None) -> BaseView:
    """Return a snapshot of a repo's base, empty if the datastore is a directory; send no request to the store."""
    nodes = repo.state / "nodes"
    if repo.config.datastore.url is None:
        return BaseView(nodes)
    with connected(repo, connection) as opened:
        database = opened.database
        remote = remote_of(database, repo)
        # One statement, so that no concurrent fold of the overlay into the nodes comes between two.
        (_, _, root), *newer = database.rows(
            "SELECT NULL, NULL, root FROM place WHERE id = ? UNION ALL"
            " SELECT path, entry, NULL FROM overlay WHERE place = ?",
            (remote, remote),
        )
        ((absent,),) = database.rows("SELECT count(*) FROM absent WHERE place = ?", (remote,))
    found = {str(path): load_entry(str(path), None if entry is None else str(entry)) for path, entry, _ in newer}
    return BaseView(nodes, load_root(None if root is None else str(root)), found, cast("int", absent))
