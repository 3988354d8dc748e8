"""Comparing two trees: what differs, in order, at a cost that follows the difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bayou.index.build import build
from bayou.index.key_range import KeyRange, KeyRanges
from bayou.index.merge import merge
from bayou.index.tree import Change, diff
from tests.index.memory import MemoryNodes
from tests.index.reference import SHAPES, entry, paths, shapes, some

SMALLEST = SHAPES[1]

plain = st.dictionaries(paths, st.integers(0, 2), max_size=60).map(
    lambda sizes: {path: entry(path, size) for path, size in sizes.items()}
)


def tree(rows, shape):
    nodes = MemoryNodes()
    return nodes.tree(build([rows[path] for path in sorted(rows)], nodes, shape))


def difference(old, new):
    return [
        Change(path, old.get(path), new.get(path))
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


@given(plain, plain, shapes)
def test_diff_agrees_with_dictionaries(old, new, shape):
    assert list(diff(tree(old, shape), tree(new, shape))) == difference(old, new)


@given(plain, st.dictionaries(paths, st.none() | st.integers(0, 2), max_size=8), shapes)
def test_diff_finds_exactly_what_a_merge_changed(old, changes, shape):
    before = tree(old, shape)
    batch = {path: None if size is None else entry(path, size) for path, size in changes.items()}
    nodes = before.source

    after = nodes.tree(merge(before, batch, nodes.commit(), shape))

    new = {path: row for path, row in (old | batch).items() if row is not None}
    assert list(diff(before, after)) == difference(old, new)
    assert list(diff(after, before)) == difference(new, old)


@given(plain, plain, shapes, st.text("dat/b", max_size=6))
def test_a_diff_of_a_range_has_what_lies_in_it(old, new, shape, prefix):
    found = list(diff(tree(old, shape), tree(new, shape), KeyRange.under(prefix)))

    assert found == [change for change in difference(old, new) if change.path.startswith(prefix)]


ranges = st.lists(
    st.text("dat/b", max_size=6).map(KeyRange.under)
    | st.tuples(paths, paths).map(lambda ends: KeyRange(min(ends), max(ends)))
    | paths.map(KeyRange),
    max_size=6,
)


@given(plain, plain, shapes, ranges)
def test_a_diff_of_several_ranges_has_what_lies_in_any_of_them(old, new, shape, spans):
    found = list(diff(tree(old, shape), tree(new, shape), KeyRanges(spans)))

    assert found == [change for change in difference(old, new) if any(span.holds(change.path) for span in spans)]


@given(ranges, paths)
def test_several_ranges_hold_what_any_of_them_holds(spans, path):
    assert KeyRanges(spans).holds(path) == any(span.holds(path) for span in spans)


def test_equal_trees_are_compared_without_loading_anything():
    rows = {row.path: row for row in some(5000)}
    left, right = tree(rows, SMALLEST), tree(rows, SMALLEST)

    assert list(diff(left, right)) == []
    assert left.source.loaded.total() == right.source.loaded.total() == 0


def test_one_change_loads_one_node_per_level_on_each_side():
    """V16."""
    nodes = MemoryNodes()
    rows = some(20_000)
    old = build(rows, nodes)
    new = merge(nodes.tree(old), {rows[7000].path: entry(rows[7000].path, 5)}, nodes.commit())
    nodes.commit()

    changes = list(diff(nodes.tree(old), nodes.tree(new)))

    assert changes == [Change(rows[7000].path, rows[7000], entry(rows[7000].path, 5))]
    assert nodes.loaded == {0: 2, 1: 2}


def test_leaves_are_loaded_as_they_are_read():
    nodes = MemoryNodes()
    root = build(some(20_000), nodes)
    nodes.commit()

    first = next(diff(nodes.tree(None), nodes.tree(root)))

    assert first.path == some(1)[0].path
    assert nodes.loaded[0] == 1
