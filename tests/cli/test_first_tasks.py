"""Five tasks of a new user who has only `--help`: examples from `bayou --help` on name the commands, and they work."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran
from tests.workflows.scene import lay, shell

from bayou.repo import Repo, open_repo

Follow = Callable[..., list[Ran]]


def section(text: str, heading: str) -> list[str]:
    """Return the lines below a heading of a help text."""
    return [line.strip() for line in text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()]


@pytest.fixture
def follow(command) -> Follow:
    """Return a function that goes from `bayou --help` to a command, and runs the examples that a task needs.

    `path` are the words of the commands whose help the user reads, one after the other; `lines` are the examples.
    `values` are what the user puts in place of names in them.
    """

    def run(path: str, *lines: str, values: dict[str, str] | None = None) -> list[Ran]:
        examples: list[str] = []
        words: list[str] = []
        for word in (*path.split(), None):
            text = command(*words, "--help").out
            examples += section(text, "Examples")
            if word is not None:
                assert any(line.split()[0] == word for line in section(text, "Commands")), (words, word)
                words.append(word)
        assert [line for line in lines if line not in examples] == []
        ran = []
        for line in lines:
            for name, value in (values or {}).items():
                line = line.replace(name, value)
            ran.append(command(*shlex.split(line)[1:]))
            assert ran[-1].code == 0, (line, ran[-1].err)
        return ran

    return run


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def shared(repo: Repo, command, store: str) -> Repo:
    """A repo with a model and a store."""
    assert command("datastore", "setup", store).code == 0
    assert command("model", "create", "host", "web1").code == 0
    return open_repo(repo.root)


def test_put_a_file(tmp_path, monkeypatch, follow, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.csv").write_text("a,b\n")

    follow("", "bayou init", "bayou model create host web1", "bayou data put web1 report report.csv")

    (printed,) = follow("data", "bayou data get web1 report")
    assert printed.out == "a,b\n"


def test_find_why_last_nights_run_failed(repo, follow, command):
    shell(repo, "check", "echo the disk is full >&2; exit 3")
    lay(repo, "- {name: main, steps: [{name: look, model: check, method: execute}]}")
    assert command("workflow", "run", "nightly").code == 1

    (found,) = follow("workflow", "bayou workflow run search --status failed --since 1d")
    run_id = next(word for word in found.out.split() if word.startswith("01"))
    (printed,) = follow("workflow", "bayou workflow run logs 0198c0de", values={"0198c0de": run_id})

    assert "the disk is full" in printed.out
    assert "exit code 3" in printed.out + printed.err


def test_get_yesterdays_version_back(repo, command, follow):
    assert command("model", "create", "host", "web1").code == 0
    file = repo.root / "report.csv"
    for content in ("first", "second", "yesterday", "today"):
        file.write_text(content)
        assert command("data", "put", "web1", "report", "report.csv").code == 0

    listed, _ = follow(
        "data", "bayou data versions web1 report", "bayou data get web1 report --version 3 -o report.csv"
    )

    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["1", "2", "3", "4"]
    assert file.read_text() == "yesterday"
    (saved,) = follow("data", "bayou data put web1 report report.csv")
    assert "version 5" in saved.out


def test_undo_a_delete(shared, command, follow):
    (shared.root / "report.csv").write_text("kept")
    assert command("data", "put", "web1", "report", "report.csv").code == 0
    assert command("data", "delete", "web1", "report", "-y").code == 0

    follow("data", "bayou data undelete web1 report")

    assert command("data", "get", "web1", "report").out == "kept"


def test_see_what_a_sync_would_do(shared, command, follow):
    (shared.root / "report.csv").write_text("a,b\n")
    assert command("data", "put", "web1", "report", "report.csv", "--offline").code == 0

    (told,) = follow("", "bayou datastore sync --dry-run")

    assert "/report/1/raw" in told.out
    assert command("datastore", "status", "--json").document["waiting"] > 0, "nothing was pushed"
    follow("datastore", "bayou datastore sync")
    assert command("datastore", "status", "--json").document["waiting"] == 0


def test_share_with_a_server(repo, command, follow, store, tmp_path, monkeypatch):
    assert command("model", "create", "host", "web1").code == 0
    (repo.root / "report.csv").write_text("a,b\n")
    assert command("data", "put", "web1", "report", "report.csv").code == 0

    server = "s3://team/project --option endpoint=https://s3.example.com"
    follow("datastore setup", f"bayou datastore setup {server}", values={server: store})

    shutil.copytree(repo.root, tmp_path / "clone", ignore=shutil.ignore_patterns(".bayou"))
    monkeypatch.chdir(tmp_path / "clone")
    follow("datastore setup", "bayou datastore sync")
    assert command("data", "get", "web1", "report").out == "a,b\n"
