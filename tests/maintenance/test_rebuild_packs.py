"""A lost head where small files lie in packs: what is a lost head, and what packs can say about it (P9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from msgspec.structs import replace

import bayou.index.head as head_module
from bayou.core.errors import HeadLost, NotFound, StoreEmptied
from bayou.core.ids import ulid
from bayou.maintenance.replicate import replicate
from bayou.objectstore import Store, keys
from bayou.packs.archive import LIST_NAME
from bayou.packs.listing import read_list
from bayou.sync.plan.discovery_job import Discovery, discover
from tests import api
from tests.maintenance.damages import find_node, lose, repair, small_nodes, verify
from tests.maintenance.pack_damages import LARGE, bytes_of, overwrite, packs_of, paths, small_files, with_packs
from tests.maintenance.setups import newcomer, set_up
from tests.packs.moving import move, packed
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import entries_of

__all__ = ["small_nodes"]

FILES = small_files(24)


@pytest.fixture
def store(team: Team) -> Store:
    return team.store()


def lose_index(store: Store, *, nodes: bool = False, log: bool = True) -> None:
    """Delete the head, and the nodes and the log, too."""
    doomed = [keys.HEAD]
    for under in ((keys.NODES,) if nodes else ()) + ((keys.LOGS,) if log else ()):
        doomed += [keys.as_listed(meta.key) for page in store.list(under) for meta in page]
    store.delete(doomed)


def objects(team: Team) -> dict[str, int]:
    return {key: size for key, size in team.keys().items() if "/probe/" not in key}


REMAINS: dict[str, Callable[[], keys.Key]] = {
    "a pack": lambda: keys.pack(f"{ulid()}-3"),
    "a page of the log": lambda: keys.log_page(ulid()),
    "an object of a push": lambda: keys.payload("files/a", ulid()),
}


def maintenance(clone: Clone) -> list[Callable[[], object]]:
    """What reads the head before it deletes or moves anything in the store."""
    return [
        partial(api.collect, clone.repo, dry_run=True, grace_s=0),
        partial(api.collect, clone.repo, dry_run=False, grace_s=0),
        partial(api.compact, clone.repo, dry_run=True),
        partial(api.compact, clone.repo, dry_run=False),
    ]


@pytest.mark.parametrize("what", REMAINS)
def test_what_only_a_push_leaves_means_that_the_head_was_lost(team: Team, store: Store, what: str) -> None:
    store.put(keys.payload("files/plain", None), b"was there before")
    store.put(REMAINS[what](), b"123")
    before = objects(team)
    clone = team.clone("a")
    clone.write("files/mine", "1")

    attempts: list[Callable[[], object]] = [clone.pull, clone.push, clone.sync, partial(verify, clone)]
    for attempt in (*attempts, *maintenance(clone)):
        with pytest.raises(HeadLost, match="no head") as raised:
            attempt()
        assert "bayou datastore verify --repair" in (raised.value.hint or "")
    fresh = newcomer(team, "b", {"files/own": "1"})
    with pytest.raises(HeadLost):
        set_up(fresh, team)

    assert objects(team) == before, "nothing is created in its place"
    assert fresh.files == {"files/own": b"1"}


@pytest.mark.parametrize("kind", ["team", "s3_team"])
def test_p9_a_collection_and_a_compaction_name_a_lost_head_and_delete_nothing(
    kind: str, request: pytest.FixtureRequest
) -> None:
    team: Team = request.getfixturevalue(kind)
    clone = with_packs(team, FILES)
    team.store().delete([keys.HEAD])
    before = objects(team)

    for attempt in maintenance(clone):
        with pytest.raises(HeadLost) as raised:
            attempt()
        assert raised.value.exit_code == 4

    assert objects(team) == before
    assert repair(clone).ok
    for attempt in maintenance(clone):
        attempt()


@pytest.mark.parametrize("left", [(), ("files/plain",)], ids=["empty", "of another program"])
def test_a_store_that_never_had_a_head_has_nothing_to_collect(team: Team, store: Store, left: tuple[str, ...]) -> None:
    for path in left:
        store.put(keys.payload(path, None), b"was there before")
    for attempt in maintenance(team.clone("a")):
        with pytest.raises(NotFound, match="has no index, so nothing can be"):
            attempt()


def test_nodes_alone_are_what_an_interrupted_discovery_leaves(team: Team, store: Store) -> None:
    store.put(keys.payload("files/plain", None), b"was there before")
    store.put(keys.node(f"{'0' * 64}-{ulid()}"), b"of a discovery that was killed")
    clone = team.clone("a")
    clone.write("files/mine", "1")

    assert clone.sync().exit_code == 0

    assert entries_of(store).keys() == {"files/plain", "files/mine"}


def test_setup_of_a_store_whose_head_was_lost_forgets_nothing_that_helps_to_rebuild_it(
    team: Team, store: Store
) -> None:
    clone = with_packs(team, FILES)
    expected = entries_of(store)
    lose_index(store, nodes=True)
    with pytest.raises(StoreEmptied):
        clone.sync()
    with pytest.raises(HeadLost):
        set_up(clone, team)

    report = repair(clone)

    assert (report.ok, report.attested) == (True, []), "base knows them all"
    assert entries_of(store) == expected
    assert clone.sync().exit_code == 0


def test_a_newcomer_learns_how_to_rebuild_a_store_that_no_clone_uses_any_more(team: Team, store: Store) -> None:
    a = with_packs(team, FILES)
    lose_index(store, nodes=True)

    with pytest.raises(HeadLost) as raised:
        set_up(newcomer(team, "b"), team)

    assert "name the store in bayou.toml by hand" in (raised.value.hint or "")
    by_hand = team.clone("c")
    assert repair(by_hand).ok
    b = newcomer(team, "d")
    set_up(b, team)
    assert b.files == a.files


@pytest.mark.parametrize("kind", ["team", "s3_team"])
def test_the_lists_in_packs_bring_back_what_no_node_names_with_proof_and_by_name(
    kind: str, request: pytest.FixtureRequest
) -> None:
    team: Team = request.getfixturevalue(kind)
    with_packs(team, FILES)
    store = team.store()
    expected = entries_of(store)
    lose_index(store, nodes=True)

    report = repair(team.clone("c"))

    found = entries_of(store)
    assert report.ok
    assert report.attested == sorted(FILES)
    assert {path: entry for path, entry in found.items() if path != LARGE} == {
        path: entry for path, entry in expected.items() if path != LARGE
    }
    assert (found[LARGE].key, found[LARGE].sha256) == (expected[LARGE].key, None), "an object of its own, as before"
    reader = team.clone("reader")
    reader.pull()
    assert {path: data for path, data in reader.files.items() if path != LARGE} == FILES


def test_of_several_files_the_newest_push_gets_the_path_not_the_newest_pack(team: Team, store: Store) -> None:
    """A repair or a compaction has written an old file to a new pack."""
    a = team.clone("a")
    old = {f"files/{number}": f"old {number}".encode() for number in range(4)}
    a.write_all(old)
    a.sync()
    first = entries_of(store)
    a.write_all({path: data.replace(b"old", b"new") for path, data in list(old.items())[:2]})
    a.sync()
    expected = entries_of(store)
    packed(store, old, first)
    lose_index(store, nodes=True)

    repair(team.clone("c"))

    assert {path: entry.push for path, entry in entries_of(store).items()} == {
        path: entry.push for path, entry in expected.items()
    }


def test_a_file_whose_bytes_do_not_prove_it_gives_way_to_an_older_one_that_is_good(team: Team, store: Store) -> None:
    a = team.clone("a")
    a.write("files/x", "old")
    a.write("files/y", "only once")
    a.sync()
    old = entries_of(store)
    a.write("files/x", "new")
    a.sync()
    overwrite(store, entries_of(store)["files/x"])
    overwrite(store, old["files/y"])
    lose_index(store, nodes=True)

    report = repair(team.clone("c"))

    assert entries_of(store) == {"files/x": old["files/x"]}
    assert report.attested == ["files/x"]


def test_a_list_that_lies_attests_nothing(team: Team, store: Store) -> None:
    a = team.clone("a")
    a.write("files/x", "1")
    a.sync()
    (true,) = entries_of(store).values()
    liar = replace(true, sha256=b"\1" * 32, push=ulid())
    packed(store, {"files/x": b"other bytes than it says"}, {"files/x": liar})
    packed(store, {"files/y": b"of a path that was never pushed"}, {"files/y": replace(liar, path="files/y")})
    hostile = f"{ulid()}-100"
    store.put(keys.pack(hostile), b"\xff" * 100)
    lose_index(store, nodes=True)

    report = repair(team.clone("c"))

    assert report.ok
    assert entries_of(store) == {"files/x": true}
    assert any(hostile in warning and "list is damaged" in warning for warning in report.warnings)


def test_v25_few_lists_are_in_memory_at_once(team: Team, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile list of some kilobytes inflates to the limit."""
    with_packs(team, FILES, pushes=12)
    lock, under_way, seen = Lock(), [0], list[int]()

    def read(*given: Any) -> Any:
        with lock:
            under_way[0] += 1
            seen.append(under_way[0])
        found = read_list(*given)
        time.sleep(0.02)
        with lock:
            under_way[0] -= 1
        return found

    monkeypatch.setattr("bayou.maintenance.pack_witness.read_list", read)
    lose_index(store, nodes=True)

    assert repair(team.clone("c")).ok
    assert len(seen) == 12
    assert max(seen) <= 4


def test_packs_without_a_list_are_named_and_what_nodes_know_of_them_comes_back(team: Team, store: Store) -> None:
    with_packs(team, FILES)
    expected = entries_of(store)
    (pack, entries), *_ = packs_of(store).items()
    data = bytes_of(store, keys.pack(pack))
    store.put(keys.pack(pack), data.replace(LIST_NAME.encode(), b"x" * len(LIST_NAME))[:-40] + bytes(40))
    lose_index(store)

    report = repair(team.clone("c"))

    assert report.ok
    assert entries_of(store) == expected
    assert any(pack in warning for warning in report.warnings)

    lose_index(store, nodes=True)
    report = repair(team.clone("d"))
    assert entries_of(store).keys() == expected.keys() - set(paths(entries))
    assert any(pack in warning for warning in report.warnings)


def test_where_nodes_are_left_they_decide_and_what_was_deleted_stays_deleted(
    team: Team, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of the log name the roots; the deleted file's pack is still there."""
    monkeypatch.setattr(head_module, "PAGE_ROWS", 2)
    a = with_packs(team, FILES)
    deleted, *_ = sorted(FILES)
    a.delete(deleted)
    a.sync()
    for number in range(4):
        a.write("files/n", f"{number}")
        a.sync()
    expected = entries_of(store)
    lose_index(store, log=False)

    report = repair(team.clone("c"))

    assert report.ok
    assert deleted not in entries_of(store)
    assert {path: entry.push for path, entry in entries_of(store).items()} == {
        path: entry.push for path, entry in expected.items()
    }


def test_a_peer_that_is_behind_finds_files_where_a_compaction_has_put_them(team: Team, store: Store) -> None:
    a = with_packs(team, FILES)
    b = team.clone("b")
    b.pull()
    before = entries_of(store)
    gone = {entry.key for entry in move(store).values()}
    a.sync()
    after = entries_of(store)
    store.delete(gone)
    lose_index(store, nodes=True)

    report = repair(b)

    found = entries_of(store)
    assert (report.ok, report.unrecovered) == (True, [])
    assert all(found[path].same_content(entry) for path, entry in before.items())
    assert {path: entry.key for path, entry in found.items()} == {path: entry.key for path, entry in after.items()}
    for clone in (a, b):
        pulled = clone.pull()
        assert (pulled.pulled.files, pulled.pulled.deleted, pulled.exit_code) == (0, 0, 0)


def test_a_pack_that_is_lost_with_the_head_is_made_again_or_its_files_are_named(team: Team, store: Store) -> None:
    a = with_packs(team, FILES)
    expected = entries_of(store)
    pack, entries = next(iter(packs_of(store).items()))
    store.delete([keys.pack(pack)])
    lose_index(store)
    c = team.clone("c")

    report = repair(c)

    assert report.unrecovered == paths(entries), "leaves name them, and no pack has them"
    assert entries_of(store).keys() == expected.keys() - set(paths(entries))
    assert not report.ok

    lose_index(store)
    report = repair(a)
    found = entries_of(store)
    assert (report.ok, report.unrecovered) == (True, [])
    assert all(found[path].same_content(entry) for path, entry in expected.items())
    assert verify(a, deep=True).ok


@pytest.mark.usefixtures("small_nodes")
def test_a_lost_leaf_is_filled_from_packs_and_the_rest_stays_as_it_is(team: Team, store: Store) -> None:
    with_packs(team, FILES, 2)
    expected = entries_of(store)
    leaf, ref = find_node(store, sorted(FILES)[7])
    lose(store, ref.node)
    c = team.clone("c")

    report = repair(c)

    assert (report.ok, report.unrecovered) == (True, [])
    hidden = {row.path for row in leaf.rows}
    assert set(report.attested) <= hidden
    assert entries_of(store) == expected


def test_a_store_that_never_had_a_head_is_still_not_rebuilt(team: Team, store: Store) -> None:
    store.put(keys.payload("files/plain", None), b"was there before")

    with pytest.raises(NotFound, match="no index yet"):
        repair(team.clone("c"))


def test_a_rebuilt_index_is_one_that_work_goes_on_with(team: Team, store: Store) -> None:
    a = with_packs(team, FILES)
    lose_index(store, nodes=True)
    assert repair(a).ok
    a.write("files/after", "1")
    a.sync()
    api.compact(a.repo, dry_run=False, grace_s=0)
    api.collect(a.repo, dry_run=False, grace_s=0)
    assert verify(a, deep=True).ok
    b = team.clone("b")
    b.pull()
    assert b.files == a.files


@pytest.mark.parametrize("number", range(4))
def test_a_head_that_a_peer_creates_meanwhile_is_collected(
    team: Team, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The simulation found it: the collector had read no head, and its listing then showed a pack beside a new one."""
    peer = team.clone("peer")

    def listing(*arguments: Any) -> Discovery:
        peer.write_all(FILES)
        peer.push()
        return discover(*arguments)

    monkeypatch.setattr("bayou.maintenance.gc.discover", listing)
    maintenance(team.clone("a"))[number]()
    assert team.clone("fresh").pull().pulled.files == len(FILES)


@pytest.mark.parametrize("has_it", [True, False], ids=["this tree has the files", "no tree here has them"])
def test_p8_a_rebuild_reads_the_files_of_a_pack_whose_list_is_damaged(
    team: Team, store: Store, tmp_path: Path, has_it: bool
) -> None:
    """Seen: "all is well", beside a warning of such a pack, over files that no reader could get."""
    a = with_packs(team, FILES)
    (pack, entries), *_ = packs_of(store).items()
    store.put(keys.pack(pack), b"x" * len(bytes_of(store, keys.pack(pack))))
    lose_index(store)
    here = a if has_it else team.clone("c")

    report = repair(here)

    assert any("list is damaged" in warning for warning in report.warnings)
    if has_it:
        assert report.ok
        assert verify(here, deep=True).ok
        assert replicate(here.repo, (tmp_path / "replica").as_uri()).failed == []
    else:
        assert report.changed == paths(entries)
        assert not report.ok
        assert report.read, "so that the hint names --deep --repair"
        assert verify(a, deep=True, repair=True).ok
    reader = team.clone("reader")
    assert reader.pull().failed == []
    assert reader.files == a.files
