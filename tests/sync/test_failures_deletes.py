"""Section 4 of tests/failures.md: what is not there is not deleted, and what was deleted stays so.

F028 to F030 are told in plain paths, written and deleted through the tree, as the records will do it: the verbs that
remove (`data gc`, `rename`, …) and the number of the next version are the records' own half.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bayou.index.build as build_module
import bayou.index.merge as merge_module
from bayou.core.errors import MassDelete
from bayou.core.ids import ulid
from bayou.index.build import ChunkParams
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, names, scan
from bayou.objectstore import keys
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.sync.children import run_to_death
from tests.sync.conftest import UPLOADS, Clone, Team, Wire
from tests.sync.indexes import commit_rows, entries_of, head_of
from tests.sync.turns import Turns, turns

__all__ = ["turns"]

INTERNAL = r"/\.bayou/"


def version(number: int, name: str = "n") -> dict[str, bytes]:
    """The files of one version."""
    place = f"data/t/m/{name}/{number}"
    return {f"{place}/raw": f"content {number}".encode(), f"{place}/metadata.yaml": f"version: {number}\n".encode()}


def versions(*numbers: int) -> dict[str, bytes]:
    return {path: data for number in numbers for path, data in version(number).items()}


def verify(clone: Clone, **options: Any) -> Any:
    return api.verify(clone.repo, **{"deep": True, "repair": False, **options})


def small_directory(root: Path) -> Team:
    (root / "store").mkdir(parents=True)
    return Team(root, (root / "store").as_uri(), {})


def test_f026_whoever_has_only_metadata_deletes_nothing(s3_team: Team) -> None:
    a, lazy = s3_team.clone("a"), s3_team.clone("lazy", hydrate="lazy")
    items = {path: data for number in range(50) for path, data in version(1, f"n{number:02}").items()}
    a.write_all(items)
    a.sync()
    lazy.sync()
    assert not [path for path in lazy.files if path.endswith("raw")]
    fetched = "data/t/m/n00/1/raw"
    api.hydrate(lazy.repo, fetched)
    (lazy.repo.tree_root / fetched).unlink()
    before = entries_of(s3_team.store())
    lazy.mark_dirty()

    report = lazy.push()

    assert (report.pushed.deleted, report.pushed.files, report.exit_code) == (0, 0, 0)
    assert entries_of(s3_team.store()) == before
    c = s3_team.clone("c")
    assert c.pull().pulled.files == 100
    assert c.files == items


def test_f027_the_stores_own_records_are_nobodys_leftovers(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write_all(versions(1, 2))
    a.sync()
    s3_team.store().put(keys.lease("store"), b"{}")
    own = set(s3_team.keys()) - s3_team.payload_keys()
    assert len(own) >= 3
    proxy.log.clear()
    a.mark_dirty()

    pushed = a.push()
    report = verify(a, repair=True)

    assert pushed.pushed.deleted == 0
    assert (report.ok, report.unindexed, report.leftovers, report.refused) == (True, [], 0, [])
    assert not proxy.log.rows(method="DELETE")
    assert not proxy.log.rows(method="POST"), "nor in bulk"
    assert own <= s3_team.keys().keys()


def test_f028_what_was_deleted_does_not_come_back_because_it_was_ones_own(s3_team: Team) -> None:
    host = s3_team.clone("host")
    for number in range(1, 6):
        host.write_all(version(number))
        host.push()
    host.delete(*versions(1, 2, 3, 4))

    report = host.push()

    assert report.pushed.deleted == 8
    assert entries_of(s3_team.store()).keys() == version(5).keys()
    c = s3_team.clone("c")
    c.pull()
    assert c.files == host.files == version(5)
    assert host.sync().engine == "fast", "nothing is left to pull back"


def test_f029_what_was_freed_here_is_gone_there_after_one_push(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write_all(versions(1, 2, 3))
    a.sync()
    b.sync()
    a.delete(*versions(1, 2))

    assert a.push().pushed.deleted == 4

    proxy.log.clear()
    after = a.sync()
    assert (after.pulled.files, after.engine, len(proxy.log.rows())) == (0, "fast", 1)
    c = s3_team.clone("c")
    c.pull()
    assert c.files == version(3)
    assert b.sync().pulled.deleted == 4
    assert b.files == version(3)


@pytest.mark.parametrize("walks", [True, False], ids=["an explicit sync", "around another command"])
def test_f030_what_a_verb_removes_is_removed_for_everybody(team: Team, walks: bool) -> None:
    """One version; all of a name; a rename (write and delete); a tombstone that replaces content."""
    a = team.clone("a")
    a.write_all(versions(1, 2) | version(1, "old") | version(1, "gone") | version(1, "last"))
    a.sync()
    a.delete(*version(1))
    a.delete(*version(1, "gone"))
    a.write_all(version(1, "new"))
    a.delete(*version(1, "old"))
    a.write("data/t/m/last/1/metadata.yaml", "deleted: true\n")
    a.delete("data/t/m/last/1/raw")
    expected = a.files

    report = a.push(walk=walks)

    assert report.exit_code == 0
    c = team.clone("c")
    c.pull()
    assert c.files == expected
    assert c.files.keys() == {*version(2), *version(1, "new"), "data/t/m/last/1/metadata.yaml"}
    assert a.sync().pulled.files == 0
    assert a.files == expected


def named(team: Team) -> tuple[set[str], set[str]]:
    """What the head names: keys of objects and of nodes."""
    tree = IndexTree(StoreNodes(team.store()), head_of(team.store()).head.root)
    return {entry.key for entry in scan(tree)}, {keys.node(name) for name in names(tree)}


def collect(team: Team, clone: Clone, deleted: set[str]) -> None:
    """Collect without any grace, and take note of what that deletes."""
    before = set(team.keys())
    api.collect(clone.repo, dry_run=False, grace_s=0)
    deleted |= before - set(team.keys())


@pytest.mark.usefixtures("both_ways")
def test_f031_a_collection_at_any_moment_takes_nothing_that_a_push_is_about_to_name(
    tmp_path: Path, turns: Turns, quick_probe: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B's leaf of `a` and `c` has the same rows as one of an earlier version that nothing reaches any more."""
    two = ChunkParams(leaf_mod=1 << 60, leaf_max=2, branch_mod=1 << 60, branch_max=4)
    for function in (build_module.build, build_module.build_above, merge_module.merge):
        monkeypatch.setattr(function, "__defaults__", (two,))
    number, made_again = 0, 0
    while True:
        number += 1
        team = small_directory(tmp_path / str(number))
        turns.at = 0
        a, b = team.clone("a"), team.clone("b")
        a.write_all({"files/a": b"1", "files/c": b"2"})
        a.sync()
        twin = named(team)[1]
        a.write("files/b", "3")
        a.sync()
        b.sync()
        api.collect(a.repo, dry_run=False, grace_s=0)
        b.delete("files/b")
        b.write("files/z", "4")
        deleted: set[str] = set()
        turns.before(number, partial(collect, team, a, deleted))

        report = b.push()

        if not turns.came:
            break
        turns.at = 0
        assert (report.exit_code, report.pushed.files, report.pushed.deleted) == (0, 1, 1)
        objects, nodes = named(team)
        assert objects | nodes <= team.keys().keys(), f"before request {number}"
        assert {name[:70] for name in nodes} & {name[:70] for name in twin}, "rows that were there before"
        team.store().delete([keys.as_listed(key) for key in deleted])
        assert objects | nodes <= team.keys().keys(), "a DELETE that comes late hits nothing"
        assert verify(b).ok
        uploads = {one.key for one in turns.seen if one.verb == "put" and re.search(UPLOADS, one.key)}
        made_again += len(uploads) == 2
        assert len(uploads & objects) == 1
        a.sync()
        assert a.files == b.files == {"files/a": b"1", "files/c": b"2", "files/z": b"4"}
    assert number > 4, "there are requests to come between"
    assert made_again, "what a collection took is made again under a new id"


DELETE_TEN = """
from bayou.repo import open_repo
from bayou.objectstore.retry import RetryingClient
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions

left, when = int(sys.argv[2]), sys.argv[3]
real = RetryingClient.send

def send(self, *arguments, **options):
    global left
    left -= 1
    if left == 0 and when == "before":
        die()
    answer = real(self, *arguments, **options)
    if left == 0:
        die()
    return answer

RetryingClient.send = send
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="push"))
"""


def found_and_pushed(team: Team) -> tuple[Clone, list[str]]:
    """A clone whose store holds ten files to delete, half of them discovered, and one to keep."""
    ten = [f"files/{number}" for number in range(10)]
    for path in ten[:5]:
        team.store().put(keys.payload(path, None), path.encode())
    a = team.clone("a")
    a.write_all({path: path.encode() for path in ten[5:]} | {"files/kept": b"kept"})
    a.sync()
    a.delete(*ten)
    return a, ten


def objects_of(team: Team, paths: Iterable[str]) -> set[str]:
    wanted = set(paths)
    return {key for key in team.payload_keys() if keys.parse_payload(key).path in wanted}


@pytest.mark.usefixtures("loose_objects")
@pytest.mark.parametrize("when", ["before", "after"])
def test_f032_a_killed_push_of_deletes_leaves_every_row_its_object(s3_team: Team, proxy: HttpProxy, when: str) -> None:
    number = 0
    while True:
        number += 1
        team = Team(s3_team.root / str(number), f"s3://sync-tests/{ulid()}", s3_team.options)
        team.root.mkdir()
        a, ten = found_and_pushed(team)
        proxy.log.clear()

        if not run_to_death(DELETE_TEN, a.repo.root, number, when):
            break

        assert named(team)[0] <= team.keys().keys(), f"{when} request {number}"
        assert a.push().exit_code == 0
        assert entries_of(team.store()).keys() == {"files/kept"}
        assert not [row for row in proxy.log.writes() if row.method != "PUT"], "a push deletes no object"
        assert len(objects_of(team, ten)) == 10
        assert a.status().journal_paths == 0
    assert number > 3, "it was killed at some requests"


@pytest.mark.usefixtures("loose_objects")
def test_f032_what_a_push_took_out_is_collected_after_the_grace(team: Team) -> None:
    a, ten = found_and_pushed(team)
    a.push()
    assert verify(a).trash == 5
    assert len(objects_of(team, ten)) == 10

    early = api.collect(a.repo, dry_run=False, grace_s=3600)
    late = api.collect(a.repo, dry_run=False, grace_s=0)

    assert (early.objects_deleted, early.trash_deleted) == (0, 0)
    assert (late.objects_deleted, late.trash_deleted) == (5, 5)
    assert not objects_of(team, ten)
    assert head_of(team.store()).head.trash is None
    report = verify(a)
    assert (report.ok, report.trash, report.leftovers) == (True, 0, 0)


MANY = {f"files/{number:03}": b"x" for number in range(260)}


@pytest.fixture
def large(team: Team, quick_probe: None) -> Clone:
    a = team.clone("a")
    a.write_all(MANY)
    a.sync()
    return a


def test_f033_deleting_most_of_a_large_store_asks_first_and_peers_follow(team: Team, large: Clone, wire: Wire) -> None:
    b = team.clone("b")
    b.sync()
    doomed = sorted(MANY)[:220]
    large.delete(*doomed)
    before = entries_of(team.store())
    wire.seen.clear()

    for attempt in (large.push, large.sync):
        with pytest.raises(MassDelete, match="220 of 260") as raised:
            attempt()
        assert "--allow-mass-delete" in (raised.value.hint or "")

    assert not wire.sent("put")
    assert not wire.sent("delete")
    assert entries_of(team.store()) == before
    assert large.push(allow_mass_delete=True).pushed.deleted == 220
    assert b.pull().pulled.deleted == 220, "the log says that it was meant"
    assert b.files.keys() == MANY.keys() - set(doomed)


def test_f033_a_mass_delete_that_nobody_allowed_is_not_followed(team: Team, large: Clone) -> None:
    commit_rows(team.store(), dict.fromkeys(sorted(MANY)[:220]))

    with pytest.raises(MassDelete, match="220 of 260"):
        large.pull()

    assert large.files.keys() == MANY.keys()
    assert large.pull(allow_mass_delete=True).pulled.deleted == 220


@pytest.mark.parametrize("deleted", [200, 120])
def test_f033_routine_clean_up_does_not_trip_it(team: Team, large: Clone, deleted: int) -> None:
    """Two hundred at most, or half at most, is routine."""
    large.delete(*sorted(MANY)[:deleted])
    assert large.push().pushed.deleted == deleted
    large.delete(*sorted(MANY)[deleted:])
    assert large.push().pushed.deleted == len(MANY) - deleted
