"""Open records on datastores of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bayou.data.records import Records
from bayou.repo import Repo, init_repo, open_repo
from tests.sync.conftest import Team, proxy, s3_env, s3_team, team
from tests.trusting import trust

__all__ = ["proxy", "s3_env", "s3_team", "team"]


@pytest.fixture
def directory_repo(tmp_path: Path) -> Repo:
    """A repo whose datastore is a directory elsewhere."""
    (tmp_path / "shared").mkdir()
    repo = init_repo(tmp_path / "repo")
    repo.file.write_text(repo.file.read_text() + f'path = "{tmp_path / "shared"}"\n')
    trust(repo.root)
    return open_repo(repo.root)


@pytest.fixture(params=["store", "directory"])
def repo(request: pytest.FixtureRequest, team: Team, tmp_path: Path) -> Repo:
    """A repo with a store, and one whose datastore is a directory."""
    if request.param == "store":
        return team.clone("repo").repo
    found: Repo = request.getfixturevalue("directory_repo")
    return found


@pytest.fixture
def records(repo: Repo) -> Iterator[Records]:
    with Records(repo) as opened:
        yield opened
