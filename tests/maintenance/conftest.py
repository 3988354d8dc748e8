"""The teams and clones of `tests/sync`, and a scene with a replica, for tests of bayou.maintenance."""

import pytest

from tests.maintenance.replicas import FILES, Scene
from tests.sync.conftest import Team, gcs_team, no_spark, proxy, s3_env, s3_team, team, wire

__all__ = ["gcs_team", "no_spark", "proxy", "s3_env", "s3_team", "team", "wire"]


@pytest.fixture
def scene(team: Team) -> Scene:
    (team.root / "replica").mkdir()
    made = Scene(team, team.clone("alice"), (team.root / "replica").as_uri())
    made.push(FILES)
    return made
