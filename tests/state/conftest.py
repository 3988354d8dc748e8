"""The teams and clones of `tests/sync`, for tests of bayou.state."""

from tests.sync.conftest import gcs_team, no_spark, proxy, s3_env, s3_team, team, wire

__all__ = ["gcs_team", "no_spark", "proxy", "s3_env", "s3_team", "team", "wire"]
