"""Section 12 of tests/failures.md, what is about the index itself: strange rows, and damaged nodes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core import paths
from bayou.core.errors import HeadCorrupt, NodeDamaged, NodeMissing, UnknownFormat
from bayou.core.ids import ulid
from bayou.index import node_store
from bayou.index.entry import Entry
from bayou.index.node import Branch, Child, Leaf
from bayou.objectstore import keys
from bayou.sync.context import open_context
from bayou.sync.report import SyncOptions
from tests import api
from tests.maintenance.damages import (
    FILES,
    SOME,
    entries_of_leaf,
    find_node,
    lose,
    objects,
    ready,
    repair,
    small_nodes,
    verify,
)
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, entries_of, head_of

__all__ = ["ready", "small_nodes"]


def wrong_rows(node: Leaf, _: Child) -> bytes:
    return node_store.encode(replace(node, rows=(replace(node.rows[0], size=1), *node.rows[1:])))


def unsorted_rows(node: Leaf, _: Child) -> bytes:
    return node_store.encode(replace(node, rows=node.rows[::-1]))


def overlapping_rows(node: Branch, _: Child) -> bytes:
    first, second, *rest = node.rows
    return node_store.encode(replace(node, rows=(replace(first, last=second.last), second, *rest)))


def cut_short(node: Leaf, _: Child) -> bytes:
    return node_store.encode(node)[:-20]


@pytest.mark.parametrize(
    ("damage", "level"),
    [(None, 0), (None, 1), (wrong_rows, 0), (unsorted_rows, 0), (overlapping_rows, 1), (cut_short, 0)],
)
def test_f107_a_damaged_node_stops_pull_and_push_by_name_and_verify_tells(
    team: Team, ready: tuple[Clone, Clone], damage: Any, level: int
) -> None:
    a, b = ready
    a.write(SOME, "changed")
    a.sync()
    store = team.store()
    node, ref = find_node(store, SOME, level)
    if damage is None:
        lose(store, ref.node)
    else:
        store.put(keys.node(ref.node), damage(node, ref))
    before, mine = objects(team), b.files
    c = team.clone("c")
    c.write("files/new", "of c")

    for sync in (b.pull, c.push, c.sync):
        with pytest.raises((NodeMissing, NodeDamaged), match=ref.node):
            sync()
    report = verify(c)

    assert not report.ok
    assert [ref.node in said for said in report.damaged] == [True]
    assert report.checked == len(FILES) - ref.entries, "the rest was looked at"
    assert not report.missing
    assert not report.unindexed
    assert not report.leftovers, "what is hidden is not taken for unindexed"
    assert objects(team) == before, "nothing was written"
    assert b.files == mine, "nothing was deleted here"


@pytest.mark.parametrize("level", [0, 1, None])
def test_f107_whoever_has_the_index_here_rebuilds_it_exactly(
    team: Team, ready: tuple[Clone, Clone], level: int | None
) -> None:
    a, b = ready
    store = team.store()
    before, entries = head_of(store).head, entries_of(store)
    assert before.root is not None
    assert before.root.level >= 2
    lose(store, before.root.node if level is None else find_node(store, SOME, level)[1].node)

    report = repair(b)

    assert report.ok
    assert report.repaired >= 1
    assert not report.unrecovered
    assert not report.warnings, "nothing is in doubt"
    after = head_of(store).head
    assert entries_of(store) == entries
    assert after.root is not None
    assert after.root.digest == before.root.digest
    assert (after.store, after.seq, after.parent) == (before.store, before.seq + 1, before.commit)
    assert "rebuilt" in after.log[-1].by
    assert repair(a).repaired == 0, "a second repair finds nothing to do"
    assert head_of(store).head == after
    for clone in (a, b):
        report_of_pull = clone.pull()
        assert (report_of_pull.pulled.files, report_of_pull.pulled.deleted, report_of_pull.exit_code) == (0, 0, 0)
        assert clone.files == FILES
        assert clone.sync().engine == "fast"
    c = team.clone("c")
    assert c.pull().pulled.files == len(FILES)


@pytest.mark.parametrize("packed", [True, False], ids=["packs", "objects"])
def test_f107_a_newcomer_rebuilds_a_leaf_from_the_log_and_loses_no_later_commit(
    team: Team, ready: tuple[Clone, Clone], wire: Wire, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """The leaf of the last commit is lost; the one before it can be read; a listing tells what was written since."""
    a, b = ready
    if not packed:
        monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
        a.reopen()
    a.write(SOME, "changed")
    a.write("files/17a", "new")
    a.sync()
    b.sync()
    a.delete("files/18")
    a.sync()
    b.sync()
    a.write(SOME, "changed again")
    a.sync()
    b.sync()
    store, expected = team.store(), entries_of(team.store())
    lose(store, find_node(store, SOME)[1].node)
    c = team.clone("c")

    report = repair(c)

    assert report.ok
    found = entries_of(store)
    assert found.keys() == expected.keys(), "what was deleted stays deleted"
    assert {path: row.push for path, row in found.items()} == {path: row.push for path, row in expected.items()}
    unhashed = [path for path, row in found.items() if row.sha256 is None]
    assert (report.attested, unhashed) == (([SOME], []) if packed else ([], [SOME])), "only what no version tells of"
    assert any(SOME in warning for warning in report.warnings)
    wire.seen.clear()
    for clone in (a, b):
        pulled = clone.pull()
        assert (pulled.pulled.files, pulled.pulled.deleted, pulled.exit_code) == (0, 0, 0)
        assert clone.files[SOME] == b"changed again"
    assert not wire.sent("get", "~|packs"), "one push is one content: there is nothing to compare"
    assert c.pull().exit_code == 0
    assert c.files == a.files


@pytest.mark.usefixtures("loose_objects")
def test_f107_what_nobody_can_bring_back_is_named_and_stays_with_whoever_has_it(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write_all(FILES)
    a.sync()
    b.sync()
    store = team.store()
    leaf, ref = find_node(store, SOME)
    lose(store, ref.node)
    gone = entries_of_leaf(leaf)[SOME]
    store.delete([gone.key])
    c = team.clone("c")

    report = repair(c)

    assert not report.ok
    assert report.unrecovered == [f"1 of {ref.entries} entries from {ref.first} to {ref.last}"]
    assert SOME not in entries_of(store)
    pulled = b.pull()
    assert (pulled.pulled.deleted, pulled.untracked) == (0, [SOME])
    assert b.files == FILES
    assert b.sync().untracked == [SOME], "and is told again"
    assert b.files == FILES, "nor does a later sync delete it"
    a.sync(adopt=True)
    assert entries_of(store).keys() == FILES.keys(), "and whoever has it gives it back"
    assert b.sync().exit_code == 0
    assert b.files == FILES


def test_f107_a_tree_that_has_the_bytes_gives_them_back_under_a_new_key(team: Team, ready: tuple[Clone, Clone]) -> None:
    a, b = ready
    store = team.store()
    node, _ = find_node(store, SOME)
    gone = entries_of_leaf(node)[SOME]
    store.delete([gone.key])
    store.put(keys.HEAD, b"\x00" * 10)

    report = repair(b)

    assert report.ok
    again = entries_of(store)[SOME]
    assert again.key != gone.key
    assert again.same_content(gone), "its push is still the one that peers know (P5)"
    assert a.pull().exit_code == 0
    assert a.files == FILES


def test_f107_a_file_that_is_newer_here_than_in_a_rebuilt_index_is_kept(team: Team, ready: tuple[Clone, Clone]) -> None:
    a, b = ready
    a.write(SOME, "newer")
    a.sync()
    b.sync()
    store = team.store()
    lose(store, find_node(store, SOME)[1].node)
    store.delete([base_entry(a, SOME).key])

    report = repair(team.clone("c"))

    assert [SOME in warning for warning in report.warnings if "an earlier version" in warning] == [True]
    pulled = b.pull()
    assert [(one.path, one.kept) for one in pulled.conflicts] == [(SOME, "remote")]
    (kept,) = api.conflicts(b.repo)
    with open(kept.copy) as copy:
        assert copy.read() == "newer"


def base_entry(clone: Clone, path: str) -> Entry:
    """Return what base says of a path."""

    with open_context(clone.repo, SyncOptions()) as context:
        return context.base.lookup([path])[path]


@pytest.mark.parametrize("kind", ["s3_team", "gcs_team"])
def test_f107_an_index_is_rebuilt_on_real_servers(kind: str, request: pytest.FixtureRequest) -> None:
    team: Team = request.getfixturevalue(kind)
    a, b = team.clone("a"), team.clone("b")
    a.write_all(FILES)
    a.sync()
    b.sync()
    store, entries = team.store(), entries_of(team.store())
    lose(store, find_node(store, SOME)[1].node)
    assert not verify(a).ok
    assert repair(a).ok
    assert entries_of(store) == entries

    store.put(keys.HEAD, b"garbage")
    with pytest.raises(HeadCorrupt):
        b.sync()
    assert repair(b).ok
    assert entries_of(store) == entries

    store.delete([keys.HEAD])
    assert repair(team.clone("c")).ok
    assert entries_of(store) == entries
    assert team.clone("d").pull().pulled.files == len(FILES)


@pytest.mark.parametrize("cut", [400, 60])
def test_f006_an_unknown_format_is_never_rebuilt_however_damaged(
    team: Team, ready: tuple[Clone, Clone], cut: int
) -> None:
    fetched = team.store().get(keys.HEAD)
    assert fetched is not None
    team.store().put(keys.HEAD, bytes(fetched.data).replace(b'"format":2', b'"format":99')[:cut])
    before = objects(team)

    with pytest.raises(UnknownFormat, match="99"):
        repair(ready[0])

    assert objects(team) == before


def test_f105_strange_rows_are_told_not_fetched_and_survive_unrelated_commits(
    team: Team, ready: tuple[Clone, Clone], wire: Wire
) -> None:
    _, b = ready
    store = team.store()
    strange = {
        path: Entry(path, ulid(), 5, b"\1" * 32, '"e"', None, 1_700_000_000_000)
        for path in ("secrets/key", "other/data/x", "../../escape", "/etc/passwd", "data", "files/../x", "files/a\\b")
    }
    commit_rows(store, strange)
    wire.seen.clear()

    c = team.clone("c")
    pulled = c.pull()
    c.write("files/new", "of c")
    pushed = c.push()
    checked = verify(c)

    assert (pulled.pulled.files, pulled.exit_code) == (len(FILES), 0)
    assert c.files == {**FILES, "files/new": b"of c"}
    assert {one.path for one in pulled.refused} == strange.keys()
    assert pushed.pushed.files == 1
    assert not checked.ok
    assert {paths.unescape(one.path) for one in checked.unsafe} == strange.keys()
    assert {path: row for path, row in entries_of(store).items() if path in strange} == strange
    asked = {one.key for one in wire.seen}
    assert not [key for key in asked if any(row.push in key for row in strange.values() if row.push)]
    assert c.status().in_sync
    assert b.sync().pulled.files == 1
