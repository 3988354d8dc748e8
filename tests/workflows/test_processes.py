"""Workflows as real processes: signals, kills, steps that call the program, several workflows at once."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from bayou.data.records import Records
from bayou.leases import open_leases
from bayou.models import find_model
from bayou.session import write_session
from bayou.workflows.find import find_workflow
from tests.session.commands import PATIENT, SOURCE, Commands, held
from tests.sync.conftest import Clone, Team
from tests.workflows.going import recorded, statuses, step
from tests.workflows.scene import lay, shell

BAYOU = f"PYTHONPATH={SOURCE} {sys.executable} -m bayou"


@pytest.fixture
def clone(team: Team) -> Clone:
    made = team.clone("one")
    for name in "abc":
        shell(made.repo, name, "echo $0 >/dev/null")
    made.push()
    return made


def wait_for(file: Path) -> None:
    for _ in range(4000):
        if file.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{file} never came")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_records_what_was_cancelled_and_ends_what_runs(clone: Clone, commands: Commands, number, code):
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - {name: done, model: a, method: execute}
            - name: long
              model: b
              method: execute
              depends_on: [done]
              inputs: {run: "echo $$ > pid.new; mv pid.new pid; sleep 300"}
            - {name: other, model: c, method: execute, depends_on: [done], inputs: {run: "touch other; sleep 300"}}
            - {name: after, model: a, method: execute, depends_on: [long]}
        """,
    )
    running = commands.start(clone, "workflow", "run", "nightly", "--json", main=PATIENT)
    for name in ("pid", "other"):
        wait_for(clone.repo.root / name)
    pid = int((clone.repo.root / "pid").read_text())

    running.signal(number)
    ran = running.finish()

    assert ran.code == code
    assert ran.error["code"] == "cancelled"
    run = recorded(clone, ran.document["run_id"])
    assert run.status == ran.document["status"] == "cancelled"
    assert statuses(run) == {"done": "succeeded", "long": "cancelled", "other": "cancelled", "after": "cancelled"}
    assert run.finished_at is not None
    assert not alive(pid)
    assert held(clone) == []


def test_f116_the_run_of_a_killed_process_is_found_and_resumed_elsewhere(clone: Clone, commands: Commands, team: Team):
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - {name: quick, model: a, method: execute}
            - name: long
              model: b
              method: execute
              depends_on: [quick]
              inputs: {run: "touch began; test -e ready || sleep 300"}
        """,
    )
    running = commands.start(clone, "workflow", "run", "nightly")
    other = team.clone("other")
    for folder in ("models", "workflows"):
        shutil.copytree(clone.repo.root / folder, other.repo.root / folder, dirs_exist_ok=True)
    wait_for(clone.repo.root / "began")
    with Records(other.repo) as records:
        while not records.runs.search(status="running")[1]:  # until the store has its record
            other.pull()
    running.process.kill()
    running.process.wait()
    for lease in open_leases(other.repo).list():  # they would be taken over once their holder is proved dead
        open_leases(other.repo).release(lease.key, lease.nonce)
    (other.repo.root / "ready").touch()
    found = commands.run(other, "workflow", "run", "search", "--status", "running", "--json").document
    run_id = found["runs"][0]["run_id"]

    refused = commands.run(other, "workflow", "resume", run_id, "--json")
    resumed = commands.run(other, "workflow", "resume", run_id, "--abandoned", "--json")

    assert (refused.code, refused.error["code"]) == (1, "nothing_to_resume")
    assert resumed.code == 0, resumed.err
    assert statuses(recorded(other, run_id)) == {"quick": "succeeded", "long": "succeeded"}
    clone.pull()
    search = commands.run(clone, "workflow", "run", "search", "--status", "succeeded", "--json").document
    assert [row["run_id"] for row in search["runs"]] == [run_id]


def test_f089_a_step_that_calls_the_program_on_its_own_model_and_on_others_does_not_deadlock(
    clone: Clone, commands: Commands
):
    lay(
        clone.repo,
        f"""
        - name: one
          steps:
            - name: own
              model: a
              method: execute
              inputs: {{run: "{BAYOU} model run a execute --input run=true && {BAYOU} data put a own bayou.toml"}}
            - name: sibling
              model: b
              method: execute
              inputs: {{run: "{BAYOU} model run c execute --input 'run=echo by sibling'"}}
            - {{name: quick, model: c, method: execute}}
        """,
    )

    ran = commands.run(clone, "workflow", "run", "nightly", "--json", BAYOU_LOCK_TIMEOUT="20")

    assert ran.code == 0, ran.out + ran.err
    run = recorded(clone, ran.document["run_id"])
    assert statuses(run) == {"own": "succeeded", "sibling": "succeeded", "quick": "succeeded"}
    versions = commands.run(clone, "data", "list", "--all-versions", "--json").document["items"]
    made = sorted((one["model"], one["name"]) for one in versions)
    assert made.count(("a", "result")) == 2
    assert made.count(("c", "result")) == 2
    assert ("a", "own") in made
    assert held(clone) == []


def test_two_workflows_at_once_on_shared_models_take_turns(clone: Clone, commands: Commands, team: Team):
    """Two machines, the same three models: no two steps work on one model at once, and all are there at the end."""
    other = team.clone("other")
    turn = "mkdir ../lock-{m} && sleep 0.05 && rmdir ../lock-{m}"
    jobs = "- name: one\n  steps:\n" + "\n".join(
        f'    - {{name: s{at}, model: {m}, method: execute, inputs: {{run: "{turn.format(m=m)}"}}}}'
        for at, m in enumerate("abcab")
    )
    lay(clone.repo, jobs)
    for folder in ("models", "workflows"):
        shutil.copytree(clone.repo.root / folder, other.repo.root / folder, dirs_exist_ok=True)

    running = [commands.start(one, "workflow", "run", "nightly", "--json") for one in (clone, other)]
    ran = [one.finish() for one in running]

    assert [one.code for one in ran] == [0, 0], [one.out + one.err for one in ran]
    for one in (clone, other):
        one.pull()
    assert clone.files == other.files
    found = commands.run(clone, "data", "list", "--all-versions", "--json").document["items"]
    numbers = sorted((one["model"], one["version"]) for one in found if one["name"] == "result")
    assert numbers == [("a", n) for n in (1, 2, 3, 4)] + [("b", n) for n in (1, 2, 3, 4)] + [("c", 1), ("c", 2)]


def test_two_workflows_at_once_in_one_repo(clone: Clone, commands: Commands):
    jobs = "- name: one\n  steps:\n" + "\n".join(
        f"    - {{name: s{at}, model: {m}, method: execute}}" for at, m in enumerate("abc")
    )
    lay(clone.repo, jobs)
    lay(clone.repo, jobs, name="other", workflow_id="7f3c0000-0000-4000-8000-000000000001")

    running = [commands.start(clone, "workflow", "run", name, "--json") for name in ("nightly", "other")]
    ran = [one.finish() for one in running]

    assert [one.code for one in ran] == [0, 0], [one.out + one.err for one in ran]
    found = commands.run(clone, "workflow", "run", "search", "--json").document
    assert [row["status"] for row in found["runs"]] == ["succeeded", "succeeded"]


def test_f079_an_evaluation_waits_for_whoever_holds_the_workflows_lease(clone: Clone, commands: Commands):
    lay(clone.repo, "- {name: one, steps: [{name: x, model: a, method: execute}]}")
    with write_session(clone.repo, models=[find_workflow(clone.repo, "nightly").ref]):
        refused = commands.run(clone, "workflow", "evaluate", "nightly", "--json", BAYOU_LOCK_TIMEOUT="0")
        assert (refused.code, refused.error["code"]) == (75, "lease_timeout")
        assert not [path for path in clone.files if path.startswith("workflows-evaluated/")]
        waiting = commands.start(clone, "workflow", "evaluate", "nightly", "--json")
    ran = waiting.finish()

    assert ran.code == 0, ran.err
    assert ran.document["jobs"][0]["steps"][0]["model"] == "a"
    assert [path for path in clone.files if path.startswith("workflows-evaluated/")]


def test_an_interrupted_wait_for_a_lease_leaves_a_cancelled_run(clone: Clone, commands: Commands):
    lay(clone.repo, "- {name: one, steps: [{name: x, model: a, method: execute}]}")
    with write_session(clone.repo, models=[find_model(clone.repo, "a").ref]):
        running = commands.start_on_a_terminal(clone, "workflow", "run", "nightly")
        assert "is held by" in running.read_until("is held by")
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.finish().code == 130

    search = commands.run(clone, "workflow", "run", "search", "--json").document
    assert [row["status"] for row in search["runs"]] == ["cancelled"]
    assert step(recorded(clone, search["runs"][0]["run_id"]), "x").status == "cancelled"
