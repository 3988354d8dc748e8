"""Repair of what is missing or changed: new locations, the same pushes, and only where the head has the judged row."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import bayou.maintenance.relocate as relocate_module
from bayou.core.errors import AccessDenied
from bayou.index.entry import Entry
from bayou.index.head import swap_head
from bayou.objectstore import Store, keys
from bayou.packs.listing import read_list
from bayou.state.database import Database
from bayou.sync.commit import commit
from bayou_testing.faulty import Crash, Fault, crash, lost_answer
from tests import api
from tests.maintenance.damages import repair, verify
from tests.maintenance.pack_damages import LARGE, bytes_of, overwrite, packs_of, paths, small_files, with_packs
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, entries_of, head_of

FILES = small_files(30)

pytestmark = pytest.mark.usefixtures("quick_probe")


@pytest.fixture
def clone(team: Team) -> Clone:
    return with_packs(team, FILES)


@pytest.fixture
def store(team: Team) -> Store:
    return team.store()


def lose_a_pack(store: Store) -> list[Entry]:
    """Delete the first pack; return its entries."""
    pack, entries = next(iter(packs_of(store).items()))
    store.delete([keys.pack(pack)])
    return entries


def moved(before: dict[str, Entry], after: dict[str, Entry]) -> list[str]:
    """Return the paths whose location differs; everything else must be the same."""
    assert before.keys() == after.keys()
    assert all(after[path].same_content(entry) for path, entry in before.items())
    return sorted(path for path, entry in before.items() if after[path] != entry)


def recorded_uploads(clone: Clone) -> list[Any]:
    with Database(clone.repo.state / "sync.db") as database:
        return database.rows("SELECT path FROM upload")


@pytest.mark.parametrize("kind", ["team", "s3_team"])
def test_a_missing_pack_is_packed_again_and_only_locations_change(kind: str, request: pytest.FixtureRequest) -> None:
    team: Team = request.getfixturevalue(kind)
    a, store = with_packs(team, FILES), team.store()
    b = team.clone("b")
    b.pull()
    before, gone = entries_of(store), lose_a_pack(store)

    report = repair(a)

    after = entries_of(store)
    assert (report.ok, report.repaired, report.missing) == (True, len(gone), [])
    assert moved(before, after) == paths(gone)
    (pack,) = {after[entry.path].pack for entry in gone}
    assert pack is not None
    listed = read_list(store, pack).members
    assert {(one.path, one.push, one.modified) for one in listed} == {
        (one.path, one.push, one.modified) for one in gone
    }, "the list in the pack names the pushes that made the files (P9)"
    row = head_of(store).head.log[-1]
    assert (row.kind, row.added, row.changed, row.deleted, row.bytes) == ("repair", 0, 0, 0, 0)
    assert verify(a, deep=True).ok
    assert repair(a).repaired == 0
    pulled = b.pull()
    assert (pulled.pulled.files, pulled.pulled.deleted, pulled.conflicts, pulled.exit_code) == (0, 0, [], 0)
    for one in (a, b):
        assert one.sync().engine == "fast"
        assert one.status().in_sync
    assert team.clone("c").pull().pulled.files == len(before)


@pytest.mark.parametrize("kind", ["team", "s3_team"])
@pytest.mark.parametrize("size", ["the same size", "another size"])
def test_an_object_that_another_tool_overwrote_gets_its_bytes_back_under_a_new_key(
    kind: str, size: str, request: pytest.FixtureRequest
) -> None:
    team: Team = request.getfixturevalue(kind)
    a, store = with_packs(team, FILES), team.store()
    b = team.clone("b")
    b.pull()
    before = entries_of(store)
    foreign = b"from elsewhere" if size == "another size" else bytes(before[LARGE].size)
    overwrite(store, before[LARGE], foreign)

    report = repair(a)

    after = entries_of(store)
    assert (report.ok, report.repaired, report.changed) == (True, 1, [])
    assert moved(before, after) == [LARGE]
    assert (after[LARGE].push, after[LARGE].pack) == (before[LARGE].push, None)
    assert after[LARGE].at not in (None, before[LARGE].push)
    assert bytes_of(store, after[LARGE].key) == a.files[LARGE]
    assert bytes_of(store, before[LARGE].key) == foreign, "what lies under the old key is not touched"
    assert verify(a, deep=True).leftovers == 1
    assert b.pull().pulled.files == 0
    c = team.clone("c")
    c.pull()
    assert c.files[LARGE] == a.files[LARGE]
    overwrite(store, after[LARGE], foreign)
    assert repair(a).ok, "and again, if it is overwritten again"
    assert moved(before, entries_of(store)) == [LARGE]


def test_of_a_damaged_pack_only_the_damaged_files_move(clone: Clone, store: Store) -> None:
    before = entries_of(store)
    first, second, *_ = packs_of(store).values()
    bad = [first[1], second[0], second[3]]
    for entry in bad:
        overwrite(store, entry)

    assert verify(clone, repair=True).repaired == 0, "sizes say nothing about bytes"
    report = verify(clone, repair=True, deep=True)

    assert (report.ok, report.repaired) == (True, len(bad))
    assert moved(before, entries_of(store)) == paths(bad)


def test_a_truncated_pack_is_packed_again(clone: Clone, store: Store) -> None:
    before = entries_of(store)
    pack, entries = next(iter(packs_of(store).items()))
    store.put(keys.pack(pack), bytes_of(store, keys.pack(pack))[:500])

    assert (repair(clone).repaired, verify(clone, deep=True).ok) == (len(entries), True)
    assert moved(before, entries_of(store)) == paths(entries)


def test_what_this_tree_does_not_have_stays_missing_until_a_tree_has_it(team: Team, clone: Clone, store: Store) -> None:
    gone = lose_a_pack(store)
    before = entries_of(store)
    edited, lost, *rest = gone
    b = team.clone("b")
    for entry in rest:
        b.lay(entry.path, FILES[entry.path])
    b.lay(edited.path, "edited")

    report = repair(b)

    assert (report.missing, report.repaired) == (paths([edited, lost]), len(rest))
    assert moved(before, entries_of(store)) == paths(rest)
    assert repair(clone).ok


def test_an_unsafe_location_is_repaired_where_the_tree_has_the_bytes(clone: Clone, store: Store) -> None:
    before = entries_of(store)
    here, elsewhere, *_ = (entry for entry in before.values() if entry.pack is not None)
    gone = replace(elsewhere, sha256=b"\1" * 32, offset=-1)
    commit_rows(store, {here.path: replace(here, offset=1 << 40), gone.path: gone})

    report = repair(clone)

    assert [row.path for row in report.unsafe] == [gone.path], "a tree that has it may come: the row is kept"
    after = entries_of(store)
    assert after[gone.path] == gone
    assert after[here.path].same_content(here)
    assert after[here.path].refusal() is None


def test_a_discovered_object_that_is_missing_gets_a_push_and_a_changed_one_is_left_to_whoever_changed_it(
    team: Team, store: Store
) -> None:
    for name in ("gone", "changed"):
        store.put(keys.payload(f"files/{name}", None), b"was there before")
    clone = team.clone("a")
    clone.sync()
    clone.write("files/new", "1")
    clone.sync()
    store.delete([keys.payload("files/gone", None)])
    store.put(keys.payload("files/changed", None), b"by its owner")
    before = entries_of(store)

    report = repair(clone)

    after = entries_of(store)
    assert (report.repaired, report.missing, report.changed) == (1, [], ["files/changed"])
    assert after["files/gone"].push is not None
    assert after["files/changed"] == before["files/changed"]
    assert bytes_of(store, keys.payload("files/changed", None)) == b"by its owner"


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Act once, between the uploads of a repair and its first swap."""
    done: list[bool] = []
    real = swap_head

    def swap(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return real(*arguments)

    monkeypatch.setattr(commit, "swap_head", swap)


def test_what_a_peer_deletes_or_replaces_meanwhile_does_not_come_back(
    team: Team, clone: Clone, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5, for a repair: it replaces exactly the row that it judged (P4)."""
    b = team.clone("b")
    b.pull()
    gone = lose_a_pack(store)
    before = entries_of(store)
    deleted, replaced, *rest = paths(gone)

    def act() -> None:
        b.delete(deleted)
        b.write(replaced, b"newer")
        b.push()

    meanwhile(monkeypatch, act)
    report = repair(clone)

    after = entries_of(store)
    assert report.repaired == len(rest)
    assert deleted not in after
    assert after[replaced].push != before[replaced].push
    assert verify(clone, deep=True).ok
    clone.sync()
    assert clone.files.get(replaced) == b"newer"
    assert deleted not in clone.files


def test_a_delete_that_a_peer_has_journaled_is_of_the_file_that_was_repaired(team: Team, clone: Clone) -> None:
    """K7, for a repair: `push` stays, so nothing looks new to the peer."""
    b = team.clone("b")
    b.pull()
    gone = lose_a_pack(team.store())
    b.delete(gone[0].path)
    assert repair(clone).ok

    report = b.sync()

    assert (report.pushed.deleted, report.warnings) == (1, [])
    assert gone[0].path not in entries_of(team.store())


@pytest.mark.parametrize("what", ["pack", "object"])
def test_a_collection_between_upload_and_commit_makes_the_repair_upload_again(
    team: Team, clone: Clone, store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """K11, for a repair: the collector may have deleted what no root names (P6)."""
    before = entries_of(store)
    gone = lose_a_pack(store) if what == "pack" else [before[LARGE]]
    if what == "object":
        overwrite(store, before[LARGE])
    other = team.clone("other")
    other.pull()
    meanwhile(monkeypatch, lambda: api.collect(other.repo, dry_run=False, grace_s=0))

    report = repair(clone)

    assert (report.ok, report.repaired) == (True, len(gone))
    assert moved(before, entries_of(store)) == paths(gone)
    assert verify(clone, deep=True).ok
    assert team.clone("c").pull().exit_code == 0


def test_an_upload_that_was_sent_twice_is_not_trusted_after_a_collection(
    team: Team, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K13, for a repair: a DELETE of the first write may still be on its way."""
    clone, store = with_packs(team, FILES), team.store()
    gone = lose_a_pack(store)
    known = {meta.key for page in store.list(keys.PACKS) for meta in page}
    wire.cut(Fault("put", "/packs/", nth=1, when="after", error=lost_answer))
    monkeypatch.setattr(relocate_module, "is_collected", lambda *_: False)  # by its age it would be kept
    meanwhile(monkeypatch, lambda: api.collect(team.clone("other").repo, dry_run=False, grace_s=3600))

    report = repair(clone)

    assert report.repaired == len(gone)
    made = {meta.key for page in store.list(keys.PACKS) for meta in page} - known
    named = {entries_of(store)[entry.path].key for entry in gone}
    assert (len(made), len(named)) == (2, 1)
    assert max(made) in named, "the second pack, under a name of its own"


def test_a_repair_that_is_killed_at_any_write_can_be_repeated_and_is_taken_for_no_push(team: Team, wire: Wire) -> None:
    files = dict(list(FILES.items())[:6])
    clone, store, number = with_packs(team, files, 1), team.store(), 0
    gone = lose_a_pack(store)
    before = entries_of(store)
    overwrite(store, before[LARGE])
    while True:
        number += 1
        wire.cut(Fault("put", nth=number, when="after", error=crash))
        try:
            report = repair(clone)
        except Crash:
            wire.cut()
            assert recorded_uploads(clone) == []
            assert clone.sync(mode="push").pushed.files == 0
            continue
        break
    wire.cut()
    assert number > 3
    assert report.ok
    assert moved(before, entries_of(store)) == sorted([*paths(gone), LARGE])
    assert verify(clone, deep=True).ok
    path = gone[0].path
    clone.delete(path)
    clone.sync()
    clone.write(path, files[path])
    clone.sync()
    assert entries_of(store)[path].push not in (None, before[path].push), "the same bytes, made again, are a new push"


def test_a_file_that_changes_during_the_repair_is_not_uploaded(
    team: Team, clone: Clone, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = lose_a_pack(store)
    overwrite(store, entries_of(store)[LARGE])
    torn = gone[2].path
    real = relocate_module.local_files_of

    def then_changes(*arguments: Any) -> Any:
        found = list(real(*arguments))
        for path in (torn, LARGE):
            clone.lay(path, bytes(len(clone.files[path])))
        return found

    monkeypatch.setattr("bayou.maintenance.repair.local_files_of", then_changes)

    report = repair(clone)

    assert (report.missing, report.changed, report.repaired) == ([torn], [LARGE], len(gone) - 1)
    assert verify(clone, deep=True).changed == [LARGE]


def test_small_files_stay_objects_of_their_own_where_packs_are_off(
    team: Team, clone: Clone, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = lose_a_pack(store)
    before = entries_of(store)
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    clone.reopen()

    assert repair(clone).ok

    after = entries_of(store)
    assert moved(before, after) == paths(gone)
    assert {(after[entry.path].pack, after[entry.path].at is None) for entry in gone} == {(None, False)}
    assert verify(clone, deep=True).ok


def test_a_store_that_refuses_the_upload_leaves_the_row_and_says_why(team: Team, wire: Wire) -> None:
    clone, store = with_packs(team, FILES), team.store()
    gone = lose_a_pack(store)
    wire.cut(Fault("put", "/packs/", error=lambda: AccessDenied("403 for packs")))

    report = repair(clone)

    assert (report.missing, report.repaired) == (paths(gone), 0)
    assert any(gone[0].path in warning and "403 for packs" in warning for warning in report.warnings)
