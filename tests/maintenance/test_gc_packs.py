"""`datastore gc` and packs: a pack goes if it was listed, is old, and no retained root names a file in it (P6)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import bayou.maintenance.gc as gc_module
from bayou.core.errors import NodeMissing
from bayou.core.ids import ulid
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, names
from bayou.objectstore import keys
from tests import api
from tests.maintenance.pack_scene import GONE_BY, check, collect, compact, fresh, head, packs_of, rows, stored_packs
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows
from tests.sync.turns import meanwhile

X, Y, Z = "files/x", "files/y", "files/z"


@pytest.fixture
def a(team: Team) -> Clone:
    """A clone that has pushed two files in one pack."""
    clone = team.clone("a")
    clone.write_all({X: b"1", Y: b"2"})
    clone.push()
    assert len(packs_of(team)) == 1
    return clone


def test_k10_a_pack_of_which_one_file_is_named_stays(team: Team, a: Clone) -> None:
    a.delete(X)
    a.push()

    assert collect(a).packs_deleted == 0

    assert check(team) == {Y: b"2"}
    assert fresh(team).files == {Y: b"2"}


def test_a_pack_goes_with_the_last_root_that_names_a_file_in_it(team: Team, a: Clone) -> None:
    (pack,) = stored_packs(team)
    a.delete(X)
    a.push()
    a.write(Y, "newer")
    a.push()
    assert pack not in packs_of(team)

    early = collect(a, grace_s=3600.0)
    assert (early.packs_deleted, pack in stored_packs(team)) == (0, True)
    late = collect(a)

    assert (late.objects_deleted, late.leftovers_deleted, late.packs_deleted) == (1, 0, 1)
    assert stored_packs(team) == packs_of(team)
    assert check(team) == {Y: b"newer"}


def test_the_pack_of_a_push_that_died_is_a_leftover(team: Team, a: Clone) -> None:
    pack = _left_behind(team, b"what a killed push has uploaded")

    dry = api.collect(a.repo, dry_run=True, grace_s=GONE_BY)
    done = collect(a)

    for report in (dry, done):
        assert (report.objects_deleted, report.leftovers_deleted, report.packs_deleted) == (0, 1, 1)
    assert pack not in stored_packs(team)
    assert check(team) == {X: b"1", Y: b"2"}


def test_a_young_pack_that_no_root_names_stays(team: Team, a: Clone) -> None:
    """Its push may still commit it."""
    pack = _left_behind(team, b"on its way")

    assert collect(a, grace_s=3600.0).packs_deleted == 0

    assert pack in stored_packs(team)


def test_a_pack_that_was_not_listed_stays_however_old_it_is(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the listing: only its push can tell whether it is garbage (T13)."""
    made: list[str] = []
    meanwhile(monkeypatch, gc_module, "_announce", lambda: made.append(_left_behind(team, b"after the listing")))

    assert collect(a).packs_deleted == 0

    assert made[0] in stored_packs(team)


def test_v9_what_is_not_a_pack_of_this_store_is_left_alone(team: Team, a: Clone) -> None:
    store = team.store()
    pack = f"{ulid()}-5"
    foreign = [
        ".bayou/packs/notes.zip",
        f".bayou/packs/{pack}.tar",
        f".bayou/packs/deeper/{pack}.zip",
        f".bayou/packs/{ulid()}.zip",
        f"files/other/.bayou/packs/{pack}.zip",
        f"elsewhere/packs/{pack}.zip",
    ]
    for key in foreign:
        store.put(keys.as_listed(key), b"12345")

    collect(a)

    assert set(foreign) <= team.keys().keys()


def test_v5_a_row_that_no_client_wrote_protects_the_pack_that_it_names(team: Team, a: Clone) -> None:
    """The row is refused everywhere else (V25), but its object is not garbage."""
    row = rows(team)[X]
    a.delete(X, Y)
    a.push()
    commit_rows(team.store(), {"files/odd": replace(row, path="files/odd", offset=10**12)})

    assert collect(a).packs_deleted == 0

    assert row.pack in stored_packs(team)


def test_v5_without_the_whole_index_no_pack_is_deleted(team: Team, a: Clone) -> None:
    _left_behind(team, b"garbage, in a healthy store")
    store = team.store()
    before = stored_packs(team)
    *_, leaf = names(IndexTree(StoreNodes(store), head(team).root))
    store.delete([keys.node(leaf)])

    with pytest.raises(NodeMissing):
        collect(a)

    assert stored_packs(team) == before


def test_a_collection_reads_each_leaf_once_and_no_pack(team: Team, a: Clone, wire: Wire) -> None:
    a.write(Z, "3")
    a.push()
    wire.seen.clear()

    collect(a)

    assert wire.sent("get", "packs/") == wire.sent("head", "packs/") == []
    read = wire.sent("get", "nodes/")
    assert len(read) == len(set(read))


def test_deleted_bytes_are_gone_after_compact_and_gc(team: Team, a: Clone) -> None:
    a.delete(X)
    a.push()
    a.write(Z, "3")
    a.push()

    moved = compact(a, grace_s=GONE_BY)
    freed = collect(a)

    assert moved.files == 2
    assert freed.packs_deleted == 2
    data = b"".join(bytes(team.store().get(keys.pack(name)).data) for name in stored_packs(team))
    assert X.encode() not in data
    assert Y.encode() in data


def _left_behind(team: Team, content: bytes) -> str:
    """Put a pack into the store that no head names; return its name."""
    name = f"{ulid()}-{len(content)}"
    team.store().put(keys.pack(name), content)
    return name
