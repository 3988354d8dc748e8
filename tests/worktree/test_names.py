"""Every name that is accepted has one place inside the tree; every other is refused and changes nothing (V18, V21)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core import paths
from bayou.core.errors import PathRefused
from bayou.worktree.hashing import FileStat
from bayou.worktree.scan import _PLAIN_LENGTH, ScannedFile, _plain, scan
from bayou.worktree.staging import StagingArea
from bayou.worktree.tree import Worktree
from tests.worktree.journals import RecordingJournal
from tests.worktree.names import any_paths, segments


@given(path=any_paths)
def test_an_accepted_path_stays_inside_and_comes_back_as_it_was(path: str) -> None:
    if paths.refusal(path) is not None:
        return
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "tree"
        tree = Worktree(root, RecordingJournal())
        tree.write(path, b"content")
        assert [item.relative_to(place).parts[0] for item in Path(place).rglob("*") if item.is_file()] == ["tree"]
        assert tree.local_path(path).resolve() == root.resolve().joinpath(*path.split("/"))
        (item,) = scan(root)
        assert item == ScannedFile(path, FileStat.of(os.stat(root / path)))
        tree.delete(path)
        assert list(scan(root)) == []


@given(path=any_paths)
def test_a_refused_path_changes_nothing(path: str) -> None:
    if paths.refusal(path) is None:
        return
    with tempfile.TemporaryDirectory() as place:
        journal = RecordingJournal()
        tree = Worktree(Path(place) / "tree", journal)
        incoming = StagingArea(Path(place) / "tree", Path(place))
        staged, file = incoming.stage()
        file.close()
        for use in (
            lambda: tree.write(path, b"x"),
            lambda: tree.append(path, b"x"),
            lambda: tree.delete(path),
            lambda: tree.local_path(path),
            lambda: incoming.install(staged, path),
            lambda: incoming.remove(path),
        ):
            with pytest.raises(PathRefused):
                use()
        assert journal.rows == []
        assert os.listdir(place) == [staged.name]


@given(above=st.lists(segments, max_size=3), name=segments)
def test_the_short_cut_of_the_walk_agrees_with_the_rules(above: list[str], name: str) -> None:
    path = "/".join(["data", *above, name])
    if not name or "/" in name or paths.refusal(f"{path.rpartition('/')[0]}/x") is not None:
        return  # no file system has such a name, or the walk does not get there
    if _plain(name) is not None and len(path) <= _PLAIN_LENGTH:
        assert paths.refusal(path) is None
