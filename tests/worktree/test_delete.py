"""Deleting: a request that is journaled first, whether or not the file is here (V7)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bayou.core.errors import TreeError
from bayou.worktree.tree import Worktree
from tests.worktree.journals import RecordingJournal

Files = Callable[[], dict[str, bytes]]


def test_a_delete_is_journaled_before_and_durable_before_its_row_closes(tree: Worktree, events: list[str]) -> None:
    tree.write("data/a/b", b"x")
    tree.write("data/a/c", b"x")
    del events[:]
    tree.delete("data/a/b")
    assert [event for event in events if event != "rmdir"] == ["open delete", "unlink", "sync directory", "close"]


def test_emptied_directories_go_too_but_never_a_payload_root(tree: Worktree, root: Path, files: Files) -> None:
    tree.write("data/t/m/n/1/raw", b"x")
    tree.write("data/t/m/other", b"x")
    tree.delete("data/t/m/n/1/raw")
    assert files() == {"data/t/m/other": b"x"}
    assert os.listdir(root / "data/t/m") == ["other"]
    tree.delete("data/t/m/other")
    assert os.listdir(root) == ["data"]
    assert os.listdir(root / "data") == []


def test_deleting_what_is_not_here_is_a_request_all_the_same(tree: Worktree, journal: RecordingJournal) -> None:
    tree.delete("data/a/b")
    tree.write("data/file", b"x")
    tree.delete("data/file/below")
    assert journal.rows[0] == ("delete", ("data/a/b",))
    assert journal.rows[2] == ("delete", ("data/file/below",))
    assert journal.open_rows == set()
    assert tree.exists("data/file")


def test_several_deletes_share_one_row(
    tree: Worktree, root: Path, events: list[str], journal: RecordingJournal
) -> None:
    paths = [f"data/t/m/n/{number}/raw" for number in range(20)]
    tree.write_many([(path, b"x") for path in paths])
    del events[:]
    tree.delete_many([*paths, "data/missing"])
    assert journal.rows[-1] == ("delete", (*paths, "data/missing"))
    assert events.count("unlink") == 20
    assert (events[0], events[-1]) == ("open delete", "close")
    assert os.listdir(root / "data") == []


def test_a_delete_that_fails_is_explained_and_its_row_remains(
    tree: Worktree, journal: RecordingJournal, files: Files, broken: Callable[..., None]
) -> None:
    tree.write("data/a/b", b"x")
    broken("unlink", errno.EROFS)
    with pytest.raises(TreeError, match="cannot delete data/a/b: Read-only file system") as caught:
        tree.delete("data/a/b")
    assert caught.value.hint == "mount the file system writable"
    assert files() == {"data/a/b": b"x"}
    assert journal.rows[-1] == ("delete", ("data/a/b",))
    assert journal.open_rows == set()
