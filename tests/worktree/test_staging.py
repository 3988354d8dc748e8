"""What a pull brings: staged, durable in batches, renamed into place, and never journaled."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import PathRefused, TreeError
from bayou.worktree.atomic_write import temporary_name
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DirFdCache
from bayou.worktree.staging import StagingArea

Files = Callable[[], dict[str, bytes]]


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()  # a repo has it as soon as its database is open
    return tmp_path / "state" / "incoming"


@pytest.fixture
def incoming(root: Path, staging: Path) -> StagingArea:
    return StagingArea(root, staging)


def stage(incoming: StagingArea, content: bytes) -> Path:
    staged, file = incoming.stage()
    with file:
        file.write(content)
    return staged


def bring(incoming: StagingArea, path: str, content: bytes) -> FileStat:
    return incoming.install(stage(incoming, content), path)


def test_a_download_appears_whole_at_its_path(incoming: StagingArea, staging: Path, files: Files) -> None:
    bring(incoming, "data/t/m/n/1/raw", b"first")
    bring(incoming, "data/t/m/n/1/raw", b"second")
    bring(incoming, "outputs/x", b"third")
    assert files() == {"data/t/m/n/1/raw": b"second", "outputs/x": b"third"}
    assert os.listdir(staging) == []


def test_files_and_directories_are_made_durable_together(
    incoming: StagingArea, root: Path, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    staged = [stage(incoming, b"x") for _ in range(20)]
    assert "sync file" not in events
    incoming.sync(staged)
    assert events == ["sync file"] * 20
    del events[:]
    for number, path in enumerate(staged):
        incoming.install(path, f"data/a/{number}")
    assert events == ["rename"] * 20
    del events[:]
    incoming.sync_directories()
    assert events == ["sync directory"] * 3  # the tree and data got new directories, data/a the files
    incoming.sync_directories()
    assert events == ["sync directory"] * 3
    incoming.remove("data/a/7")
    assert [event for event in events[3:] if event != "rmdir"] == ["unlink"]
    incoming.sync_directories()
    assert events[-1] == "sync directory"


@pytest.mark.parametrize("whole", [True, False])
def test_a_large_batch_is_made_durable_by_one_call_where_there_is_one(
    incoming: StagingArea, staging: Path, events: list[str], monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    synced: list[Path] = []

    def sync_file_system(directory: Path) -> bool:
        synced.append(directory)
        return whole

    monkeypatch.setattr("bayou.worktree.staging.sync_file_system", sync_file_system)
    incoming.sync([stage(incoming, b"x") for _ in range(100)])
    assert synced == [staging]
    assert events == ([] if whole else ["sync file"] * 100)


def test_directories_that_could_not_be_synced_are_still_to_be_synced(
    incoming: StagingArea, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(incoming, "data/a", b"x")
    working = os.fsync

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(TreeError, match="cannot sync the tree: Input/output error"):
        incoming.sync_directories()
    monkeypatch.setattr(os, "fsync", working)
    del events[:]
    incoming.sync_directories()
    assert events == ["sync directory"] * 2


def test_the_stat_of_a_placed_file_is_the_one_that_a_walk_will_see(incoming: StagingArea, root: Path) -> None:
    placed = bring(incoming, "data/a", b"12345")
    assert placed == FileStat.of(os.stat(root / "data/a"))
    assert placed.size == 5


def test_a_write_in_the_moment_of_placing_shows(
    incoming: StagingArea, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replaced_and_rewritten(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        (root / "data/a").write_bytes(b"67890")
        os.utime(root / "data/a", ns=(1, 1))

    monkeypatch.setattr(os, "replace", replaced_and_rewritten)
    placed = bring(incoming, "data/a", b"12345")
    assert placed != FileStat.of(os.stat(root / "data/a"))


def test_what_is_in_the_way_is_named_and_the_download_kept(incoming: StagingArea, root: Path, files: Files) -> None:
    # F108: `data/a` together with `data/a/b`
    bring(incoming, "data/a", b"a file")
    bring(incoming, "data/d/x", b"below a directory")
    os.mkfifo(root / "data/pipe")
    for path, reason in (
        ("data/a/b", "a file stands where a directory is needed"),
        ("data/a/b/c", "a file stands where a directory is needed"),
        ("data/d", "a directory is in the way"),
        ("data/pipe", "a FIFO is in the way"),
    ):
        staged = stage(incoming, b"new")
        with pytest.raises(PathRefused, match=reason):
            incoming.install(staged, path)
        assert staged.read_bytes() == b"new"
    assert files() == {"data/a": b"a file", "data/d/x": b"below a directory"}


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "data/../../x",
        "/data/x",
        "data//x",
        "data/./x",
        "data\\x",
        "data/a\\..\\x",
        "data/a\0b",
        "data/a\nb",
        "data/" + "n" * 300,
        "data/" + "d/" * 500,
        "data/.BAYOU/x",
        "data/.Lock",
        "data/a/.bayou-1.tmp",
        "secrets/x",
        "",
    ],
)
def test_a_hostile_key_never_becomes_a_file(incoming: StagingArea, tmp_path: Path, root: Path, path: str) -> None:
    staged = stage(incoming, b"x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PathRefused):
        incoming.install(staged, path)
    with pytest.raises(PathRefused):
        incoming.remove(path)
    assert sorted(tmp_path.rglob("*")) == before
    assert not root.exists()


@pytest.mark.parametrize("code", [errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL])
def test_a_name_that_this_file_system_does_not_take_is_refused(
    incoming: StagingArea, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    bring(incoming, "data/a", b"x")
    real = os.mkdir

    def picky(name: str, *args: Any, **kwargs: Any) -> None:
        if name == "odd":
            raise OSError(code, os.strerror(code))
        real(name, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", picky)
    with pytest.raises(PathRefused, match="this file system does not take the name"):
        bring(incoming, "data/even/odd/x", b"x")
    assert os.listdir(root / "data") == ["a"]


def test_a_removed_file_takes_its_empty_directories_along(incoming: StagingArea, root: Path, files: Files) -> None:
    bring(incoming, "data/t/m/1/raw", b"x")
    bring(incoming, "data/t/n", b"x")
    incoming.remove("data/t/m/1/raw")
    incoming.remove("data/t/m/1/raw")
    incoming.remove("data/never/there")
    assert files() == {"data/t/n": b"x"}
    assert os.listdir(root / "data/t") == ["n"]
    incoming.remove("data/t/n")
    assert os.listdir(root / "data") == []


def test_a_directory_that_somebody_removes_in_between_is_made_again(
    incoming: StagingArea, root: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F039: the directory is known to be there, and is not
    bring(incoming, "data/a/b/one", b"1")
    shutil.rmtree(root / "data/a")
    bring(incoming, "data/a/b/two", b"2")
    assert files() == {"data/a/b/two": b"2"}
    # and it goes in the very moment of the rename
    real = os.replace

    def late(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(os, "replace", real)
        shutil.rmtree(root / "data")
        real(*args, **kwargs)

    monkeypatch.setattr(os, "replace", late)
    bring(incoming, "data/a/c/three", b"3")
    assert files() == {"data/a/c/three": b"3"}


def test_a_directory_that_keeps_vanishing_is_an_error_not_an_endless_loop(
    incoming: StagingArea, broken: Callable[..., None]
) -> None:
    broken("replace", errno.ENOENT)
    with pytest.raises(TreeError, match="keeps vanishing"):
        bring(incoming, "data/a", b"x")


def test_a_full_disk_is_explained_wherever_it_is_met(incoming: StagingArea, broken: Callable[..., None]) -> None:
    staged, file = incoming.stage()
    broken("write")
    with pytest.raises(TreeError, match="cannot store a download: No space left") as caught:
        file.write(b"x" * 1_000_000)
    assert caught.value.hint == "free some space, and try again"
    with contextlib.suppress(TreeError):
        file.close()
    broken("fsync")
    with pytest.raises(TreeError, match="cannot sync downloads: No space left"):
        incoming.sync([staged])
    broken("mkdir")
    with pytest.raises(TreeError, match="No space left"):
        incoming.install(staged, "data/a")


def test_staging_on_another_file_system_is_explained(incoming: StagingArea, broken: Callable[..., None]) -> None:
    broken("replace", errno.EXDEV)
    with pytest.raises(TreeError, match="cannot write data/a") as caught:
        bring(incoming, "data/a", b"x")
    assert caught.value.hint == "keep the tree and .bayou on one file system"


def test_leftovers_of_earlier_runs_are_cleared_and_nothing_else(incoming: StagingArea, staging: Path) -> None:
    incoming.clear()
    stage(incoming, b"left over")
    stage(incoming, b"left over")
    (staging / "somebody-elses").write_bytes(b"x")
    (staging / "a-directory").mkdir()
    task = staging / temporary_name()
    task.mkdir()
    (task / temporary_name()).write_bytes(b"of a task that was killed")
    incoming.clear()
    assert sorted(os.listdir(staging)) == ["a-directory", "somebody-elses"]


def test_no_descriptor_is_left_open_after_a_batch(incoming: StagingArea) -> None:
    def descriptors() -> int:
        probe = os.open("/", os.O_RDONLY)
        os.close(probe)
        return probe

    before = descriptors()
    for number in range(30):
        bring(incoming, f"data/{number}/{number}/x", b"x")
    with pytest.raises(PathRefused):
        bring(incoming, "data/1/1/x/y", b"x")
    incoming.sync_directories()
    assert descriptors() == before


def test_a_pull_in_order_opens_each_directory_once(incoming: StagingArea, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = [stage(incoming, b"x") for _ in range(100)]
    incoming.install(staged.pop(), "data/t/m/n/0/first")
    opened = 0
    real = os.open

    def counted(*args: Any, **kwargs: Any) -> int:
        nonlocal opened
        descriptor = real(*args, **kwargs)
        opened += stat.S_ISDIR(os.fstat(descriptor).st_mode)
        return descriptor

    monkeypatch.setattr(os, "open", counted)
    for number, path in enumerate(staged):
        incoming.install(path, f"data/t/m/n/0/{number}")
    assert opened == 0


def test_a_trail_keeps_what_two_paths_share(root: Path) -> None:
    root.mkdir()
    trail = DirFdCache(root)
    made: set[str] = set()
    trail.locate("data/a/b/x", made)
    assert made == {"", "data", "data/a"}
    made.clear()
    trail.locate("data/a/c/x", made)
    assert made == {"data/a"}
    made.clear()
    trail.locate("outputs/x", made)
    assert made == {""}
    with pytest.raises(FileNotFoundError):
        trail.locate("logs/x")
    trail.close()
    trail.close()


def test_what_somebody_puts_into_a_directory_that_a_pull_has_made_is_not_followed_nor_replaced(
    incoming: StagingArea, root: Path, tmp_path: Path, files: Files
) -> None:
    bring(incoming, "data/m/a/raw", b"first")
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "data/m/b").symlink_to(outside)
    (root / "data/m/c").mkdir()
    (root / "data/m/c/raw").symlink_to(outside / "raw")
    (root / "data/m/d/raw").mkdir(parents=True)
    (root / "data/m/e").write_bytes(b"theirs")
    for refused in ("data/m/b/raw", "data/m/c/raw", "data/m/d/raw", "data/m/e/raw"):
        with pytest.raises(PathRefused):
            bring(incoming, refused, b"second")
    bring(incoming, "data/m/c/other", b"third")
    assert os.listdir(outside) == []
    assert (root / "data/m/c/raw").is_symlink()
    assert (root / "data/m/d/raw").is_dir()
    assert files() == {"data/m/a/raw": b"first", "data/m/c/other": b"third", "data/m/e": b"theirs"}


def test_a_directory_that_stands_at_a_name_at_the_last_moment_is_refused(
    incoming: StagingArea, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def late(source: Any, target: Any, **where: Any) -> None:
        (root / "data/m/n/raw").mkdir()
        replace(source, target, **where)

    staged = stage(incoming, b"first")
    monkeypatch.setattr(os, "replace", late)
    with pytest.raises(PathRefused, match="a directory is in the way"):
        incoming.install(staged, "data/m/n/raw")
    assert staged.read_bytes() == b"first"


def test_in_new_directories_nothing_is_looked_for(incoming: StagingArea, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(incoming, "data/m/a/1/raw", b"first")
    missed: list[str] = []

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def once(*args: Any, **options: Any) -> Any:
            try:
                return call(*args, **options)
            except FileNotFoundError:
                missed.append(str(args[0]))
                raise

        return once

    monkeypatch.setattr(os, "open", counted(os.open))
    monkeypatch.setattr(os, "stat", counted(os.stat))
    bring(incoming, "data/m/b/1/raw", b"second")
    assert missed == []
