"""The comparison of a large sync is one job: its ranges, its copy of the state, and the files that are hashed last."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bayou.core.errors import StateError
from bayou.engine.local import LocalExecutor
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.state.state_copy import CACHED, JOURNALED, StateCopy
from bayou.sync import bulk_pass
from bayou.sync.context import open_context
from bayou.sync.plan import compare_job, local_scanner
from bayou.sync.plan.compare_job import CompareJob, divide_range
from bayou.sync.plan.decision_table import Action
from bayou.sync.report import SyncOptions
from bayou.worktree import hashing
from bayou.worktree.scan import ScannedFile, SkippedPath, scan, scan_range
from tests.spark.scenes import Scene, copy, outcome
from tests.spark.test_large_sync import ANYWHERE, scenes, units
from tests.spark.without_spark import without_spark
from tests.sync.conftest import Team


@pytest.fixture
def in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every sync of this process a large one, of many windows."""
    monkeypatch.setattr("bayou.sync.run.MOST_HELD", 0)
    monkeypatch.setattr("bayou.sync.plan.windows.WINDOW", 7)


@settings(ANYWHERE, max_examples=12)
@given(scenes(), st.sampled_from([1, 3, 20_000]))
def test_a_large_sync_of_this_process_does_what_a_small_one_does(tmp_path, scene: Scene, window: int) -> None:
    root = tmp_path / f"scene-{os.urandom(8).hex()}"
    start = scene.make(root / "start")
    other = copy(start, root / "copy")

    planned = start.sync(**scene.options, dry_run=True, engine="point")
    here = start.sync(**scene.options, engine="point")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayou.sync.run.MOST_HELD", 0)
        patch.setattr("bayou.sync.plan.windows.WINDOW", window)
        dry = other.sync(**scene.options, dry_run=True, engine="point")
        there = other.sync(**scene.options, engine="point")

    assert sorted(map(str, dry.actions)) == sorted(map(str, planned.actions))
    assert outcome(other, there) == outcome(start, here)
    assert there.exit_code == here.exit_code


def test_without_spark_a_large_sync_holds_one_window_and_commits_each(team: Team, in_windows, monkeypatch) -> None:
    held: list[int] = []
    plan = compare_job.ComparedPath.candidate
    monkeypatch.setattr(compare_job.ComparedPath, "candidate", lambda row: (held.append(1), plan(row))[1])
    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(20))

    pushed = here.push(engine="point")
    pulled = there.pull(engine="point")

    assert (pushed.engine, pushed.pushed.files, pulled.pulled.files) == ("point", 40, 40)
    assert pushed.commit is not None
    assert pushed.commit.seq == 1 + 6  # the first head, and six windows
    assert there.files == here.files == units(20)
    assert held
    assert here.status().in_sync
    assert there.status().in_sync
    assert not (here.repo.state / "large").exists()


def test_a_new_file_is_read_once_where_this_process_uploads(team: Team, in_windows, monkeypatch) -> None:
    here = team.clone("here")
    for path, content in units(20).items():
        here.lay(path, content)
        os.utime(here.repo.tree_root / path, ns=(10**18, 10**18))
    monkeypatch.setattr(hashing.FileStat, "settled", lambda *_: True)  # as if they were not just written
    reads: Counter[str] = Counter()
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *args, **kwargs: (reads.update([str(path)]), real(path, *args, **kwargs))[1]
    )

    here.push(engine="point", adopt=True)

    payload = {path: count for path, count in reads.items() if path.endswith(("/raw", "/metadata.yaml"))}
    assert len(payload) == 40
    assert set(payload.values()) == {1}


@pytest.mark.parametrize("spark", [False, True])
def test_large_files_are_hashed_in_groups_of_the_same_number_of_bytes(
    team: Team, in_windows, monkeypatch, spark: bool
) -> None:
    monkeypatch.setattr(compare_job, "LARGE_BYTES", 1000)
    here, there = team.clone("here"), team.clone("there")
    files = {f"files/{at:02}": b"%d " % at * (600 + 40 * at) for at in range(12)}
    small = {f"files/small{at}": b"x" for at in range(12)}
    here.write_all({**files, **small})
    groups: list[list[Any]] = []
    parts = CompareJob.parts

    def watched(self: CompareJob, wanted: int) -> Any:
        found = parts(self, wanted)
        groups.append(list(found))
        return found

    monkeypatch.setattr(CompareJob, "parts", watched)
    if spark:
        with without_spark():
            here.push(engine="spark")
    else:
        here.push(engine="point")
    there.pull(engine="point")

    assert there.files == {**files, **small}
    ranges, hashed = groups[:2]
    assert all(isinstance(part, KeyRange) for part in ranges)
    assert sorted(path for part in hashed for path in part) == sorted(files)
    sizes = [sum(len(files[path]) for path in part) for part in hashed]
    assert max(sizes) - min(sizes) <= max(map(len, files.values()))
    assert here.status().in_sync


def test_a_large_file_that_changes_or_vanishes_before_it_is_hashed_is_as_it_is_then(
    team: Team, in_windows, monkeypatch
) -> None:
    monkeypatch.setattr(compare_job, "LARGE_BYTES", 100)
    here, there = team.clone("here"), team.clone("there")
    here.write_all({"files/stays": b"s" * 200, "files/grows": b"g" * 200, "files/goes": b"x" * 200})
    here.push(engine="point")
    for name in ("stays", "grows", "goes"):
        here.lay(f"files/{name}", name.encode() * 100)
    parts = CompareJob.parts

    def late(self: CompareJob, wanted: int) -> Any:
        found = parts(self, wanted)
        if not isinstance(found[0], KeyRange):
            here.lay("files/grows", b"grown" * 300)
            (here.repo.tree_root / "files/goes").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(CompareJob, "parts", late)
    here.push(engine="point")
    there.pull(engine="point")

    assert there.files["files/stays"] == b"stays" * 100
    assert there.files["files/grows"] == b"grown" * 300
    assert there.files["files/goes"] == b"x" * 200  # no delete was journaled: it is only lost here


def test_sides_that_are_not_in_order_end_the_comparison_before_anything_is_planned(
    team: Team, in_windows, monkeypatch
) -> None:
    """A path that comes late would otherwise be taken for one that the tree has lost."""
    here = team.clone("here")
    here.write_all({f"files/{at}": b"%d" % at for at in range(5)})
    here.push(engine="point")
    before = here.files
    here.lay("files/0", "changed")

    def unordered(*args: Any) -> Any:
        found: list[ScannedFile] = list(scan_range(*args))
        return iter(found[1:] + found[:1])

    monkeypatch.setattr(compare_job, "scan_range", unordered)
    with pytest.raises(StateError, match="in order of path"):
        here.sync(engine="point")

    assert here.files == {**before, "files/0": b"changed"}


@example([("a", 1), ("a", 1), ("a", 1), ("aa", 2)], 3)
@given(
    st.lists(st.tuples(st.text("abc/", min_size=1, max_size=6), st.integers(1, 50)), max_size=60), st.integers(1, 20)
)
def test_ranges_hold_every_path_once_and_none_weighs_much_more_than_its_share(weights, wanted) -> None:
    ranges = divide_range(weights, wanted)

    assert len(ranges) <= wanted
    assert (ranges[0].start, ranges[-1].end) == ("", None)
    assert [one.end for one in ranges[:-1]] == [one.start for one in ranges[1:]]
    for path, _ in weights:
        assert sum(one.holds(path) for one in ranges) == 1
    total, heaviest = sum(weight for _, weight in weights), Counter[str]()
    for path, weight in weights:
        heaviest[path] += weight
    largest = max(heaviest.values(), default=0)
    for one in ranges:
        assert sum(weight for path, weight in weights if one.holds(path)) <= total / wanted + largest


def test_the_copy_of_the_state_is_of_one_moment_and_in_order(team: Team, tmp_path: Path) -> None:
    here = team.clone("here")
    here.write_all({f"files/{at}": b"%d" % at for at in range(5)})
    here.push()
    here.write("files/3", "newer")
    here.write("files/9", "new")
    here.mark_dirty("data")
    with open_context(here.repo, SyncOptions()) as context:
        state = StateCopy.make(context.database, context.remote_id, tmp_path / "copy.db")
        context.journal.close(context.journal.open("write", ["files/later"]))

        rows = list(state.rows(EVERYTHING))

    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert {row[0] for row in rows if row[1] == CACHED} >= {f"files/{at}" for at in range(5)}
    assert {row[0] for row in rows if row[1] == JOURNALED} == {"files/3", "files/9"}
    assert [mark.path for mark in state.marks] == ["data"]
    assert state.through == max(*(row[2] for row in rows if row[1] == JOURNALED), *(mark.id for mark in state.marks))
    assert [row[0] for row in state.rows(KeyRange("files/2", "files/4"))] == ["files/2", "files/3", "files/3"]
    assert not state.is_empty()
    assert not list(tmp_path.glob("copy.db-*"))  # it is read without locks, so nothing is written beside it


def test_a_copy_that_is_damaged_is_an_error_of_ours(tmp_path: Path, team: Team) -> None:
    here = team.clone("here")
    here.write("files/a", "a")
    with open_context(here.repo, SyncOptions()) as context:
        state = StateCopy.make(context.database, context.remote_id, tmp_path / "copy.db")
    (tmp_path / "copy.db").write_bytes(b"no database" * 1000)

    with pytest.raises(StateError, match="copy"):
        list(state.rows(EVERYTHING))


def test_an_unchanged_tree_yields_no_row_and_reads_no_leaf(team: Team, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(hashing.FileStat, "settled", lambda *_: True)  # as if they were not just written
    here = team.clone("here")
    here.write_all(units(10))
    here.push(engine="point")
    rows: list[Any] = []
    monkeypatch.setattr(compare_job, "find_many", lambda *args: pytest.fail("a leaf was read") if list(args[1]) else {})
    found = compare_job.ComparedPaths.add
    monkeypatch.setattr(
        compare_job.ComparedPaths,
        "add",
        lambda self, some, store: found(self, (rows.extend(some := list(some)), some)[1], store),
    )
    with open_context(here.repo, SyncOptions()) as context:
        planned = compare_job.compare(context, LocalExecutor(threads=1), context.base.tree(), tmp_path)

        assert (rows, planned.counts, list(planned.rows())) == ([], Counter(), [])
        planned.close()


def test_counts_and_bytes_are_those_of_single_paths(team: Team, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(hashing.FileStat, "settled", lambda *_: True)  # as if they were not just written
    here = team.clone("here")
    here.write_all({"files/a": b"1", "files/b": b"22", "files/c": b"333"})
    here.push(engine="point")
    here.write("files/b", "4444")
    here.delete("files/c")
    here.lay("files/mine", "mine")
    with open_context(here.repo, SyncOptions()) as context:
        planned = compare_job.compare(context, LocalExecutor(threads=1), context.base.tree(), tmp_path)
        paths = {row.observed.path: row.named for row in planned.rows()}
        planned.close()

    assert planned.counts == Counter({Action.PUSH: 1, Action.DELETE_REMOTE: 1, Action.UNTRACKED: 1})
    assert planned.bytes[Action.PUSH] == 4
    assert paths == {"files/b": True, "files/c": True, "files/mine": False}


def test_v5_a_large_file_that_cannot_be_examined_when_it_is_to_be_hashed_is_not_missing(
    team: Team, in_windows, monkeypatch
) -> None:
    monkeypatch.setattr(compare_job, "LARGE_BYTES", 100)
    here = team.clone("here")
    here.write_all({"files/shut/large": b"l" * 200, "files/small": b"s"})
    here.push(engine="point")
    here.lay("files/shut/large", b"changed" * 100)
    (here.repo.tree_root / "files/shut/large").touch()

    def blind(root: Path, under: str | None = None) -> Any:
        return iter([SkippedPath(under or "", "Permission denied", "unreadable")]) if under else scan(root)

    monkeypatch.setattr(compare_job, "scan", blind)
    planned = here.sync(engine="point", dry_run=True)

    assert planned.actions == []
    assert [(one.path, one.code) for one in planned.failed] == [("files/shut/large", "unreadable")]
    assert planned.engine == "point"


def test_v19_large_files_are_not_hashed_again_after_a_window_that_failed(team: Team, in_windows, monkeypatch) -> None:
    monkeypatch.setattr(compare_job, "LARGE_BYTES", 1 << 16)  # smaller files are not read before their upload
    monkeypatch.setattr(hashing.FileStat, "settled", lambda *_: True)  # as if they were not just written
    here = team.clone("here")
    files = {f"files/{at:02}": b"%03d" % at * 30_000 for at in range(20)}
    for path, content in files.items():
        here.lay(path, content)

    def fail(*_: Any, **__: Any) -> Any:
        raise StateError("the first window fails")

    with monkeypatch.context() as failing:
        failing.setattr(bulk_pass, "begin", fail)
        with pytest.raises(StateError):
            here.push(engine="point", adopt=True)
    reads: list[str] = []
    read = hashing.read_content
    monkeypatch.setattr(local_scanner, "read_content", lambda path, *args: (reads.append(path), read(path, *args))[1])
    report = here.push(engine="point", adopt=True)

    assert reads == []
    assert report.pushed.files == 20
