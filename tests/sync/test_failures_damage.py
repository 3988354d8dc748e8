"""Section 12 of failures.md, what is about the index itself: strange rows, damaged nodes, and heads that are none."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any

import pytest

import bayou.index.build as build_module
import bayou.index.merge as merge_module
import bayou.sync.rebuild as rebuild_module
from bayou.errors import (
    HeadCorrupt,
    HeadLost,
    NodeDamaged,
    NodeMissing,
    NotFound,
    StoreSwapped,
    UnknownFormat,
)
from bayou.ids import ulid
from bayou.index import codec
from bayou.index.chunk import Shape
from bayou.index.entry import Entry
from bayou.index.node import Branch, Child, Leaf
from bayou.index.nodes import StoreNodes
from bayou.store import Store, keys
from bayou.sync import api
from bayou.sync.report import VerifyReport
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, entries_of, head_of

SMALL = Shape(leaf_mod=3, leaf_max=7, branch_mod=3, branch_max=5)
FILES = {f"files/{number:02}": f"content {number}".encode() for number in range(24)}
SOME = "files/17"


@pytest.fixture(autouse=True)
def small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few files make a tree of several levels."""
    for function in (build_module.build, build_module.build_above, merge_module.merge):
        monkeypatch.setattr(function, "__defaults__", (SMALL,))
    monkeypatch.setattr("bayou.store.probe.ROUNDS", 0)  # tests/store proves that directories swap


@pytest.fixture
def ready(team: Team) -> tuple[Clone, Clone]:
    """A, which has pushed the files, and B, which has pulled them."""
    a, b = team.clone("a"), team.clone("b")
    a.write_all(FILES)
    a.sync()
    b.sync()
    return a, b


def find_node(store: Store, path: str, level: int = 0) -> Any:
    """Return the node, at a level of the current tree, that a path belongs to, and what names it."""
    source, ref = StoreNodes(store), head_of(store).head.root
    assert ref is not None
    at: Any = ref
    for above in range(ref.level, level, -1):
        rows = source.load(above, at).rows
        at = rows[max(0, bisect_right([row.first for row in rows], path) - 1)]  # type: ignore[union-attr]
    return source.load(level, at), at


def lose(store: Store, *names: str) -> None:
    store.delete([keys.node(name) for name in names])


def verify(clone: Clone, **options: Any) -> VerifyReport:
    return api.verify(clone.repo, **{"deep": False, "repair": False, **options})


def repair(clone: Clone) -> VerifyReport:
    return verify(clone, repair=True)


def objects(team: Team) -> dict[str, tuple[int, str | None]]:
    """Everything in the store, with its fingerprint."""
    return {meta.key: (meta.size, meta.etag) for page in team.store().list() for meta in page}


def wrong_rows(node: Leaf, _: Child) -> bytes:
    return codec.encode(replace(node, rows=(replace(node.rows[0], size=1), *node.rows[1:])))


def unsorted_rows(node: Leaf, _: Child) -> bytes:
    return codec.encode(replace(node, rows=node.rows[::-1]))


def overlapping_rows(node: Branch, _: Child) -> bytes:
    first, second, *rest = node.rows
    return codec.encode(replace(node, rows=(replace(first, last=second.last), second, *rest)))


def cut_short(node: Leaf, _: Child) -> bytes:
    return codec.encode(node)[:-20]


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


def test_f107_a_newcomer_rebuilds_a_leaf_from_the_log_and_loses_no_later_commit(
    team: Team, ready: tuple[Clone, Clone]
) -> None:
    """The leaf of the last commit is lost; the one before it can be read; a listing tells what was written since."""
    a, b = ready
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
    assert [path for path, row in found.items() if row.sha256 is None] == [SOME], "only what no version tells of"
    assert any(SOME in warning for warning in report.warnings)
    for clone in (a, b):
        pulled = clone.pull()
        assert (pulled.pulled.files, pulled.pulled.deleted, pulled.exit_code) == (0, 0, 0)
        assert clone.files[SOME] == b"changed again"
    assert c.pull().exit_code == 0
    assert c.files == a.files


def test_f107_what_nobody_can_bring_back_is_named_and_stays_with_whoever_has_it(
    team: Team, ready: tuple[Clone, Clone]
) -> None:
    a, b = ready
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
    b.sync()
    assert b.files == FILES, "nor does a later sync delete it"
    a.sync(adopt=True)
    assert entries_of(store).keys() == FILES.keys(), "and whoever has it gives it back"
    assert b.sync().exit_code == 0
    assert b.files == FILES


def entries_of_leaf(leaf: Leaf) -> dict[str, Entry]:
    return {row.path: row for row in leaf.rows}


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
    assert (again.sha256, again.size) == (gone.sha256, gone.size)
    assert again.push != gone.push
    assert a.pull().exit_code == 0
    assert a.files == FILES


def test_f107_a_file_that_is_newer_here_than_in_a_rebuilt_index_is_kept(team: Team, ready: tuple[Clone, Clone]) -> None:
    a, b = ready
    a.write(SOME, "newer")
    a.sync()
    b.sync()
    store = team.store()
    lose(store, find_node(store, SOME)[1].node)
    store.delete([entries_of_leaf_in(a, SOME).key])

    report = repair(team.clone("c"))

    assert [SOME in warning for warning in report.warnings if "an earlier version" in warning] == [True]
    pulled = b.pull()
    assert [(one.path, one.kept) for one in pulled.conflicts] == [(SOME, "remote")]
    (kept,) = api.conflicts(b.repo)
    with open(kept.copy) as copy:
        assert copy.read() == "newer"


def entries_of_leaf_in(clone: Clone, path: str) -> Entry:
    """Return what base says of a path."""
    from bayou.sync.context import open_context
    from bayou.sync.report import SyncOptions

    with open_context(clone.repo, SyncOptions()) as context:
        return context.base.lookup([path])[path]


def garbage(data: bytes) -> bytes:
    return b"<html>502 Bad Gateway</html>"


def empty(data: bytes) -> bytes:
    return b""


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def one_wrong_field(data: bytes) -> bytes:
    return data.replace(b'"gc":{"count":0', b'"gc":{"count":"none"')


@pytest.mark.parametrize("harm", [garbage, empty, truncated, one_wrong_field])
def test_a_corrupt_head_is_rebuilt_by_whoever_knew_it(team: Team, ready: tuple[Clone, Clone], harm: Any) -> None:
    a, b = ready
    store = team.store()
    before, entries = head_of(store).head, entries_of(store)
    fetched = store.get(keys.HEAD)
    assert fetched is not None
    store.put(keys.HEAD, harm(bytes(fetched.data)))
    damaged = objects(team)
    for attempt in (b.pull, b.sync, lambda: verify(b), lambda: api.collect(b.repo, dry_run=False, grace_s=0)):
        with pytest.raises(HeadCorrupt) as raised:
            attempt()
        assert raised.value.exit_code == 4
        assert "verify --repair" in (raised.value.hint or "")
    assert objects(team) == damaged, "nothing was written"

    report = repair(b)

    assert report.ok
    assert report.repaired >= 1
    after = head_of(store).head
    assert entries_of(store) == entries
    assert (after.store, after.seq) == (before.store, before.seq + 1)
    assert after.gc.count != before.gc.count, "pushes under way look at their uploads again"
    assert repair(b).repaired == 0
    for clone in (a, b):
        pulled = clone.pull()
        assert (pulled.pulled.files, pulled.pulled.deleted, pulled.exit_code) == (0, 0, 0)
        assert clone.sync().engine == "fast"
    a.write(SOME, "goes on")
    a.sync()
    b.sync()
    assert b.files[SOME] == b"goes on"


def test_a_corrupt_head_that_still_names_its_root_is_rebuilt_by_anybody(team: Team, ready: tuple[Clone, Clone]) -> None:
    store = team.store()
    before, entries = head_of(store).head, entries_of(store)
    fetched = store.get(keys.HEAD)
    assert fetched is not None
    store.put(keys.HEAD, truncated(bytes(fetched.data)))

    report = repair(team.clone("c"))

    assert report.ok
    assert not report.warnings, "nothing is in doubt: digests prove the root"
    assert entries_of(store) == entries
    assert head_of(store).head.store == before.store


def test_a_rebuilding_by_somebody_who_is_behind_loses_nothing_that_others_have_pushed(
    team: Team, ready: tuple[Clone, Clone]
) -> None:
    a, b = ready
    a.write(SOME, "newer")
    a.write("files/new", "new")
    a.sync()
    store = team.store()
    expected = {path: row.push for path, row in entries_of(store).items()}
    store.put(keys.HEAD, b"garbage")

    report = repair(b)

    assert report.ok
    assert {path: row.push for path, row in entries_of(store).items()} == expected
    pulled = a.pull()
    assert (pulled.pulled.files, pulled.pulled.deleted, pulled.exit_code) == (0, 0, 0)
    assert a.files[SOME] == b"newer"
    assert b.pull().pulled.files == 2
    assert b.files == a.files


def test_a_lost_head_is_an_error_until_somebody_rebuilds_it(team: Team, ready: tuple[Clone, Clone]) -> None:
    a, b = ready
    a.delete("files/00")
    a.sync()
    b.sync()
    store, entries = team.store(), entries_of(team.store())
    store.delete([keys.HEAD])
    c = team.clone("c")
    for attempt in (c.pull, c.sync, lambda: verify(c), lambda: verify(b)):
        with pytest.raises(HeadLost) as raised:
            attempt()
        assert raised.value.exit_code == 4

    report = repair(b)

    assert report.ok
    assert entries_of(store) == entries, "what was deleted, and not collected yet, stays deleted"
    assert a.pull().pulled.files == 0
    assert c.pull().pulled.files == len(entries)


@pytest.mark.parametrize("left", ["nodes", "nothing"])
def test_a_lost_head_can_be_rebuilt_by_a_newcomer_who_knows_nothing(
    team: Team, ready: tuple[Clone, Clone], left: str
) -> None:
    a, b = ready
    store, expected = team.store(), entries_of(team.store())
    store.put(keys.payload("files/plain", None), b"was there before")
    doomed = [key for key in objects(team) if key == keys.HEAD or (left == "nothing" and key.startswith(".bayou"))]
    store.delete([keys.as_listed(key) for key in doomed])

    report = repair(team.clone("c"))

    assert report.ok
    assert any("nobody knows whether they were committed" in warning for warning in report.warnings)
    found = entries_of(store)
    assert found.keys() == {*FILES, "files/plain"}
    if left == "nodes":
        assert found.items() >= expected.items(), "leaves tell the hashes"
    else:
        assert all(row.sha256 is None for row in found.values())
    for clone in (a, b):
        with pytest.raises(StoreSwapped, match="another store"):
            clone.pull()
        assert clone.files == FILES, "nobody could tell the old id, so peers are asked first"
    assert verify(a, deep=True, repair=True).repaired == sum(row.sha256 is None for row in found.values())
    assert all(row.sha256 is not None for row in entries_of(store).values()), "a deep repair records hashes"


def test_a_store_that_never_had_a_head_is_not_rebuilt(team: Team) -> None:
    team.store().put(keys.payload("files/plain", None), b"was there before")
    c = team.clone("c")
    before = objects(team)

    for report in (verify, repair):
        with pytest.raises(NotFound, match="no index yet"):
            report(c)

    assert objects(team) == before


@pytest.mark.parametrize("cut", [400, 60])
def test_f006_an_unknown_format_is_never_rebuilt_however_damaged(
    team: Team, ready: tuple[Clone, Clone], cut: int
) -> None:
    fetched = team.store().get(keys.HEAD)
    assert fetched is not None
    team.store().put(keys.HEAD, bytes(fetched.data).replace(b'"format":1', b'"format":99')[:cut])
    before = objects(team)

    with pytest.raises(UnknownFormat, match="99"):
        repair(ready[0])

    assert objects(team) == before


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
    real = rebuild_module.list_payload

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

    monkeypatch.setattr("bayou.sync.commit.merge", meanwhile)

    report = b.sync()

    assert done
    assert SOME in b.files
    assert SOME not in entries_of(store)
    assert b.sync().pulled.deleted == 0
    assert b.files.keys() == FILES.keys()
    assert report.pulled.deleted == 0


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
    assert checked.ok
    assert {one.path for one in checked.refused} == strange.keys()
    assert {path: row for path, row in entries_of(store).items() if path in strange} == strange
    asked = {one.key for one in wire.seen}
    assert not [key for key in asked if any(row.push in key for row in strange.values() if row.push)]
    assert c.status().in_sync
    assert b.sync().pulled.files == 1
