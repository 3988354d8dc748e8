"""A process that is killed at any step leaves the old state or the new one, and everybody sees the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bayou.data.records import Records
from bayou.repo import Repo, open_repo
from bayou.state.database import Database
from tests.data.models import MODEL, OTHER, Seen, in_tree, visible
from tests.sync.conftest import Clone, Team


@pytest.fixture(autouse=True)
def _without_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk: here somebody kills processes, and nobody cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(Database, "pragmas", ("journal_mode = WAL", "synchronous = OFF"))


_OLD: Seen = {
    ("main", "x", 1): b"1",
    ("main", "x", 2): b"2",
    ("main", "log", 1): b"one\n",
    ("main", "now", 1): b"moved",
}


def _without(*gone: tuple[str, str, int]) -> Seen:
    return {key: content for key, content in _OLD.items() if key not in gone}


_X = [("main", "x", number) for number in (1, 2)]
WORK: dict[str, Seen] = {
    "save_one": _OLD | {("main", "x", 3): b"new"},
    "save_first": _OLD | {("weekly", "first", 1): b"new"},
    "append_one": _OLD | {("main", "log", 1): b"one\nnew\n"},
    "publish": _OLD | {("main", "x", 3): b"new", ("weekly", "y", 1): b"new", ("main", "x", 4): b"newer"},
    "rename": _without(*_X) | {("main", "renamed", number): b"%d" % number for number in (1, 2)},
    "rename_back": _without(("main", "now", 1)) | {("main", "before", 1): b"moved"},
    "delete_all": _without(*_X),
    "delete_highest": _without(("main", "x", 2)),
    "delete_rows": {("main", "x", 2): b"2"},
}


def _furnish(repo: Repo) -> None:
    with Records(repo) as records:
        for number in (1, 2):
            records.data.save(MODEL, "x", b"%d" % number)
        records.data.save(MODEL, "log", b"one\n", streaming=True)
        records.data.save(MODEL, "before", b"moved")
        records.data.rename(MODEL, "before", "now")
        assert visible(records) == _OLD


def _die_at_every_step(repo: Repo, work: str, folder: Path) -> list[Repo]:
    """Return the repo as it was left by a kill at each step, and at last by a process that lived."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.data.forks", "die", repo.root, work, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [open_repo(folder / str(step + 1)) for step in range(int(done.stdout))]


@pytest.mark.parametrize("work", WORK)
def test_a_kill_at_any_step_leaves_the_old_state_or_the_new_one(team: Team, work: str, tmp_path: Path) -> None:
    a = team.clone("a")
    _furnish(a.repo)
    a.push()
    shutil.copytree(tmp_path / "store", tmp_path / "pristine")
    left = _die_at_every_step(a.repo, work, tmp_path / "copies")
    states = _look(left, work)
    for step, repo in enumerate(left):
        turning = step > 0 and states[step] != states[step - 1]
        if turning or step % 9 == 0 or step == len(left) - 1:
            _check_peer(team, Clone(repo), states[step], tmp_path)


@pytest.mark.parametrize("work", ["save_one", "publish"])
def test_a_kill_in_a_directory_leaves_the_old_state_or_the_new_one(
    directory_repo: Repo, work: str, tmp_path: Path
) -> None:
    # Inside the repo, so that a copy of the one is a copy of the other.
    text = directory_repo.file.read_text().replace(str(directory_repo.tree_root), "shared")
    directory_repo.file.write_text(text)
    repo = open_repo(directory_repo.root)
    repo.tree_root.mkdir()
    _furnish(repo)
    _look(_die_at_every_step(repo, work, tmp_path / "copies"), work)


def _look(left: list[Repo], work: str) -> list[Seen]:
    """Open each of the repos that were left behind; return what is seen there."""
    states = []
    for step, repo in enumerate(left):
        with Records(repo) as records:
            states.append(visible(records))
            assert states[-1] in (_OLD, WORK[work]), f"at step {step + 1}"
            _agree(records)
    assert (states[0], states[-1]) == (_OLD, WORK[work])
    assert states == sorted(states, key=lambda seen: seen == WORK[work])  # once new, it stays new
    assert len(states) > 4
    return states


def _agree(records: Records) -> None:
    """Tree and catalog say the same, and no number is forgotten."""
    tree = {path: (one.version, one.size, one.deleted) for path, one in in_tree(records.tree.root).items()}
    rows = {
        row.metadata_path: (row.version, row.size, row.deleted)
        for model, names in ((MODEL, ("x", "log", "before", "now", "renamed")), (OTHER, ("first", "y")))
        for name in names
        for row in records.catalog.versions(model.id, name)
    }
    assert rows == tree
    for path in tree:
        directory = records.tree.root / path.rpartition("/")[0]
        assert (directory / "raw").exists() == (not tree[path][2])
    for directory in records.tree.root.glob("data/*/**/raw"):
        assert directory.parent.name.startswith(".bayou-") or (directory.parent / "metadata.yaml").exists()


def _check_peer(team: Team, clone: Clone, seen: Seen, root: Path) -> None:
    """One push, and a newcomer sees the same."""
    shutil.rmtree(root / "store")
    shutil.copytree(root / "pristine", root / "store")
    report = clone.push()
    assert report.exit_code == 0
    assert not report.failed
    assert clone.status().journal_paths == 0
    shutil.rmtree(root / "fresh", ignore_errors=True)
    fresh = team.clone("fresh")
    assert fresh.pull().exit_code == 0
    with Records(fresh.repo) as peer:
        assert visible(peer) == seen
        _agree(peer)
