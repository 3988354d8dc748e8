"""Local state stays bounded."""

from __future__ import annotations

import os

import pytest

from bayou.sync import prune_cache
from tests.sync.conftest import Team


def test_f129_cached_nodes_do_not_pile_up(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_cache, "SPARE_FILES", 10)
    a = team.clone("a")
    for number in range(25):
        a.write("files/x", f"{number}")
        a.sync()
    nodes = os.listdir(a.repo.state / "nodes")
    assert len(nodes) <= 12
    assert a.sync().engine == "fast"
    a.write("files/y", "still works")
    assert a.sync().pushed.files == 1
