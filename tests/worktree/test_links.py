"""No link ever leads out of the tree, whoever put it where and when (V21)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayou.core.errors import PathRefused
from bayou.worktree.hashing import read_content
from bayou.worktree.scan import ScannedFile, SkippedPath, scan
from bayou.worktree.staging import StagingArea
from bayou.worktree.tree import Worktree
from tests.worktree.journals import RecordingJournal


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that nobody may touch, with one file that nobody may see."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret").write_bytes(b"secret")
    return place


@pytest.fixture
def incoming(root: Path, tmp_path: Path) -> StagingArea:
    return StagingArea(root, tmp_path / "staging")


@pytest.fixture(autouse=True)
def untouched(outside: Path) -> Iterator[None]:
    before = {path: path.read_bytes() for path in outside.iterdir()}
    yield
    assert {path: path.read_bytes() for path in outside.iterdir()} == before


def uses(tree: Worktree, incoming: StagingArea, path: str) -> list[Callable[[], object]]:
    """Every way to touch one path."""

    def place() -> None:
        staged, file = incoming.stage()
        with file:
            file.write(b"new")
        try:
            incoming.install(staged, path)
        finally:
            assert staged.read_bytes() == b"new"

    def write_in_a_block() -> None:
        with tree.writing(path) as file:
            file.write(b"new")

    return [
        lambda: tree.write(path, b"new"),
        lambda: tree.write_many([(path, b"new")]),
        write_in_a_block,
        lambda: tree.append(path, b"new"),
        lambda: tree.delete(path),
        lambda: tree.open(path),
        lambda: tree.local_path(path),
        lambda: incoming.remove(path),
        place,
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_directory_that_is_a_link_is_not_entered(
    tree: Worktree, incoming: StagingArea, root: Path, outside: Path, journal: RecordingJournal, depth: int
) -> None:
    link = root / ["data", "data/a", "data/a/b"][depth]
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    path = "data/a/b/secret" if depth else "data/secret"
    for use in uses(tree, incoming, path if depth == 2 else f"{link.relative_to(root)}/secret"):
        with pytest.raises(PathRefused, match="is a symbolic link"):
            use()
    with pytest.raises(PathRefused):
        tree.stat(f"{link.relative_to(root)}/secret")
    assert journal.rows == []
    assert os.readlink(link) == str(outside)


@pytest.mark.parametrize("target", ["secret", "nothing"])
def test_a_file_that_is_a_link_is_neither_followed_nor_replaced(
    tree: Worktree, incoming: StagingArea, root: Path, outside: Path, journal: RecordingJournal, target: str
) -> None:
    link = root / "data/a"
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / target)
    for use in uses(tree, incoming, "data/a"):
        with pytest.raises(PathRefused, match="symbolic link"):
            use()
    assert tree.stat("data/a") is None
    assert not tree.exists("data/a")
    with pytest.raises(PathRefused, match="symbolic link"):
        read_content(root / "data/a")
    assert journal.rows == []
    assert os.readlink(link) == str(outside / target)


def test_a_tree_that_is_a_link_is_refused(tmp_path: Path, outside: Path, journal: RecordingJournal) -> None:
    link = tmp_path / "link"
    link.symlink_to(outside)
    for use in uses(Worktree(link, journal), StagingArea(link, tmp_path / "staging"), "data/a"):
        with pytest.raises(PathRefused, match="is a symbolic link"):
            use()
    with pytest.raises(PathRefused, match="is a symbolic link"):
        list(scan(link))
    with pytest.raises(PathRefused, match="is a symbolic link"):
        list(scan(link, "data"))
    assert journal.rows == []


def test_a_link_to_a_place_inside_the_tree_is_a_link_too(tree: Worktree, root: Path) -> None:
    tree.write("data/real/x", b"x")
    (root / "data/alias").symlink_to("real")
    with pytest.raises(PathRefused, match="is a symbolic link"):
        tree.write("data/alias/x", b"y")


def test_a_directory_that_becomes_a_link_while_a_file_is_written_gets_nothing(
    tree: Worktree, root: Path, outside: Path, journal: RecordingJournal
) -> None:
    tree.write("data/a/b/x", b"x")

    def write() -> None:
        with tree.writing("data/a/b/y") as file:
            file.write(b"new")
            os.rename(root / "data/a", root / "moved")
            (root / "data/a").symlink_to(outside)

    with pytest.raises(PathRefused, match="is a symbolic link"):
        write()
    assert journal.open_rows == set()


def test_a_directory_that_becomes_a_link_between_two_files_of_a_pull_gets_nothing(
    incoming: StagingArea, root: Path, outside: Path
) -> None:
    def arrive(path: str) -> None:
        staged, file = incoming.stage()
        file.close()
        incoming.install(staged, path)

    arrive("data/a/one")
    os.rename(root / "data/a", root / "moved")
    (root / "data/a").symlink_to(outside)
    arrive("data/a/two")  # the directory is known from the file before: the real one, wherever it is now
    assert sorted(os.listdir(root / "moved")) == ["one", "two"]
    with pytest.raises(PathRefused, match="is a symbolic link"):
        incoming.sync_directories()
    with pytest.raises(PathRefused, match="is a symbolic link"):
        arrive("data/a/three")


def test_a_walk_names_links_and_does_not_follow_them(tree: Worktree, root: Path, outside: Path) -> None:
    tree.write("data/real", b"x")
    (root / "data/file").symlink_to(outside / "secret")
    (root / "data/directory").symlink_to(outside)
    (root / "data/dangling").symlink_to(root / "nowhere")
    (root / "data/loop").symlink_to(root / "data")
    (root / "logs").symlink_to(outside)
    found = list(scan(root))
    assert sorted(item.path for item in found if not isinstance(item, SkippedPath)) == ["data/real"]
    assert {item for item in found if isinstance(item, SkippedPath)} == {
        *(
            SkippedPath(f"data/{name}", "a symbolic link", "refused")
            for name in ("file", "directory", "dangling", "loop")
        ),
        SkippedPath("logs", "a symbolic link in place of a payload root", "refused"),
    }
    for under in ("data/directory", "data/file", "logs"):
        assert [(item.path, type(item)) for item in scan(root, under)] == [(under, SkippedPath)]
    (skipped,) = scan(root, "data/directory/secret")
    assert isinstance(skipped, SkippedPath)
    assert skipped.kind == "refused"


def test_a_directory_that_becomes_a_link_during_a_walk_is_not_followed(
    tree: Worktree, root: Path, outside: Path
) -> None:
    tree.write("data/a/x", b"x")
    tree.write("outputs/x", b"x")
    walk = scan(root, "data")
    (root / "data/0").write_bytes(b"")
    seen = [next(walk)]
    os.rename(root / "data/a", root / "moved")
    (root / "data/a").symlink_to(outside)
    seen += walk
    assert {item.path for item in seen if isinstance(item, ScannedFile)} == {"data/0"}
    assert {item.path for item in seen if isinstance(item, SkippedPath)} == {"data/a"}
