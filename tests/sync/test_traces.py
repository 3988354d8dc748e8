"""Traces T1 to T13 of tests/failures.md, section 16, forced upon the code: a weaker protocol loses data in each.

1 is committed content of one path, 11 and 12 are A's writes, 21 is B's; C is a clone made afterwards.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest

import bayou.maintenance.verify as verify_module
import bayou.sync.transfer.pull as pull_module
from bayou.index.head import read_head
from bayou.objectstore.keys import as_listed
from bayou.sync.commit import commit
from bayou.sync.report import VerifyReport
from bayou.sync.service import Datastore
from bayou.worktree.staging import StagingArea
from bayou_testing.faults import Hold, Rule
from bayou_testing.faulty import Crash, Fault, crash
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.sync.conftest import UPLOADS, Clone, Team, Wire
from tests.sync.turns import meanwhile

X = "files/x"
HEAD = r"head\.json$"


def check(clone: Clone) -> VerifyReport:
    """Read every object that the index names, and compare its bytes."""
    report = api.verify(clone.repo, deep=True, repair=False)
    assert report.ok, report
    return report


def collect(clone: Clone) -> Any:
    return api.collect(clone.repo, dry_run=False, grace_s=0)


def killed(step: Callable[[], object]) -> None:
    with pytest.raises(Crash):
        step()


@pytest.fixture
def a(team: Team) -> Clone:
    """A clone that has committed 1."""
    clone = team.clone("a")
    clone.write(X, "1")
    clone.sync()
    return clone


@pytest.fixture
def b(team: Team, a: Clone) -> Clone:
    """A second clone, in step with A."""
    clone = team.clone("b")
    clone.sync()
    return clone


@pytest.mark.usefixtures("both_ways")
def test_t1_a_push_that_dies_after_its_upload_has_destroyed_nothing(team: Team, a: Clone, b: Clone, wire: Wire) -> None:
    a.write(X, "11")
    wire.cut(Fault("put", UPLOADS, nth=1, when="after", error=crash))
    killed(a.push)
    wire.cut()
    shutil.rmtree(a.repo.root)
    assert b.sync().engine == "fast"
    c = team.clone("c")
    c.sync()
    assert c.files == {X: b"1"}
    assert check(c).leftovers == 1


@pytest.mark.usefixtures("both_ways")
def test_t2_an_upload_that_stalls_is_nobodys_debris(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write(X, "1")
    a.sync()
    b.sync()
    a.write(X, "11")
    stalled = Hold(threading.Event())
    proxy.faults.add(Rule(stalled, method="PUT", path=HEAD, nth=1))
    reports = []
    push = threading.Thread(target=lambda: reports.append(a.sync()))
    push.start()
    assert stalled.arrived.wait(30)
    assert api.verify(b.repo, deep=True, repair=True).leftovers == 1
    b.write(X, "21")
    assert b.sync().pushed.files == 1
    stalled.release.set()
    push.join()
    # B was first: A's swap is refused, and A's own bytes are kept.
    assert [(one.path, one.kept) for one in reports[0].conflicts] == [(X, "remote")]
    assert a.files == b.files == {X: b"21"}
    check(b)


@pytest.mark.usefixtures("both_ways")
def test_t2_a_swap_that_lands_after_its_owners_death_finds_its_own_bytes(
    team: Team, a: Clone, b: Clone, wire: Wire
) -> None:
    a.write(X, "11")
    wire.cut(Fault("put", HEAD, nth=1, when="after", error=crash))
    killed(a.push)
    wire.cut()
    shutil.rmtree(a.repo.root)
    b.write(X, "21")
    assert b.sync().exit_code == 3
    assert b.files == {X: b"11"}
    check(b)


@pytest.mark.usefixtures("both_ways")
def test_t3_a_late_or_repeated_delete_hits_nothing_new(team: Team, a: Clone, b: Clone, wire: Wire) -> None:
    a.delete(X)
    a.push()
    wire.cut(Fault("delete", UPLOADS, nth=1, error=crash))
    killed(lambda: collect(a))
    late = wire.sent("delete", UPLOADS)[-1].split(" ")
    wire.cut()
    b.sync()
    b.write(X, "1")
    assert b.sync().pushed.files == 1
    for _ in range(2):
        team.store().delete([as_listed(key) for key in late])
        check(b)
    c = team.clone("c")
    c.sync()
    assert c.files == {X: b"1"}


@pytest.mark.usefixtures("loose_objects")
def test_t4_a_repair_whose_listing_is_old_drops_nothing_and_brings_nothing_back(
    team: Team, a: Clone, b: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing finds an unindexed object and a missing one; B then commits over all of it."""
    a.write_all({"files/deleted": b"d", "files/missing": b"m", "files/gone": b"g"})
    a.sync()
    b.sync()
    store = team.store()
    for key in team.payload_keys():
        if key.endswith(("/missing", "/gone")):
            store.delete([as_listed(key)])
    store.put(as_listed("files/found"), b"somebody else's")
    (a.repo.tree_root / "files/gone").unlink()

    def commit_elsewhere() -> None:
        b.write_all({"files/fresh": b"f", "files/missing": b"newer", "files/found": b"ours"})
        b.delete("files/deleted")
        b.sync()

    meanwhile(monkeypatch, verify_module, "repair_entries", commit_elsewhere)
    first = api.verify(a.repo, deep=True, repair=True)
    assert first.repaired == 0
    second = api.verify(a.repo, deep=True, repair=True)
    assert (second.repaired, second.missing) == (0, ["files/gone"])
    b.sync()
    c = team.clone("c")
    assert c.sync().missing == ["files/gone"]
    assert c.files == {X: b"1", "files/fresh": b"f", "files/missing": b"newer", "files/found": b"ours"}
    # The entry of what is missing stays, so no client deletes a good copy, and one that has a copy can repair it.
    assert b.files == {**c.files, "files/gone": b"g"}
    assert api.verify(b.repo, deep=True, repair=True).repaired == 1
    c.sync()
    assert c.files == b.files


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("lost", ["answer", "process"])
def test_t5_a_commit_whose_outcome_was_not_recorded_is_settled_first(
    team: Team, a: Clone, b: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    a.write(X, "11")
    if lost == "process":
        wire.cut(Fault("put", HEAD, nth=1, when="after", error=crash))
        killed(a.push)
    else:
        monkeypatch.setattr("bayou.sync.commit.publish._record_commit", lambda *_: (_ for _ in ()).throw(Crash))
        killed(a.push)
        monkeypatch.undo()
    wire.cut()
    b.sync()
    b.delete(X)
    b.sync()
    report = a.sync()
    assert (report.conflicts, report.warnings, report.pushed.files) == ([], [], 0)
    assert a.files == {}
    assert a.status().in_sync
    assert read_head(team.store()).head.root is None


@pytest.mark.usefixtures("both_ways")
def test_t6_what_is_written_during_an_upload_is_no_conflict_with_oneself(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.write(X, "11")
    meanwhile(monkeypatch, commit, "commit", lambda: a.write(X, "12"))
    first = a.push()
    assert (first.pushed.files, first.conflicts) == (1, [])
    assert a.status().journal_paths == 1
    second = a.sync()
    assert (second.pushed.files, second.conflicts) == (1, [])
    c = team.clone("c")
    c.sync()
    assert c.files == {X: b"12"}


def test_t7_a_row_that_is_open_is_never_dropped(team: Team, a: Clone) -> None:
    with Datastore(a.repo) as program, program.tree.writing(X) as file:
        assert a.sync().pushed.files == 0
        assert a.status().journal_paths == 1
        file.write(b"11")
    assert a.push(walk=False).pushed.files == 1
    c = team.clone("c")
    c.sync()
    assert c.files == {X: b"11"}


@pytest.mark.parametrize("how", ["through Bayou", "by hand"])
def test_t8_a_pull_does_not_rename_over_what_was_just_written(
    a: Clone, b: Clone, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    b.write(X, "21")
    b.sync()
    write = a.write if how == "through Bayou" else a.lay
    meanwhile(monkeypatch, pull_module, "install_batch", lambda: write(X, "11"))
    report = a.sync()
    (conflict,) = report.conflicts
    assert conflict.copy is not None
    with open(conflict.copy) as kept:
        assert kept.read() == "11"
    assert a.files == {X: b"21"}
    assert a.sync().engine == "fast"


@pytest.mark.parametrize("moment", ["before the rename", "after the rename"])
def test_t9_what_a_dead_pull_put_in_place_is_no_change_of_ours(
    a: Clone, b: Clone, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    b.write_all({X: b"21", "files/new": b"new"})
    b.sync()
    name = "install" if moment == "before the rename" else "sync_directories"
    with monkeypatch.context() as patch:
        patch.setattr(StagingArea, name, lambda *_: (_ for _ in ()).throw(Crash))
        killed(a.pull)
    b.delete(X, "files/new")
    b.sync()
    report = a.sync()
    assert (report.pushed.files, report.conflicts, report.untracked) == (0, [], [])
    assert a.files == {}
    assert b.sync().engine == "fast"


def test_t9_what_a_dead_pull_deleted_is_not_deleted_in_the_store(
    a: Clone, b: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    b.delete(X)
    b.sync()
    with monkeypatch.context() as patch:
        patch.setattr(StagingArea, "sync_directories", lambda *_: (_ for _ in ()).throw(Crash))
        killed(a.pull)
    assert a.files == {}
    b.write(X, "21")
    b.sync()
    report = a.sync()
    assert (report.pushed.deleted, report.pulled.files) == (0, 1)
    assert a.files == {X: b"21"}


def test_t10_a_journaled_write_whose_file_is_gone_is_no_delete(team: Team, a: Clone) -> None:
    a.write_all({X: b"11", "files/never": b"pushed"})
    shutil.rmtree(a.repo.tree_root)
    report = a.sync()
    assert (report.pushed.deleted, report.pulled.files) == (0, 1)
    assert a.files == {X: b"1"}
    assert a.status().in_sync
    c = team.clone("c")
    c.sync()
    assert c.files == a.files


def test_t11_files_that_peers_deleted_do_not_return_from_a_tree_that_lost_its_state(
    team: Team, a: Clone, b: Clone
) -> None:
    a.write("files/kept", "k")
    a.sync()
    b.sync()
    b.delete(X)
    b.sync()
    a.lose_state()
    assert a.pull().untracked == [X]
    a.mark_dirty()
    report = a.push()
    assert (report.untracked, report.pushed.files) == ([X], 0)
    assert a.sync().untracked == [X]
    c = team.clone("c")
    c.sync()
    assert c.files == {"files/kept": b"k"}
    # Once somebody writes it again it is meant, and so it is when somebody adopts it.
    a.mark_dirty()
    a.lay(X, "written after the mark")
    assert a.push().pushed.files == 1


def test_t12_a_node_that_a_collector_is_about_to_delete_is_never_used_again(
    team: Team, a: Clone, b: Clone, wire: Wire
) -> None:
    """The index returns to rows that an unreachable node has, between the collector's listing and its DELETE."""
    store = team.store()
    before = read_head(store).head.root
    b.write("files/y", "y")
    b.sync()
    wire.cut(Fault("delete", r"\.bayou/nodes/", nth=1, error=crash))
    killed(lambda: collect(a))
    late = wire.sent("delete", r"\.bayou/nodes/")[-1].split(" ")
    wire.cut()
    assert before is not None
    assert any(before.node in key for key in late)
    b.delete("files/y")
    b.sync()
    after = read_head(store).head.root
    assert after is not None
    assert (after.digest, after.node) == (before.digest, after.node)
    assert after.node != before.node
    store.delete([as_listed(key) for key in late])
    check(b)
    c = team.clone("c")
    c.sync()
    assert c.files == {X: b"1"}


def test_t13_what_a_collector_took_from_a_slow_push_is_uploaded_again(
    both_ways: str, team: Team, a: Clone, b: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.write_all({X: b"11", "files/y": b"y"})
    wire.seen.clear()
    taken = []
    meanwhile(monkeypatch, commit, "_swap", lambda: taken.append(collect(b)))  # once everything has arrived
    report = a.push()
    objects = 1 if both_ways == "packs" else 2
    assert taken[0].leftovers_deleted == objects
    uploads = wire.sent("put", UPLOADS)
    assert len(set(uploads)) == len(uploads) == 2 * objects  # 11 and y, twice, under keys of their own
    assert (report.pushed.files, report.exit_code) == (2, 0)
    check(b)
    c = team.clone("c")
    c.sync()
    assert c.files == {X: b"11", "files/y": b"y"}


@pytest.mark.usefixtures("both_ways")
def test_t13_what_a_collector_took_from_a_dead_push_is_uploaded_again(
    team: Team, a: Clone, b: Clone, wire: Wire
) -> None:
    a.write(X, "11")
    wire.cut(Fault("put", HEAD, nth=1, error=crash))
    killed(a.push)
    wire.cut()
    assert collect(b).leftovers_deleted == 1
    assert a.push().pushed.files == 1
    check(b)
