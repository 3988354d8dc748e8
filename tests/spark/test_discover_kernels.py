"""Discovery's kernels, without Spark: together they give what the point way gives, however the work is divided."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayou.index.build import ChunkParams, build, join_partitions
from bayou.index.discovery import IN_THE_WAY, discover
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.spark import discover as judge
from bayou.spark.arrow import key_text, rows
from bayou.spark.discover import (
    FOUND,
    JUDGED,
    PIECES,
    Judge,
    LeafRow,
    Leaves,
    Nested,
    Verdict,
    joined,
    parent_directories,
    without_others,
)
from tests.index.memory import MemoryStore

COMMIT = "01J8XG4Q6V5T3N2M1K0H9G8F7E"
SMALL = ChunkParams(3, 6, 2, 4)

names = st.sampled_from(["a", "b", "a-b", "a.b", "a0", "é", "raw", ".lock", ".bayou", "_index", "~x", "", ".", "x\x01"])
keys = st.builds(
    lambda root, rest, end: "/".join([root, *rest]) + end,
    st.sampled_from(["data", "files", "outputs", "elsewhere", ".bayou", "databases"]),
    st.lists(names, max_size=4),
    st.sampled_from(["", "", "", "/"]),
)
stores = st.dictionaries(keys, st.sampled_from([b"", b"1", b"22"]), max_size=40)


class Files(NodeFiles):
    """Nodes in memory, written as they would be stored."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def write(self, files, *, durable):
        self.found.update((file.name, file.data) for file in files)


def by_point(store, shape):
    found, files = discover(store), Files()
    root = build(found.entries, LocalNodes(files, COMMIT), shape)
    return root, {(one.key, one.reason) for one in found.refused}, found.ignored, files.found


def by_kernels(store, shape, cuts, seed):
    """Do what the job does, with lists in place of data frames."""
    pages = list(store.list())
    tasks = [pages[at::3] for at in range(3)]
    batches = [judged(page) for task in tasks for judged in [Judge(store)] for page in task]
    others = frozenset(key_text(one.key) for one in verdicts(batches) if one.verdict == judge.STORE)
    if others:
        batches = list(without_others(others, batches))
    found = verdicts(batches)
    random.Random(seed).shuffle(found)
    payload = [one for one in found if one.verdict == judge.PAYLOAD]
    refused = {(key_text(one.key), one.reason) for one in found if one.verdict == judge.REFUSED}
    files = Files()
    try:
        root = tree(payload, shape, cuts, files)
    except Nested:
        inside = {path for found in parent_directories([judge._batch(payload)]) for (path,) in rows(found, ["path"])}
        refused |= {(one.path, IN_THE_WAY) for one in payload if one.path in inside}
        files = Files()
        root = tree([one for one in payload if one.path not in inside], shape, cuts, files, apart=True)
    return root, refused, sum(one.verdict == judge.IGNORED for one in found), files.found


def tree(payload, shape, cuts, files, *, apart=False):
    payload = sorted(payload, key=lambda one: (one.path, -one.size))
    wanted = {at % (len(payload) + 1) for at in cuts}
    # As in a range partitioning, a path is in one part only.
    allowed = [at for at in wanted if not 0 < at < len(payload) or payload[at - 1].path != payload[at].path]
    places = [0, *sorted(allowed), len(payload)]
    sink = LocalNodes(files, COMMIT)
    kernel = Leaves(COMMIT, shape=shape)
    pieces = [
        LeafRow(*row)
        for lo, hi in pairwise(places)
        for found in kernel([judge._batch(payload[lo:hi])])
        for row in plain_rows(found, PIECES.names)
    ]
    return join_partitions(joined(pieces, sink.take, apart=apart), sink, shape)


def plain_rows(found: Any, names: list[str]) -> Iterator[Any]:
    """Yield the rows of a batch; what their columns hold, its schema knows and mypy does not."""
    return rows(found, names)


def verdicts(batches):
    return [Verdict(*row) for found in batches for row in plain_rows(found, JUDGED.names)]


@given(stores, st.lists(st.integers(0, 60), max_size=6), st.integers(0, 9), st.booleans())
@example({"data/a": b"1", "data/a-b": b"1", "data/a/b": b"1"}, [1, 2], 0, False)
@example({"data/a": b"1", "data/a-b": b"1"}, [1], 0, False)
@example({"data/a": b"1", "data/a-b": b"1", "data/a/b": b"1"}, [], 0, False)
@example({"data/a": b"1", "data/a/b": b"1", "data/b": b"1"}, [], 0, False)
@example({"data/a": b"1", "data/a/.lock": b"1"}, [1], 0, False)
@example({"data/x/-a": b"1", "data/x/.bayou/head.json": b"1", "data/x/b/": b"", "data/y": b"1"}, [], 0, False)
@example({"data/a": b"1", "data/a/": b"", "data/b": b"", "data/b/": b""}, [1], 0, True)
def test_v18_the_kernels_find_what_the_point_way_finds(objects, cuts, seed, without_last_slash):
    store = MemoryStore(objects)
    store.without_last_slash = without_last_slash

    assert by_kernels(store, SMALL, cuts, seed) == by_point(store, SMALL)


@given(st.sets(st.integers(0, 10**6), max_size=300), st.lists(st.integers(0, 300), max_size=12))
def test_one_set_of_paths_has_one_tree_whatever_the_number_of_parts(numbers, cuts):
    store = MemoryStore({f"data/t/m-{number // 50}/{number}": b"x" * (number % 5 + 1) for number in numbers})

    assert by_kernels(store, SMALL, cuts, 0) == by_point(store, SMALL)


def test_keys_that_are_no_text_are_refused_and_named_exactly():
    store = MemoryStore({"data/\udcff": b"1", "data/ok": b"1"})

    root, refused, _, _ = by_kernels(store, SMALL, [], 0)

    assert refused == {("data/\udcff", "not valid Unicode")}
    assert root.entries == 1


def test_what_a_push_wrote_is_told_apart():
    key = f"data/t/~{COMMIT}/raw"

    (one,) = Judge(MemoryStore()).judge(next(MemoryStore({key: b"1"}).list()))

    assert (one.verdict, one.key, one.path) == (judge.PUSHED, key.encode(), None)


def test_a_task_that_runs_twice_writes_the_same_bytes_under_the_same_names():
    found = [Verdict(judge.PAYLOAD, f"data/{at:05}", None, None, at, f'"{at}"', None, at) for at in range(9000)]
    kernel = Leaves(COMMIT)

    once, again = ([piece.to_pydict() for piece in kernel([judge._batch(found)])] for _ in range(2))

    assert once == again
    assert any(name.endswith(COMMIT) for name in once[0]["node"])
    assert set(FOUND) <= set(JUDGED.names)


@pytest.mark.parametrize("clash", ["data/a/b", "data/a-b"])
def test_a_path_below_the_last_of_another_part_is_looked_at_closer(clash):
    """`data/a-b` does not lie below `data/a`, but `data/a/b` may still follow it."""
    ends = [LeafRow("end", "data/a", None, None, 0, None, None)]
    edge = LeafRow("edge", clash, clash, "n", 1, 1, b"")

    with pytest.raises(Nested):
        list(joined([*ends, edge], lambda file: None))
