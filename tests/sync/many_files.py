"""Files that are many for a store with few connections, so that each thread takes several; as fixtures and helpers."""

from __future__ import annotations

import os

import pytest

from bayou.sync.report import SyncReport
from bayou_testing.proxy import HttpProxy
from tests.sync.conftest import Clone, Team

THREADS = 8
SMALL = {f"files/{number:03}": b"%d " % number * (number + 1) for number in range(200)}


@pytest.fixture(autouse=True)
def few_connections(no_backoff: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that 200 files are many; and failed requests are repeated at once. Files are quick to read here."""
    monkeypatch.setenv("BAYOU_CONCURRENCY", str(THREADS))
    monkeypatch.setattr("bayou.sync.transfer.executor.QUICK_READ_S", 60.0)


@pytest.fixture
def a(few_connections: None, s3_team: Team, proxy: HttpProxy) -> Clone:
    """A clone of a store that has a head; what has been asked so far is forgotten."""
    clone = s3_team.clone("a")
    clone.write("files/first", "so that there is a head")
    clone.push()
    proxy.log.clear()
    return clone


def pull_fresh(team: Team) -> tuple[SyncReport, dict[str, bytes]]:
    """Return what whoever comes now gets."""
    fresh = team.clone(f"fresh-{os.urandom(4).hex()}")
    report = fresh.pull()
    return report, fresh.files
