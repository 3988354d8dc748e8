"""Version directories are units: they move, conflict and are deleted whole, and nothing is torn."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import AccessDenied, ConflictRefused
from bayou.sync import run
from bayou.sync.plan.local_scanner import FileScan
from bayou.sync.report import SyncReport
from bayou.sync.transfer import apply, executor
from bayou.worktree.atomic_write import temporary_name
from bayou.worktree.staging import StagingArea
from bayou_testing.faulty import Crash, Fault
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import entries_of
from tests.sync.turns import meanwhile

V = "data/t/m/n/1"
RAW, META, NOTE = f"{V}/raw", f"{V}/metadata.yaml", f"{V}/note"
BASE = {RAW: b"raw", META: b"meta"}


@pytest.fixture
def pair(team: Team) -> tuple[Clone, Clone]:
    """Two clones in step, with one version of one item, and a file that is in no version."""
    a, b = team.clone("a"), team.clone("b")
    a.write_all({**BASE, "files/x": b"x"})
    a.sync()
    b.sync()
    return a, b


def version(clone: Clone) -> dict[str, bytes]:
    return {path: content for path, content in clone.files.items() if path.startswith(f"{V}/")}


def kept(report: SyncReport) -> dict[str, str]:
    return {one.path: Path(one.copy or "").read_text() for one in report.conflicts}


def test_both_sides_changed_different_files_and_the_whole_version_is_in_conflict(pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    b.write(META, "meta of b")
    b.sync()
    a.write(RAW, "raw of a")
    report = a.sync()
    # What was ours is kept whole, the file that only they have changed included.
    assert (kept(report), report.exit_code) == ({RAW: "raw of a", META: "meta"}, 3)
    assert version(a) == {RAW: b"raw", META: b"meta of b"}
    assert b.sync().engine == "fast"
    assert a.sync().engine == "fast"


def test_a_file_that_only_we_added_goes_aside_with_the_rest_of_our_version(pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    b.write(RAW, "raw of b")
    b.sync()
    a.write_all({RAW: b"raw of a", NOTE: b"note of a"})
    a.write("files/x", "changed too")
    report = a.sync()
    assert kept(report) == {RAW: "raw of a", NOTE: "note of a"}
    assert version(a) == {RAW: b"raw of b", META: b"meta"}
    assert report.pushed.files == 1


@pytest.mark.parametrize("name", [temporary_name(), "back\\slash"], ids=["of a killed writer", "with a refused name"])
def test_a_file_that_is_no_payload_does_not_hold_up_a_conflict_of_its_version(
    pair: tuple[Clone, Clone], name: str
) -> None:
    a, b = pair
    b.write(RAW, "raw of b")
    b.sync()
    a.write(RAW, "raw of a")
    a.lay(f"{V}/{name}", "half of a file")
    report = a.sync()
    assert (kept(report), report.warnings) == ({RAW: "raw of a"}, [])
    assert version(a) == {RAW: b"raw of b", META: b"meta", f"{V}/{name}": b"half of a file"}
    assert a.sync().engine == "fast"


def test_two_that_make_the_same_number_do_not_mix_their_files(team: Team, pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    second = "data/t/m/n/2"
    b.write_all({f"{second}/raw": b"of b", f"{second}/metadata.yaml": b"of b"})
    b.sync()
    a.write_all({f"{second}/raw": b"of a", f"{second}/metadata.yaml": b"of a", f"{second}/more": b"of a"})
    report = a.sync()
    assert kept(report) == {f"{second}/{name}": "of a" for name in ("raw", "metadata.yaml", "more")}
    c = team.clone("c")
    c.sync()
    assert c.files == a.files
    assert {path for path in c.files if path.startswith(second)} == {f"{second}/raw", f"{second}/metadata.yaml"}


@pytest.mark.parametrize("ours", ["a change", "a new file"])
def test_a_version_that_was_deleted_there_and_changed_here_is_pushed_back_whole(
    team: Team, pair: tuple[Clone, Clone], ours: str
) -> None:
    a, b = pair
    b.delete(RAW, META)
    b.sync()
    a.write(META if ours == "a change" else NOTE, "of a")
    report = a.sync()
    assert (report.conflicts, bool(report.warnings)) == ([], True)
    expected = {**BASE, META if ours == "a change" else NOTE: b"of a"}
    assert version(a) == expected
    b.sync()
    assert version(b) == expected


@pytest.mark.parametrize("theirs", ["a change", "a new file"])
def test_a_version_that_was_deleted_here_and_changed_there_is_kept_whole(
    pair: tuple[Clone, Clone], theirs: str
) -> None:
    a, b = pair
    b.write(META if theirs == "a change" else NOTE, "of b")
    b.sync()
    a.delete(RAW, META)
    report = a.sync()
    assert (report.conflicts, report.pushed.deleted, bool(report.warnings)) == ([], 0, True)
    assert version(a) == version(b) == {**BASE, META if theirs == "a change" else NOTE: b"of b"}
    assert b.sync().engine == "fast"


def test_a_part_that_was_deleted_here_and_another_that_was_changed_there_are_a_conflict(
    pair: tuple[Clone, Clone],
) -> None:
    a, b = pair
    b.write(META, "of b")
    b.sync()
    a.delete(RAW)
    report = a.sync()
    assert report.pushed.deleted == 0
    assert version(a) == version(b) == {RAW: b"raw", META: b"of b"}


def test_a_part_that_was_deleted_there_and_another_that_was_changed_here_are_a_conflict(
    team: Team, pair: tuple[Clone, Clone]
) -> None:
    a, b = pair
    b.delete(META)
    b.sync()
    a.write(RAW, "raw of a")
    report = a.sync()
    assert kept(report) == {RAW: "raw of a", META: "meta"}
    assert version(a) == {RAW: b"raw"}
    assert entries_of(team.store()).keys() == {RAW, "files/x"}


def test_a_file_lost_by_hand_beside_a_change_of_ours_is_no_conflict(team: Team, pair: tuple[Clone, Clone]) -> None:
    a, _ = pair
    (a.repo.tree_root / RAW).unlink()
    a.write(META, "of a")
    report = a.sync()
    assert (report.conflicts, report.pushed.files, report.pulled.files) == ([], 1, 1)
    assert version(a) == {RAW: b"raw", META: b"of a"}


def test_equal_changes_on_both_sides_settle_by_themselves(pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    for clone in pair:
        clone.write_all({RAW: b"new", META: b"new"})
    b.sync()
    report = a.sync()
    assert (report.conflicts, report.pushed.files, report.exit_code) == ([], 0, 0)


@pytest.mark.usefixtures("loose_objects")
def test_a_version_of_which_one_file_cannot_be_uploaded_is_not_pushed_at_all(
    team: Team, wire: Wire, pair: tuple[Clone, Clone]
) -> None:
    a, _ = pair
    a.write_all({f"data/t/m/n/2/{name}": b"new" for name in ("raw", "metadata.yaml")})
    a.write("files/x", "new")
    wire.cut(Fault("put", "/metadata.yaml$", error=lambda: AccessDenied("403")))
    report = a.push()
    assert ([one.path for one in report.failed], report.pushed.files) == (["data/t/m/n/2/metadata.yaml"], 1)
    assert entries_of(team.store()).keys() == {RAW, META, "files/x"}
    assert a.status().journal_paths == 2
    wire.cut()
    wire.seen.clear()
    assert a.push().pushed.files == 2
    assert len(wire.sent("put", "/~")) == 1  # what was uploaded before is not uploaded again


@pytest.mark.parametrize("choice", ["ours", "theirs"])
def test_a_conflict_is_decided_for_a_whole_version(team: Team, pair: tuple[Clone, Clone], choice: str) -> None:
    a, b = pair
    b.write_all({META: b"meta of b", f"{V}/more": b"of b"})
    b.sync()
    a.write(RAW, "raw of a")
    report = a.sync(on_conflict=choice)
    assert {one.copy for one in report.conflicts} == {None}
    b.sync()
    ours, theirs = {RAW: b"raw of a", META: b"meta"}, {RAW: b"raw", META: b"meta of b", f"{V}/more": b"of b"}
    assert version(a) == version(b) == (ours if choice == "ours" else theirs)


def test_choosing_ours_deletes_nothing_that_was_merely_lost(team: Team, pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    b.write(META, "meta of b")
    b.sync()
    a.write(META, "meta of a")
    (a.repo.tree_root / RAW).unlink()
    a.sync(on_conflict="ours")
    b.sync()
    assert version(a) == version(b) == {RAW: b"raw", META: b"meta of a"}


def test_a_file_that_merely_lies_in_a_contested_version_stays_untracked(pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    b.write(META, "meta of b")
    b.sync()
    a.lay(NOTE, "by hand")
    a.write(RAW, "raw of a")
    report = a.sync()
    assert (report.untracked, set(kept(report))) == ([NOTE], {RAW, META})
    assert version(a) == {RAW: b"raw", META: b"meta of b", NOTE: b"by hand"}


def test_a_version_of_unknown_origin_goes_aside_with_its_untracked_files(
    pair: tuple[Clone, Clone], monkeypatch
) -> None:
    """Found by the simulation (seed 619957013583): a program marked everything while that happened, and what had been
    left behind of our version was pushed into theirs."""
    a, b = pair
    b.write_all({RAW: b"raw of b", META: b"meta of b"})
    b.sync()
    a.write_all({RAW: b"raw of a", META: b"meta of a", NOTE: b"note of a"})
    a.lose_state()
    begin, marks = apply.begin, iter([None])

    def marked(*args: Any, **kwargs: Any) -> Any:
        for everything in marks:
            a.mark_dirty(everything)
        return begin(*args, **kwargs)

    monkeypatch.setattr(apply, "begin", marked)
    report = a.sync()
    a.sync()

    assert kept(report) == {RAW: "raw of a", META: "meta of a", NOTE: "note of a"}
    assert version(a) == {RAW: b"raw of b", META: b"meta of b"}
    b.sync()
    assert version(b) == version(a)


@pytest.mark.parametrize("theirs", ["changed", "deleted"])
def test_a_version_whose_content_is_not_here_is_never_pushed_without_it(team: Team, theirs: str) -> None:
    a, b = team.clone("a", hydrate="lazy"), team.clone("b")
    b.write_all(BASE)
    b.sync()
    a.sync()
    a.write(META, "meta of a")
    b.write(META, "meta of b") if theirs == "changed" else b.delete(RAW, META)
    b.sync()
    report = a.sync()
    assert kept(report) == {META: "meta of a"}
    assert version(a) == ({META: b"meta of b"} if theirs == "changed" else {})
    assert (a.status().in_sync, b.sync().engine) == (True, "fast")


def test_a_conflict_can_be_refused(team: Team, pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    b.write(META, "meta of b")
    b.sync()
    a.write(RAW, "raw of a")
    with pytest.raises(ConflictRefused):
        a.sync(on_conflict="fail")
    assert version(a) == {**BASE, RAW: b"raw of a"}
    assert a.status().journal_paths == 1


def test_a_push_that_keeps_what_we_deleted_brings_back_the_whole_version(pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    b.write_all({RAW: b"raw of b", META: b"meta of b", NOTE: b"note of b"})
    b.sync()
    a.delete(RAW, META)

    a.push()

    assert version(a) == {RAW: b"raw of b", META: b"meta of b", NOTE: b"note of b"}


@pytest.mark.usefixtures("both_ways")
def test_a_file_does_not_arrive_in_a_version_that_a_program_is_writing_anew(
    pair: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    b.write(NOTE, "note of b")
    b.sync()
    # Both are as base has them when the pull looks.
    meanwhile(monkeypatch, executor, "fetch_all", lambda: a.write_all({RAW: b"raw of a", META: b"meta of a"}))
    report = a.sync()

    assert kept(report) == {RAW: "raw of a", META: "meta of a"}
    assert version(a) == {RAW: b"raw", META: b"meta", NOTE: b"note of b"}


@pytest.mark.usefixtures("both_ways")
def test_an_earlier_upload_is_not_put_beside_a_file_that_was_written_since(
    team: Team, wire: Wire, pair: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation (seed 1043773718657): nobody reads a file again whose upload is done."""
    a, b = pair
    b.delete(RAW)
    b.delete(META)
    b.sync()
    a.write_all({RAW: b"older", META: b"older"})
    wire.cut(Fault("put", r"\.bayou/nodes/", error=lambda: AccessDenied("403")))
    with pytest.raises(AccessDenied):
        a.push()  # both are uploaded, and not committed
    wire.cut()
    newer = {RAW: b"newer", META: b"newer", NOTE: b"newer"}
    read_remote, programs = run.read_remote, [a.write_all]

    def see_later(*args: Any, **kwargs: Any) -> Any:
        while programs:
            programs.pop()(newer)  # after the look at what the journal named, before that at the rest of the version
        return read_remote(*args, **kwargs)

    monkeypatch.setattr(run, "read_remote", see_later)
    monkeypatch.setattr(run, "PASSES", 1)
    a.sync(adopt=True)
    assert entries_of(team.store()).keys() == {"files/x"}
    a.sync(adopt=True)
    b.sync()
    assert version(b) == newer


@pytest.mark.parametrize("before", ["written", "deleted", "unchanged"])
def test_a_version_that_is_written_between_two_looks_waits_for_the_next(
    team: Team, pair: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Found by the simulation (seeds 93944541825, 1298617991981): one file was seen before, the other after."""
    a, b = pair
    if before == "written":
        a.write_all({RAW: b"older", META: b"older"})
    elif before == "deleted":
        a.delete(RAW)
        a.delete(META)
    else:
        for path in BASE:  # looked at, since its stat is another, and found to be as it was
            (a.repo.tree_root / path).touch()
    there = entries_of(team.store())
    newer = {RAW: b"newer", META: b"newer"}
    look, programs = FileScan.at, [a.write_all]

    def look_slowly(self: FileScan, path: str, *args: Any, **kwargs: Any) -> Any:
        seen = look(self, path, *args, **kwargs)
        while programs and path in newer:
            programs.pop()(newer)
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(FileScan, "at", look_slowly)
        patch.setattr(run, "PASSES", 1)
        a.sync()
    assert not programs
    assert entries_of(team.store()) == there
    a.sync()
    b.sync()
    assert version(b) == newer


def test_a_pull_of_new_versions_renames_one_directory_and_looks_for_no_file(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = team.clone("a"), team.clone("b")
    names = [f"data/t/m/n{number}/1/{name}" for number in range(100) for name in ("raw", "x")]
    a.write_all({name: name.encode() for name in names})
    a.push()
    monkeypatch.setattr(executor, "BATCH_S", 1e9)  # one batch, on a machine of any speed
    tree = f"{b.repo.tree_root}/"
    renamed: list[str] = []
    looked: set[str] = set()

    def noted(name: str, note: Callable[..., object]) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            note(str(args[0]), **options)
            return real(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for name in ("rename", "replace"):
            patched.setattr(os, name, noted(name, lambda path, **to: "dst_dir_fd" in to and renamed.append(path)))
        for name in ("lstat", "stat"):
            patched.setattr(os, name, noted(name, lambda path, **_: looked.add(path.removeprefix(tree))))
        report = b.pull()
    assert (len(renamed), report.pulled.files) == (1, 200)
    assert b.files == a.files
    assert looked & b.files.keys() == set()
    assert list((b.repo.state / "incoming").iterdir()) == []
    assert b.sync(walk=True).engine == "fast"


def test_t9_versions_that_a_dead_pull_has_put_in_place_are_known(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write_all(BASE)
    a.push()
    real = StagingArea.install_directories

    def killed(self: StagingArea, wanted: Any) -> Any:
        assert real(self, wanted).keys() == BASE.keys()
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(StagingArea, "install_directories", killed)
        with pytest.raises(Crash):
            b.pull()
    assert b.files == BASE
    a.delete(*BASE)
    a.push()
    report = b.sync()
    assert (report.pushed.files, report.pulled.deleted, report.untracked) == (0, 2, [])
    assert b.files == {}
