"""The example of docs/workflows.md runs as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import bayou
from bayou.core.errors import WorkflowNotFound
from bayou.data.records import Records
from bayou.repo import init_repo
from tests.session.commands import SOURCE
from tests.workflows.going import statuses, step
from tests.workflows.scene import lay, shell

DOCS = Path(__file__).resolve().parents[2] / "docs" / "workflows.md"
TEXT = DOCS.read_text()


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    repo = init_repo(tmp_path / "repo")
    program = tmp_path / "bin" / "bayou"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bayou "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (found,) = re.findall(r"```yaml\n# (workflows/\S+)\n(.*?)```", TEXT, re.DOTALL)
    (repo.root / found[0]).write_text(found[1])
    commands = [
        line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()
    ]
    assert len(commands) == 12

    done = subprocess.run(
        ["/bin/sh", "-e", "-c", "\n".join(commands)],
        cwd=repo.root,
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nightly is valid" in done.stdout
    assert "failed, as it should" in done.stdout
    with Records(repo) as records:
        rows, total = records.runs.search()
        failed, good = (records.runs.get(row.run_id) for row in rows)
    assert total == 2
    assert statuses(good) == {
        "usage[/]": "succeeded",
        "enough": "succeeded",
        "complete": "succeeded",
        "call": "skipped",
    }
    assert statuses(failed)["call"] == "succeeded"
    assert (failed.status, failed.failed_step) == ("failed", "enough")


def test_a_program_runs_and_resumes_workflows(tmp_path):
    root = init_repo(tmp_path / "repo").root
    with bayou.open(root) as repo:
        shell(repo.repo, "a")
        lay(repo.repo, "- {name: one, steps: [{name: x, model: a, method: execute, inputs: {run: test -e ready}}]}")
        assert [one.name for one in repo.workflows.list().workflows] == ["nightly"]

        outcome = repo.workflows.run("nightly", tags={"by": "hand"})
        assert (outcome.run.status, outcome.unpushed) == ("failed", None)
        (root / "ready").touch()

        again = repo.workflows.resume(outcome.run.run_id).run
        assert (again.status, again.run_id, again.tags) == ("succeeded", outcome.run.run_id, {"by": "hand"})
        assert step(again, "x").error is None
        assert repo.runs.get(again.run_id) == again
        with pytest.raises(WorkflowNotFound):
            repo.workflows.get("daily")
