"""Appending: streaming data and logs, whole records or nothing (F038)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bayou
from bayou.core.errors import TreeError
from bayou.worktree.tree import Worktree
from tests.worktree.journals import RecordingJournal

Files = Callable[[], dict[str, bytes]]
LOG = "logs/2024-01-01/host.log"


def test_records_follow_each_other(tree: Worktree, files: Files, journal: RecordingJournal) -> None:
    tree.append(LOG, b"one\n")
    tree.append(LOG, b"")
    tree.append(LOG, b"two\n")
    assert files() == {LOG: b"one\ntwo\n"}
    assert journal.rows == [("write", (LOG,))] * 3
    assert journal.open_rows == set()


def test_an_append_is_journaled_first_and_durable_when_its_row_closes(tree: Worktree, events: list[str]) -> None:
    tree.append(LOG, b"one\n")
    del events[:]
    tree.append(LOG, b"two\n")
    assert events == ["open write", "sync file", "sync directory", "close"]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_an_append_that_fails_half_way_leaves_the_file_as_it_was(
    tree: Worktree, files: Files, monkeypatch: pytest.MonkeyPatch, journal: RecordingJournal, call: str
) -> None:
    tree.append(LOG, b"one\n")
    real, calls = os.write, 0

    def half(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2 and call == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:5])

    def unsynced(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    if call == "fsync":
        monkeypatch.setattr(os, "fsync", unsynced)
    with pytest.raises(TreeError, match=f"cannot append to {LOG}: No space left on device"):
        tree.append(LOG, b"a second record\n")
    assert files() == {LOG: b"one\n"}
    assert journal.open_rows == set()


def test_an_append_that_fails_at_once_leaves_no_empty_file(
    tree: Worktree, files: Files, broken: Callable[..., None]
) -> None:
    tree.write("logs/other", b"x")
    broken("write")
    with pytest.raises(TreeError):
        tree.append(LOG, b"one\n")
    assert files() == {"logs/other": b"x"}


def test_a_file_that_was_replaced_while_this_process_waited_for_its_turn_is_opened_again(
    tree: Worktree, root: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    tree.write(LOG, b"old\n")
    real = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        (root / "new").write_bytes(b"new\n")
        os.replace(root / "new", root / LOG)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    tree.append(LOG, b"record\n")
    assert files() == {LOG: b"new\nrecord\n"}


APPENDER = """
import sys
from pathlib import Path
from bayou.worktree.tree import Worktree

class Journal:
    def open(self, kind, paths): return None
    def close(self, ticket): pass

tree = Worktree(Path(sys.argv[1]), Journal())
for number in range(25):
    tree.append("audit/day.log", f"{sys.argv[2]}-{number}-{'x' * 5000}\\n".encode())
"""


def test_processes_that_append_to_one_file_lose_and_tear_nothing(root: Path) -> None:
    source = Path(bayou.__path__[0]).parent
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(root), name], env={**os.environ, "PYTHONPATH": str(source)}
        )
        for name in "abcd"
    ]
    root.mkdir(exist_ok=True)
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0, 0]
    lines = (root / "audit/day.log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{name}-{number}-{'x' * 5000}" for name in "abcd" for number in range(25))
    for name in "abcd":
        own = [line for line in lines if line.startswith(name)]
        assert own == sorted(own, key=lambda line: int(line.split("-")[1]))
