"""Many at once, and much at once (F125, F130): nobody waits for another commit, and memory stays bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bayou
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many
from bayou.repo import init_repo
from bayou_testing.faults import Delay, Rule
from bayou_testing.proxy import HttpProxy
from tests.sync.conftest import UPLOADS, Team
from tests.sync.indexes import entries_of
from tests.sync.test_request_counts import lazy, synthetic

SOURCE = Path(bayou.__path__[0]).parent
WRITERS = 8

PUSH = """
import sys
from pathlib import Path
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions
from bayou.sync.service import Datastore

repo, name, rounds = open_repo(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
sys.stdin.read(1)
for version in range(1, rounds + 1):
    with Datastore(repo) as datastore:
        datastore.tree.write(f"data/t/{name}/item/{version}/raw", name.encode() * version)
    report = sync(Connection(repo), SyncOptions(mode="push", walk=False), timeout=120)
    assert report.pushed.files == 1, report
"""

SETUP = """
import re, sys
from bayou.cli import main
try:
    main()
finally:  # what getrusage tells begins with the memory of whoever started this process
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""


@pytest.mark.s3
@pytest.mark.parametrize(
    ("entries", "rounds"), [(1_000, 1), pytest.param(100_000, 10, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_f125_eight_writers_commit_to_one_store_and_none_starves(
    s3_team: Team, proxy: HttpProxy, entries: int, rounds: int
) -> None:
    synthetic(s3_team, entries)
    names = [f"writer-{number}" for number in range(WRITERS)]
    versions = range(1, rounds + 1)
    paths = {f"data/t/{name}/item/{version}/raw": len(name) * version for name in names for version in versions}
    made = [lazy(s3_team, name) for name in names]
    proxy.log.clear()
    proxy.faults.add(Rule(Delay(0.02)))
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}

    started = [
        subprocess.Popen(
            [sys.executable, "-c", PUSH, str(clone.repo.root), name, str(rounds)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for clone, name in zip(made, names, strict=True)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [(process.communicate()[1], process.returncode) for process in started]

    assert [code for _, code in ended] == [0] * WRITERS, [said for said, _ in ended]
    uploads = proxy.log.rows(method="PUT", path=UPLOADS)
    assert len(uploads) == WRITERS * rounds, "what was uploaded once is never uploaded again for somebody's commit"
    proxy.faults.clear()
    store = s3_team.store()
    seen = read_head(store)
    assert seen is not None
    assert seen.head.seq == 1 + WRITERS * rounds
    found = find_many(IndexTree(StoreNodes(store), seen.head.root), paths)
    assert {path: entry.size for path, entry in found.items()} == paths


@pytest.mark.parametrize(
    ("files", "size", "engine"),
    [
        (2_000, 100_000, "point"),
        pytest.param(100_000, 10_700, "spark", marks=[pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1800)]),
    ],
)
def test_f130_setup_migrates_many_files_in_bounded_memory(team: Team, files: int, size: int, engine: str) -> None:
    repo = init_repo(team.root / "a")
    body = os.urandom(size)
    for number in range(files):
        folder = repo.tree_root / f"data/t/m{number % 100}/item-{number}/1"
        folder.mkdir(parents=True)
        (folder / "raw").write_bytes(number.to_bytes(8, "big") + body[8:])
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}

    asked = ["datastore", "setup", team.url, "--timeout", "1500", "--engine", engine, "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", SETUP, *asked], cwd=repo.root, env=env, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr
    assert len(entries_of(team.store())) == files
    peak_kib = int(ran.stderr.splitlines()[-1])
    assert peak_kib < 400_000, "memory follows neither the bytes nor the number of files"
