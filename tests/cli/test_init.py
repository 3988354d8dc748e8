"""`bayou init`, and whatever else needs no datastore, as real processes."""

from __future__ import annotations

import os
import re

import pytest

from bayou.cli import app
from bayou.config import load_config


def test_init_makes_a_repo_and_says_so(processes, tmp_path):
    ran = processes.run("init", "here", "--json")

    assert (ran.code, ran.err) == (0, "")
    assert set(ran.document) == {"repo", "repo_id", "created"}
    assert ran.document["repo"] == str(tmp_path / "here")
    assert ran.document["repo_id"] == load_config(tmp_path / "here" / "bayou.toml", {}).repo_id
    assert ran.document["created"] is True


def test_init_tells_people_what_to_type_next(processes, tmp_path):
    ran = processes.run("init")

    assert ran.code == 0
    assert ran.out == f"{tmp_path} is a Bayou repo now\n"
    assert "`bayou datastore setup URL`" in ran.err


def test_a_second_init_fails_and_changes_nothing(processes, tmp_path):
    processes.run("init")
    before = (tmp_path / "bayou.toml").read_bytes()

    ran = processes.run("init", "--json")

    assert (ran.code, ran.out) == (2, "")
    assert ran.error["code"] == "already_initialized"
    assert (tmp_path / "bayou.toml").read_bytes() == before


@pytest.mark.parametrize(("args", "environ"), [(["--repo", "there"], {}), ([], {"BAYOU_REPO": "there"})])
def test_the_directory_can_be_named_like_any_other_repo(processes, tmp_path, args, environ):
    assert processes.run("init", *args, **environ).code == 0

    assert (tmp_path / "there" / "bayou.toml").is_file()


def test_two_names_for_one_directory_are_one_too_many(processes, tmp_path):
    ran = processes.run("init", "a", "--repo", "b", "--json")

    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_named(processes, tmp_path):
    (tmp_path / "file").write_text("")

    ran = processes.run("init", "file/repo", "--json")

    assert ran.code == 2
    assert "file" in ran.error["message"]


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("[datastor]\n", "config_invalid", "unknown key datastor"),
        ('options.secret_access_key = "hunter2"\n', "credential_in_config", "secret_access_key"),
        ("[sync\n", "config_invalid", "line"),
    ],
)
def test_a_bad_configuration_is_one_clear_error(processes, tmp_path, text, code, named):
    processes.run("init")
    with (tmp_path / "bayou.toml").open("a") as file:
        file.write(text)

    ran = processes.run("datastore", "conflicts", "--json")

    assert (ran.code, ran.out) == (2, "")
    assert ran.error["code"] == code
    assert named in ran.error["message"]
    assert "bayou.toml" in ran.error["message"]
    assert ran.error["hint"]
    assert "hunter2" not in ran.err


def test_outside_a_repo_the_error_names_init(processes):
    ran = processes.run("datastore", "conflicts")

    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert ran.err.endswith("hint: make one with `bayou init`\n")


def test_the_version_is_told(processes):
    ran = processes.run("--version")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("bayou")


def test_without_a_command_help_goes_to_stderr(processes):
    ran = processes.run()

    assert (ran.code, ran.out) == (2, "")
    assert "datastore" in ran.err


def test_the_help_lines_of_the_groups_are_their_own():
    """`bayou --help` loads no group, so their first lines stand there a second time."""
    for name, (_, line) in app.lazy.items():
        assert app.get_command(None, name).get_short_help_str(200) == line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(processes, shell):
    ran = processes.run("completion", shell)

    assert ran.code == 0
    assert "_BAYOU_COMPLETE" in ran.out


def test_completion_knows_commands_and_flags(processes):
    def completed(words: str) -> set[str]:
        ran = processes.run(_BAYOU_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
        return set(re.findall(r"^plain,(\S+)$", ran.out, re.MULTILINE))

    datastore = {"setup", "status", "sync", "verify", "log", "gc", "compact", "hydrate", "conflicts", "lock"}
    data = {"put", "append", "get", "list", "versions", "query", "rename", "delete", "gc", "prune"}
    assert datastore <= completed("bayou datastore ")
    assert data <= completed("bayou data ")
    assert {"create", "list", "get", "delete"} <= completed("bayou model ")
    assert {"--push", "--pull"} <= completed("bayou datastore sync --p")


@pytest.mark.parametrize(
    "command",
    [
        ("init", ""),
        ("--repo", "", "init"),
        ("data", "put", "m", "n", ""),
        ("data", "get", "m", "n", "-o", ""),
        ("data", "sql", "SELECT 1", "-o", ""),
        ("datastore", "export", ""),
    ],
)
def test_an_empty_path_is_refused_and_not_taken_for_this_directory(processes, tmp_path, command):
    """It comes from a variable that is not set; `init` made a repo of this directory, and `put` read its input."""
    ran = processes.run(*command, "--json")

    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert "it is empty" in ran.error["message"]
    assert list(tmp_path.iterdir()) == []
