"""Merging: whatever the order and the batches, the tree is the one that a build from scratch gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.index.build import ChunkParams, build
from bayou.index.merge import merge
from bayou.index.node import Leaf, leaf
from bayou.index.tree import find, names, scan
from tests.index.memory import MemoryNodes
from tests.index.reference import SHAPES, entry, levels, paths, shapes, some

SMALL = SHAPES[1]

batches = st.lists(st.dictionaries(paths, st.none() | st.integers(0, 3), max_size=30), max_size=6)


def digests(nodes: MemoryNodes, root) -> list[list[bytes]]:
    """Return the digests of a tree's nodes by level, each in order of path."""
    if root is None:
        return []
    reached = [nodes.nodes[named] for named in names(nodes.tree(root))]
    return [[node.digest for node in reached if node.level == level] for level in range(root.level + 1)]


def as_changes(batch):
    return {path: None if size is None else entry(path, size) for path, size in batch.items()}


@given(batches, shapes)
def test_any_batches_give_the_tree_that_a_build_gives(batches, shape):
    nodes, root, plain = MemoryNodes(), None, {}

    for batch in map(as_changes, batches):
        plain.update(batch)
        plain = {path: row for path, row in plain.items() if row is not None}
        root = merge(nodes.tree(root), batch, nodes.commit(), shape)

        assert digests(nodes, root) == levels(plain.values(), shape)
        assert list(scan(nodes.tree(root))) == [plain[path] for path in sorted(plain)]


@given(st.sets(st.integers(0, 400), max_size=40), st.sets(st.integers(0, 400), max_size=40), shapes)
def test_changes_anywhere_in_a_large_tree_give_the_tree_that_a_build_gives(added, deleted, shape):
    nodes = MemoryNodes()
    plain = {row.path: row for row in some(400) if row.size % 2}
    root = build([plain[path] for path in sorted(plain)], nodes.commit(), shape)
    rows = some(401)
    changes = {rows[number].path: None for number in deleted} | {rows[number].path: rows[number] for number in added}

    root = merge(nodes.tree(root), changes, nodes.commit(), shape)

    plain.update(changes)
    assert digests(nodes, root) == levels([row for row in plain.values() if row is not None], shape)


@given(st.lists(st.integers(0, 60), unique=True, min_size=2), shapes, st.integers(1, 7))
def test_the_same_set_has_the_same_root_whatever_the_order(order, shape, size):
    rows = [entry(f"data/{number:02}", number) for number in order]
    nodes, root = MemoryNodes(), None

    for start in range(0, len(rows), size):
        root = merge(nodes.tree(root), {row.path: row for row in rows[start : start + size]}, nodes.commit(), shape)

    assert root.digest == levels(rows, shape)[-1][0]


@given(batches, st.dictionaries(paths, st.none() | st.integers(0, 3), max_size=9), shapes)
def test_exactly_the_nodes_that_are_new_are_written(batches, last, shape):
    nodes, root = MemoryNodes(), None
    for batch in map(as_changes, batches):
        root = merge(nodes.tree(root), batch, nodes.commit(), shape)
    before = set(names(nodes.tree(root)))
    stored = set(nodes.nodes)

    root = merge(nodes.tree(root), as_changes(last), nodes.commit(), shape)

    after = set(names(nodes.tree(root)))
    assert after - before == set(nodes.nodes) - stored, "what is new and reachable, and nothing else, was stored"
    shared = {named[:64] for named in before} & {named[:64] for named in after}
    assert shared == {named[:64] for named in before & after}, "a node that stays keeps its name"


def test_a_tree_that_is_emptied_and_filled_again_is_the_same_tree():
    nodes = MemoryNodes()
    rows = {row.path: row for row in some(300)}
    full = build(rows.values(), nodes.commit(), SMALL)

    empty = merge(nodes.tree(full), dict.fromkeys(rows), nodes.commit(), SMALL)
    again = merge(nodes.tree(empty), rows, nodes.commit(), SMALL)

    assert full.level > 2
    assert empty is None
    assert again.digest == full.digest


@pytest.mark.parametrize("kept", [0, 150, 299])
def test_a_tree_shrinks_to_the_leaf_that_is_left(kept):
    nodes = MemoryNodes()
    rows = some(300)
    full = build(rows, nodes.commit(), SMALL)

    root = merge(nodes.tree(full), {row.path: None for row in rows if row is not rows[kept]}, nodes.commit(), SMALL)

    assert (root.level, root.entries) == (0, 1)
    assert list(scan(nodes.tree(root))) == [rows[kept]]


def test_what_changes_nothing_writes_nothing_and_keeps_the_root():
    nodes = MemoryNodes()
    rows = some(300)
    root = build(rows, nodes.commit(), SMALL)
    nodes.commit()

    assert merge(nodes.tree(root), {}, nodes, SMALL) == root
    assert merge(nodes.tree(root), {"data/none": None, rows[7].path: rows[7]}, nodes, SMALL) == root
    assert merge(nodes.tree(None), {"data/none": None}, nodes, SMALL) is None
    assert nodes.saved.total() == 0


def test_a_root_that_a_new_leaf_follows_stays_as_it_is():
    shape = ChunkParams(leaf_mod=1 << 60, leaf_max=2, branch_mod=2, branch_max=9)
    nodes = MemoryNodes()
    old = build([entry("data/a"), entry("data/b")], nodes.commit(), shape)

    new = merge(nodes.tree(old), {"data/c": entry("data/c")}, nodes.commit(), shape)

    assert new.level == 1
    assert old.node in names(nodes.tree(new))
    assert nodes.saved == {0: 1, 1: 1}


@pytest.mark.parametrize("place", [0, 12_345, 19_999])
@pytest.mark.parametrize("kind", ["add", "change", "delete"])
def test_one_change_in_a_large_tree_touches_about_one_node_per_level(place, kind):
    """V16. A boundary that the change makes or removes may cost one node more."""
    nodes = MemoryNodes()
    rows = some(20_000)
    old = build(rows, nodes.commit())
    path = rows[place].path + ("+" if kind == "add" else "")
    change = {path: None if kind == "delete" else entry(path, 999_999)}

    new = merge(nodes.tree(old), change, nodes.commit())

    assert old.level >= 1
    assert all(nodes.saved[level] <= 2 for level in range(new.level + 1))
    assert nodes.saved.total() <= new.level + 2
    assert nodes.loaded.total() <= old.level + 3
    assert find(nodes.tree(new), path) == change[path]


def test_an_entry_must_say_its_own_path():
    with pytest.raises(ValueError, match="data/b"):
        merge(MemoryNodes().tree(None), {"data/a": entry("data/b")}, MemoryNodes())


def test_entries_outside_the_payload_roots_survive_an_unrelated_merge():
    """F105: strange rows are not ours to drop."""
    nodes = MemoryNodes()
    strange = [entry("../x"), entry("/etc/passwd"), entry("secrets/k"), entry("zzz")]
    good = some(50)
    root = build(sorted([*strange, *good], key=lambda row: row.path), nodes.commit(), SMALL)

    root = merge(nodes.tree(root), {"data/new": entry("data/new"), good[3].path: None}, nodes.commit(), SMALL)

    assert [row for row in scan(nodes.tree(root)) if not row.path.startswith("data/")] == strange


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("damage", ["missing", "wrong"])
def test_a_bad_node_on_the_way_stops_a_merge_and_nothing_is_written(level, damage):
    """F107: the error names the node."""
    nodes = MemoryNodes()
    rows = some(300)
    root = build(rows, nodes.commit(), SMALL)
    bad = next(
        named
        for named in names(nodes.tree(root))
        if (node := nodes.nodes[named]).level == level and node.last >= rows[200].path
    )
    if damage == "missing":
        del nodes.nodes[bad]
    else:
        nodes.nodes[bad] = other(nodes.nodes[bad])
    stored = dict(nodes.nodes)
    changes = {row.path: None for row in rows[:250]}

    with pytest.raises(NodeMissing if damage == "missing" else NodeDamaged, match=bad):
        merge(nodes.tree(root), changes, nodes.commit(), SMALL)

    assert nodes.nodes == stored


def other(node):
    """Return a node of the same level with other rows."""
    if isinstance(node, Leaf):
        return leaf([*node.rows[:-1], entry(node.last, 77)])
    return type(node)(node.level, node.rows[:-1], b"\0" * 32)
