"""Nodes in a store and in a directory."""

from __future__ import annotations

import pytest

from bayou.core.errors import AccessDenied, NodeDamaged, NodeMissing, Unavailable
from bayou.index.build import ChunkParams, build
from bayou.index.merge import merge
from bayou.index.node import name
from bayou.index.node_store import LocalNodes, NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import IndexTree, diff, find, names, scan
from tests.index.memory import MemoryStore
from tests.index.reference import SHAPES, entry, some

SMALL = SHAPES[1]
KEY = ".bayou/nodes/{}.parquet"


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def files(tmp_path):
    return NodeFiles(tmp_path / "nodes")


def publish(store, rows, commit="c1", cache=None, shape=SMALL):
    """Build a tree in a store, and return it as one who has no cache sees it."""
    return IndexTree(StoreNodes(store), build(rows, StoreSink(store, commit, cache), shape))


def leaf_of(tree):
    return list(names(tree))[-1]


def test_a_tree_in_a_store_comes_back(store):
    rows = some(300)

    tree = publish(store, rows)

    assert tree.root.level > 2
    assert list(scan(tree)) == rows


def test_nodes_are_named_by_digest_and_commit_and_the_sink_knows_them(store):
    sink = StoreSink(store, "commit-7")

    root = build(some(100), sink, SMALL)

    assert root.node == name(root.digest, "commit-7")
    assert sorted(store.objects) == sorted(KEY.format(named) for named in sink.written)
    assert sorted(sink.written) == sorted(names(IndexTree(StoreNodes(store), root)))


def test_a_merge_stores_its_own_nodes_and_shares_those_of_the_old_root(store):
    old = publish(store, some(300))
    before = set(store.objects)
    sink = StoreSink(store, "c2")

    new = IndexTree(old.source, merge(old, {"data/t/m/0000100/raw": None}, sink, SMALL))

    assert set(store.objects) - before == {KEY.format(named) for named in sink.written}
    assert {named.partition("-")[2] for named in names(new)} == {"c1", "c2"}
    assert list(scan(old)) == some(300), "the old version is still there, whole"


def test_a_missing_node_is_named_with_what_to_do(store):
    """F107."""
    tree = publish(store, some(300))
    gone = leaf_of(tree)
    del store.objects[KEY.format(gone)]

    with pytest.raises(NodeMissing, match=gone) as caught:
        list(scan(tree))

    assert "bayou datastore verify --repair" in caught.value.hint
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: b"", lambda data: b"<html>", lambda data: data[:50] + b"!" + data[51:]],
    ids=["truncated", "empty", "garbage", "changed"],
)
def test_a_damaged_node_stops_a_merge_and_nothing_is_written(store, change):
    """F107: neither a node nor anything else."""
    tree = publish(store, some(300))
    bad = leaf_of(tree)
    store.damage(KEY.format(bad), change)
    store.requests.clear()

    with pytest.raises(NodeDamaged, match=bad):
        merge(tree, {row.path: None for row in some(300)}, StoreSink(store, "c2"), SMALL)

    assert store.sent("put") == []


@pytest.mark.parametrize("error", [Unavailable("503"), AccessDenied("403")])
def test_a_node_that_cannot_be_read_is_not_missing_and_nothing_is_written(store, error):
    """F005: one throttled read must not look like another state of the index (V4)."""
    tree = publish(store, some(300))
    store.failing["get", KEY.format(leaf_of(tree))] = error
    store.requests.clear()

    with pytest.raises(type(error)):
        merge(tree, {row.path: None for row in some(300)}, StoreSink(store, "c2"), SMALL)

    assert store.sent("put") == []


def test_a_node_that_another_took_the_place_of_is_damaged(store):
    tree = publish(store, some(300))
    *_, one, other = names(tree)
    store.objects[KEY.format(one)] = store.objects[KEY.format(other)]

    with pytest.raises(NodeDamaged, match=one):
        list(scan(tree))


def test_a_flush_that_failed_can_be_made_again(store):
    sink = StoreSink(store, "c1")
    tree = publish(MemoryStore(), some(3))
    named = sink.save(tree.source.load(tree.root.level, tree.root))
    store.failing["put", KEY.format(named)] = Unavailable("503")

    with pytest.raises(Unavailable):
        sink.flush()
    assert sink.written == []
    store.failing.clear()
    sink.flush()

    assert sink.written == [named]
    assert list(store.objects) == [KEY.format(named)]


def test_what_is_cached_is_not_fetched_again(store, files):
    root = publish(store, some(300)).root
    tree = IndexTree(StoreNodes(store, files), root)
    assert list(scan(tree)) == some(300)
    store.requests.clear()

    assert list(scan(IndexTree(StoreNodes(store, files), root))) == some(300)
    assert store.requests == []


def test_what_was_written_here_is_cached(store, files):
    root = publish(store, some(300), cache=files).root
    store.requests.clear()

    assert list(scan(IndexTree(StoreNodes(store, files), root))) == some(300)
    assert store.requests == []


def test_a_damaged_cache_is_mended_from_the_store(store, files, tmp_path):
    root = publish(store, some(300), cache=files).root
    for file in (tmp_path / "nodes").iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    store.requests.clear()

    assert list(scan(IndexTree(StoreNodes(store, files), root))) == some(300)
    fetched = len(store.requests)
    assert list(scan(IndexTree(StoreNodes(store, files), root))) == some(300)

    assert fetched == len(store.objects)
    assert len(store.requests) == fetched


def test_a_cached_branch_of_the_same_digest_does_not_lead_to_nodes_that_were_collected(store, files):
    """The same entries again, under other names: only the names of the tree at hand are sure to exist."""
    old = publish(store, some(300), "c1", cache=files)
    store.objects.clear()
    new = publish(store, some(300), "c2")
    assert new.root.digest == old.root.digest

    seen = IndexTree(StoreNodes(store, files), new.root)
    merged = merge(seen, {"data/t/m/0000100/raw": None}, StoreSink(store, "c3", files), SMALL)

    assert {named.partition("-")[2] for named in names(seen)} == {"c2"}
    assert len(list(scan(IndexTree(StoreNodes(store), merged)))) == 299


def test_a_tree_in_a_directory_needs_no_store(files, tmp_path):
    nodes = LocalNodes(files, "b1")
    old = IndexTree(nodes, build(some(300), nodes, SMALL))

    later = LocalNodes(NodeFiles(tmp_path / "nodes"), "b2")
    new = IndexTree(later, merge(IndexTree(later, old.root), {"files/x": entry("files/x")}, later, SMALL))

    assert [change.path for change in diff(old, new)] == ["files/x"]
    assert find(new, "files/x") == entry("files/x")
    assert later.written == [named for named in later.written if named.endswith("-b2")] != []


def test_a_directory_is_brought_to_a_stores_version_by_merging_the_difference(store, files):
    local = LocalNodes(files, "b1")
    base = IndexTree(local, build(some(300), local, SMALL))
    remote = publish(store, [*some(290), entry("files/x")])

    changes = {change.path: change.new for change in diff(base, remote)}
    caught_up = IndexTree(local, merge(base, changes, local, SMALL))

    assert caught_up.root.digest == remote.root.digest
    store.objects.clear()
    assert list(scan(caught_up)) == [*some(290), entry("files/x")]


def test_a_node_that_is_missing_in_the_directory_is_named(files, tmp_path):
    nodes = LocalNodes(files, "b1")
    root = build(some(3), nodes)
    for file in (tmp_path / "nodes").iterdir():
        file.unlink()

    with pytest.raises(NodeMissing, match=root.node):
        list(scan(IndexTree(nodes, root)))


def test_a_write_that_fails_leaves_no_temporary_file(files, tmp_path, monkeypatch):
    """V14."""
    nodes = LocalNodes(files, "b1")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))

    with pytest.raises(OSError, match="disk full"):
        build(some(3), nodes)

    assert list((tmp_path / "nodes").iterdir()) == []


def test_only_nodes_on_the_way_are_requested(store):
    """V16: the same number for a larger store."""
    tree = publish(store, some(20_000), shape=ChunkParams())
    store.requests.clear()

    find(tree, "data/t/m/0010000/raw")

    assert len(store.requests) == 2
