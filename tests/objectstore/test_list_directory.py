"""One level of a store: what lies directly in a directory, exactly or not at all."""

from __future__ import annotations

import pytest

from bayou.core.errors import StoreError
from bayou.objectstore import keys, open_store
from bayou.objectstore.store import Store

KEYS = ["top", "data/a", "data/a.b", "data/t/m/raw", "data/u/raw", "files/x"]


@pytest.fixture(params=["memory", "file", "namespaced", pytest.param("s3", marks=pytest.mark.s3)])
def store(request, tmp_path) -> Store:
    if request.param == "s3":
        return filled(request.getfixturevalue("s3")())
    url = f"memory://{tmp_path.name}" if request.param == "memory" else tmp_path.as_uri()
    return filled(open_store(url, namespace="infra" if request.param == "namespaced" else None))


def filled(store: Store) -> Store:
    for key in KEYS:
        store.put(keys.payload(key, None), key.encode())
    return store


def test_the_top_of_a_store(store):
    level = store.list_directory()

    assert sorted(level.directories) == ["data/", "files/"]
    assert [meta.key for meta in level.objects] == ["top"]


def test_a_level_tells_the_same_of_an_object_as_a_listing(store):
    level = store.list_directory(keys.as_listed("data"))

    assert sorted(level.directories) == ["data/t/", "data/u/"]
    listed = {meta.key: meta for page in store.list() for meta in page}
    assert {meta.key: meta for meta in level.objects} == {key: listed[key] for key in ("data/a", "data/a.b")}


def test_a_directory_that_is_not_there_holds_nothing_or_is_not_known(store):
    level = store.list_directory(keys.as_listed("nowhere"))

    assert level is None or (level.directories, list(level.objects)) == ([], [])


def test_v4_a_directory_that_cannot_be_read_is_no_empty_one(tmp_path):
    store = open_store((tmp_path / "gone").as_uri())

    with pytest.raises(StoreError):
        store.list_directory()


def test_v4_a_level_that_ends_with_a_full_page_is_not_believed(tmp_path):
    """What came after it may have been no listing at all, which obstore takes for the end."""
    store = open_store(f"memory://{tmp_path.name}")
    for number in range(1000):
        store.put(keys.payload(f"data/{number}", None), b"")

    assert store.list_directory(keys.as_listed("data")) is None
    store.put(keys.payload("data/x", None), b"")
    assert len(list(store.list_directory(keys.as_listed("data")).objects)) == 1001


def test_a_level_is_counted_as_a_request(store):
    before = store.requests

    store.list_directory()

    assert (store.requests - before).list == 1
