"""Building: one set of entries has one tree, and building it ends."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.index.build import FLUSH_EVERY, SHAPE, ChunkParams, build, build_above
from bayou.index.node import child_of
from bayou.index.tree import scan
from tests.index.memory import MemoryNodes
from tests.index.reference import SHAPES, entries, entry, is_boundary, levels, shapes, some


def digests(nodes: MemoryNodes) -> list[list[bytes]]:
    """Return the digests of all nodes by level, each in order of path."""
    by_level: dict[int, list[bytes]] = {}
    for node in sorted(nodes.nodes.values(), key=lambda node: node.first):
        by_level.setdefault(node.level, []).append(node.digest)
    return [by_level[level] for level in sorted(by_level)]


@given(st.lists(entries, unique_by=lambda entry: entry.path), shapes)
def test_a_built_tree_is_the_one_that_the_design_describes(rows, shape):
    nodes = MemoryNodes()

    root = build(sorted(rows, key=lambda entry: entry.path.encode()), nodes, shape)

    expected = levels(rows, shape)
    assert digests(nodes) == expected
    if root is None:
        assert rows == []
    else:
        assert (root.level, root.digest) == (len(expected) - 1, expected[-1][0])
        assert (root.entries, root.bytes) == (len(rows), sum(row.size for row in rows))
        assert list(scan(nodes.tree(root))) == sorted(rows, key=lambda entry: entry.path.encode())


@pytest.mark.parametrize("size", [1, 2, 511, 512, 513, 2047, 2048, 2049, 6000])
def test_the_designs_own_numbers_are_used(size):
    nodes = MemoryNodes()

    build(some(size), nodes)

    assert digests(nodes) == levels(some(size), SHAPE)


def closing_first() -> str:
    """Find a path that closes a leaf by itself, and a branch as that leaf's first path."""
    return next(
        path
        for path in (f"data/{number}" for number in count())
        if is_boundary(0, path, 512) and is_boundary(1, path, 1024)
    )


def test_building_ends_when_the_first_path_closes_a_leaf_and_a_branch_by_itself():
    first = entry(closing_first())
    rest = [entry(f"{first.path}/{number:04}") for number in range(3000)]
    alone, all_of_them = MemoryNodes(), MemoryNodes()

    one = build([first], alone)
    many = build([first, *rest], all_of_them)

    assert (one.level, one.entries) == (0, 1)
    assert digests(all_of_them) == levels([first, *rest], SHAPE)
    assert min(len(node.rows) for node in all_of_them.nodes.values() if node.level) >= 2
    assert many.entries == 3001


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8, 40])
def test_every_level_is_at_most_half_of_the_one_below(shape, size):
    nodes = MemoryNodes()

    build(some(size), nodes, shape)

    counts = [len(level) for level in digests(nodes)]
    assert all(above * 2 <= below for below, above in pairwise(counts))
    assert counts[-1:] in ([], [1])


def test_no_entries_are_no_tree():
    nodes = MemoryNodes()

    assert build([], nodes) is None
    assert build_above(1, [], nodes) is None
    assert nodes.nodes == {}


@pytest.mark.parametrize("paths", [("data/b", "data/a"), ("data/a", "data/a"), ("data/é", "data/z")])
def test_entries_that_are_unsorted_or_double_are_an_error(paths):
    with pytest.raises(ValueError, match="sorted and unique"):
        build([entry(path) for path in paths], MemoryNodes())


def test_order_is_that_of_the_bytes():
    nodes = MemoryNodes()
    paths = ["data/z", "data/é", "data/\uffee", "data/\U0001f600"]
    assert sorted(paths, key=str.encode) == paths

    root = build(map(entry, paths), nodes)

    assert [row.path for row in scan(nodes.tree(root))] == paths


def test_branches_can_be_built_over_leaves_that_others_made():
    shape = ChunkParams(leaf_mod=3, leaf_max=4, branch_mod=2, branch_max=3)
    whole, parts = MemoryNodes(), MemoryNodes()
    root = build(some(200), whole, shape)
    leaves = [(named, node) for named, node in whole.nodes.items() if node.level == 0]

    again = build_above(1, [child_of(node, named) for named, node in leaves], parts, shape)

    assert again == root
    assert set(parts.nodes) == {named for named, node in whole.nodes.items() if node.level}


def test_a_build_lets_go_of_its_nodes_as_it_goes():
    nodes = MemoryNodes()
    most_waiting = 0

    def watched():
        nonlocal most_waiting
        for row in some(5000):
            most_waiting = max(most_waiting, nodes.saved.total() - len(nodes.nodes))
            yield row

    build(watched(), nodes, ChunkParams(leaf_mod=4, leaf_max=16, branch_mod=4, branch_max=16))

    assert nodes.saved.total() > 10 * FLUSH_EVERY
    assert most_waiting <= FLUSH_EVERY
