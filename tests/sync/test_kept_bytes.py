"""Small files are read once by a push: what was hashed is what is sent, and only while it is what the file has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from bayou.sync.plan import local_scanner
from bayou.sync.plan.local_scanner import FileScan, ObservedPath
from bayou.sync.transfer import executor, packed, push
from bayou.worktree.hashing import read_content
from tests.sync.conftest import Clone, Team

SMALL = {f"data/t/m/n{number}/1/raw": os.urandom(1000) for number in range(20)}


@pytest.fixture
def a(team: Team) -> Clone:
    clone = team.clone("a")
    for path, content in SMALL.items():
        clone.lay(path, content)
    return clone


def pulled(team: Team) -> dict[str, bytes]:
    clone = team.clone("b")
    clone.pull()
    return clone.files


def never(*_: object) -> int:
    pytest.fail("the file was opened again")


@pytest.mark.usefixtures("both_ways")
def test_a_push_does_not_open_small_files_again(team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (executor, packed):
        monkeypatch.setattr(module, "open_regular", never)
    assert a.push(adopt=True).pushed.files == len(SMALL)
    assert pulled(team) == SMALL


@pytest.mark.parametrize(("each", "whole"), [(999, 64 << 20), (1000, 5500)])
def test_what_there_is_no_room_for_is_read_again(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch, each: int, whole: int
) -> None:
    monkeypatch.setattr(FileScan, "stat_only", lambda *_: None)  # all are read at once, however old they look
    monkeypatch.setattr(local_scanner, "KEEP_FILE_BYTES", each)
    monkeypatch.setattr(local_scanner, "KEEP_BYTES", whole)
    kept: list[bool] = []
    begin = push.begin

    def watched(context: Any, wanted: Sequence[ObservedPath], gc: Any) -> Any:
        kept.extend(one.content is not None and one.content.data is not None for one in wanted)
        return begin(context, wanted, gc)

    monkeypatch.setattr(push, "begin", watched)
    a.push(adopt=True)
    assert sum(kept) == (0 if each < 1000 else 5)
    assert pulled(team) == SMALL


@pytest.mark.usefixtures("both_ways")
def test_a_file_that_has_changed_since_it_was_looked_at_is_not_pushed_as_it_was(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = next(iter(SMALL))
    begin = push.begin
    rewrites = iter([b"new"])

    def late(context: Any, wanted: Sequence[ObservedPath], gc: Any) -> Any:
        for content in rewrites:
            a.lay(changed, content)
        return begin(context, wanted, gc)

    monkeypatch.setattr(push, "begin", late)
    a.push(adopt=True)
    assert pulled(team) == {**SMALL, changed: b"new"}
    assert team.uploads() == sorted(SMALL), "what the file had before was sent too"


def test_a_dry_run_and_a_pull_keep_nothing(a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    look = read_content

    def watched(path: Any, deadline: Any, keep: int, *rest: Any) -> Any:
        kept.append(keep)
        return look(path, deadline, keep, *rest)

    monkeypatch.setattr(local_scanner, "read_content", watched)
    a.push(adopt=True, dry_run=True)
    a.lay("files/another", b"x")
    a.pull(walk=True)
    assert set(kept) == {0}
