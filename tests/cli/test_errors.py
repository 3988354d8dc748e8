"""From an error to an exit code and a line on stderr."""

from __future__ import annotations

import errno

import click
import pytest

from bayou.cli import signals
from bayou.cli.errors import asks_for_json
from bayou.core import errors
from bayou.sync.report import SyncReport


def tree(kind: type[errors.BayouError]) -> list[type[errors.BayouError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


def made(kind: type[errors.BayouError]) -> errors.BayouError:
    if kind is errors.DeleteFailed:
        return kind({"data/x": errors.AccessDenied("no", hint="ask")})
    if kind is errors.NotPushed:
        return kind("it went wrong", errors.CannotConnect("nothing answers"), hint="try this")
    return kind("it went wrong", hint="try this")


@pytest.mark.parametrize("kind", tree(errors.BayouError), ids=lambda kind: kind.__name__)
def test_every_error_has_its_code_and_exit_code(api, repo, command, kind):
    error = made(kind)
    api.answer("sync", error)

    ran = command("datastore", "sync", "--json")

    assert (ran.code, ran.out) == (kind.exit_code, "")
    kept = (
        "nothing was transferred, and no change that was made here is lost; to go on: `bayou datastore sync --json`; "
    )
    hint = f"{kept}{error.hint}; or allow more time" if kind is errors.DeadlinePassed else error.hint
    assert ran.error == {"code": kind.code, "message": error.message, "hint": hint}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigInvalid("x"), 2),
        (errors.CannotConnect("x"), 1),
        (errors.HeadCorrupt("x"), 4),
        (errors.DeadlinePassed("x"), 124),
        (errors.Cancelled("x"), 130),
        (KeyboardInterrupt(), 130),
        (signals.Terminated(), 143),
        (click.Abort(), 130),
        (ValueError("x"), 1),
    ],
)
def test_exit_codes_are_those_of_the_design(api, repo, command, error, code):
    api.answer("sync", error)

    assert command("datastore", "sync").code == code


def test_people_get_a_message_and_a_hint(api, repo, command):
    api.answer("sync", errors.AccessDenied("the store refused it", hint="ask for access"))

    ran = command("datastore", "sync")

    assert (ran.out, ran.err) == ("", "error: the store refused it\nhint: ask for access\n")


def test_without_a_hint_there_is_none(api, repo, command):
    api.answer("sync", errors.Rejected("no"))

    assert command("datastore", "sync").err == "error: no\n"
    assert command("datastore", "sync", "--json").error["hint"] is None


def test_quiet_commands_still_tell_their_errors(api, repo, command):
    api.answer("sync", errors.Rejected("no"))

    assert command("datastore", "sync", "-q").err == "error: no\n"


def test_a_bug_is_one_line_and_says_how_to_see_more(api, repo, command):
    api.answer("sync", KeyError("a\nb"))

    ran = command("datastore", "sync")
    verbose = command("datastore", "sync", "-v")

    assert ran.code == 1
    assert ran.err.splitlines()[0] == "error: this is a bug: KeyError: 'a\\nb'"
    assert "-v" in ran.err.splitlines()[1]
    assert "Traceback" not in ran.err
    assert "Traceback" in verbose.err
    assert command("datastore", "sync", "--json").error["code"] == "internal"


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "who may write"), (errno.EIO, None)]
)
def test_a_failure_of_this_machine_names_the_file(api, repo, command, number, hint):
    api.answer("sync", OSError(number, "strerror", "/tree/data/x"))

    ran = command("datastore", "sync", "--json")

    assert (ran.code, ran.error["code"]) == (1, "os_error")
    assert ran.error["message"].startswith("/tree/data/x: ")
    assert (ran.error["hint"] is None) if hint is None else (hint in ran.error["hint"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["datastore", "sync", "--pussh"], "no such option"),
        (["datastore", "snyc"], "no such command"),
        (["datastore", "setup"], "missing argument"),
        (["datastore", "log", "-n", "0"], "invalid value"),
        (["datastore", "log", "extra"], "unexpected extra argument"),
        (["datastore", "sync", "--push", "--pull"], "exclude each other"),
        (["datastore", "sync", "--on-conflict", "mine"], "invalid value"),
        (["datastore", "sync", "--timeout", "soon"], "no duration"),
        (["datastore", "sync", "--timeout", "0"], "more than 0"),
        (["datastore", "gc", "--grace", "1y"], "no duration"),
        (["datastore", "setup", "s3://b", "--option", "region"], "name=value"),
        (["datastore", "setup", "s3://b", "--option", "a=1", "--option", "a=2"], "twice"),
        (["completion", "tcsh"], "invalid value"),
        (["datastore", "conflicts", "shw"], "no such command"),
    ],
)
def test_wrong_arguments_are_usage_errors_before_anything_is_called(api, repo, command, args, message):
    for line in (["--json", *args], [*args, "--json"]):
        ran = command(*line)

        assert (ran.code, ran.out) == (2, "")
        assert ran.error["code"] == "usage"
        assert message in ran.error["message"]
        assert ran.error["hint"].startswith(("see `bayou", "did you mean `bayou"))
    assert command(*args).code == 2
    assert api.calls == []


@pytest.mark.parametrize("args", [["--json"], ["datastore", "--json"], ["--json", "datastore"]])
def test_a_command_is_needed(command, args):
    ran = command(*args)

    assert (ran.code, ran.out, ran.error["code"]) == (2, "", "usage")
    assert "command" in ran.error["message"]


@pytest.mark.parametrize("name", ["data", "logs", ".bayou", "A", "a/b", "", "x" * 65])
def test_a_bad_namespace_is_refused_before_any_request_f073(api, repo, command, name):
    api.answer("setup", AssertionError("nobody may get this far"))

    ran = command("datastore", "setup", "s3://bucket", "--namespace", name, "--json")

    assert (ran.code, ran.error["code"]) == (2, "namespace_invalid")
    assert api.calls == []


def test_a_url_with_too_few_slashes_is_not_taken_for_a_directory(api, repo, command):
    ran = command("datastore", "setup", "s3:bucket/prefix", "--json")

    assert (ran.code, ran.error["code"]) == (2, "config_invalid")
    assert api.calls == []


def test_what_strangers_wrote_cannot_command_the_terminal(api, repo, command):
    api.answer("sync", errors.BadAnswer("the store says \x1b[2Jhello\x07"))

    assert command("datastore", "sync").err == "error: the store says \\x1b[2Jhello\\x07\n"


def test_json_is_asked_for_only_by_an_option():
    assert asks_for_json(["datastore", "sync", "--json"])
    assert not asks_for_json(["datastore", "conflicts", "show", "--", "--json"])


def test_output_that_nobody_reads_any_more_ends_the_command_in_silence(processes):
    """As in `bayou datastore log | head -1`."""
    script = """
import os, sys
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
from bayou.cli import main
main()
"""

    ran = processes.finish(processes.script(script, "datastore", "--help"))

    assert (ran.code, ran.err) == (1, "")


def test_output_that_cannot_be_written_is_an_error(processes, tmp_path):
    script = "import sys; sys.stdout = open('/dev/full', 'w'); from bayou.cli import main; main()"

    ran = processes.finish(processes.script(script, "init", "repo", "--json"))

    assert ran.code == 1
    assert ran.error["code"] == "os_error"


def test_a_name_that_the_terminal_cannot_show_is_no_failure(processes):
    ran = processes.run("init", "prüfung\udcff", PYTHONIOENCODING="latin-1")

    assert ran.code == 0


def test_a_sync_without_problems_exits_with_0(api, repo, command):
    api.answer("sync", SyncReport())

    assert command("datastore", "sync").code == 0
