"""What the tests of trust share: a home of their own, dummy credentials, and commands run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import command, processes  # noqa: F401


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this test's own, so that nothing was allowed before."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dummy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    return made
