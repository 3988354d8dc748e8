"""`bayou model types`, `describe`, `run`, `outputs`: what people and scripts see of models that run."""

from __future__ import annotations

import json
import os
import sys

import pytest
import yaml
from tests.cli.test_data_shared import Person
from tests.sync.conftest import Team, Wire
from tests.trusting import trust

from bayou.core.errors import AccessDenied
from bayou.leases import model_key
from bayou.models import find_model
from bayou_testing.faulty import Fault


@pytest.fixture
def does(repo, command):
    """Run a command that must go well; return its document."""

    def run(*args: str):
        ran = command(*args, "--json")
        assert ran.code == 0, ran.err
        return ran.document

    return run


def files(repo) -> list[str]:
    return sorted(str(file.relative_to(repo.tree_root)) for file in repo.tree_root.rglob("*") if file.is_file())


def test_types_are_listed_and_described(does):
    listed = {one["type"]: one for one in does("model", "types")["types"]}

    assert listed["command/shell"] == {
        "type": "command/shell",
        "description": "Run a command line",
        "methods": ["execute"],
    }
    assert listed["spark/sql"]["methods"] == ["query"]
    (query,) = does("model", "describe", "spark/sql")["methods"]
    assert list(query["arguments"]["properties"]) == ["sql", "parameters", "timeout"]
    assert {one["name"]: one["content_type"] for one in query["outputs"]} == {
        "result": "application/vnd.apache.parquet",
        "summary": "application/json",
        "log": "text/plain",
    }
    assert query["keep_failed"] is False
    described = does("model", "describe", "command/shell")
    (execute,) = described["methods"]
    assert described["type"] == "command/shell"
    assert list(execute["arguments"]["properties"]) == ["run", "workdir", "env", "timeout", "ignore_exit_code"]
    assert [output["name"] for output in execute["outputs"]] == ["result", "log"]
    assert execute["keep_failed"] is True


def test_a_broken_extension_is_told_and_the_others_are_listed(repo, command):
    folder = repo.root / "extensions" / "models"
    folder.mkdir(parents=True)
    (folder / "bad.py").write_text("import nonesuch\n")
    (folder / "good.py").write_text('class G:\n  """Good."""\n  type = "x/good"\n  def go(self): ...\n')
    trust(repo.root)

    ran = command("model", "types", "--json")
    told = command("model", "types")

    assert ran.code == told.code == 1
    assert "x/good" in [one["type"] for one in ran.document["types"]]
    assert ran.document["problems"] == [
        "extensions/models/bad.py, line 1: ModuleNotFoundError: No module named 'nonesuch'"
    ]
    assert "x/good" in told.out
    assert "extensions/models/bad.py, line 1" in told.err


def test_a_model_is_created_run_and_looked_at(repo, does, command):
    does(
        "model", "create", "command/shell", "m", "--arg", "run=echo hi", "--arg", "timeout=5", "--arg", 'env={"A":"b"}'
    )
    assert yaml.safe_load((repo.root / "models/command/shell/m.yaml").read_text())["arguments"] == {
        "run": "echo hi",
        "timeout": 5,
        "env": {"A": "b"},
    }

    ran = does("model", "run", "m", "execute")

    assert set(ran) == {"output_id", "status", "data", "duration_s", "error", "pushed"}
    assert (ran["status"], ran["error"]) == ("succeeded", None)
    assert {(made["name"], made["version"]) for made in ran["data"]} == {("log", 1), ("result", 1)}
    assert all(len(made["sha256"]) == 64 and made["size"] > 0 for made in ran["data"])
    assert does("data", "get", "m", "result")["content"]["stdout"] == "hi\n"
    (output,) = does("model", "outputs", "m")["outputs"]
    assert {**{key: output[key] for key in ran if key != "pushed"}, "pushed": None} == ran
    assert (output["method"], output["run"]) == ("execute", None)
    assert "succeeded" in command("model", "outputs", "m").out


def test_a_method_that_failed_is_shown_and_the_exit_code_is_1(does, command):
    does("model", "create", "command/shell", "m", "--arg", "run=echo why >&2; exit 3")

    ran, told = command("model", "run", "m", "execute", "--json"), command("model", "run", "m", "execute")

    assert ran.code == told.code == 1
    assert ran.document["status"] == "failed"
    assert ran.document["error"] == "the command ended with exit code 3: why"
    assert ran.err == ""
    assert told.out.startswith("m execute: failed in ")
    newest, _ = does("model", "outputs", "m")["outputs"]
    assert told.err.splitlines() == [
        "error: the command ended with exit code 3: why",
        f"hint: all that it printed: `bayou model logs m {newest['output_id'][:8]}`",
    ]
    assert told.out.endswith("the log of m:\n  why\n")


def test_people_see_file_and_line_and_the_end_of_the_log_and_the_record_has_the_traceback(repo, does, command):
    (repo.root / "job.py").write_text("def go():\n    raise ValueError('no good')\n")
    does("model", "create", "python/call", "p", "--arg", "target=job:go")

    told = command("model", "run", "p", "call")

    assert told.err.startswith("error: ValueError: no good (job.py, line 2, in go)\nhint: ")
    assert told.out.endswith("    raise ValueError('no good')\n  ValueError: no good\n")
    assert "python_child" not in told.out
    (output,) = does("model", "outputs", "p")["outputs"]
    assert 'File "' in output["error"]
    assert "Traceback" not in command("model", "outputs", "p").out


def test_inputs_come_from_flags_and_files_and_flags_win(repo, does):
    does("model", "create", "command/shell", "m", "--arg", "run=echo $A $B ${{ inputs.n + 1 }}")
    (repo.root / "in.yaml").write_text("n: 1\nenv: {A: file, B: file}\n")

    does("model", "run", "m", "execute", "--input-file", "in.yaml", "--input", 'env={"A": "flag"}')

    assert does("data", "get", "m", "log")["content"] == "flag 2\n"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("m", "exec"), "method_not_found", "command/shell has no method exec"),
        (("nope", "execute"), "model_not_found", "there is no model nope"),
        (("m", "execute", "--input", "timeout=soon"), "arguments_invalid", "input timeout: timeout must be a number"),
        (("m", "execute", "--input", "tiemout=5"), "arguments_invalid", "there is no input tiemout"),
        (("web", "execute"), "type_not_found", "there is no type net"),
        (("bad", "execute"), "model_invalid", "models/command/shell/bad.yaml: line 6, did not find"),
        (("odd", "execute"), "model_invalid", "models/command/shell/odd.yaml, line 4: unknown key argments"),
        (("cel", "execute"), "expression_invalid", "models/command/shell/cel.yaml, line 5: there is no name input"),
        (("m", "execute", "--input", "run"), "usage", "it must look like name=value"),
        (("m", "execute", "--input-file", "nowhere.yaml"), None, "nowhere.yaml"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_run_or_written(repo, does, command, args, code, said):
    folder = repo.root / "models" / "command" / "shell"
    does("model", "create", "command/shell", "m", "--arg", "run=touch ran")
    does("model", "create", "net", "web")
    head = "id: 0f0e0d0c-0b0a-4908-8706-0504030201{}\nname: {}\ntype: command/shell\n"
    (folder / "bad.yaml").write_text(head.format("00", "bad") + "arguments:\n  run: [touch ran\n")
    (folder / "odd.yaml").write_text(head.format("01", "odd") + "argments:\n  run: touch ran\n")
    (folder / "cel.yaml").write_text(head.format("02", "cel") + "arguments:\n  run: touch ran ${{ input.x }}\n")

    ran = command("model", "run", *args, "--json")

    assert ran.code in (1, 2)
    assert ran.out == ""
    assert code is None or ran.error["code"] == code
    assert said in ran.error["message"]
    assert "\n" not in ran.error["message"]
    assert not (repo.root / "ran").exists()
    assert files(repo) == []


def test_what_a_method_prints_is_shown_to_whoever_asks(does, command):
    does("model", "create", "command/shell", "m", "--arg", "run=echo hello")

    verbose, usual = command("model", "run", "m", "execute", "-v"), command("model", "run", "m", "execute")

    assert "hello\n" in verbose.err
    assert "hello" not in usual.err + usual.out


def test_offline_is_passed_on_to_what_a_method_starts(does):
    does("model", "create", "command/shell", "m", "--arg", "run=echo $BAYOU_OFFLINE")

    does("model", "run", "m", "execute", "--offline")

    assert does("data", "get", "m", "log")["content"] == "1\n"


@pytest.fixture
def ann(team: Team, command) -> Person:
    person = Person(team.clone("ann"), command)
    person.does("model", "create", "command/shell", "m", "--arg", "run=echo hi")
    return person


def test_f100_the_result_is_shown_when_the_push_fails_and_the_next_push_carries_it(
    ann: Person, team: Team, wire: Wire, command
):
    ann.does("model", "run", "m", "execute")
    wire.cut(Fault(verb="put", key=r"^\.bayou/packs/", error=lambda: AccessDenied("403: you may not write")))

    ran = ann.run("model", "run", "m", "execute", "--json")
    told = ann.run("model", "run", "m", "execute")

    assert ran.code != 0
    assert ran.document["status"] == "succeeded"
    assert "403: you may not write" in ran.err + json.dumps(ran.document)
    assert told.code != 0
    assert "m execute: succeeded" in told.out
    assert "403: you may not write" in told.err
    wire.cut()
    ann.does("datastore", "sync", "--push")
    bob = Person(team.clone("bob"), command)
    bob.does("datastore", "sync", "--pull")
    assert bob.clone.files == ann.clone.files


def test_f100_a_push_that_fails_as_a_whole_is_named_as_what_failed(ann: Person, wire: Wire):
    ann.does("model", "run", "m", "execute")
    wire.cut(Fault(verb="put", key=r"^\.bayou/(head|nodes)", error=lambda: AccessDenied("403: you may not write")))

    ran = ann.run("model", "run", "m", "execute", "--json")

    assert (ran.code, ran.error["code"]) == (5, "not_pushed")
    assert (ran.document["status"], ran.document["pushed"]) == ("succeeded", False)
    assert ran.error["message"].startswith("what was written here could not be pushed: ")


def test_a_method_that_failed_is_pushed_like_any_other(ann: Person, team: Team, command):
    ran = ann.run("model", "run", "m", "execute", "--input", "run=exit 4", "--json")

    assert ran.code == 1
    bob = Person(team.clone("bob"), command)
    bob.does("datastore", "sync", "--pull")
    assert bob.clone.files == ann.clone.files
    (output,) = bob.does("model", "outputs", find_model(ann.clone.repo, "m").id)["outputs"]
    assert (output["status"], output["output_id"]) == ("failed", ran.document["output_id"])


def test_looking_at_types_and_outputs_sends_nothing(ann: Person, wire: Wire):
    """V15, F094."""
    ann.does("model", "run", "m", "execute")
    wire.seen.clear()

    ann.does("model", "types")
    ann.does("model", "describe", "python/call")
    ann.does("model", "outputs", "m")

    assert wire.seen == []


def test_a_run_holds_the_lease_of_its_model(ann: Person):
    model = find_model(ann.clone.repo, "m")
    leases = f"{sys.executable} -m bayou datastore lock status --json"

    ann.does("model", "run", "m", "execute", "--input", f"run=PYTHONPATH={os.pathsep.join(sys.path)} {leases}")

    told = json.loads(ann.does("data", "get", "m", "log")["content"])
    assert [one["key"] for one in told["leases"]] == [model_key(model.type, model.id)]


@pytest.mark.s3
def test_models_end_to_end_on_s3(s3_team: Team, command):
    """A writer runs models of three types; a fresh reader sees exactly the same data, outputs and definitions."""
    ann = Person(s3_team.clone("ann"), command)
    root = ann.clone.repo.root
    (root / "job.py").write_text("def total(items):\n    print('adding')\n    return {'total': sum(items)}\n")
    (root / "extensions" / "models").mkdir(parents=True)
    (root / "extensions" / "models" / "report.py").write_text(
        "class Report:\n  type = 'team/report'\n  def write(self, total: int) -> str:\n    return f'total {total}'\n"
    )
    ann.does("trust", "allow", "--yes")
    ann.does("model", "create", "command/shell", "numbers", "--arg", "run=seq 4")
    ann.does("model", "create", "python/call", "sum", "--arg", "target=job:total")
    ann.does(
        "model",
        "create",
        "team/report",
        "report",
        "--arg",
        "total=${{ data.latest('sum', 'result').attributes.total }}",
    )

    ann.does("model", "run", "numbers", "execute")
    ann.does("model", "run", "sum", "call", "--input", 'arguments={"items": [1, 2, 3, 4]}')
    ann.does("model", "run", "report", "write")
    ann.run("model", "run", "numbers", "execute", "--input", "run=exit 5")

    bob = Person(s3_team.clone("bob"), command)
    bob.does("datastore", "sync", "--pull")
    assert bob.clone.files == ann.clone.files
    ids = {name: find_model(ann.clone.repo, name).id for name in ("numbers", "sum", "report")}
    assert bob.does("data", "get", ids["report"], "result")["content"] == "total 10"
    assert bob.does("data", "get", ids["sum"], "log")["content"] == "adding\n"
    for model in ids.values():
        assert bob.does("model", "outputs", model) == ann.does("model", "outputs", model)
    assert [one["status"] for one in bob.does("model", "outputs", ids["numbers"])["outputs"]] == ["failed", "succeeded"]
    assert bob.does("data", "list") == ann.does("data", "list")
