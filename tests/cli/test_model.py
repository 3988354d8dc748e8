"""`bayou model`: definitions, as scripts and people see them."""

from __future__ import annotations

import uuid

import pytest
import yaml
from tests.cli.terminal import at_terminal

from bayou.data.records import Records


def test_a_create_is_told_exactly_as_documented(repo, command):
    ran = command("model", "create", "aws/ec2", "web", "--arg", "region=eu", "--arg", "x=a=b", "--json")

    document = ran.document
    assert ran.code == 0
    assert document == {"id": document["id"], "type": "aws/ec2", "name": "web", "path": "models/aws/ec2/web.yaml"}
    assert (repo.root / document["path"]).is_file()
    assert command("model", "get", "web", "--json").document == {
        **document,
        "arguments": {"region": "eu", "x": "a=b"},
        "methods": {},
        "tags": {},
    }


def test_a_list_is_told_exactly_as_documented(repo, command):
    assert command("model", "list", "--json").document == {"models": []}
    made = [
        command("model", "create", kind, name, "--json").document for kind, name in (("net", "lan"), ("aws/ec2", "web"))
    ]

    assert command("model", "list", "--json").document == {
        "models": [{key: one[key] for key in ("id", "type", "name")} for one in reversed(made)]
    }


def test_people_get_lines_and_a_table(repo, command):
    assert command("model", "list").out == "no models\n"

    made = command("model", "create", "net", "web")

    assert made.out == "web is a model of type net now: models/net/web.yaml\n"
    assert "`bayou data put web NAME FILE`" in made.err
    assert command("model", "list").out.splitlines()[0].split() == ["name", "type", "id"]
    assert "type: net\nname: web\n" in command("model", "get", "web").out


def test_a_definition_that_cannot_be_read_is_named_and_hides_no_other(repo, command):
    command("model", "create", "net", "web")
    (repo.root / "models/net/bad.yaml").write_text("id: x\nargumnets: {}\n")

    ran = command("model", "list", "--json")
    people = command("model", "list")

    assert (ran.code, people.code) == (1, 1)
    assert [one["name"] for one in ran.document["models"]] == ["web"]
    assert ran.document["problems"] == ["models/net/bad.yaml, line 2: unknown key argumnets"]
    assert "error: models/net/bad.yaml, line 2: unknown key argumnets\nhint: did you mean arguments?\n" in people.err
    assert "web" in people.out


def test_a_delete_is_told_exactly_as_documented(repo, command):
    made = command("model", "create", "net", "web", "--json").document
    (repo.root / "f").write_text("x")
    for _ in range(2):
        command("data", "put", "web", "report", "f", "--always")

    refused = command("model", "delete", "web", "-y", "--json")
    deleted = command("model", "delete", "web", "--data", "-y", "--json")

    assert (refused.code, refused.error["code"]) == (1, "model_has_data")
    assert "--data" in refused.error["hint"]
    assert deleted.document == {"id": made["id"], "data_deleted": 2, "pushed": None}
    assert command("model", "list", "--json").document == {"models": []}


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("create", "a b", "web"), "model_invalid"),
        (("create", "../x", "web"), "model_invalid"),
        (("create", "net", "a/b"), "model_invalid"),
        (("create", "net", "x" * 300), "model_invalid"),
        (("create", "net", "web"), "model_exists"),
        (("create", "net"), "usage"),
        (("create", "net", "lan", "--arg", "novalue"), "usage"),
        (("create", "net", "lan", "--arg", "a=1", "--arg", "a=2"), "usage"),
        (("create", "aws", "web"), "model_exists"),
        (("create", "comand/shell", "new"), "type_not_found"),
        (("create", "shell", "new"), "type_not_found"),
        (("create", "shel", "new"), "type_not_found"),
        (("create", "command/shell", "new", "--arg", "rnu=ls"), "arguments_invalid"),
        (("create", "command/shell", "new", "--arg", "timeout=soon"), "arguments_invalid"),
        (("create", "command/shell", "new", "--arg", "run=${{ inputs."), "expression_invalid"),
        (("get", "nobody"), "model_not_found"),
        (("get", "twice"), "model_ambiguous"),
        (("delete", "nobody", "-y"), "model_not_found"),
        (("delete", "web"), "not_confirmed"),
    ],
)
def test_wrong_arguments_are_clear_errors_and_change_nothing(repo, command, args, error):
    for kind, name in (("net", "web"), ("net", "twice")):
        command("model", "create", kind, name)
    (repo.root / "models/aws").mkdir()
    twice = yaml.safe_load((repo.root / "models/net/twice.yaml").read_text())
    twice |= {"id": str(uuid.uuid4()), "type": "aws"}
    (repo.root / "models/aws/twice.yaml").write_text(yaml.safe_dump(twice))
    before = sorted(path for path in (repo.root / "models").rglob("*"))

    ran = command("model", *args, "--json")

    assert (ran.code, ran.error["code"]) == (2, error)
    assert sorted(path for path in (repo.root / "models").rglob("*")) == before


def test_f094_definitions_are_made_and_read_without_a_request(repo, command, monkeypatch):
    """Nor is anything else opened that a store, a lease or a journal would need."""
    repo.file.write_text(
        repo.file.read_text() + 'url = "s3://nowhere/x"\n[datastore.options]\nendpoint = "http://127.0.0.1:9"\n'
    )
    monkeypatch.setattr("bayou.repo.Repo.store", lambda self: pytest.fail("the store was opened"))

    ran = [
        command("model", *args).code
        for args in (("create", "net", "web"), ("list",), ("get", "web"), ("create", "net", "web"))
    ]

    assert ran == [0, 0, 0, 2]
    assert not (repo.root / ".bayou" / "state").exists()


@pytest.mark.parametrize(("answer", "left"), [("n\n", 2), ("\n", 2), ("y\n", 0)])
@pytest.mark.parametrize("args", [("data", "delete", "web", "report"), ("model", "delete", "web", "--data")])
def test_a_person_at_a_terminal_is_asked_first(repo, command, args, answer, left):
    command("model", "create", "net", "web")
    (repo.root / "f").write_text("x")
    for _ in range(2):
        command("data", "put", "web", "report", "f", "--always")

    code, shown = at_terminal(answer, *args)

    assert "?" in shown
    assert code == (2 if left else 0)
    assert ("nothing was deleted" in shown) is (left > 0)
    with Records(repo) as records:
        assert len(records.data.find(all_versions=True)) == left


def test_create_tells_all_that_is_wrong_with_arguments_and_what_a_type_is_probably_called(repo, command):
    args = ("--arg", "rnu=ls", "--arg", "timeout=soon", "--arg", "ignore_exit_code=5")
    wrong = command("model", "create", "command/shell", "m", *args, "--json").error
    misspelt = command("model", "create", "pyhton/call", "m", "--json").error
    meant = command("model", "create", "shell", "m", "--data-only")

    assert wrong["message"] == (
        'ignore_exit_code must be true or false, not 5; unknown argument rnu; timeout must be a number, not "soon"'
    )
    assert misspelt["message"] == "there is no type pyhton/call"
    assert misspelt["hint"].startswith("did you mean python/call?")
    assert meant.code == 0
    assert "note: no type shell is defined here, so the model has no methods: it owns data" in meant.err


def test_a_new_model_without_a_needed_argument_names_it_and_a_command_that_works(repo, command):
    made = command("model", "create", "command/shell", "usage")

    assert made.code == 0
    assert "note: the method execute needs the argument run, which the model does not have yet\n" in made.err
    assert "`arguments: {run: …}` into models/command/shell/usage.yaml" in made.err
    assert "`bayou model run usage execute --input run=…`" in made.err
    assert command("model", "run", "usage", "execute", "--input", "run=true").code == 0
    file = repo.root / "models/command/shell/usage.yaml"
    file.write_text(file.read_text() + "arguments: {run: 'true'}\n")
    assert command("model", "run", "usage", "execute").code == 0


def test_a_new_model_with_all_its_arguments_is_told_how_to_run_it(repo, command):
    made = command("model", "create", "command/shell", "usage", "--arg", "run=true")

    assert made.err == "hint: run it with `bayou model run usage execute`\n"
