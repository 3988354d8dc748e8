"""Checking a whole tree."""

from __future__ import annotations

import pytest

from bayou.core.errors import NodeDamaged, NodeMissing, Unavailable
from bayou.index.build import build
from bayou.index.check import check
from bayou.index.node import leaf
from bayou.index.tree import names
from tests.index.memory import MemoryNodes
from tests.index.reference import SHAPES, entry, some


@pytest.fixture
def tree():
    nodes = MemoryNodes()
    return nodes.tree(build(some(300), nodes, SHAPES[1]))


def test_a_good_tree_has_no_damage_and_was_read_whole(tree):
    assert list(check(tree)) == []
    assert tree.source.loaded.total() == len(tree.source.nodes)


def test_every_bad_node_is_reported_with_what_is_out_of_sight(tree):
    """F107."""
    nodes = tree.source.nodes
    leaves = [named for named in names(tree) if nodes[named].level == 0]
    branch = next(
        named for named in names(tree) if nodes[named].level == 1 and nodes[named].first > nodes[leaves[9]].last
    )
    lost, wrong = nodes.pop(leaves[2]), nodes[leaves[5]]
    nodes[leaves[5]] = leaf([entry(wrong.first)])
    hidden = nodes.pop(branch)

    found = list(check(tree))

    assert {(damage.node, damage.level, damage.first, damage.last, type(damage.error)) for damage in found} == {
        (leaves[2], 0, lost.first, lost.last, NodeMissing),
        (leaves[5], 0, wrong.first, wrong.last, NodeDamaged),
        (branch, 1, hidden.first, hidden.last, NodeMissing),
    }


def test_a_bad_root_hides_everything(tree):
    del tree.source.nodes[tree.root.node]

    (damage,) = check(tree)

    assert (damage.node, damage.first, damage.last) == (tree.root.node, None, None)


def test_a_store_that_fails_is_an_error_and_no_damage(tree, monkeypatch):
    """V4."""

    def fail(level, ref):
        raise Unavailable("503")

    monkeypatch.setattr(tree.source, "load", fail)

    with pytest.raises(Unavailable):
        list(check(tree))


def test_no_tree_has_no_damage():
    assert list(check(MemoryNodes().tree(None))) == []
