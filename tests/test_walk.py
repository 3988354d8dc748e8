"""The walk: how much of Bayou one command runs through, with one changed file in a `file://` store.

Counts, and no times: code files of Bayou with an executed function, and how often `sync.db` and the store are opened.
`python tests/test_walk.py` prints the table of the three commands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

PROBE = """
import json, os, sys, threading

import bayou

home, counted = os.path.dirname(bayou.__file__) + os.sep, {"files": set(), "functions": set(), "sync.db": 0, "store": 0}
counted["threads"] = set()

def profile(frame, event, _):
    code = frame.f_code
    # Only functions: the bodies of modules and classes run by being imported, and have no fast locals.
    if event == "call" and code.co_filename.startswith(home) and code.co_flags & 1:
        counted["files"].add(code.co_filename.removeprefix(home))
        counted["functions"].add((code.co_filename, code.co_qualname))
        counted["store"] += code.co_name == "open_store"
        counted["threads"].add(threading.current_thread().name)

def audit(event, arguments):
    if event == "sqlite3.connect" and str(arguments[0]).endswith("sync.db"):
        counted["sync.db"] += 1

from bayou.cli import run
sys.addaudithook(audit)
threading.setprofile(profile)
sys.setprofile(profile)
code = run(sys.argv[2:])
sys.setprofile(None)
with open(sys.argv[1], "w") as file:
    json.dump({name: found if isinstance(found, int) else sorted(found) for name, found in counted.items()}, file)
sys.exit(code)
"""

STEP = """
id: 7f3c9a5e-2d1b-4c8f-9e60-5a4b3c2d1e0f
name: nightly
jobs:
  - name: main
    steps:
      - {name: one, model: maker, method: execute}
"""

COMMANDS = {
    "datastore sync --push": ("datastore", "sync", "--push"),
    "data put": ("data", "put", "web1", "usage", "report.json"),
    "workflow run, one step": ("workflow", "run", "nightly"),
}


MOST_FILES = {"datastore sync --push": 87, "data put": 117, "workflow run, one step": 138}
"""What is reached. The aims are 45, 70 and 100; a third of the files of a push run only one to three functions, in
eight packages, so that fewer files would mean files of more than one topic."""


class Walk(NamedTuple):
    """What one command ran through."""

    files: frozenset[str]
    functions: int
    databases: int
    stores: int
    threads: frozenset[str]


def bayou(root: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "bayou", *arguments], cwd=root, check=True, capture_output=True, text=True)


def scene(root: Path) -> Path:
    """Return a repo that is in sync with a `file://` store, with a model, a workflow of one step, and a file to put."""
    repo = root / "repo"
    (root / "store").mkdir()
    bayou(root, "init", "repo")
    bayou(repo, "model", "create", "host/linux", "web1")
    bayou(repo, "model", "create", "command/shell", "maker", "--arg", "run=echo 51")
    (repo / "workflows" / "nightly.yaml").write_text(STEP)
    bayou(repo, "datastore", "setup", f"file://{root / 'store'}")
    (repo / "report.json").write_text('{"disk": 50}')
    bayou(repo, "data", "put", "web1", "usage", "report.json")
    (repo / "report.json").write_text('{"disk": 51}')
    return repo


def walk(repo: Path, *arguments: str) -> Walk:
    """Run a command in a process of its own, and return what it ran through."""
    result = repo.parent / "walk.json"
    ran = subprocess.run(
        [sys.executable, "-c", PROBE, str(result), *arguments],
        cwd=repo, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(result.read_text())
    return Walk(
        frozenset(found["files"]),
        len(found["functions"]),
        found["sync.db"],
        found["store"],
        frozenset(found["threads"]),
    )


def walks(root: Path) -> dict[str, Walk]:
    """Return the walk of each of the three commands; the push finds a version that was put offline."""
    repo = scene(root)
    found = {}
    for name, arguments in COMMANDS.items():
        if name == "datastore sync --push":
            bayou(repo, "--offline", "data", "put", "web1", "usage", "report.json")
            (repo / "report.json").write_text('{"disk": 52}')  # what equals the latest version makes no new one
        found[name] = walk(repo, *arguments)
    return found


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Walk]:
    return walks(tmp_path_factory.mktemp("walk"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_opens_the_database_once_and_the_store_once(walked: dict[str, Walk], command: str) -> None:
    assert (walked[command].databases, walked[command].stores) == (1, 1)


@pytest.mark.parametrize(("command", "most"), [(name, MOST_FILES[name]) for name in COMMANDS])
def test_a_command_runs_through_no_more_files_than_it_needs(walked: dict[str, Walk], command: str, most: int) -> None:
    assert len(walked[command].files) <= most


def test_a_push_runs_nothing_of_a_pull(walked: dict[str, Walk]) -> None:
    push = walked["datastore sync --push"]

    assert not {file for file in push.files if "pull" in Path(file).stem}
    assert not {name for name in push.threads if "get" in name or "download" in name}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(f"{'command':24}{'files':>6}{'functions':>11}{'sync.db':>9}{'store':>7}")
        for command, one in walks(Path(directory)).items():
            print(f"{command:24}{len(one.files):6}{one.functions:11}{one.databases:9}{one.stores:7}")
            if os.environ.get("BAYOU_WALK_FILES"):
                print(*sorted(one.files), sep="\n")
                print(*sorted(one.threads), sep="\n")
