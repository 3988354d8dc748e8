"""New directories of a pull: staged with their files, and installed with one rename; what is in the way stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import PathRefused
from bayou.worktree.hashing import FileStat
from bayou.worktree.new_directories import MissingDirectories, NewDirectories
from bayou.worktree.staging import StagingArea
from tests.worktree.test_staging import Files

VERSIONS = {f"data/t/m/n{number:02}/1/{name}": b"%d" % number for number in range(50) for name in ("metadata", "raw")}


@pytest.fixture
def staging(root: Path, tmp_path: Path) -> Path:
    root.mkdir(mode=0o700)
    return tmp_path / "incoming"


@pytest.fixture
def incoming(root: Path, staging: Path) -> StagingArea:
    return StagingArea(root, staging, whole=True)


def stage(incoming: StagingArea, files: dict[str, bytes]) -> dict[str, Path]:
    """Stage files together, as those of one range of a pack."""
    place = incoming.new_directories()
    assert place is not None
    staged = {path: place.stage(path, content) for path, content in files.items()}
    return {path: file for path, file in staged.items() if file is not None}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often some functions of `os` were called."""
    counts: dict[str, int] = {}

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return real(*args, **options)

        return call

    for name in ("rename", "replace", "mkdir", "open", "stat", "lstat"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return counts


def test_any_number_of_files_takes_one_rename(
    incoming: StagingArea, staging: Path, files: Files, calls: dict[str, int]
) -> None:
    staged = stage(incoming, VERSIONS)
    # The staging directory and a place in it; data, t and m; two for each version.
    assert (calls["open"], calls["mkdir"]) == (len(VERSIONS), 2 + 3 + 2 * 50)
    assert calls["stat"] == 5, "one look at each directory above the first file answers for all"
    calls.clear()
    incoming.sync(staged.values())
    placed = incoming.install_directories(sorted(VERSIONS))
    assert placed.keys() == VERSIONS.keys()
    assert (calls["rename"], calls.get("replace", 0)) == (1, 0)
    incoming.remove_directories()
    incoming.sync_directories()
    assert files() == VERSIONS
    assert os.listdir(staging) == []


def test_the_stat_of_a_file_is_the_one_that_a_walk_will_see_and_its_directories_are_closed(
    incoming: StagingArea, root: Path
) -> None:
    stage(incoming, VERSIONS)
    for path, (stat, renamed_ns) in incoming.install_directories(sorted(VERSIONS)).items():
        assert stat == FileStat.of(os.lstat(root / path))
        assert renamed_ns >= max(stat.mtime_ns, stat.ctime_ns)
    modes = {directory.stat().st_mode & 0o777 for directory in (root / "data").rglob("*") if directory.is_dir()}
    assert modes == {0o700}


def test_all_new_directories_become_durable(incoming: StagingArea, events: list[str]) -> None:
    stage(incoming, {"data/t/m/n/1/raw": b"x", "data/t/m/n/2/raw": b"y"})
    incoming.install_directories(["data/t/m/n/1/raw", "data/t/m/n/2/raw"])
    incoming.sync_directories()
    # The root, data, t, m, n and the two versions.
    assert events == ["sync directory"] * 7


def test_a_directory_comes_whole_or_its_files_one_by_one(incoming: StagingArea, files: Files) -> None:
    staged = stage(incoming, VERSIONS)
    held = "data/t/m/n07/1/raw"
    wanted = sorted(VERSIONS.keys() - {held})
    placed = incoming.install_directories(wanted)
    assert wanted == sorted([*placed, "data/t/m/n07/1/metadata"])
    incoming.install(staged["data/t/m/n07/1/metadata"], "data/t/m/n07/1/metadata")
    assert files() == {path: content for path, content in VERSIONS.items() if path != held}
    assert staged[held].read_bytes() == VERSIONS[held]


def test_a_directory_that_is_there_by_now_keeps_what_it_has(incoming: StagingArea, root: Path, files: Files) -> None:
    staged = stage(incoming, VERSIONS)
    other = root / "data/t/m/n07/1/other"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of another program")
    placed = incoming.install_directories(sorted(VERSIONS))
    rest = VERSIONS.keys() - placed.keys()
    assert rest == {"data/t/m/n07/1/metadata", "data/t/m/n07/1/raw"}
    for path in rest:
        incoming.install(staged[path], path)
    assert files() == {**VERSIONS, "data/t/m/n07/1/other": b"of another program"}


def test_a_directory_that_appears_at_the_last_moment_is_not_replaced(
    incoming: StagingArea, root: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(incoming, {"data/m/raw": b"x"})
    real = os.rename

    def late(*args: Any, **options: Any) -> None:
        (root / "data/m").mkdir()
        (root / "data/m/other").write_bytes(b"of another program")
        real(*args, **options)

    monkeypatch.setattr(os, "rename", late)
    assert incoming.install_directories(["data/m/raw"]) == {}
    incoming.install(staged["data/m/raw"], "data/m/raw")
    assert files() == {"data/m/raw": b"x", "data/m/other": b"of another program"}


@pytest.mark.parametrize("where", ["data", "data/t", "data/t/m"])
def test_v21_nothing_gets_its_place_through_a_link(
    incoming: StagingArea, root: Path, tmp_path: Path, where: str
) -> None:
    staged = stage(incoming, {"data/t/m/n/1/raw": b"x"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / where).parent.mkdir(parents=True, exist_ok=True)
    (root / where).symlink_to(outside)
    assert incoming.install_directories(["data/t/m/n/1/raw"]) == {}
    with pytest.raises(PathRefused, match="symbolic link"):
        incoming.install(staged["data/t/m/n/1/raw"], "data/t/m/n/1/raw")
    assert os.listdir(outside) == []


def test_v21_a_hostile_path_is_never_staged(incoming: StagingArea, staging: Path) -> None:
    for path in ("data/../../x", "/etc/x", "../x", "data//x", "other/x"):
        with pytest.raises(PathRefused):
            stage(incoming, {path: b"x"})
    assert not staging.exists()


def test_where_case_does_not_count_files_go_one_by_one(
    incoming: StagingArea, root: Path, folding: None, files: Files
) -> None:
    (root / "data").mkdir()
    staged = stage(incoming, {"data/m/n/raw": b"x"})
    assert incoming.install_directories(["data/m/n/raw"]) == {}
    incoming.install(staged["data/m/n/raw"], "data/m/n/raw")
    assert files() == {"data/m/n/raw": b"x"}


def test_a_tree_that_others_can_enter_gets_no_directory_that_was_made_elsewhere(root: Path, tmp_path: Path) -> None:
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    assert StagingArea(root, tmp_path / "incoming", whole=True).new_directories() is None


def test_a_disk_that_is_full_leaves_nothing_half_written(
    incoming: StagingArea, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = NewDirectories(tmp_path / "incoming/place", root)
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) - 1)
    assert place.stage("data/m/raw", b"xyz") is None
    place.remove()
    assert os.listdir(tmp_path / "incoming") == []
    assert incoming.install_directories(["data/m/raw"]) == {}


def test_what_a_failed_pull_has_staged_is_removed_with_its_directories(incoming: StagingArea, staging: Path) -> None:
    stage(incoming, VERSIONS)
    incoming.discard()
    assert os.listdir(staging) == []


def test_one_look_answers_for_everything_below_a_missing_directory(tmp_path: Path, calls: dict[str, int]) -> None:
    (tmp_path / "data/t/here").mkdir(parents=True)
    (tmp_path / "data/t/here/raw").write_bytes(b"x")
    missing = MissingDirectories(tmp_path)
    assert [path for path in sorted(VERSIONS) if not missing.hold(path)] == []
    assert calls["stat"] == 4  # n00/1, n00 and m are missing, t is there: then no other
    assert not missing.hold("data/t/here/raw")
    assert not missing.hold("data/t/here/none"), "the directory is there: the file must be looked for"
    assert not missing.hold("data/t/here/raw/below"), "a file is no missing directory"
