"""Looking into the tree: regular files only, and only here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bayou.core.errors import PathRefused, TreeError
from bayou.worktree.hashing import FileStat
from bayou.worktree.tree import Worktree
from tests.worktree.commoner import Commoner
from tests.worktree.journals import RecordingJournal


def test_a_missing_file_is_simply_not_there(tree: Worktree) -> None:
    assert tree.stat("data/a/b") is None
    assert not tree.exists("data/a/b")
    with pytest.raises(FileNotFoundError):
        tree.open("data/a/b")
    tree.write("data/a", b"x")
    assert tree.stat("data/a/b") is None
    with pytest.raises(FileNotFoundError):
        tree.open("data/a/b")


def test_the_stat_of_a_file_is_what_the_system_says(tree: Worktree, root: Path) -> None:
    tree.write("data/a/b", b"12345")
    status = os.stat(root / "data/a/b")
    assert tree.stat("data/a/b") == FileStat(5, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def test_a_directory_is_no_file(tree: Worktree) -> None:
    tree.write("data/a/b", b"x")
    assert tree.stat("data/a") is None
    with pytest.raises(PathRefused, match="a directory is in the way"):
        tree.open("data/a")


def test_a_fifo_is_refused_and_nobody_waits_for_its_writer(tree: Worktree, root: Path) -> None:
    tree.write("data/a", b"x")
    os.mkfifo(root / "data/pipe")
    assert tree.stat("data/pipe") is None
    for use in (tree.open, tree.delete, lambda path: tree.write(path, b"x"), lambda path: tree.append(path, b"x")):
        with pytest.raises(PathRefused, match="a FIFO is in the way"):
            use("data/pipe")


def test_the_place_of_a_path_is_below_the_root(tree: Worktree, root: Path) -> None:
    assert tree.local_path("data/a/b") == root / "data/a/b"
    tree.write("data/a/b", b"x")
    assert tree.local_path("data/a/b").read_bytes() == b"x"
    assert tree.local_path("data/a") == root / "data/a"


def test_reading_changes_nothing(tree: Worktree, root: Path, journal: RecordingJournal) -> None:
    tree.exists("data/a")
    tree.local_path("data/a")
    assert not root.exists()
    assert journal.rows == []


def test_a_file_that_may_not_be_read_is_an_error_with_a_hint(commoner: Commoner, journal: RecordingJournal) -> None:
    place = commoner.home
    tree = Worktree(place / "tree", journal)
    with commoner.acting():
        tree.write("data/a/b", b"x")
        (place / "tree/data/a/b").chmod(0)
        with pytest.raises(TreeError, match="cannot read data/a/b: Permission denied"):
            tree.open("data/a/b")
        (place / "tree/data/a").chmod(0)
        with pytest.raises(TreeError, match="cannot look at data/a/b: Permission denied"):
            tree.exists("data/a/b")


def test_no_descriptor_is_left_open(tree: Worktree, broken: Callable[..., None]) -> None:
    def descriptors() -> int:
        probe = os.open("/", os.O_RDONLY)
        os.close(probe)
        return probe

    tree.write("data/a/b", b"x")
    before = descriptors()
    tree.append("data/a/b", b"y")
    tree.write_many([(f"data/{number}/x", b"x") for number in range(100)])
    tree.open("data/a/b").close()
    for refused in ("data/a", "data/a/b/c"):
        with pytest.raises(PathRefused):
            tree.write(refused, b"x")
    broken("write")
    with pytest.raises(TreeError):
        tree.write("data/a/b", b"z")
    tree.delete("data/a/b")
    assert descriptors() == before
