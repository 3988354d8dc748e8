"""Help that a new user can work with: every command has examples, every argument is described, every typo has an
answer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from tests.cli.test_hints import flags, wrong_with

from bayou.cli import app
from bayou.cli.examples import ARGUMENTS, EXAMPLES, command_line
from bayou.cli.options import argument_label, words_of


def contexts(
    command: click.Command, parent: click.Context | None = None, name: str = "bayou"
) -> Iterator[click.Context]:
    context = click.Context(command, info_name=name, parent=parent)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from contexts(found, context, below)


ALL = {words_of(context): context for context in contexts(app)}


@pytest.mark.parametrize("words", ALL)
def test_every_help_has_examples_and_describes_every_argument(words):
    context = ALL[words]
    arguments = {argument_label(context, one) for one in context.command.params if isinstance(one, click.Argument)}

    text = context.get_help()

    assert "\nExamples:\n" in text
    assert set(ARGUMENTS.get(words, {})) == arguments
    assert all(f"  {label} " in text for label in arguments)


@pytest.mark.parametrize("words", ALL)
def test_every_example_is_a_command_that_exists_with_its_flags(words):
    for _, example in EXAMPLES[words]:
        line = command_line(example).partition("bayou ")[2].rstrip(')"')
        typed = [word for word in shlex.split(line) if not word.startswith("-")]
        used = [word.partition("=")[0] for word in shlex.split(line) if word.startswith("-")]
        command: click.Command = app
        while isinstance(command, click.Group) and typed:
            below = command.get_command(click.Context(command), typed[0])
            if below is None:
                break
            command, typed = below, typed[1:]
        known = flags(command) | {flag for name in ("workflow run NAME",) for flag in flags(ALL[name].command)}
        assert set(used) <= known, example
        assert wrong_with(" ".join(line.split()[:1])) is None or " " in line or line in ALL


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["dta"], "`bayou data`"),
        (["statuss"], "`bayou datastore status`"),
        (["status"], "`bayou datastore status`"),
        (["sync", "--dry-run"], "`bayou datastore sync`"),
        (["put", "a", "b"], "`bayou data put`"),
        (["push"], "`bayou datastore sync --push`"),
        (["data", "putt"], "`bayou data put`"),
        (["data", "rm"], "`bayou data delete`"),
        (["data", "sync"], "`bayou datastore sync`"),
        (["datastore", "snyc"], "`bayou datastore sync`"),
        (["logs"], "`bayou workflow run logs` or `bayou model logs`"),
        (["workflow", "logs"], "`bayou workflow run logs`?"),
        (["workflow", "search"], "`bayou workflow run search`?"),
    ],
)
def test_a_command_that_does_not_exist_names_the_one_that_was_meant(command, args, meant):
    ran = command(*args, "--json")

    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert repr(next(word for word in args if word not in ("data", "datastore", "workflow"))) in ran.error["message"]
    assert ran.error["hint"].startswith(f"did you mean {meant}")


def test_a_word_like_no_other_leads_to_the_help(command):
    assert command("qqqqqq", "--json").error["hint"] == "see `bayou --help`"


def test_the_usage_of_workflow_run_can_be_typed(command):
    for args in (("workflow", "run", "--help"), ("workflow", "run", "nightly", "--help")):
        assert command(*args).out.startswith("Usage: bayou workflow run [OPTIONS] NAME\n")


def test_help_is_a_command_too(command):
    assert command("help").out == command("--help").out
    assert command("help", "data", "put").out == command("data", "put", "--help").out
    assert command("help", "dta", "--json").error["hint"] == "did you mean `bayou data`?"
    assert command("help", "init", "more").code == 2


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("words", ALL)
def test_no_help_cuts_a_sentence_or_breaks_a_name(command, monkeypatch, words, columns):
    monkeypatch.setenv("COLUMNS", str(columns))

    text = command(*words.replace("workflow run NAME", "workflow run").split(), "--help").out

    assert "..." not in text.replace("[ARGS]...", "").replace("COMMAND...", "").replace("]...", "")
    assert not re.search(r"\w-$", text, re.MULTILINE)
    assert "\N{NON-BREAKING HYPHEN}" not in text


@pytest.mark.parametrize(
    ("words", "without"),
    [
        ("data get", "This version, not the latest."),
        ("data delete", "Only this version; without it, all of them."),
        ("data undelete", "This version; without it, the one deleted last."),
    ],
)
def test_the_help_of_version_says_what_happens_without_it(words, without):
    assert f"--version N {without}" in " ".join(ALL[words].get_help().split())


@pytest.mark.parametrize(
    "words",
    [
        "data put",
        "data append",
        "data get",
        "data undelete",
        "datastore setup",
        "datastore sync",
        "datastore replicate",
        "datastore hydrate",
        "datastore export",
        "model run",
        "workflow run NAME",
        "workflow resume",
    ],
)
def test_what_moves_data_takes_a_rate_limit(words):
    assert "--limit-rate" in flags(ALL[words].command)


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        ("data put", "has had its time"),
        ("data put", "What equals"),
        ("model create", "no misspelt"),
        ("data gc", "have had their time"),
        ("datastore gc", "what nothing names"),
        ("datastore status", "how this tree stands"),
        ("datastore setup", "Keep to a part"),
        ("model run", "go over the arguments"),
        ("workflow evaluate", "comes to"),
    ],
)
def test_a_help_has_plain_sentences(words, gone):
    assert gone not in " ".join(ALL[words].get_help().split())


@pytest.mark.parametrize(
    ("args", "code", "meant"),
    [
        (["serch"], "workflow_not_found", "`bayou workflow run search`"),
        (["log", "latest"], "usage", "`bayou workflow run logs`"),
        (["log", "latest", "-v"], "usage", "`bayou workflow run logs`"),
    ],
)
def test_a_misspelt_command_about_runs_is_no_workflow(repo, command, args, code, meant):
    ran = command("workflow", "run", *args, "--json")

    assert (ran.code, ran.error["code"]) == (2, code)
    assert ran.error["hint"] == f"did you mean {meant}?"


def test_a_workflow_that_is_spelt_almost_so_comes_before_a_command(repo, command):
    command("workflow", "create", "log")

    assert command("workflow", "run", "log").code == 0
    assert command("workflow", "run", "logg", "--json").error["hint"] == "did you mean log?"


def test_a_close_name_of_another_group_comes_before_a_distant_one_of_this(command):
    assert command("satus").err.splitlines()[1].startswith("hint: did you mean `bayou datastore status`")
