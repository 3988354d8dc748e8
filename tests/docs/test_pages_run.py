"""The commands of the tutorial, the how-tos and some other pages run as they stand there, and print what is shown.

The blocks that begin with ```console are run by one shell for each page. A line that begins with `$ ` is typed; other
lines are what the command before must print. The tutorial runs on a real S3 server, the how-tos on directories.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bayou.cli
from bayou.core.ids import ulid
from bayou_testing.s3 import S3Endpoint

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOW_TOS = sorted((DOCS / "how-to").glob("*.md"))
_BLOCK = re.compile(r"^( *)```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def typed(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands of a page, each with the lines that the page shows below it."""
    commands: list[tuple[str, list[str]]] = []
    for indent, block in _BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            line = line.removeprefix(indent)
            if line.startswith("$ "):
                commands.append((line.removeprefix("$ "), []))
            elif line.strip():
                commands[-1][1].append(line)
    return commands


def run(commands: list[tuple[str, list[str]]], start: Path, top: Path, names: dict[str, str]) -> None:
    """Run commands in one shell; fail at the first that fails, or does not print what the page shows."""
    script = ["set -euo pipefail"]
    for number, (command, _) in enumerate(commands):
        for name, value in names.items():
            command = command.replace(name, value)
        script += [f"exec >'{top}/out{number}' 2>'{top}/err{number}'", command]
    home = top / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = Ana\nemail = ana@example.com\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(home), "PATH": path, "GIT_CONFIG_NOSYSTEM": "1"}

    done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=start, env=env, check=False)

    last = max(n for n in range(len(commands)) if (top / f"out{n}").exists())
    if done.returncode != 0:
        seen = (top / f"out{last}").read_text() + (top / f"err{last}").read_text()
        pytest.fail(f"{commands[last][0]}: exit code {done.returncode}\n{seen}")
    for number, (command, shown) in enumerate(commands):
        output = (top / f"out{number}").read_text() + (top / f"err{number}").read_text()
        assert [line for line in shown if line not in output] == [], f"{command}\n{output}"


@pytest.mark.s3
def test_the_tutorial_runs_on_s3(seaweed: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweed.env().items():
        monkeypatch.setenv(name, value)
    seaweed.create_bucket("tutorial")
    commands = typed(DOCS / "tutorial.md")

    assert len(commands) > 15
    target = f"s3://tutorial/{ulid()} --option endpoint={seaweed.url}"
    run(commands, tmp_path, tmp_path, {"s3://acme-data/project": target})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What a how-to takes for granted: a repo under Git that shares its data, in which the reader stands."""
    for name in ("store", "backup/project", "new/project", "project"):
        (tmp_path / name).mkdir(parents=True)
    repo = tmp_path / "project"
    subprocess.run(["git", "init", "-q"], cwd=repo, check=True)
    (tmp_path / "usage.json").write_text('{"disk": 51}\n')
    for words in (
        ["init", str(repo)],
        ["datastore", "setup", f"{tmp_path.as_uri()}/store", "--repo", str(repo)],
        ["model", "create", "host/linux", "web1", "--repo", str(repo)],
        ["data", "put", "web1", "usage", str(tmp_path / "usage.json"), "--tag", "env=prod", "--repo", str(repo)],
    ):
        assert bayou.cli.run(words) == 0
    return repo


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.stem)
def test_the_commands_of_a_how_to_run(page: Path, project: Path, tmp_path: Path) -> None:
    commands = typed(page)

    assert commands
    run(commands, project, tmp_path, {"file:///mnt": tmp_path.as_uri()})


def test_the_page_about_backups_restores_one_item_by_undelete_first_and_then_from_the_replica() -> None:
    commands = [command for command, _ in typed(DOCS / "how-to" / "backup.md")]
    (undelete,) = (n for n, command in enumerate(commands) if command.startswith("bayou data undelete "))
    (get,) = (n for n, command in enumerate(commands) if " -o usage.json --repo ../check" in command)

    assert undelete < get
    assert commands[get + 1].startswith("bayou data put web1 usage usage.json")


def test_the_commands_of_the_page_about_data_run(tmp_path: Path) -> None:
    assert bayou.cli.run(["init", str(tmp_path / "repo")]) == 0
    (tmp_path / "repo" / "report.json").write_text('{"disk": 95}')

    run(typed(DOCS / "data.md"), tmp_path / "repo", tmp_path, {"bayou data gc": "bayou data gc -y"})


def test_the_replicas_of_the_page_about_stores_run(project: Path, tmp_path: Path) -> None:
    """What is shown has the page's own numbers, so only the rest of it is compared."""
    commands = [(command, shown) for command, shown in typed(DOCS / "stores.md") if " replicate " in command]
    (replica,) = {command.split()[3] for command, _ in commands}
    target = f"{tmp_path.as_uri()}/replica"

    run([(command, []) for command, _ in commands], project, tmp_path, {replica: target})

    assert len(commands) == 2
    for number, (_, shown) in enumerate(commands):
        printed = without_numbers((tmp_path / f"out{number}").read_text())
        assert [line for line in shown if without_numbers(line.replace(replica, target)) not in printed] == []


def without_numbers(text: str) -> str:
    return re.sub(r"\([\d.,]+ [kMG]?B\)", "(SIZE)", re.sub(r"\b[\d,]+ files?", "N files", text))


def test_every_how_to_of_the_issue_is_there() -> None:
    assert {page.stem for page in HOW_TOS} >= {"offline", "ci", "backup", "cron", "cluster", "move-a-store"}
