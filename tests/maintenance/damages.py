"""Indexes with a few files and many nodes, ways to damage them, and what tells."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import pytest

import bayou.index.build as build_module
import bayou.index.merge as merge_module
from bayou.index.build import ChunkParams
from bayou.index.entry import Entry
from bayou.index.node import Leaf
from bayou.index.node_store import StoreNodes
from bayou.objectstore import Store, keys
from bayou.sync.report import VerifyReport
from tests import api
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import head_of

SMALL = ChunkParams(leaf_mod=3, leaf_max=7, branch_mod=3, branch_max=5)
FILES = {f"files/{number:02}": f"content {number}".encode() for number in range(24)}
SOME = "files/17"


@pytest.fixture(autouse=True)
def small_nodes(quick_probe: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few files make a tree of several levels."""
    for function in (build_module.build, build_module.build_above, merge_module.merge):
        monkeypatch.setattr(function, "__defaults__", (SMALL,))


@pytest.fixture
def ready(team: Team) -> tuple[Clone, Clone]:
    """A, which has pushed the files, and B, which has pulled them."""
    a, b = team.clone("a"), team.clone("b")
    a.write_all(FILES)
    a.sync()
    b.sync()
    return a, b


def find_node(store: Store, path: str, level: int = 0) -> Any:
    """Return the node, at a level of the current tree, that a path belongs to, and what names it."""
    source, ref = StoreNodes(store), head_of(store).head.root
    assert ref is not None
    at: Any = ref
    for above in range(ref.level, level, -1):
        rows = source.load(above, at).rows
        at = rows[max(0, bisect_right([row.first for row in rows], path) - 1)]  # type: ignore[union-attr]
    return source.load(level, at), at


def lose(store: Store, *names: str) -> None:
    store.delete([keys.node(name) for name in names])


def verify(clone: Clone, **options: Any) -> VerifyReport:
    return api.verify(clone.repo, **{"deep": False, "repair": False, **options})


def repair(clone: Clone) -> VerifyReport:
    return verify(clone, repair=True)


def objects(team: Team) -> dict[str, tuple[int, str | None]]:
    """Everything in the store, with its fingerprint."""
    return {meta.key: (meta.size, meta.etag) for page in team.store().list() for meta in page}


def entries_of_leaf(leaf: Leaf) -> dict[str, Entry]:
    return {row.path: row for row in leaf.rows}
