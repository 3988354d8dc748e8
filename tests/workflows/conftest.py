"""What the tests of workflows share: clones on one store, commands as real processes, workflows as text."""

from __future__ import annotations

from tests.session.conftest import commands
from tests.sync.conftest import proxy, s3_env, s3_team, team, wire

__all__ = ["commands", "proxy", "s3_env", "s3_team", "team", "wire"]
