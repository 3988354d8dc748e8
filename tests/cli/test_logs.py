"""`model logs`, `workflow run logs`, `run get`, `graph`, and -v: finding out why something failed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Processes
from tests.cli.terminal import at_terminal
from tests.workflows.scene import lay, shell

from bayou.cli.logs import StepPrinter
from bayou.models import create_model, method_context, method_output

TWO = """
- name: main
  steps:
    - {name: good, model: a, method: execute, inputs: {run: "echo fine"}}
    - {name: bad, model: b, method: execute, depends_on: [good], inputs: {run: "echo before; echo oh >&2; exit 3"}}
"""
LOOP = """
- name: main
  steps:
    - name: one
      for_each: [x, y]
      model: a
      method: execute
      inputs: {run: "echo ${{ each.value }}"}
"""


@pytest.fixture
def made(repo):
    shell(repo, "a")
    shell(repo, "b")
    lay(repo, TWO)
    return repo


@pytest.fixture
def failed(made, command) -> str:
    """The id of a run whose second step failed."""
    ran = command("workflow", "run", "nightly", "--json")
    assert ran.code == 1
    found: str = ran.document["run_id"]
    return found


@pytest.mark.parametrize("name", ["latest", "id", "prefix", "lower"])
def test_a_run_is_named_by_its_id_by_the_beginning_of_it_or_as_the_latest(failed, command, name):
    text = {"latest": "latest", "id": failed, "prefix": failed[:20], "lower": failed[:20].lower()}[name]

    assert command("workflow", "run", "get", text, "--json").document["run_id"] == failed
    assert command("workflow", "run", "logs", text, "--json").document["run_id"] == failed
    assert command("workflow", "graph", text, "--json").document["run_id"] == failed
    assert command("workflow", "resume", text, "--json").document["run_id"] == failed


def test_the_beginning_of_several_ids_is_an_error_that_lists_them(failed, command):
    other = command("workflow", "run", "nightly", "--json").document["run_id"]

    ran = command("workflow", "run", "get", "0", "--json")
    none = command("workflow", "run", "get", "zzz", "--json")

    assert (ran.code, ran.error["code"]) == (2, "id_ambiguous")
    assert failed in ran.error["message"]
    assert other in ran.error["message"]
    assert (none.code, none.error["code"]) == (1, "record_not_found")
    assert command("workflow", "run", "get", "latest", "--json").document["run_id"] == other


def test_run_get_names_the_model_and_the_log_of_each_step(failed, command):
    document = command("workflow", "run", "get", "latest", "--json").document
    told = command("workflow", "run", "get", "latest")

    steps = {step["name"]: step for step in document["jobs"][0]["steps"]}
    assert (steps["bad"]["model"], steps["bad"]["attempts"]) == ("b", [])
    assert steps["bad"]["log"] == {"model": "b", "name": "log", "version": 1, "size": 10}
    header, good, bad = told.out.splitlines()[4:7]
    assert header.split()[:3] == ["job", "step", "model"]
    assert good.split()[:4] == ["main", "good", "a", "succeeded"]
    assert bad.endswith("log 1")
    assert "error: main / bad: the command ended with exit code 3: oh" in told.err
    assert f"`bayou workflow run logs {failed}`" in told.err


def test_run_logs_shows_what_each_step_printed_and_why_one_failed(failed, command):
    everything = command("workflow", "run", "logs", "latest")
    one = command("workflow", "run", "logs", "latest", "main/bad")
    last = command("workflow", "run", "logs", "latest", "bad", "-n", "1")

    assert everything.code == 0
    assert everything.out == (
        "==> main / good: succeeded, log 1 of a <==\nfine\n==> main / bad: failed, log 1 of b <==\nbefore\noh\n"
    )
    assert one.out == "before\noh\n"
    assert last.out == "oh\n"
    assert one.err.splitlines() == [
        "error: main / bad failed: the command ended with exit code 3: oh",
        f"hint: go on from there with `bayou workflow resume {failed}`",
    ]
    missing = command("workflow", "run", "logs", "latest", "bda", "--json")
    assert (missing.error["code"], missing.error["hint"]) == ("record_not_found", "did you mean bad?")


def test_run_logs_is_one_document_with_json(failed, command):
    document = command("workflow", "run", "logs", "latest", "bad", "--json").document

    (log,) = document.pop("logs")
    assert document == {"run_id": failed, "workflow": "nightly", "status": "failed"}
    assert log.pop("output_id") == command("model", "outputs", "b", "--json").document["outputs"][0]["output_id"]
    assert log == {
        "job": "main",
        "step": "bad",
        "status": "failed",
        "attempt": None,
        "model": "b",
        "error": "the command ended with exit code 3: oh",
        "log": {"model": "b", "name": "log", "version": 1, "size": 10},
        "text": "before\noh\n",
        "left_out": 0,
    }


def test_each_attempt_has_its_log(made, command):
    step = "{name: x, model: a, method: execute, retries: 1, inputs: {run: 'echo again; test -e ok || ! touch ok'}}"
    lay(made, f"- {{name: main, steps: [{step}]}}")
    assert command("workflow", "run", "nightly").code == 0

    document = command("workflow", "run", "logs", "latest", "x", "--json").document

    assert [(log["attempt"], log["status"], log["log"]["version"]) for log in document["logs"]] == [
        (1, "failed", 1),
        (2, "succeeded", 2),
    ]
    assert "==> main / x, attempt 2: succeeded, log 2 of a <==" in command("workflow", "run", "logs", "latest").out


def test_the_executions_of_a_loop_are_found_together_or_by_their_key(made, command):
    lay(made, LOOP)
    assert command("workflow", "run", "nightly").code == 0

    both = command("workflow", "run", "logs", "latest", "one", "--json").document["logs"]
    other = command("workflow", "run", "logs", "latest", "one[y]")

    assert [log["step"] for log in both] == ["one[x]", "one[y]"]
    assert other.out == "y\n"


def test_model_logs_shows_an_output_by_its_id_or_the_latest(repo, command):
    shell(repo, "m", "echo ${{ inputs.word }}; test ${{ inputs.word }} = good")
    command("model", "run", "m", "execute", "--input", "word=good")
    command("model", "run", "m", "execute", "--input", "word=bad")
    bad, good = command("model", "outputs", "m", "--json").document["outputs"]

    latest = command("model", "logs", "m")
    earlier = command("model", "logs", "m", good["output_id"][:12])
    document = command("model", "logs", "m", "latest", "--json").document

    assert (latest.code, latest.out) == (0, "bad\n")
    assert latest.err == "error: m execute failed: the command ended with exit code 1\n"
    assert (earlier.out, earlier.err) == ("good\n", "")
    assert document["output_id"] == bad["output_id"]
    assert (document["text"], document["status"]) == ("bad\n", "failed")
    nothing = command("model", "logs", "m", "nonesuch", "--json")
    assert (nothing.code, nothing.error["code"]) == (1, "record_not_found")


def test_a_method_that_printed_nothing_has_no_log_and_this_is_said(repo, command):
    (repo.root / "job.py").write_text("def go():\n    return 1\n")
    create_model(repo, "python/call", "p", {"target": "job:go"})
    command("model", "run", "p", "call")

    ran = command("model", "logs", "p")

    assert (ran.code, ran.out) == (0, "")
    assert "has no log: it printed nothing" in ran.err
    assert command("model", "logs", "p", "--json").document["log"] is None


def test_steps_and_methods_whose_logs_are_empty_are_said_to_have_printed_nothing(made, command):
    lay(made, "- {name: main, steps: [{name: x, model: a, method: execute, inputs: {run: 'true'}}]}")
    assert command("workflow", "run", "nightly").code == 0

    steps = command("workflow", "run", "logs", "latest")
    method = command("model", "logs", "a")

    assert (steps.code, steps.out, method.code, method.out) == (0, "", 0, "")
    assert "nightly, succeeded): the steps printed nothing" in steps.err
    assert "succeeded) printed nothing" in method.err


def test_a_log_that_is_too_long_keeps_its_beginning_and_its_end(repo, command, monkeypatch):
    monkeypatch.setattr(method_context, "LOG_BYTES", 100)
    monkeypatch.setattr(method_output, "LOG_TAIL", 50)
    shell(repo, "m", "seq 1000")
    command("model", "run", "m", "execute")

    lines = command("model", "logs", "m").out.split("\n")

    whole = sum(len(f"{number}\n") for number in range(1, 1001))
    assert lines[0] == "1"
    assert lines[-2] == "1000"
    assert f"[… {whole - 150:,} bytes left out …]" in lines


def test_what_secrets_a_traceback_has_is_not_in_the_log(repo, command, monkeypatch):
    monkeypatch.setenv("SECRET_WORD", "correct-horse-battery")
    (repo.root / "job.py").write_text("def go(word):\n    print('got', word)\n    raise ValueError(f'not {word}')\n")
    create_model(repo, "python/call", "p", {"target": "job:go", "arguments": {"word": "${{ env.SECRET_WORD }}"}})

    ran = command("model", "run", "p", "call", "-v")
    kept = command("model", "logs", "p")

    assert "ValueError: not *** (job.py, line 3, in go)" in kept.err
    assert kept.out.startswith("got ***\nTraceback")
    assert "correct-horse" not in ran.out + ran.err + kept.out + kept.err


def test_verbose_shows_what_steps_print_behind_their_names(made, command):
    several = command("workflow", "run", "nightly", "-v")
    lay(made, "- {name: main, steps: [{name: x, model: a, method: execute, inputs: {run: printf 'no end'}}]}")
    one = command("workflow", "run", "nightly", "-v")
    quiet = command("workflow", "run", "nightly")

    assert "main / good | fine\n" in several.err
    assert "main / bad | oh\n" in several.err
    assert "\nno end\n" in one.err
    assert "no end" not in quiet.err


def test_output_of_steps_is_printed_in_whole_lines_and_cannot_command_a_terminal(capsys):
    printer = StepPrinter(prefixed=True)
    printer.show("j", "a", b"one\ntw")
    printer.show("j", "b", b"\x1b[2J\n")
    printer.show("j", "a", b"o\nrest")
    printer.end("j", "a")
    printer.end("j", "b")

    assert capsys.readouterr().err == "j / a | one\nj / b | \\x1b[2J\nj / a | two\nj / a | rest\n"


def test_graph_shows_what_waits_for_what_and_of_a_run_what_came_of_it(made, command):
    lay(
        made,
        """
        - name: first
          steps:
            - {name: x, for_each: [p, q], model: a, method: execute, inputs: {run: "test ${{ each.value }} = p"}}
            - {name: y, model: b, method: execute, depends_on: [{step: x, when: failed}]}
        - {name: second, depends_on: [first], steps: [{name: z, assert: "${{ true }}"}]}
        """,
    )
    command("workflow", "run", "nightly")

    plain = command("workflow", "graph", "nightly")
    of_run = command("workflow", "graph", "latest")
    drawn = command("workflow", "graph", "latest", "--format", "mermaid")
    document = command("workflow", "graph", "latest", "--json").document

    assert plain.out.splitlines() == [
        "nightly",
        "  first",
        "    x (a execute)",
        "    y (b execute)  ← x (failed)",
        "  second  ← first",
        "    z",
    ]
    assert of_run.out.splitlines()[2:7] == [
        "    ✗ x (a execute)",
        "      ✓ x[p]",
        "      ✗ x[q]",
        "    ✓ y (b execute)  ← x (failed)",
        "  second  ← first",
    ]
    assert "    s0 -. failed .-> s1" in drawn.out
    assert "    j0 --> j1" in drawn.out
    assert document["edges"] == [
        {"from": "first/x", "to": "first/y", "when": "failed", "kind": "step"},
        {"from": "first", "to": "second", "when": "succeeded", "kind": "job"},
    ]
    assert [(step["job"], step["name"], step["status"]) for step in document["steps"]] == [
        ("first", "x", "failed"),
        ("first", "y", "succeeded"),
        ("second", "z", "skipped"),
    ]
    assert command("workflow", "graph", "nihgtly", "--json").error["code"] == "workflow_not_found"


def until(process, text: str) -> str:
    """Read what a process prints until a text has come."""
    seen = ""
    while text not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return seen


def wait_for(file: Path) -> None:
    for _ in range(3000):
        if file.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{file} never came")


@pytest.fixture
def running(made, processes: Processes):
    """A run in progress, whose step prints and then waits for the file `go`."""
    processes.cwd = made.root
    wait = "echo first; touch began; while ! test -e go; do sleep 0.05; done; echo second; exit 3"
    lay(made, f"- {{name: main, steps: [{{name: x, model: a, method: execute, inputs: {{run: '{wait}'}}}}]}}")
    process = processes.start(["-m", "bayou", "workflow", "run", "nightly", "--json"])
    wait_for(made.root / "began")
    return process


def test_follow_shows_a_run_in_progress_and_ends_with_it(made, running, processes):
    follower = processes.start(["-m", "bayou", "workflow", "run", "logs", "latest", "--follow"])

    seen = until(follower, "first\n")
    (made.root / "go").touch()
    rest = processes.finish(follower)
    ran = processes.finish(running)

    assert seen + rest.out == f"==> main / x: a <==\nfirst\nsecond\nnightly failed: run {ran.document['run_id']}\n"
    assert rest.code == 0
    assert "error: main / x failed: the command ended with exit code 3" in rest.err


def test_ctrl_c_ends_follow_and_not_the_run(made, running, processes):
    follower = processes.start(["-m", "bayou", "workflow", "run", "logs", "latest", "--follow"])
    until(follower, "first\n")

    follower.send_signal(signal.SIGINT)
    ended = processes.finish(follower)

    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert running.poll() is None
    (made.root / "go").touch()
    assert processes.finish(running).document["status"] == "failed"


def test_follow_ends_when_the_process_of_a_run_was_killed_and_its_log_stays(made, running, processes):
    follower = processes.start(["-m", "bayou", "workflow", "run", "logs", "latest", "--follow"])
    until(follower, "first\n")

    os.kill(running.pid, signal.SIGKILL)
    ended = processes.finish(follower)
    (made.root / "go").touch()  # ends the command, which nobody waits for any more

    assert ended.code == 0
    assert "no process works on it here" in ended.err
    kept = json.loads(processes.run("workflow", "run", "logs", "latest", "--json").out)
    assert (kept["status"], kept["logs"][0]["text"]) == ("running", "first\n")


def test_a_log_cannot_command_a_terminal_and_a_pipe_gets_its_bytes(repo, processes):
    processes.cwd = repo.root
    shell(repo, "m", r"printf 'a\033[2Jb\n'; exit 1")
    lay(repo, "- {name: main, steps: [{name: x, model: m, method: execute}]}")

    code, shown = at_terminal("", "workflow", "run", "nightly", "-v")
    code_of_logs, shown_of_logs = at_terminal("", "workflow", "run", "logs", "latest")
    code_of_model, shown_of_model = at_terminal("", "model", "logs", "m")

    assert (code, code_of_logs, code_of_model) == (1, 0, 0)
    for text in (shown, shown_of_logs, shown_of_model):
        assert r"a\x1b[2Jb" in text
        assert "\x1b[2J" not in text
    assert processes.run("model", "logs", "m").out == "a\x1b[2Jb\n"


def test_lists_name_the_command_that_says_why_one_failed(failed, command):
    (output,) = command("model", "outputs", "b", "--json").document["outputs"]

    assert f"why one failed: `bayou workflow run logs {failed}`" in command("workflow", "run", "search").err
    assert f"why one failed: `bayou model logs b {output['output_id'][:8]}`" in command("model", "outputs", "b").err
    assert "why one failed" not in command("model", "outputs", "a").err


def test_a_step_that_was_skipped_is_said_to_have_no_log_and_nothing_is_said_of_others(made, command):
    lay(
        made,
        TWO + """    - {name: after, model: a, method: execute, depends_on: [bad], inputs: {run: "echo never"}}\n""",
    )
    run_id = command("workflow", "run", "nightly", "--json").document["run_id"]

    ran = command("workflow", "run", "logs", run_id, "after")

    assert f"run {run_id} (nightly, failed): main / after: skipped, no log" in ran.out + ran.err


def test_without_runs_the_hint_is_true_without_a_store_too(repo, command):
    assert command("workflow", "run", "get", "latest", "--json").error["hint"] == (
        "`bayou workflow run NAME` makes one; with a store, `bayou datastore sync --pull` brings what others have run"
    )
