"""Discovery: what a store without a head holds, and how it becomes an index."""

from __future__ import annotations

from functools import partial

import pytest

from bayou.core.errors import AccessDenied, AlreadyExists, HeadLost, Unavailable
from bayou.engine.spool import SortedSpool
from bayou.index.build import build
from bayou.index.discovery import publish
from bayou.index.entry import Entry
from bayou.index.head import create_head, first_head, read_head
from bayou.index.log import Tally
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import keys
from bayou.sync.plan.discovery_job import TooManyObjects
from tests.index.memory import MemoryStore
from tests.sync.reference_discovery import find

AT = "2026-03-01T12:00:00.000Z"
PUSHED = "data/t/m/n/3/~01J8XG4Q6V5T3N2M1K0H9G8F7E/raw"
PAYLOAD = {"data/t/m/n/1/raw": b"one", "files/b": b"four", "audit/x.jsonl": b""}


@pytest.fixture(params=["whole", "few parts", "many parts"])
def discover(request):
    """Discovery of a store in one part, as this process does it first, and divided."""
    divided = request.param != "whole"
    return partial(find, divided=divided, threads=4 if request.param == "many parts" else 1)


def paths(discovery):
    return [entry.path for entry in discovery.entries]


def refused(discovery):
    return {refused.key: refused.reason for refused in discovery.refused}


def publish_found(store, commit="c1", store_id="s1"):
    root = build(find(store).entries, StoreSink(store, commit))
    return publish(store, root, store_id=store_id, commit=commit, at=AT, by="ada")


def test_payload_is_found_with_what_the_listing_says_of_it(discover):
    """F048."""
    store = MemoryStore(PAYLOAD)

    found = discover(store)

    assert paths(found) == sorted(PAYLOAD)
    assert (found.refused, found.ignored) == ([], 0)
    meta = store.objects["files/b"].meta
    assert found.entries[-1] == Entry("files/b", None, 4, None, meta.etag, meta.version, meta.modified)


def test_publishing_creates_a_head_and_leaves_the_objects_where_they_are():
    """F048."""
    store = MemoryStore(PAYLOAD)

    seen = publish_found(store)

    assert (seen.head.seq, seen.head.parent, seen.head.store) == (1, None, "s1")
    assert (seen.head.root.entries, seen.head.root.bytes) == (3, 7)
    assert (seen.head.log[0].added, seen.head.log[0].bytes) == (3, 7)
    assert read_head(store) == seen
    assert [entry.path for entry in scan(IndexTree(StoreNodes(store), seen.head.root))] == sorted(PAYLOAD)
    assert all(key.startswith(".bayou/") for key in store.sent("put"))
    assert store.sent("put")[-1] == keys.HEAD


def test_a_listing_that_passes_its_limit_is_given_up_at_once():
    store = MemoryStore({f"data/{number}": b"1" for number in range(9)})
    store.page_size = 2

    assert len(find(store, most=9).entries) == 9
    store.requests.clear()
    with pytest.raises(TooManyObjects):
        find(store, most=3)
    assert store.sent("list") == ["0", "1"]
    assert store.sent("list_directory") == []


def test_a_small_store_takes_one_listing_and_nothing_to_divide_it():
    store = MemoryStore({f"data/t/m/{number}": b"1" for number in range(9)})
    store.page_size = 1000

    find(store)

    assert store.requests == [("list", "0")]


def test_an_empty_store_becomes_an_empty_index():
    store = MemoryStore()

    seen = publish_found(store)

    assert seen.head.root is None
    assert list(store.objects) == [keys.HEAD]


def test_discovery_alone_writes_nothing(discover):
    """F049 (V15)."""
    store = MemoryStore(PAYLOAD)

    discover(store)

    assert store.sent("put") == []
    assert {verb for verb, _ in store.requests} <= {"list", "list_directory", "head"}


def test_locks_of_other_systems_and_our_own_state_are_no_payload(discover):
    """F050: neither indexed nor reported one by one, and never asked for."""
    locks = {
        ".lock": b"",
        ".locks/x.lock": b"",
        "data/.lock": b"",
        "data/m/.locks/a": b"x",
        "logs/.datastore.lock": b"x",
    }
    store = MemoryStore({**PAYLOAD, **locks, ".bayou/leases/m.json": b"{}", ".bayou/probe/x": b""})

    found = discover(store)

    assert paths(found) == sorted(PAYLOAD)
    assert found.refused == []
    assert found.ignored == len(locks)


@pytest.mark.parametrize(
    "name", ["data/m/_catalog.db-wal", "data/.bayou-1.tmp", "data/_index/0", "data/x.tmp.1." + "0" * 36]
)
def test_leftovers_of_other_systems_below_a_root_are_ignored(discover, name):
    found = discover(MemoryStore({**PAYLOAD, name: b"x"}))

    assert (paths(found), found.refused, found.ignored) == (sorted(PAYLOAD), [], 1)


def test_of_two_discoverers_one_publishes_and_the_other_goes_on_from_there():
    """F051 (a)."""
    store = MemoryStore(PAYLOAD)
    winner = publish_found(store, "c1", "s1")
    head = store.objects[keys.HEAD]

    loser = publish_found(store, "c2", "s2")

    assert loser == winner
    assert loser.head.store == "s1"
    assert store.objects[keys.HEAD] is head


def test_a_first_push_between_listing_and_publishing_is_kept(discover):
    """F051 (b)."""
    store = MemoryStore(PAYLOAD)
    found = discover(store)
    theirs = first_head(store="s2", commit="c2", at=AT, by="grace", root=None, tally=Tally())
    create_head(store, theirs)
    store.put(keys.payload("data/t/m/n/3/raw", "01J8XG4Q6V5T3N2M1K0H9G8F7E"), b"new")

    root = build(found.entries, StoreSink(store, "c1"))
    seen = publish(store, root, store_id="s1", commit="c1", at=AT, by="ada")

    assert seen.head == theirs


def test_a_push_that_overtakes_the_listing_is_not_taken_for_a_lost_head(discover):
    """F051 (b): the head that it published first is there."""
    store = MemoryStore({PUSHED: b"x"})
    create_head(store, first_head(store="s2", commit="c2", at=AT, by="grace", root=None, tally=Tally()))

    with pytest.raises(AlreadyExists):
        discover(store)


def test_objects_of_pushes_without_a_head_mean_that_it_was_lost(discover):
    store = MemoryStore({**PAYLOAD, PUSHED: b"x"})

    with pytest.raises(HeadLost, match="no head") as caught:
        discover(store)

    assert "bayou datastore verify --repair" in caught.value.hint
    assert caught.value.exit_code == 4
    assert store.sent("put") == []


@pytest.mark.parametrize("key", [".bayou/log/01J8XG4Q6V5T3N2M1K0H9G8F7E.json", ".bayou/packs/01J8XG-8388608", PUSHED])
def test_p9_what_only_a_client_with_a_head_writes_means_that_it_was_lost(discover, key):
    store = MemoryStore({**PAYLOAD, key: b"x", "data/t/m/n/2/raw": b"two"})

    with pytest.raises(HeadLost, match="no head"):
        discover(store)


def test_p9_nodes_alone_are_what_an_interrupted_discovery_leaves(discover):
    left = {f".bayou/nodes/{'0' * 64}-c1.parquet": b"x", ".bayou/probe/x": b"", ".bayou/leases/log/packs/a": b"{}"}

    assert paths(discover(MemoryStore({**PAYLOAD, **left}))) == sorted(PAYLOAD)


def test_p9_packs_and_the_log_of_another_store_say_nothing_about_our_head(discover):
    theirs = {"files/team/.bayou/log/1.json": b"{}", "files/team/.bayou/packs/1-1": b"x", "files/team/data/a": b"x"}

    found = discover(MemoryStore({**PAYLOAD, **theirs}))

    assert (paths(found), found.ignored) == (sorted(PAYLOAD), len(theirs))


def test_a_head_that_cannot_be_looked_for_is_not_lost(discover):
    """V4."""
    store = MemoryStore({PUSHED: b"x"})
    store.failing["head", keys.HEAD] = Unavailable("503")

    with pytest.raises(Unavailable):
        discover(store)


def test_only_our_payload_roots_are_indexed(discover):
    """F052: tenants, indexes and databases of others are counted, and none is touched."""
    others = {
        "other/data/x": b"x",
        ".datastore-index.json": b"{}",
        "_index/0": b"x",
        "x/.namespace.json": b"{}",
        "_catalog.db": b"x",
        "Data/x": b"x",
        "secrets/k": b"x",
    }
    store = MemoryStore({**others, **PAYLOAD})
    before = dict(store.objects)

    found = discover(store)

    assert paths(found) == sorted(PAYLOAD)
    assert (found.refused, found.ignored) == ([], len(others))
    assert store.objects == before


@pytest.mark.parametrize("state_first", [True, False])
def test_a_directory_that_holds_another_store_is_invisible(discover, state_first):
    """F052: also its pushes, which say nothing about our head; and in whatever order the listing comes."""
    state = {"files/team/.bayou/head.json": b"{}", "infra/.bayou/head.json": b"{}"}
    theirs = {f"files/team/{PUSHED}": b"x", "files/team/data/y": b"x", "infra/data/z": b"x", "files/team/../odd": b"x"}
    found = discover(MemoryStore({**PAYLOAD, **(state | theirs if state_first else theirs | state)}))

    assert paths(found) == sorted(PAYLOAD)
    assert (found.refused, found.ignored) == ([], len(state) + len(theirs))


def test_a_neighbour_of_another_store_is_ours(discover):
    found = discover(MemoryStore({"files/team/.bayou/head.json": b"{}", "files/teams": b"x", "files/team-b/x": b"x"}))

    assert paths(found) == ["files/team-b/x", "files/teams"]


@pytest.mark.parametrize(("page", "error"), [("0", AccessDenied("403")), ("1", Unavailable("503"))])
def test_a_listing_that_fails_is_not_an_empty_store(page, error):
    """F053 (V4)."""
    store = MemoryStore({**PAYLOAD, "files/c": b"", "files/d": b""})
    store.failing["list", page] = error

    with pytest.raises(type(error)):
        publish_found(store)

    assert store.sent("put") == []


FOLDERS = {
    "data/": b"",
    "files/photos/": b"",
    "files/a/b/": b"",
    "other/": b"",
    "data/m/~01J8XG4Q6V5T3N2M1K0H9G8F7E/": b"",
}


@pytest.mark.parametrize("without_last_slash", [False, True])
def test_folders_that_a_console_made_are_nothing(discover, without_last_slash):
    """F054: also when the listing hides that they are folders."""
    store = MemoryStore({**FOLDERS, **PAYLOAD, "files/photos/1.jpg": b"x"})
    store.without_last_slash = without_last_slash

    found = discover(store)

    assert paths(found) == sorted([*PAYLOAD, "files/photos/1.jpg"])
    assert found.refused == []


def test_whether_an_empty_object_is_a_folder_must_be_known(discover):
    """V4."""
    store = MemoryStore(PAYLOAD)
    store.failing["head", "audit/x.jsonl"] = AccessDenied("403")

    with pytest.raises(AccessDenied):
        discover(store)


def test_odd_keys_are_named_and_block_nothing(discover):
    """F108."""
    odd = {
        "data//x": b"x",
        "data/a\x07b": b"",
        "data/" + "n" * 300: b"x",
        "data/../x": b"x",
        "data/a\\b": b"x",
        "data/e\u0301": b"x",
        "data/~mine": b"x",
        "data": b"x",
        "files/x\udc80": b"x",
    }
    store = MemoryStore({**odd, **PAYLOAD, "files/README": b"x", "files/readme": b"x"})
    before = dict(store.objects)

    found = discover(store)

    assert paths(found) == sorted([*PAYLOAD, "files/README", "files/readme"])
    assert refused(found).keys() == odd.keys()
    assert all(refused(found).values())
    assert found.ignored == 0
    assert store.objects == before
    assert store.sent("head") == ["audit/x.jsonl"]


def test_a_file_that_is_a_directory_too_has_no_place(discover):
    """F108."""
    found = discover(
        MemoryStore({"data/a": b"x", "data/a/b": b"x", "data/a/b/c": b"x", "data/a-b": b"x", "data/q": b"x"})
    )

    assert paths(found) == ["data/a-b", "data/a/b/c", "data/q"]
    assert refused(found).keys() == {"data/a", "data/a/b"}


def test_of_very_many_entries_none_is_lost_and_none_is_held(discover, monkeypatch):
    """Most are in the temporary file of the driver, in no order; so are those that are in the way."""
    monkeypatch.setattr("bayou.sync.plan.discovery_job.SortedSpool", partial(SortedSpool, in_memory=10))
    numbers = range(3000)
    objects = {f"data/t/{number % 50}/{number}": b"x" for number in numbers}
    blocked = {f"data/t/{number}": b"x" for number in range(0, 50, 2)}

    found = discover(MemoryStore({**objects, **blocked}))

    assert paths(found) == sorted(objects)
    assert refused(found).keys() == blocked.keys()


def test_a_key_below_it_that_is_refused_itself_does_not_make_a_file_a_directory(discover):
    found = discover(MemoryStore({"data/a": b"x", "data/a/\x01": b"x"}))

    assert paths(found) == ["data/a"]


def test_a_key_that_is_listed_twice_is_one_entry(monkeypatch):
    store = MemoryStore({"data/a": b"x"})
    pages = list(store.list())
    monkeypatch.setattr(store, "list", lambda *_: iter(pages * 2))

    assert paths(find(store)) == ["data/a"]


def test_17_9_listed_keys_that_lead_outside_are_refused_by_name(discover):
    """V21: they were dropped without a word."""
    strange = ["../x", "/abs/x", "./x", "..", "data/../../x"]

    found = discover(MemoryStore(dict.fromkeys([*strange, "data/good", "otherapp/x"], b"1")))

    assert {one.key for one in found.refused} == set(strange)
    assert [entry.path for entry in found.entries] == ["data/good"]
    assert found.ignored == 1
