"""What the tests of sessions share: clones on one store, and commands as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.session.commands import Commands
from tests.sync.conftest import proxy, s3_env, s3_team, team, wire

__all__ = ["proxy", "s3_env", "s3_team", "team", "wire"]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
