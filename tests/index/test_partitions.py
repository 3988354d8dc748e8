"""A tree built in parts is the tree built at once, wherever the parts were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.index.build import SHAPE, build, chunk_partition, join_partitions
from bayou.index.node import Child
from tests.index.memory import MemoryNodes
from tests.index.reference import entries, shapes, some


def parts(rows, cuts):
    """Divide rows at these places, which may be any numbers."""
    places = sorted({at % (len(rows) + 1) for at in cuts})
    return [rows[lo:hi] for lo, hi in zip([0, *places], [*places, len(rows)], strict=True)]


def in_parts(rows, cuts, shape):
    nodes = MemoryNodes()
    pieces = [piece for part in parts(rows, cuts) for piece in chunk_partition(part, nodes, shape)]
    return join_partitions(pieces, nodes, shape), nodes


@given(st.lists(entries, unique_by=lambda entry: entry.path), st.lists(st.integers(0, 1000), max_size=8), shapes)
def test_one_set_of_entries_has_one_tree_however_it_was_divided(rows, cuts, shape):
    rows.sort(key=lambda entry: entry.path)
    whole = MemoryNodes()

    root, nodes = in_parts(rows, cuts, shape)

    assert root == build(rows, whole, shape)
    assert nodes.nodes == whole.nodes


@pytest.mark.parametrize("cuts", [[], [5000], [1, 2, 3], [999, 1000, 4096, 8191, 8192, 8193], range(0, 20_000, 1500)])
def test_the_designs_own_numbers_are_used_in_parts_too(cuts):
    rows = some(20_000)
    whole = MemoryNodes()

    root, nodes = in_parts(rows, cuts, SHAPE)

    assert root == build(rows, whole)
    assert nodes.nodes == whole.nodes


def test_most_entries_never_reach_who_stitches():
    rows = some(50_000)

    pieces = [piece for part in parts(rows, [25_000]) for piece in chunk_partition(part, MemoryNodes())]

    assert sum(len(piece) for piece in pieces if not isinstance(piece, Child)) < 10_000
    assert sum(isinstance(piece, Child) for piece in pieces) > 60


def test_a_leaf_is_stored_before_it_is_told_of():
    nodes = MemoryNodes()

    for piece in chunk_partition(some(20_000), nodes):
        assert not isinstance(piece, Child) or piece.node in nodes.nodes


def test_pieces_out_of_order_are_refused():
    nodes = MemoryNodes()
    pieces = list(chunk_partition(some(5_000), nodes))

    with pytest.raises(ValueError, match="sorted"):
        join_partitions(reversed(pieces), nodes)


def test_a_leaf_that_does_not_begin_where_another_ends_is_refused():
    nodes = MemoryNodes()
    edge, leaf, *_ = chunk_partition(some(5_000), nodes)
    assert not isinstance(edge, Child)

    with pytest.raises(ValueError, match="begin"):
        join_partitions([edge[:-1], leaf], nodes)
