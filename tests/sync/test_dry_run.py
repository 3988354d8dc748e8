"""A dry run names exactly what the same sync would do next: with `--push` no pulls, with `--pull` no pushes."""

from __future__ import annotations

from typing import Any

import pytest

from bayou.sync.report import Mode
from tests.sync.conftest import Clone, Team


@pytest.fixture(params=["in one go", "in windows"])
def b(request: pytest.FixtureRequest, team: Team, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A clone with a change and a delete of its own, while the store has another, and a changed `files/deleted`."""
    a, b = team.clone("a"), team.clone("b")
    a.write_all({f"files/{name}": b"base" for name in ("here", "there", "gone", "deleted", "both")})
    a.sync()
    b.sync()
    a.write_all({"files/there": b"from a", "files/new": b"from a", "files/deleted": b"from a", "files/both": b"from a"})
    a.sync()
    b.write_all({"files/here": b"from b", "files/both": b"from b"})
    b.delete("files/gone", "files/deleted")
    if request.param == "in windows":
        monkeypatch.setattr("bayou.sync.run.MOST_HELD", 0)
    return b


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("push", {"here": "push", "gone": "delete-remote", "deleted": "keep-remote", "both": "conflict"}),
        ("pull", {"there": "pull", "new": "pull", "deleted": "keep-remote", "both": "conflict"}),
        (
            "sync",
            {
                "here": "push",
                "gone": "delete-remote",
                "there": "pull",
                "new": "pull",
                "deleted": "keep-remote",
                "both": "conflict",
            },
        ),
    ],
)
def test_a_dry_run_names_what_this_mode_does_and_nothing_else(b: Clone, mode: Mode, expected: dict[str, str]) -> None:
    before: Any = b.files

    report = b.sync(mode=mode, dry_run=True)

    assert {action.path.removeprefix("files/"): action.action for action in report.actions} == expected
    assert b.files == before
    done = b.sync(mode=mode)
    arrived = {name for name, action in expected.items() if action in ("pull", "keep-remote", "conflict")}
    assert done.pulled.files == len(arrived)
    assert done.pushed.files == (1 if mode != "pull" else 0)
    assert done.pushed.deleted == (1 if mode != "pull" else 0)
