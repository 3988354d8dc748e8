"""How scripts call the program: closed streams, bytes that are no text, a directory that is gone, odd numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import SOURCE, Ran

from bayou.repo import init_repo

BAYOU = f'bayou() {{ "{sys.executable}" -m bayou "$@"; }}'
TOO_MUCH = "9" * 25


def shell(line: str, cwd: Path, **environ: str) -> Ran:
    """Run a line of /bin/sh, in which `bayou` is the program."""
    env = os.environ | {"PYTHONPATH": str(SOURCE)} | environ
    done = subprocess.run(["/bin/sh", "-c", f"{BAYOU}\n{line}"], cwd=cwd, env=env, capture_output=True, check=False)
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repo with a model and an item."""
    made = init_repo(tmp_path / "repo").root
    assert shell("bayou model create host web1 --json", made).code == 0
    assert shell("echo text | bayou data put web1 page --json", made).code == 0
    return made


@pytest.mark.parametrize("command", ["data put web1 x --json", "data append web1 x --json"])
def test_a_closed_stdin_is_a_usage_error_and_no_empty_version(root: Path, command: str) -> None:
    ran = shell(f"bayou {command} <&-", root)

    assert (ran.code, ran.error["message"]) == (2, "the standard input is closed")
    assert shell("bayou data list --json", root).document["total"] == 1


def test_a_closed_stdin_confirms_nothing(root: Path) -> None:
    ran = shell("bayou data delete web1 page <&-", root)

    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "error: this deletes something, and there is no terminal to ask on",
    )


def test_a_closed_stdout_or_stderr_is_no_bug(root: Path) -> None:
    closed = shell("bayou data list --json >&-", root)

    assert (closed.code, closed.out, closed.error["code"]) == (1, "", "os_error")
    assert shell("bayou data get web1 none --json 2>&-", root).code == 1
    assert shell("bayou data get web1 none <&- >&- 2>&-", root).code == 1
    assert shell("bayou data get web1 page 2>&-", root).out == "text\n"


def test_a_device_a_pipe_and_a_link_stay_what_they_are(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "file").write_text("old")
    (root / "link").symlink_to("file")

    assert shell("bayou data get web1 page -o link", root).code == 0
    assert shell("cat pipe > read & bayou data get web1 page -o pipe && wait", root).code == 0
    assert shell("bayou data get web1 page -o /dev/stdout | cat", root).out == "text\n"

    assert (root / "link").is_symlink()
    assert (root / "file").read_text() == "text\n"
    assert (root / "pipe").is_fifo()
    assert (root / "read").read_text() == "text\n"


@pytest.mark.parametrize("command", ["data list", "init", "init here", "datastore setup shared", "--repo . model list"])
def test_a_current_directory_that_is_gone_is_said_so(root: Path, command: str) -> None:
    ran = shell(f"mkdir gone; cd gone; rmdir ../gone; bayou {command} --json", root)

    assert ran.code == 1
    assert ran.error == {
        "code": "os_error",
        "message": "the current directory has been deleted",
        "hint": "go to another one with cd",
    }


def test_a_repo_that_is_named_works_from_a_directory_that_is_gone(root: Path) -> None:
    ran = shell(f"mkdir gone; cd gone; rmdir ../gone; bayou --repo {root} data get web1 page", root)

    assert (ran.code, ran.out) == (0, "text\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "put", "web\udcff", "page"],
        ["data", "put", "web1", "page", "--tag", "a=\udcff"],
        ["data", "query", "name == '\udcff'"],
        ["workflow", "run", "search", "\udcff"],
        ["workflow", "run", "search", "--tag", "\udcff=1"],
        ["model", "create", "command/shell", "new", "--arg", "run=\udcff"],
        ["datastore", "setup", "file:///\udcff"],
        ["datastore", "replicate", "file:///\udcff"],
    ],
)
def test_a_text_that_is_not_utf8_is_a_usage_error(repo, command, arguments) -> None:
    ran = command(*arguments, "--json")

    assert ran.code == 2
    assert ran.error["message"].endswith("it is not valid UTF-8")


def test_names_of_files_and_directories_need_not_be_utf8(tmp_path: Path) -> None:
    place = os.fsdecode(os.fsencode(tmp_path) + b"/r\xff")
    root = init_repo(place).root
    Path(place, "f\udcff").write_text("text")

    assert shell("bayou model create host web1", root).code == 0
    assert shell(f"bayou data put web1 page {os.fsdecode(b'f')}*", root).code == 0
    assert shell("bayou data list --json", root).document["total"] == 1
    assert shell("bayou data get web1 page", root).out == "text"


@pytest.mark.parametrize("option", ["--limit", "--since"])
def test_a_huge_number_asks_for_everything(repo, command, option: str) -> None:
    ran = command("workflow", "run", "search", option, TOO_MUCH, "--json")

    assert (ran.code, ran.document) == (0, {"runs": [], "total": 0})


def test_an_empty_name_is_no_datastore(repo, command) -> None:
    before = repo.file.read_bytes()

    ran = command("datastore", "setup", "", "--json")

    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert repo.file.read_bytes() == before


def test_a_run_that_could_not_begin_is_in_no_document(repo, command) -> None:
    assert command("workflow", "create", "nightly").code == 0
    store = '[datastore]\nurl = "s3://b/p"\n[datastore.options]\nendpoint = "http://127.0.0.1:9"\n'
    repo.file.write_text(f'repo_id = "{repo.config.repo_id}"\n{store}')

    ran = command("workflow", "run", "nightly", "--json")

    assert (ran.code, ran.out, ran.error["code"]) == (1, "", "trust_needed")
