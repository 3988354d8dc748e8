"""Steps that run again: `retries`, `retry_delay` and `timeout`, what is recorded of attempts, and how a wait ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from bayou.core.errors import LeaseTimeout
from bayou.data.records import Records
from bayou.models import find_model
from bayou.state.connection import Connection
from bayou.workflows import step_run
from bayou.workflows.run import new_run
from tests.session.commands import PATIENT, Commands
from tests.sync.conftest import Clone, Team
from tests.workflows.going import NEVER_S, go, recorded, resume, sessions, statuses, step
from tests.workflows.scene import lay, read, shell

AGAIN = "n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count; echo try $n; test $n -ge "


@pytest.fixture
def clone(team: Team) -> Clone:
    made = team.clone("one")
    for name in "ab":
        shell(made.repo, name)
    made.push()
    return made


def one(clone: Clone, run: str, keys: str = "") -> None:
    lay(
        clone.repo,
        f"""
        - name: main
          steps:
            - {{name: x, model: a, method: execute, inputs: {{run: '{run}'}}{keys}}}
            - {{name: after, model: b, method: execute, depends_on: [x]}}
        """,
    )


def test_a_step_that_fails_runs_again_until_it_succeeds(clone: Clone):
    one(clone, f"{AGAIN}2", ", retries: 5")

    run = go(clone).run

    found = step(recorded(clone, run.run_id), "x")
    assert statuses(run) == {"x": "succeeded", "after": "succeeded"}
    assert [attempt.status for attempt in found.attempts] == ["failed", "failed"]
    assert {attempt.error for attempt in found.attempts} == {"the command ended with exit code 1"}
    with Records(clone.repo) as records:
        outputs = records.outputs.list(find_model(clone.repo, "a").ref)
    assert [(output.id, output.status) for output in reversed(outputs)] == [
        *((attempt.output, "failed") for attempt in found.attempts),
        (found.output, "succeeded"),
    ]
    assert {output.run for output in outputs} == {run.run_id}


def test_after_the_last_retry_the_step_has_failed_and_resume_tries_as_often_again(clone: Clone, team: Team):
    one(clone, f"{AGAIN}3", ", retries: 1")

    first = go(clone).run
    second = resume(clone, first.run_id).run

    assert statuses(first) == {"x": "failed", "after": "skipped"}
    assert len(step(first, "x").attempts) == 1
    assert statuses(second) == {"x": "succeeded", "after": "succeeded"}
    assert [attempt.status for attempt in step(second, "x").attempts] == ["failed"] * 3
    peer = team.clone("two")
    peer.pull()
    assert recorded(peer, first.run_id) == recorded(clone, first.run_id)


def test_a_lease_that_was_not_obtained_is_a_failed_attempt(clone: Clone):
    one(clone, "true", ", retries: 1")
    refused: list[str] = []

    def open_session(model):
        if not refused:
            refused.append(model.name)
            raise LeaseTimeout("another holds it")
        return sessions(clone)(model)

    run = new_run(clone.repo, "nightly", {}).run(Connection(clone.repo), open_session, every_s=NEVER_S).run

    (attempt,) = step(run, "x").attempts
    assert (run.status, attempt.error, attempt.output) == ("succeeded", "another holds it", None)


def test_a_method_without_retries_runs_once(clone: Clone):
    one(clone, f"{AGAIN}1")

    assert statuses(go(clone).run) == {"x": "failed", "after": "skipped"}
    assert (clone.repo.root / "count").read_text() == "1\n"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_method_that_takes_too_long_is_ended_with_its_processes_and_has_failed(clone: Clone):
    one(clone, "echo begun; sleep 600 & echo $! > pid; wait", ", timeout: 0.5")

    run = go(clone).run

    assert step(run, "x").error == "took longer than its timeout of 0.5 s, and was stopped"
    assert statuses(run) == {"x": "failed", "after": "skipped"}
    assert not alive(int((clone.repo.root / "pid").read_text()))
    with Records(clone.repo) as records:
        assert records.data.read(records.data.get(find_model(clone.repo, "a").ref, "log")) == b"begun\n"


def test_the_timeout_is_for_each_attempt(clone: Clone):
    one(clone, "test -e slow || { touch slow; sleep 600; }", ", timeout: 1s, retries: 1")

    run = go(clone).run

    assert run.status == "succeeded"
    assert [attempt.error for attempt in step(run, "x").attempts] == [
        "took longer than its timeout of 1 s, and was stopped"
    ]


def test_a_method_that_ends_in_time_is_not_touched_by_the_timeout(clone: Clone):
    one(clone, "echo quick", ", timeout: 1m")

    assert go(clone).run.status == "succeeded"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_between_attempts_and_the_run_can_be_resumed(
    clone: Clone, commands: Commands, number, code
):
    one(clone, "touch tried; test -e ready", ", retries: 3, retry_delay: 1h")
    process = commands.start(clone, "workflow", "run", "nightly", "--json", main=PATIENT)
    run_id = None
    for _ in range(3000):
        with Records(clone.repo) as records:
            rows, _ = records.runs.search()
        if rows and step(recorded(clone, rows[0].run_id), "x").attempts:
            run_id = rows[0].run_id
            break
        time.sleep(0.02)
    assert run_id is not None

    os.kill(process.process.pid, number)
    ended = process.finish()

    assert ended.code == code
    cancelled = recorded(clone, run_id)
    assert (cancelled.status, statuses(cancelled)) == ("cancelled", {"x": "cancelled", "after": "cancelled"})
    (clone.repo.root / "ready").touch()
    resumed = resume(clone, run_id).run
    assert statuses(resumed) == {"x": "succeeded", "after": "succeeded"}
    assert "failed" in [attempt.status for attempt in step(resumed, "x").attempts]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("retries: -1", "retries must be a whole number from 0 to 20, and not -1"),
        ("retries: 21", "retries must be a whole number from 0 to 20, and not 21"),
        ("retries: true", "retries must be a whole number from 0 to 20, and not True"),
        ("retries: often", "retries must be a whole number from 0 to 20, and not often"),
        ("retries: 1, retry_delay: soon", "retry_delay is no duration: soon"),
        ("retries: 1, retry_delay: 25h", "retry_delay is no duration: 25h"),
        ("retry_delay: 5s", "retry_delay does nothing without retries"),
        ("timeout: 0", "timeout is no duration: 0"),
        ("timeout: true", "timeout is no duration: True"),
        ("timeout: 8d", "timeout is no duration: 8d"),
        ("timeout: 5y", "timeout is no duration: 5y"),
        ("retrys: 1", "unknown key retrys"),
    ],
)
def test_a_wrong_number_or_duration_is_a_problem_with_its_line(keys, message):
    _, problems = read(f"- {{name: j, steps: [{{name: x, model: a, method: execute, {keys}}}]}}")

    assert [problem.message for problem in problems] == [message]
    assert problems[0].where == "workflows/nightly.yaml, line 4"


def test_an_assertion_does_not_run_again():
    _, problems = read("- {name: j, steps: [{name: x, assert: '${{ true }}', retries: 2, timeout: 5}]}")

    assert [problem.message for problem in problems] == [
        "a step that asserts has no retries",
        "a step that asserts has no timeout",
    ]


def test_attempts_that_are_recorded_are_bounded(clone: Clone, monkeypatch):
    monkeypatch.setattr(step_run, "MAX_ATTEMPTS", 2)
    one(clone, f"{AGAIN}5", ", retries: 5")

    assert len(step(go(clone).run, "x").attempts) == 2
