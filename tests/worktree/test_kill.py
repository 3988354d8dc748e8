"""A writer that is killed leaves no half file, and nothing that anybody takes for payload (F034, V14)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bayou
from bayou.worktree.scan import ScannedFile, scan
from bayou.worktree.tree import Worktree
from tests.worktree.journals import RecordingJournal

PATH = "data/t/m/n/1/raw"

WRITER = """
import os, sys, time
from pathlib import Path
from bayou.worktree.tree import Worktree

root, rows, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def reached(point):
    if point == moment:
        os.write(1, b"here")
        time.sleep(600)

class Journal:
    def open(self, kind, paths):
        with rows.open("a") as file:
            file.write(f"open {kind} {' '.join(paths)}\\n")
        reached("journaled")
    def close(self, ticket):
        reached("renamed")
        with rows.open("a") as file:
            file.write("close\\n")

real = os.replace
def replace(*args, **kwargs):
    reached("written")
    real(*args, **kwargs)
os.replace = replace

with Worktree(root, Journal()).writing("data/t/m/n/1/raw") as file:
    file.write(b"new" * 100_000)
    file.flush()
    reached("half written")
    file.write(b"new" * 100_000)
"""


@pytest.mark.parametrize("moment", ["journaled", "half written", "written", "renamed"])
def test_a_killed_write_is_whole_or_never_was(tmp_path: Path, root: Path, moment: str) -> None:
    tree = Worktree(root, RecordingJournal())
    tree.write(PATH, b"old")
    rows = tmp_path / "rows"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(rows), moment],
        env={**os.environ, "PYTHONPATH": str(Path(bayou.__path__[0]).parent)},
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.read(4) == b"here"
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    assert rows.read_text() == f"open write {PATH}\n"  # the row is there, and open
    with tree.open(PATH) as file:
        assert file.read() == (b"new" * 200_000 if moment == "renamed" else b"old")
    left = [name for name in os.listdir(root / "data/t/m/n/1") if name != "raw"]
    assert len(left) == (1 if moment in ("half written", "written") else 0)
    assert [item.path for item in scan(root) if isinstance(item, ScannedFile)] == [PATH]
    assert len(list(scan(root))) == 1
    tree.write(PATH, b"the next one")
    with tree.open(PATH) as file:
        assert file.read() == b"the next one"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_write_cleans_up(tmp_path: Path, root: Path, number: signal.Signals) -> None:
    # V14: SIGTERM becomes an exception in whoever handles signals; here as in the command line.
    handler = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    root.mkdir()
    rows = tmp_path / "rows"
    writer = subprocess.Popen(
        [sys.executable, "-c", handler + WRITER, str(root), str(rows), "half written"],
        env={**os.environ, "PYTHONPATH": str(Path(bayou.__path__[0]).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.read(4) == b"here"
        writer.send_signal(number)
        assert writer.wait(timeout=60) != 0
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert os.listdir(root / "data") == []
    assert rows.read_text() == f"open write {PATH}\nclose\n"


PUTTER = """
import sys
from pathlib import Path
from bayou.worktree.tree import Worktree

class Journal:
    def open(self, kind, paths): return None
    def close(self, ticket): pass

tree = Worktree(Path(sys.argv[1]), Journal())
files = ["data/t/m/n/1/raw", "data/t/m/n/1/metadata.yaml"]
for number in range(50):
    if sys.argv[2] == "put":
        tree.write_many([(path, b"x" * 10_000) for path in files])
    else:
        tree.delete_many(files)
"""


def test_a_put_and_a_delete_of_one_name_never_trip_over_each_other(root: Path) -> None:
    # F039
    root.mkdir()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PUTTER, str(root), what],
            env={**os.environ, "PYTHONPATH": str(Path(bayou.__path__[0]).parent)},
        )
        for what in ("put", "delete")
    ]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    for item in scan(root):
        assert isinstance(item, ScannedFile)
        assert item.stat.size == 10_000
    Worktree(root, RecordingJournal()).delete_many(["data/t/m/n/1/raw", "data/t/m/n/1/metadata.yaml"])
    assert os.listdir(root / "data") == []
