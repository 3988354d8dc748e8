"""`bayou workflow`: documents, exit codes, sentences, and what a command line may say."""

from __future__ import annotations

import pytest
from tests.sync.conftest import Clone
from tests.workflows.scene import ID, lay, shell

from bayou import objectstore

ONE = "- {name: one, steps: [{name: x, model: a, method: execute, inputs: {run: 'echo ${{ inputs.word }}'}}]}"
HEAD = "inputs: {word: {type: string, default: hello}, n: {type: integer, default: 1}}\ntags: {team: infra}\n"


@pytest.fixture
def made(repo):
    """The repo that the caller stands in, with a model and a workflow."""
    shell(repo, "a")
    lay(repo, ONE, HEAD)
    return repo


def test_create_makes_a_workflow_that_runs(repo, command):
    made = command("workflow", "create", "nightly", "--json")
    ran = command("workflow", "run", "nightly", "--json")

    assert made.code == 0
    assert set(made.document) == {"id", "name", "path"}
    assert made.document["path"] == "workflows/nightly.yaml"
    assert (ran.code, ran.document["status"]) == (0, "succeeded")
    again = command("workflow", "create", "nightly", "--json")
    assert (again.code, again.error["code"]) == (2, "workflow_exists")
    assert again.error["hint"] == "see it with `bayou workflow get nightly`"


def test_list_and_get_show_what_the_files_say(made, command):
    listed = command("workflow", "list", "--json")
    got = command("workflow", "get", ID, "--json")

    assert listed.document == {"workflows": [{"id": ID, "name": "nightly", "path": "workflows/nightly.yaml"}]}
    assert got.document["definition"]["jobs"][0]["steps"][0]["model"] == "a"
    assert "model: a" in command("workflow", "get", "nightly").out
    missing = command("workflow", "get", "nigtly", "--json")
    assert (missing.code, missing.error["code"]) == (2, "workflow_not_found")
    assert missing.error["hint"] == "did you mean nightly?"


def test_a_damaged_workflow_is_listed_as_one(made, command):
    (made.root / "workflows" / "bad.yaml").write_text("jobs: []\n")

    ran = command("workflow", "list", "--json")

    assert ran.code == 1
    assert ran.document["workflows"][0]["name"] == "nightly"
    assert ran.document["problems"][0].startswith("workflows/bad.yaml, line 1")


def test_run_prints_what_each_step_came_to(made, command):
    ran = command("workflow", "run", "nightly", "--input", "word=there", "--tag", "why=test", "--json")

    assert ran.code == 0
    assert set(ran.document) == {"run_id", "workflow", "status", "jobs", "duration_s", "pushed"}
    (job,) = ran.document["jobs"]
    (step,) = job["steps"]
    assert (job["name"], job["status"]) == ("one", "succeeded")
    assert (step["name"], step["status"], step["error"]) == ("x", "succeeded", None)
    assert {"duration_s", "data", "model", "method", "output"} <= set(step)
    assert [(made["name"], made["version"]) for made in step["data"]] == [("log", 1), ("result", 1)]
    got = command("workflow", "run", "get", ran.document["run_id"], "--json").document
    assert (got["inputs"], got["tags"]) == ({"word": "there", "n": 1}, {"team": "infra", "why": "test"})
    assert got["status"] == "succeeded"
    log = command("data", "get", "a", "log")
    assert log.out == "there\n"


def test_people_see_steps_as_they_go_and_a_hint_after_a_failure(made, command):
    lay(made, ONE.replace("echo", "echo oh >&2; exit 3; echo"), HEAD)

    ran = command("workflow", "run", "nightly")

    assert ran.code == 1
    assert "one / x: running" in ran.err
    assert "one / x: failed" in ran.err
    assert "the log of a:\n  oh\n" in ran.out
    assert "error: one / x failed: the command ended with exit code 3: oh" in ran.err
    assert "hint: go on from there with `bayou workflow resume 0" in ran.err
    assert command("workflow", "run", "nightly", "-q").err.startswith("error: one / x failed")


def test_resume_goes_on_and_says_when_there_is_nothing_to_do(made, command):
    lay(made, "- {name: one, steps: [{name: x, model: a, method: execute, inputs: {run: test -e ready}}]}", HEAD)
    failed = command("workflow", "run", "nightly", "--json")
    assert (failed.code, failed.document["jobs"][0]["steps"][0]["status"]) == (1, "failed")
    (made.root / "ready").touch()

    resumed = command("workflow", "resume", failed.document["run_id"], "--json")
    again = command("workflow", "resume", failed.document["run_id"], "--json")
    nobody = command("workflow", "resume", "01M7H7S04XXZX55FD4FYJV22TN", "--json")

    assert (resumed.code, resumed.document["status"]) == (0, "succeeded")
    assert resumed.document["run_id"] == failed.document["run_id"]
    assert (again.code, again.error["code"]) == (1, "nothing_to_resume")
    assert (nobody.code, nobody.error["code"]) == (1, "record_not_found")


def test_resume_tells_retries_of_its_own_and_not_how_the_run_failed_before(made, command):
    step = "{name: x, model: a, method: execute, retries: 1, inputs: {run: 'test -e ready || ! touch later'}}"
    lay(made, f"- {{name: one, steps: [{step}]}}", HEAD)
    failed = command("workflow", "run", "nightly")
    (made.root / "ready").touch()

    resumed = command("workflow", "resume", "latest")

    assert "one / x: attempt 1 failed, another follows" in failed.err
    assert "one / x: running" in resumed.err
    assert "another follows" not in resumed.err


def test_search_finds_runs_by_all_that_is_said(made, command):
    def found(*arguments: str) -> list[str]:
        ran = command("workflow", "run", "search", *arguments, "--json")
        assert ran.code == 0, ran.err
        assert set(ran.document) == {"runs", "total"}
        return [row["run_id"] for row in ran.document["runs"]]

    good = command("workflow", "run", "nightly", "--input", "word=apple", "--json").document["run_id"]
    lay(made, ONE.replace("echo", "exit 3;"), HEAD)
    bad = command("workflow", "run", "nightly", "--json").document["run_id"]

    assert found() == [bad, good]
    assert found("apple") == [good]
    assert found("--status", "failed") == [bad]
    assert found("--workflow", "nightly", "--tag", "team=infra", "--limit", "1") == [bad]
    assert found("--workflow", "other") == []
    assert found("--since", "1d") == [bad, good]
    assert found("--since", "0s") == []
    row = command("workflow", "run", "search", "--limit", "1", "--json").document
    assert row["total"] == 2
    assert set(row["runs"][0]) == {"run_id", "workflow", "status", "started_at", "finished_at", "failed_step"}
    assert row["runs"][0]["failed_step"] == "x"
    assert command("workflow", "run", "search", "--status", "odd").code == 2


def test_a_name_behind_run_is_a_workflows_unless_it_is_search_or_get(made, command):
    assert command("workflow", "run", "--json", "nightly").code == 0
    assert command("workflow", "run", "--input", "word=search", "nightly", "--json").code == 0
    assert command("workflow", "run", "--json", "search", "nightly").document["total"] == 2
    assert command("workflow", "--json", "run", "nightly").code == 0
    missing = command("workflow", "run", "--json")
    assert (missing.code, missing.error["code"]) == (2, "usage")
    assert "see `bayou workflow run NAME --help`" in missing.error["hint"]
    assert "workflow run [OPTIONS] NAME" in command("workflow", "run", "--help").out


def test_inputs_come_from_a_file_and_the_command_line_goes_over_it(made, command):
    (made.root / "inputs.yaml").write_text("word: file\nn: 5\n")

    ran = command("workflow", "run", "nightly", "--input-file", "inputs.yaml", "--input", "n=6", "--json")

    got = command("workflow", "run", "get", ran.document["run_id"], "--json").document
    assert got["inputs"] == {"word": "file", "n": 6}
    (made.root / "inputs.yaml").write_text("- word")
    assert command("workflow", "run", "nightly", "--input-file", "inputs.yaml", "--json").error["code"] == "usage"
    assert command("workflow", "run", "nightly", "--input", "n=1", "--input", "n=2", "--json").code == 2


@pytest.mark.parametrize(
    ("jobs", "arguments", "code", "message"),
    [
        ("- {name: one, steps: [{name: x}", (), "workflow_invalid", "workflows/nightly.yaml, line"),
        (ONE.replace("method", "metod"), (), "workflow_invalid", "workflows/nightly.yaml, line 6: unknown key metod"),
        (ONE.replace("model: a", "model: b"), (), "workflow_invalid", "line 6: there is no model b"),
        (ONE.replace("execute", "do"), (), "workflow_invalid", "line 6: command/shell has no method do"),
        (ONE.replace("name: x", "name: x, depends_on: [x]"), (), "workflow_invalid", "wait for each other: x → x"),
        (ONE.replace("inputs.word", "inputs.wrd"), (), "workflow_invalid", "line 6: there is no input wrd"),
        (ONE, ("--input", "n=many"), "input_invalid", 'n must be a whole number, not "many"'),
        (ONE, ("--input", "m=1"), "input_invalid", "unknown argument m"),
    ],
)
def test_what_is_wrong_is_one_message_with_the_place_and_runs_and_writes_nothing(
    made, command, jobs, arguments, code, message
):
    lay(made, jobs, HEAD)
    before = Clone(made).files, sorted((made.root / ".bayou").rglob("*"))

    ran = command("workflow", "run", "nightly", *arguments, "--json")

    assert ran.code == 2
    assert ran.out == ""
    assert ran.error["code"] == code
    assert message in ran.error["message"]
    assert (Clone(made).files, sorted((made.root / ".bayou").rglob("*"))) == before


def test_validate_tells_all_problems_with_their_places(made, command):
    assert command("workflow", "validate", "nightly", "--json").document == {"valid": True, "problems": []}
    lay(made, ONE.replace("method", "metod").replace("name: one", "nme: one"), HEAD)

    ran = command("workflow", "validate", "--json")

    assert (ran.code, ran.document["valid"]) == (1, False)
    assert [set(one) for one in ran.document["problems"]] == [{"where", "message", "hint"}] * 4
    assert ran.document["problems"][0]["where"] == "workflows/nightly.yaml, line 6"
    shown = command("workflow", "validate")
    assert "error: workflows/nightly.yaml, line 6: unknown key nme" in shown.err
    assert "hint: did you mean name?" in shown.err


def test_evaluate_writes_and_prints_what_a_workflow_comes_to(made, command):
    ran = command("workflow", "evaluate", "nightly", "--input", "word=there", "--json")

    assert ran.code == 0
    assert ran.document["inputs"] == {"word": "there", "n": 1}
    assert ran.document["jobs"][0]["steps"][0]["inputs"] == {"run": "echo there"}
    assert f"workflows-evaluated/{ID}/evaluated.yaml" in Clone(made).files
    assert "run: echo there" in command("workflow", "evaluate", "nightly", "--input", "word=there").out


def test_f030_delete_takes_the_records_of_runs_along_and_asks_first(made, command):
    command("workflow", "run", "nightly")
    command("workflow", "evaluate", "nightly")

    refused = command("workflow", "delete", "nightly", "--json")
    assert (refused.code, refused.error["code"]) == (2, "not_confirmed")
    deleted = command("workflow", "delete", "nightly", "-y", "--json")

    assert deleted.document == {"id": ID, "runs_deleted": 1, "pushed": None}
    assert command("workflow", "run", "search", "--json").document["total"] == 0
    assert not [path for path in Clone(made).files if path.startswith("workflow")]
    assert [path for path in Clone(made).files if path.startswith("data/")], "data is its model's"
    assert command("workflow", "list", "--json").document == {"workflows": []}


def test_validate_tells_wrong_keys_dependencies_models_arguments_and_expressions_at_once(made, command):
    lay(
        made,
        """
        - name: one
          depends_on: [nobody]
          steps:
            - {name: x, model: nosuch, method: execute, retrys: 3}
            - {name: y, model: a, method: execute, inputs: {run: "${{ inputs.wrd }}", timeout: soon}, timeout: never}
            - {name: z, model: a, method: do, inputs: {run: "${{ 1 + }}", env: {A: "${{ nothing }}"}}}
        """,
        HEAD,
    )

    document = command("workflow", "validate", "nightly", "--json").document

    found = [(one["where"].rpartition(" ")[2], one["message"]) for one in document["problems"]]
    expected = [
        ("7", "one depends on a job nobody: none here"),
        ("9", "unknown key retrys"),
        ("9", "there is no model nosuch"),
        ("10", "there is no input wrd"),
        ("10", "timeout is no duration: never"),
        ("10", 'timeout must be a number, not "soon"'),
        ("11", "command/shell has no method do"),
    ]
    assert [problem for problem in expected if problem not in found] == []
    assert len([message for line, message in found if line == "11"]) == 3, "both expressions, and the method"
    assert len(found) == len(expected) + 2


def test_a_run_that_failed_without_a_store_ends_with_the_command_that_goes_on(made, command):
    lay(made, ONE.replace("echo ${{ inputs.word }}", "exit 3"), HEAD)

    ran = command("workflow", "run", "nightly")

    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("hint: go on from there with `bayou workflow resume ")
    assert "datastore setup" not in ran.err


def test_a_rate_limit_of_a_run_reaches_its_store(made, command, tmp_path, monkeypatch):
    seen = []
    opened = objectstore.open_store
    monkeypatch.setattr(
        objectstore, "open_store", lambda *args, **more: seen.append(more["limit_rate"]) or opened(*args, **more)
    )
    assert command("datastore", "setup", f"file://{tmp_path}/store").code == 0
    for args in (
        ("workflow", "run", "nightly"),
        ("model", "run", "a", "execute"),
        ("data", "undelete", "a", "never"),
        ("workflow", "resume", "latest"),
    ):
        seen.clear()
        command(*args, "--limit-rate", "2M")
        assert set(seen) == {2_000_000}, args
