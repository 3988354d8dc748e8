"""Catalogs of datastores of each kind."""

from __future__ import annotations

from tests.data.conftest import directory_repo, records, repo
from tests.sync.conftest import proxy, s3_env, s3_team, team

__all__ = ["directory_repo", "proxy", "records", "repo", "s3_env", "s3_team", "team"]
