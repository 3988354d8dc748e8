"""Names that differ by case only, where the file system does not tell them apart (F108, V21)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bayou.core.errors import PathRefused
from bayou.worktree.scan import SkippedPath, scan
from bayou.worktree.staging import StagingArea
from bayou.worktree.tree import Worktree
from tests.worktree.journals import RecordingJournal

Files = Callable[[], dict[str, bytes]]


@pytest.fixture
def incoming(root: Path, tmp_path: Path) -> StagingArea:
    return StagingArea(root, tmp_path / "staging")


def bring(incoming: StagingArea, path: str, content: bytes) -> None:
    staged, file = incoming.stage()
    with file:
        file.write(content)
    incoming.install(staged, path)


def test_where_case_counts_both_are_kept(incoming: StagingArea, tree: Worktree, files: Files) -> None:
    for path in ("data/Name", "data/name", "data/Dir/x", "data/dir/x"):
        bring(incoming, path, path.encode())
    tree.write("data/NAME", b"data/NAME")
    assert files() == {
        path: path.encode() for path in ("data/Name", "data/name", "data/NAME", "data/Dir/x", "data/dir/x")
    }


@pytest.mark.usefixtures("folding")
def test_where_it_does_not_the_second_is_refused_and_the_first_kept(
    incoming: StagingArea, tree: Worktree, files: Files, journal: RecordingJournal
) -> None:
    bring(incoming, "data/Dir/Name", b"first")
    for path, spelt in (("data/Dir/name", "Name"), ("data/dir/other", "Dir"), ("data/dir/Name", "Dir")):
        with pytest.raises(PathRefused, match=f"{spelt!r} is there already"):
            bring(incoming, path, b"second")
        for use in (tree.delete, tree.open, tree.stat, incoming.remove, lambda path: tree.write(path, b"second")):
            if path == "data/dir/other":
                continue
            with pytest.raises(PathRefused, match=f"{spelt!r} is there already"):
                use(path)
    assert files() == {"data/Dir/Name": b"first"}
    assert journal.rows == []


@pytest.mark.usefixtures("folding")
def test_the_same_spelling_is_written_again_and_again(incoming: StagingArea, tree: Worktree, files: Files) -> None:
    bring(incoming, "data/Dir/Name", b"first")
    bring(incoming, "data/Dir/Name", b"second")
    tree.append("data/Dir/Name", b" and third")
    bring(incoming, "data/Dir/Other", b"x")
    assert files() == {"data/Dir/Name": b"second and third", "data/Dir/Other": b"x"}
    incoming.remove("data/Dir/Name")
    tree.delete("data/Dir/Other")
    assert files() == {}


@pytest.mark.usefixtures("folding")
def test_a_payload_root_in_another_case_is_not_the_payload_root(tree: Worktree, root: Path) -> None:
    (root / "Data").mkdir(parents=True)
    with pytest.raises(PathRefused, match="'Data' is there already"):
        tree.write("data/x", b"x")
    assert os.listdir(root / "Data") == []
    assert list(scan(root)) == [SkippedPath("Data", "not a payload root", "foreign")]
