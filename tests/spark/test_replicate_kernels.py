"""Replication's kernels, without Spark: they decide, copy and write what the point way does."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core.errors import DeadlinePassed
from bayou.core.ids import ulid
from bayou.index.build import build, join_partitions
from bayou.index.entry import Entry
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.maintenance.replica.copy import Age, Pair, copy_push
from bayou.maintenance.replica.point import PendingCopies
from bayou.objectstore import Store, keys, open_store
from bayou.objectstore.spec import StoreSpec
from bayou.spark.arrow import batch, entries_to_batch, rows
from bayou.spark.discover import PIECES, LeafRow, joined
from bayou.spark.replicate import DECIDED, PAIRS, RESULTS, Copy, Sieve, Written, decide
from bayou.spark.sources.index_entries import leaf_refs
from bayou.sync.report import Failure
from tests.spark.test_discover_kernels import plain_rows

AGE = Age("a-store", 0, doubt=False)

hashes = st.sampled_from([None, b"a" * 32, b"b" * 32])
sides = st.none() | st.builds(
    lambda push, size, sha256, etag, modified: Entry("files/x", push, size, sha256, etag, None, modified),
    st.sampled_from([None, ulid()]),
    st.sampled_from([0, 3]),
    hashes,
    st.sampled_from([None, '"e"']),
    st.sampled_from([0, 1_700_000_000_123]),
)


def pairs_to_batch(pairs: list[Pair]) -> pyarrow.RecordBatch:
    columns = [
        [getattr(side, name) if side else None for side in (pair.source, pair.target) for name in _NAMES]
        for pair in pairs
    ]
    return batch(PAIRS, list(zip(*([pair.path, *row] for pair, row in zip(pairs, columns, strict=True)), strict=True)))


_NAMES = ("push", "size", "sha256", "etag", "version", "modified")


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=20))
def test_what_is_decided_of_a_row_is_what_is_decided_of_its_pair(found: list[tuple[Entry | None, Entry | None]]):
    pairs = [Pair("files/x", source, target) for source, target in found]

    (decided,) = decide([pairs_to_batch(pairs)])

    assert decided.schema.names == DECIDED.names
    assert decided.column("action").to_pylist() == [pair.action for pair in pairs]


@pytest.fixture
def stores(tmp_path: Path) -> tuple[StoreSpec, StoreSpec]:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    return tuple(StoreSpec.of((tmp_path / name).as_uri(), None, {}, 4) for name in ("source", "target"))  # type: ignore[return-value]


def fill(recipe: StoreSpec, content: dict[str, bytes]) -> list[Entry]:
    from hashlib import sha256

    store, push, made = open_store(recipe.url), ulid(), []
    for path, data in sorted(content.items()):
        store.put(keys.payload(path, push), data)
        made.append(Entry(path, push, len(data), sha256(data).digest(), None, None, 7))
    return made


def copied(recipe: tuple[StoreSpec, StoreSpec], entries: list[Entry], age: Age = AGE) -> list[tuple[object, ...]]:
    found = pairs_to_batch([Pair(entry.path, entry, None) for entry in entries])
    return [row for part in Copy(*recipe, age)([found]) for row in rows(part, RESULTS.names)]


def test_a_task_that_runs_twice_writes_the_same_bytes_to_the_same_keys(stores):
    entries = fill(stores[0], {"files/a": b"a", "files/b": b"bb", "data/t/m/n/1/raw": b"raw"})

    once, twice = copied(stores, entries), copied(stores, entries)

    target = open_store(stores[1].url)
    assert [row[:4] for row in once] == [row[:4] for row in twice]
    assert {(row[0], row[1]) for row in once} == {(e.path, copy_push(e, AGE.store, 0)) for e in entries}
    assert sorted(meta.size for page in target.list() for meta in page) == [1, 2, 3]
    third = copied(stores, entries, replace(AGE, doubt=True))
    assert [row[7] for row in third] == [False] * 3  # found there, and not sent


def test_what_the_source_does_not_have_is_a_row_and_no_exception(stores):
    entries = fill(stores[0], {"files/a": b"a", "files/b": b"b"})
    open_store(stores[0].url).delete([entries[0].key])
    wrong = replace(entries[1], sha256=b"w" * 32)

    by = {row[0]: row for row in copied(stores, [entries[0], wrong])}

    assert [row[-2] for row in by.values()] == ["unreadable", "unreadable"]
    assert "missing" in str(by["files/a"][-1])
    assert list(open_store(stores[1].url).list()) == []


def test_what_is_held_back_is_held_back_by_version():
    held = PendingCopies.of([Failure("data/t/m/n/1/raw", "unreadable", ""), Failure("files/a", "unreadable", "")])
    paths = ["data/t/m/n/1/metadata.yaml", "data/t/m/n/1/raw", "data/t/m/n/10/raw", "files/a", "files/ab"]
    found = pyarrow.RecordBatch.from_pydict({"path": paths})

    inside, outside = (
        [path for one in Sieve(held, inside=which)([found]) for path in one.column("path").to_pylist()]
        for which in (True, False)
    )

    assert inside == ["data/t/m/n/1/metadata.yaml", "data/t/m/n/1/raw", "files/a"]
    assert outside == ["data/t/m/n/10/raw", "files/ab"]


def tree_of(store: Store, entries: list[Entry]) -> IndexTree:
    return IndexTree(StoreNodes(store), build(entries, StoreSink(store, ulid())))


def test_leaves_that_did_not_change_are_named_and_not_written_again(stores):
    entries = [Entry(f"files/{number:05}", ulid(), 1, b"h" * 32, None, None, number) for number in range(4000)]
    store, commit = open_store(stores[1].url), ulid()
    before = tree_of(store, entries)
    changed = [*entries[:2000], replace(entries[2000], size=2), *entries[2001:]]
    kernel = Written(stores[1], commit, {ref.digest: ref.node for ref in leaf_refs(before)})
    parts = [changed[:1500], changed[1500:1501], changed[1501:]]

    found = [
        LeafRow(*row)
        for part in parts
        for one in kernel([entries_to_batch(part)])
        for row in plain_rows(one, PIECES.names)
    ]
    sink = StoreSink(store, commit)
    after = IndexTree(StoreNodes(store), join_partitions(joined(found, sink.take, apart=True), sink))

    assert list(scan(after)) == changed
    expected = tree_of(store, changed).root
    assert after.root is not None
    assert expected is not None
    assert after.root.digest == expected.digest
    old, new = ({ref.node for ref in leaf_refs(tree)} for tree in (before, after))
    assert len(new - old) < len(old) / 2


@pytest.mark.parametrize("seconds", [None, 1e-9])
def test_a_copy_has_as_long_as_the_command_that_asked_for_it(stores, seconds):
    """And not the three minutes of a usual call: an object of a terabyte takes hours."""
    (entry,) = fill(stores[0], {"files/a": b"a"})
    found = pairs_to_batch([Pair(entry.path, entry, None)])
    kernel = Copy(stores[0], stores[1], AGE, seconds)

    if seconds is None:
        assert sum(part.num_rows for part in kernel([found])) == 1
    else:
        with pytest.raises(DeadlinePassed):
            list(kernel([found]))
