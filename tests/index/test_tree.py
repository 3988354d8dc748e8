"""Looking up and scanning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.index.build import build
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.tree import find, find_many, names, scan
from tests.index.memory import MemoryNodes
from tests.index.reference import SHAPES, entries, entry, paths, shapes, some

sets = st.lists(entries, unique_by=lambda entry: entry.path)


def tree(rows, shape=SHAPES[1]):
    nodes = MemoryNodes()
    return nodes.tree(build(sorted(rows, key=lambda entry: entry.path), nodes, shape))


@given(sets, st.lists(paths), shapes)
def test_look_up_agrees_with_a_dictionary(rows, others, shape):
    plain = {row.path: row for row in rows}
    wanted = [*others, *list(plain)[::2]]
    built = tree(rows, shape)

    assert find_many(built, wanted) == {path: plain[path] for path in wanted if path in plain}
    assert all(find(built, path) == plain.get(path) for path in wanted)


@given(sets, paths, paths, st.text("data/é", max_size=7), shapes)
def test_a_scan_yields_what_lies_in_the_range(rows, start, end, prefix, shape):
    ordered = sorted(rows, key=lambda entry: entry.path)
    built = tree(rows, shape)

    assert list(scan(built)) == ordered
    assert list(scan(built, KeyRange(start, end))) == [row for row in ordered if start <= row.path < end]
    assert list(scan(built, KeyRange.under(prefix))) == [row for row in ordered if row.path.startswith(prefix)]
    assert list(scan(built, KeyRange.under(prefix) & KeyRange(start))) == [
        row for row in ordered if row.path.startswith(prefix) and row.path >= start
    ]


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("data/a", "data/b"), ("a\ud7ff", "a\ue000"), ("a\U0010ffff", "b"), ("\U0010ffff", None), ("", None)],
)
def test_a_prefix_ends_before_the_next_string_that_lacks_it(prefix, end):
    assert KeyRange.under(prefix) == KeyRange(prefix, end)


def test_spans_meet_in_what_both_hold():
    assert EVERYTHING & KeyRange("b", "d") == KeyRange("b", "d")
    assert KeyRange("a", "c") & KeyRange("b", "d") == KeyRange("b", "c")


def test_a_look_up_loads_one_node_per_level_and_many_load_each_node_once():
    """V16."""
    rows = some(20_000)
    built = tree(rows, SHAPES[0])

    assert find(built, rows[9000].path) == rows[9000]
    assert built.source.loaded == {0: 1, 1: 1}
    built.source.commit()
    assert len(find_many(built, [row.path for row in rows[9000:9010]])) == 10
    assert built.source.loaded.total() <= 3


def test_a_scan_of_a_prefix_loads_only_what_it_yields():
    rows = [*some(10_000, "data/a"), *some(10, "data/b"), *some(10_000, "data/c")]
    built = tree(rows, SHAPES[0])

    assert list(scan(built, KeyRange.under("data/b/"))) == some(10, "data/b")
    assert built.source.loaded[0] <= 2


def test_the_names_of_a_tree_are_those_of_all_its_nodes_and_no_leaf_is_loaded():
    built = tree(some(500))

    assert sorted(names(built)) == sorted(built.source.nodes)
    assert built.source.loaded[0] == 0


def test_a_tree_without_entries_has_nothing_in_it():
    built = tree([])

    assert find(built, "data/a") is None
    assert (list(scan(built)), list(names(built))) == ([], [])


def test_an_entry_names_its_object():
    assert entry("data/m/raw", push="P").key == "data/m/~P/raw"
    assert entry("data/m/raw", push=None).key == "data/m/raw"
