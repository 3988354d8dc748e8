"""A store and a tree are divided into parts that hold everything once; entries cross to Spark unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.engine.parts import StorePart, divide, groups, objects
from bayou.objectstore.spec import StoreSpec
from bayou.spark.arrow import batch_to_entries, entries_to_batch
from bayou.worktree.scan import scan, subtrees
from tests.index.reference import entry

KEYS = [
    "top",
    "data/a",
    "data/a.b",
    "data/t/m/1/raw",
    "data/t/m/2/raw",
    "data/t/n/1/raw",
    "files/x",
    ".bayou/head.json",
]


@pytest.fixture
def spec(tmp_path) -> StoreSpec:
    for at, key in enumerate(KEYS):
        (tmp_path / "store" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / key).write_bytes(b"x" * at)
    return StoreSpec.of((tmp_path / "store").as_uri(), None, {}, 4)


@pytest.mark.parametrize("wanted", [1, 2, 4, 100])
def test_the_parts_of_a_store_hold_every_key_but_our_own_once(spec, wanted):
    store = spec.open()

    parts = divide(store, wanted)

    found = [meta for part in parts for page in objects(store, part) for meta in page]
    if parts != [StorePart(None)]:
        assert sorted(meta.key for meta in found) == sorted(key for key in KEYS if not key.startswith(".bayou/"))
    assert {meta.key: meta for meta in found}.items() <= {
        meta.key: meta for page in store.list() for meta in page
    }.items()
    assert len(parts) >= min(wanted, 6)


def test_a_directory_that_has_an_odd_one_in_it_is_not_divided(spec, tmp_path):
    (tmp_path / "store/data/c\x01").mkdir()
    (tmp_path / "store/data/c\x01/x").touch()
    store = spec.open()

    parts = divide(store, 100)

    assert StorePart("data") in parts
    assert "data/c\x01/x" in [meta.key for page in objects(store, StorePart("data")) for meta in page]


def test_a_store_that_cannot_list_a_level_is_one_part(monkeypatch, spec):
    store = spec.open()
    monkeypatch.setattr(type(store), "list_directory", lambda *_: None)

    assert divide(store, 100) == [StorePart(None)]
    (flat,) = [list(page) for page in objects(store, StorePart("data", deep=False))]
    assert [meta.key for meta in flat] == ["data/a", "data/a.b"]


@given(st.lists(st.integers(), max_size=50), st.integers(1, 60))
def test_tasks_share_the_parts_evenly_and_in_order(parts, wanted):
    shared = groups(parts, wanted)

    assert [part for group in shared for part in group] == parts
    assert len(shared) <= wanted
    assert all(shared)


def test_entries_cross_unchanged():
    rows = [entry("data/a"), entry("files/é", 0, push=None, sha256=None, etag=None, version="7", modified=1)]

    assert list(batch_to_entries(entries_to_batch(rows))) == rows


def test_the_places_of_a_tree_hold_every_file_once(tmp_path):
    root = tree(tmp_path)

    for wanted in (1, 4, 100):
        found = [one.path for some in subtrees(root, wanted) for one in scan(root, some)]
        assert sorted(found) == sorted(one.path for one in scan(root))
    assert subtrees(root, 100)[0] is not None


def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for path in ("data/t/m/1/raw", "data/t/m/2/raw", "data/x", "files/bad\x01/y", "files/z"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())
    os.symlink("x", root / "data/link")
    return root
