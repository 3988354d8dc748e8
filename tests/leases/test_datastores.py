"""Where the leases of a repo lie, and who must not see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayou.core.errors import LeaseTimeout
from bayou.leases import model_key, open_leases
from bayou.repo import Repo, init_repo, open_repo
from bayou.worktree.scan import ScannedFile, SkippedPath, scan
from tests import api
from tests.sync.conftest import Team
from tests.trusting import trust

KEY = model_key("t", "m")


def on_directory(root: Path, directory: Path) -> Repo:
    repo = init_repo(root)
    repo.file.write_text(f'{repo.file.read_text()}path = "{directory}"\n')
    trust(repo.root)
    return open_repo(root)


def test_repos_that_share_a_directory_exclude_each_other(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    one, two = on_directory(tmp_path / "one", shared), on_directory(tmp_path / "two", shared)
    with open_leases(one).acquire(KEY), pytest.raises(LeaseTimeout):
        open_leases(two).acquire(KEY, wait_s=0)


def test_leases_in_a_shared_directory_are_no_payload_and_in_nobodys_way(tmp_path: Path) -> None:
    repo = on_directory(tmp_path / "repo", tmp_path / "shared")
    with open_leases(repo).acquire(KEY):
        assert [path.name for path in repo.tree_root.iterdir()] == [".bayou"]
        (repo.tree_root / "files").mkdir()
        (repo.tree_root / "files" / "a").write_text("payload")
        found = list(scan(repo.tree_root))
    assert [one.path for one in found if isinstance(one, ScannedFile)] == ["files/a"]
    assert [(one.path, one.kind) for one in found if isinstance(one, SkippedPath)] == [(".bayou", "foreign")]


def test_leases_of_a_repo_of_its_own_stay_out_of_its_tree_and_of_git(tmp_path: Path) -> None:
    repo = init_repo(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    with open_leases(repo).acquire(KEY), pytest.raises(LeaseTimeout):
        open_leases(repo).acquire(KEY, wait_s=0)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert (tmp_path / ".bayou" / "leases").is_dir()
    assert not repo.tree_root.exists()


def test_leases_of_a_store_lie_in_the_store_and_each_namespace_has_its_own(team: Team) -> None:
    one, two, apart = team.clone("one"), team.clone("two"), team.clone("apart", namespace="infra")
    with open_leases(one.repo).acquire(KEY):
        with pytest.raises(LeaseTimeout):
            open_leases(two.repo).acquire(KEY, wait_s=0)
        with open_leases(apart.repo).acquire(KEY, wait_s=0) as lease:
            lease.check()
        assert ".bayou/leases/model%2Ft%2Fm.json" in set(team.keys())


def test_leases_are_neither_pushed_nor_pulled_nor_collected(team: Team) -> None:
    clone = team.clone("one")
    clone.write("files/a", "1")
    with open_leases(clone.repo).acquire(KEY) as lease:
        report = clone.sync()
        assert report.pushed.files == 1
        assert not report.refused
        api.collect(clone.repo, dry_run=False, grace_s=0)
        verified = api.verify(clone.repo, deep=False, repair=False)
        assert verified.ok
        assert not verified.unindexed
        lease.check()
        assert [info.nonce for info in open_leases(clone.repo).list()] == [lease.nonce]
