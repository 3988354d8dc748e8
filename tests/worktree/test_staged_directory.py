"""A directory gets its place in one step, and never the place of another that holds something."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bayou.core.errors import ContentChanged, PathRefused, StateError, TreeError
from bayou.worktree.scan import ScannedFile, scan
from bayou.worktree.tree import Worktree
from tests.worktree.journals import RecordingJournal

ITEM = "data/t/m/n"
Look = Callable[[], dict[str, bytes]]


def test_all_files_of_a_directory_become_visible_in_one_step(
    tree: Worktree, journal: RecordingJournal, files: Look
) -> None:
    with tree.stage_directory(ITEM) as assembly:
        assembly.write("raw", b"content")
        with assembly.writing("metadata.yaml") as file:
            file.write(b"about ")
            file.write(b"it")
        assembly.sync()
        assert list(scan(tree.root)) == []
        assert journal.rows == []
        assert assembly.install(f"{ITEM}/1", ("raw", "metadata.yaml"))
    assert files() == {f"{ITEM}/1/raw": b"content", f"{ITEM}/1/metadata.yaml": b"about it"}
    assert journal.rows == [("write", (f"{ITEM}/1/raw", f"{ITEM}/1/metadata.yaml"))]
    assert not journal.open_rows


def test_v7_the_rows_are_open_before_the_directory_gets_its_name_and_closed_when_that_is_durable(
    tree: Worktree, journal: RecordingJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = journal.events

    def spied(name: str) -> None:
        real = getattr(os, name)

        def spy(*args: object, **named: object) -> object:
            events.append(name)
            return real(*args, **named)

        monkeypatch.setattr(os, name, spy)

    spied("rename")
    spied("fsync")
    with tree.stage_directory(ITEM) as assembly:
        assembly.write("raw", b"")
        assembly.sync()
        assert assembly.install(f"{ITEM}/1", ("raw",))
    at = events.index("open write")
    assert events[at - 2 : at + 2] == ["fsync", "fsync", "open write", "rename"]
    assert set(events[at + 2 : -1]) == {"fsync"}
    assert events[-1] == "close"


@pytest.mark.parametrize("there", ["raw", "metadata.yaml", "anything", ".bayou-x.tmp", "sub/file"])
def test_a_directory_that_holds_anything_is_never_replaced(tree: Worktree, root: Path, files: Look, there: str) -> None:
    (root / ITEM / "1" / there).parent.mkdir(parents=True)
    (root / ITEM / "1" / there).write_bytes(b"of somebody else")
    with tree.stage_directory(ITEM) as assembly:
        assembly.write("raw", b"ours")
        assert not assembly.install(f"{ITEM}/1", ("raw",))
        assert assembly.install(f"{ITEM}/2", ("raw",))
    assert files() == {f"{ITEM}/1/{there}": b"of somebody else", f"{ITEM}/2/raw": b"ours"}


def test_a_directory_that_is_filled_at_the_last_moment_is_not_replaced_either(
    tree: Worktree, root: Path, journal: RecordingJournal, files: Look
) -> None:
    real = journal.open

    def opened(kind: str, paths: list[str]) -> object:
        (root / ITEM / "1").mkdir()
        (root / ITEM / "1" / "metadata.yaml").write_bytes(b"of a pull")
        return real(kind, paths)  # type: ignore[arg-type]

    journal.open = opened  # type: ignore[assignment, method-assign]
    with tree.stage_directory(ITEM) as assembly:
        assembly.write("raw", b"ours")
        assert not assembly.install(f"{ITEM}/1", ("raw",))
    assert files() == {f"{ITEM}/1/metadata.yaml": b"of a pull"}
    assert not journal.open_rows


def test_an_empty_directory_and_a_file_are_told_apart(tree: Worktree, root: Path, files: Look) -> None:
    (root / ITEM / "1").mkdir(parents=True)
    (root / ITEM / "2").write_bytes(b"a file")
    for number, placed in ((1, True), (2, False)):
        with tree.stage_directory(ITEM) as assembly:
            assembly.write("raw", b"x")
            assert assembly.install(f"{ITEM}/{number}", ("raw",)) is placed
    assert files() == {f"{ITEM}/1/raw": b"x", f"{ITEM}/2": b"a file"}


def test_v14_nothing_stays_of_a_directory_that_got_no_place(
    tree: Worktree, root: Path, journal: RecordingJournal
) -> None:
    with pytest.raises(ValueError, match="own"):
        _fail_in(tree)
    with tree.stage_directory(ITEM) as assembly:
        assembly.write("raw", b"x")
    journal.refuses = StateError("full")
    with pytest.raises(StateError), tree.stage_directory(ITEM) as assembly:
        assembly.install(f"{ITEM}/1", ("raw",))
    assert [path.name for path in root.rglob("*")] == ["data"]


def _fail_in(tree: Worktree) -> None:
    with tree.stage_directory(ITEM) as assembly:
        assembly.write("raw", b"x")
        raise ValueError("the caller's own")


def test_v21_no_link_leads_out_of_the_tree(tree: Worktree, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "data/t/m").mkdir(parents=True)
    (root / ITEM).symlink_to(outside)
    with pytest.raises(PathRefused, match="symbolic link"), tree.stage_directory(ITEM):
        pass
    with pytest.raises(PathRefused, match="symbolic link"):
        tree.names(ITEM)
    with tree.stage_directory("data/t/m/other") as assembly:
        assembly.write("raw", b"x")
        with pytest.raises(PathRefused, match="symbolic link"):
            assembly.link("copy", f"{ITEM}/raw")
        (root / "data/t/m/other/1").symlink_to(outside)
        with pytest.raises(PathRefused, match="symbolic link"):
            assembly.install("data/t/m/other/1", ("raw",))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("parent", ["elsewhere/x", "data/../x", "data/a\x00b", "data/.lock", ""])
def test_a_parent_that_is_not_payload_is_refused(tree: Worktree, root: Path, parent: str) -> None:
    for call in (tree.stage_directory, tree.names, lambda parent: tree.resume_directory(parent, "x")):
        with pytest.raises(PathRefused):
            call(parent)
    assert not root.exists()


def test_a_directory_is_kept_for_somebody_who_goes_on_with_it(
    tree: Worktree, journal: RecordingJournal, files: Look
) -> None:
    with tree.stage_directory(ITEM) as first, tree.stage_directory(ITEM) as second:
        first.write("raw", b"1")
        second.write("raw", b"2")
        type(first).keep([first, second])
    for number, one in enumerate((first, second), start=1):
        again = Worktree(tree.root, journal).resume_directory(one.parent, one.temporary)
        assert again is not None
        assert again.install(f"{ITEM}/{number}", ("raw",))
        assert tree.resume_directory(one.parent, one.temporary) is None
    assert files() == {f"{ITEM}/1/raw": b"1", f"{ITEM}/2/raw": b"2"}
    assert tree.resume_directory(ITEM, "1") is None  # no temporary


def test_a_kept_directory_is_passed_over_by_scans(tree: Worktree) -> None:
    with tree.stage_directory(ITEM) as assembly:
        assembly.write("raw", b"1")
        assert list(scan(tree.root)) == []
        assert sorted(tree.names(ITEM)) == [assembly.temporary]
    tree.write(f"{ITEM}/1/raw", b"")
    assert [found.path for found in scan(tree.root) if isinstance(found, ScannedFile)] == [f"{ITEM}/1/raw"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_gets_a_second_name_or_a_copy(
    tree: Worktree, files: Look, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write(f"{ITEM}/1/raw", b"content")

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with tree.stage_directory("data/t/m/new") as assembly:
        assembly.link("raw", f"{ITEM}/1/raw")
        assert assembly.install("data/t/m/new/1", ("raw",))
    tree.delete(f"{ITEM}/1/raw")
    assert files() == {"data/t/m/new/1/raw": b"content"}


def test_what_a_program_wrote_into_it_is_made_durable(tree: Worktree, files: Look) -> None:
    with tree.stage_directory(ITEM) as assembly:
        (assembly.path / "raw").write_bytes(b"by a program")
        assembly.sync("raw")
        assert assembly.install(f"{ITEM}/1", ("raw",))
        with pytest.raises(TreeError, match="No such file"):
            assembly.sync("raw")
    assert files() == {f"{ITEM}/1/raw": b"by a program"}


def test_names_tells_what_lies_in_a_directory(tree: Worktree) -> None:
    assert tree.names(ITEM) == []
    tree.write(f"{ITEM}/1/raw", b"")
    tree.write(f"{ITEM}/2/raw", b"")
    assert sorted(tree.names(ITEM)) == ["1", "2"]
    assert tree.names(f"{ITEM}/1/raw") == []


# Appending at a place


def test_an_append_at_a_place_cuts_off_what_lies_beyond(tree: Worktree, files: Look) -> None:
    tree.write("logs/a", b"one two")
    tree.append("logs/a", b"three", at=4)
    assert files() == {"logs/a": b"one three"}
    tree.append("logs/a", b"", at=3)
    assert files() == {"logs/a": b"one"}


def test_an_append_at_a_place_that_the_file_does_not_reach_changes_nothing(tree: Worktree, files: Look) -> None:
    tree.write("logs/a", b"one")
    with pytest.raises(ContentChanged, match="has 3 bytes, and had 5"):
        tree.append("logs/a", b"x", at=5)
    with pytest.raises(ContentChanged, match="gone"):
        tree.append("logs/b", b"x", at=0)
    assert files() == {"logs/a": b"one"}
