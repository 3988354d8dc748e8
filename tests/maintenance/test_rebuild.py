"""A rebuilding of the index beside others that work, and of its lesser parts: the log and the trash."""

from __future__ import annotations

from typing import Any

import pytest

import bayou.index.merge as merge_module
import bayou.maintenance.rebuild as rebuild_module
from bayou.objectstore import keys
from bayou.sync.plan.discovery_job import list_payload
from bayou_testing.faulty import Crash, Fault, crash
from tests import api
from tests.maintenance.damages import FILES, SOME, find_node, lose, ready, repair, small_nodes, verify
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import entries_of, head_of

__all__ = ["ready", "small_nodes"]


@pytest.mark.parametrize("how", ["node", "head"])
def test_a_commit_that_comes_during_a_rebuilding_is_not_lost(
    team: Team, ready: tuple[Clone, Clone], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4, for the index: the swap is over exactly the head that was found damaged."""
    a, b = ready
    store = team.store()
    if how == "node":
        lose(store, find_node(store, SOME)[1].node)
    else:
        store.put(keys.HEAD, b"garbage")
    real = list_payload

    def meanwhile(asked: Any) -> Any:
        monkeypatch.setattr(rebuild_module, "list_payload", real)
        found = real(asked)
        if how == "head":
            repair(a)
        a.write("files/99", "meanwhile")
        a.push()
        return found

    monkeypatch.setattr(rebuild_module, "list_payload", meanwhile)

    report = repair(b)

    assert report.ok
    assert entries_of(store).keys() == {*FILES, "files/99"}
    assert b.pull().pulled.files == 1


def test_a_push_that_meets_a_rebuilt_index_half_way_deletes_nothing_afterwards(
    team: Team, ready: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B's swap is refused because of the rebuilding; B's commit then stands on an index that lacks a file of B's."""
    _, b = ready
    store = team.store()
    _, ref = find_node(store, SOME)
    row = entries_of(store)[SOME]
    b.write("files/00", "of b")
    real = merge_module.merge
    done: list[bool] = []

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        made = real(*arguments, **options)
        if not done:
            done.append(True)
            lose(store, ref.node)
            store.delete([row.key])
            repair(team.clone("c"))
        return made

    monkeypatch.setattr("bayou.sync.commit.commit.merge", meanwhile)

    report = b.sync()

    assert done
    assert SOME in b.files
    assert SOME not in entries_of(store)
    assert b.sync().pulled.deleted == 0
    assert b.files.keys() == FILES.keys()
    assert report.pulled.deleted == 0


def test_a_rebuilding_that_is_killed_at_any_write_can_be_repeated(team: Team, wire: Wire) -> None:
    a = team.clone("a")
    a.write_all(dict(list(FILES.items())[:8]))
    a.sync()
    store, number = team.store(), 0
    lose(store, find_node(store, "files/03")[1].node)
    while True:
        number += 1
        wire.cut(Fault("put", nth=number, when="after", error=crash))
        c = team.clone(f"c{number}")
        try:
            report = repair(c)
        except Crash:
            wire.cut()
            continue
        break
    wire.cut()
    assert number > 3
    assert report.repaired == 0, "the last write was the swap, and it counted"
    assert entries_of(store).keys() == a.files.keys()
    assert a.pull().exit_code == 0


def test_a_damaged_page_of_the_log_is_told_and_mended(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayou.index.head.PAGE_ROWS", 2)
    a = team.clone("a")
    for number in range(6):
        a.write(SOME, f"{number}")
        a.sync()
    store = team.store()
    older = head_of(store).head.older
    assert older is not None
    store.put(keys.log_page(older), b"{}")

    report = verify(a)

    assert not report.ok
    assert [older in said for said in report.damaged] == [True]
    assert repair(a).ok
    assert verify(a).ok
    assert a.sync().exit_code == 0
    assert api.log(a.repo, 100)[0].by.endswith("(rebuilt the index)")


@pytest.mark.parametrize("remembers", [True, False], ids=["known here", "known to nobody"])
def test_a_damaged_trash_is_mended_and_what_it_loses_is_told(team: Team, remembers: bool) -> None:
    store = team.store()
    store.put(keys.payload("files/found", None), b"was there before")
    a = team.clone("a")
    a.write(SOME, "1")
    a.sync()
    a.delete("files/found")
    a.sync()
    trash = head_of(store).head.trash
    assert trash is not None
    lose(store, trash.node)
    clone = a if remembers else team.clone("b")
    assert trash.node in verify(clone).damaged[0]

    report = repair(clone)

    assert report.ok
    assert (entries_of(store).keys() == {SOME}) == remembers
    assert any("may be indexed again" in warning for warning in report.warnings) != remembers
    assert verify(clone).trash == remembers


def test_a_damaged_node_of_an_earlier_version_does_not_stop_a_collection(
    team: Team, ready: tuple[Clone, Clone]
) -> None:
    a, _ = ready
    store = team.store()
    _, ref = find_node(store, SOME)
    a.write(SOME, "changed")
    a.sync()
    store.put(keys.node(ref.node), b"garbage")

    assert verify(a).ok, "the current version is whole"
    assert api.collect(a.repo, dry_run=False, grace_s=0).objects_deleted >= 0
    assert verify(a, deep=True).ok
