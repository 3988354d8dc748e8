"""Discovery in parts: however a store is divided, the job finds what one look at all of it finds."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import IndexDamaged, JavaMissing
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Needs
from bayou.engine.select import Engines, Selector
from bayou.index.build import ChunkParams, build
from bayou.index.discovery import RefusedKey
from bayou.index.node import Root
from bayou.index.node_store import LocalNodes
from bayou.objectstore.spec import StoreSpec
from bayou.spark.executor import decode, encode, schema_of
from bayou.sync.plan.discovery_job import MOST_REFUSED, DiscoveryJob, Verdict, discover
from tests.index.memory import MemoryFiles, MemoryStore
from tests.sync import reference_discovery as reference
from tests.sync.reference_discovery import Found, find

COMMIT = "01J8XG4Q6V5T3N2M1K0H9G8F7E"
SMALL = ChunkParams(3, 6, 2, 4)

names = st.sampled_from(
    ["a", "b", "a-b", "a.b", "a0", "é", "raw", ".lock", ".bayou", "_index", "~x", f"~{COMMIT}", "", ".", "x\x01", "log"]
)
keys = st.builds(
    lambda root, rest, end: "/".join([root, *rest]) + end,
    st.sampled_from(["data", "files", "outputs", "elsewhere", ".bayou", "databases"]),
    st.lists(names, max_size=4),
    st.sampled_from(["", "", "", "/"]),
)
stores = st.dictionaries(keys, st.sampled_from([b"", b"1", b"22"]), max_size=40)

Outcome = tuple[Root | None, set[RefusedKey], int, dict[str, bytes]] | type[IndexDamaged]


def outcome(search: Callable[[], Found]) -> Outcome:
    """Return the tree of what was found with its nodes, the refused keys and the number of others; or the error."""
    files = MemoryFiles()
    try:
        found = search()
    except IndexDamaged as error:
        return type(error)
    root = build(found.entries, LocalNodes(files, COMMIT), SMALL)
    return root, set(found.refused), found.ignored, files.found


@given(stores, st.sampled_from([1, 3, 16]), st.booleans(), st.booleans())
@example({"data/a": b"1", "data/a-b": b"1", "data/a/b": b"1"}, 1, False, True)
@example({"data/a": b"1", "data/a-b": b"1"}, 1, False, True)
@example({"data/a": b"1", "data/a-b": b"1", "data/a/b": b"1"}, 16, False, True)
@example({"data/a": b"1", "data/a/b": b"1", "data/b": b"1"}, 16, False, True)
@example({"data/a": b"1", "data/a/.lock": b"1"}, 16, False, True)
@example({"data/x/-a": b"1", "data/x/.bayou/head.json": b"1", "data/x/b/": b"", "data/y": b"1"}, 16, False, True)
@example({"data/a": b"1", "data/a/": b"", "data/b": b"", "data/b/": b""}, 16, True, True)
def test_v18_the_job_finds_what_one_look_at_everything_finds(objects, threads, without_last_slash, divided):
    store = MemoryStore(objects)
    if without_last_slash:
        # As in a bucket: a "folder" is empty, and comes after an object of that name.
        store = MemoryStore({key: b"" if key.endswith("/") else objects[key] for key in sorted(objects)})
        store.without_last_slash = True

    expected, found = (
        outcome(search)
        for search in (lambda: reference.discover(store), lambda: find(store, divided=divided, threads=threads))
    )

    if without_last_slash and divided and isinstance(found, tuple) and isinstance(expected, tuple):
        # A listing of a directory leaves out the "folder" of that name, so that it is not counted among keys of others.
        folders = sum(key.endswith("/") for key in objects)
        assert expected[2] - folders <= found[2] <= expected[2]
        assert (found[0], found[1], found[3]) == (expected[0], expected[1], expected[3])
    else:
        assert found == expected


@given(st.sets(st.integers(0, 10**6), max_size=300), st.integers(1, 12))
def test_one_set_of_paths_has_one_tree_whatever_the_number_of_parts(numbers, threads):
    store = MemoryStore({f"data/t/m-{number // 50}/{number}": b"x" * (number % 5 + 1) for number in numbers})

    assert outcome(lambda: find(store, divided=True, threads=threads)) == outcome(lambda: reference.discover(store))


@pytest.mark.parametrize("seed", range(4))
def test_random_stores_have_the_same_tree_whatever_the_parts(seed):
    """Objects that are the directory of others too, which only a bucket can hold."""
    chance = random.Random(seed)
    few = ["a", "b", "a-b", "a.b", "a0", "é", "~x", ".lock"]
    laid = {"data/" + "/".join(chance.choices(few, k=chance.randint(1, 5))) for _ in range(600)}
    store = MemoryStore({key: b"x" * chance.randint(0, 3) for key in laid})

    found = outcome(lambda: find(store, divided=True, threads=chance.choice([1, 8, 40])))

    assert found == outcome(lambda: reference.discover(store))


def test_keys_that_are_no_text_are_refused_and_named_exactly():
    store = MemoryStore({"data/\udcff": b"1", "data/ok": b"1"})

    found = find(store, divided=True)

    assert found.refused == [RefusedKey("data/\udcff", "not valid Unicode")]
    assert len(found.entries) == 1


def test_rows_cross_to_another_process_unchanged():
    store = MemoryStore({"data/\udcff": b"1", "data/ok": b"1", "data/t/.bayou/x": b"", "elsewhere/x": b"1"})
    job = DiscoveryJob(StoreHandle(store, None), divided=False)  # type: ignore[arg-type]
    (part,) = job.parts(1)
    rows = list(job.run(part))

    assert list(decode(Verdict, encode(schema_of(Verdict), rows))) == rows
    assert len({row.kind for row in rows}) == 4


def test_a_part_that_runs_twice_says_the_same():
    store = MemoryStore({f"data/{number % 7}/{number}": b"1" for number in range(100)})
    job = DiscoveryJob(StoreHandle(store, None), divided=True)  # type: ignore[arg-type]

    for part in job.parts(8):
        assert list(job.run(part)) == list(job.run(part))


def test_a_worker_opens_the_store_by_its_recipe_and_lists_the_same(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_bytes(b"1")
    spec = StoreSpec.of(tmp_path.as_uri(), None, {}, 4)
    job = DiscoveryJob(StoreHandle(spec.open(), lambda: spec), divided=True)
    (part, *_) = job.parts(1)

    sent = pickle.loads(pickle.dumps(job))

    assert list(sent.run(part)) == list(job.run(part))


def engines(limit: int, warnings: list[str]) -> Engines:
    return Engines(SparkConfig(), Selector(override=limit, cores=2), Deadline.after(60), warnings.append)


def test_a_listing_that_passes_the_limit_starts_again_in_parts(monkeypatch):
    """Spark does not start here: this process does it, and says so."""

    class Missing:
        def open(self, config: object, needs: Needs, **_: object) -> Any:
            raise JavaMissing("there is no Java")

    monkeypatch.setattr("bayou.engine.select.spark_engine", Missing)
    store = MemoryStore({f"data/{number % 5}/{number}": b"1" for number in range(50)})
    store.url, store.page_size = "s3://test", 10
    warnings: list[str] = []

    found = discover(StoreHandle(store, None), engines(20, warnings))  # type: ignore[arg-type]

    assert len(list(found.entries())) == 50
    found.close()
    assert store.sent("list")[:3] == ["0", "1", "2"]
    assert "" in store.sent("list_directory")
    assert warnings == ["the store was listed by this process alone, since Spark could not: there is no Java"]


def test_a_listing_within_the_limit_is_never_divided():
    store = MemoryStore({f"data/{number % 5}/{number}": b"1" for number in range(50)})
    store.page_size = 10
    warnings: list[str] = []

    discover(StoreHandle(store, None), engines(50, warnings)).close()  # type: ignore[arg-type]

    assert store.sent("list") == ["0", "1", "2", "3", "4"]
    assert (store.sent("list_directory"), warnings) == ([], [])


def test_of_very_many_refused_keys_the_first_are_named_and_all_are_counted():
    odd = [f"data/{number:05}\x01" for number in range(MOST_REFUSED + 5)]
    store = MemoryStore({**dict.fromkeys(odd, b"1"), "data/-": b"1", "data/-/x": b"1"})
    warnings: list[str] = []

    found = discover(StoreHandle(store, None), engines(10**6, warnings))  # type: ignore[arg-type]
    found.close()

    assert [one.key for one in found.refused] == ["data/-", *odd[: MOST_REFUSED - 1]]
    assert found.refusals == MOST_REFUSED + 6
    assert warnings == ["1006 keys were refused; the first 1000 are named"]
