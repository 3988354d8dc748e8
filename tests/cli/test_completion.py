"""What a shell offers: names of this repo, without a request, a write or an error."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import SOURCE

from bayou.data.records import Records


@pytest.fixture
def offers(processes, repo):
    """Return a function that completes the last word of a command line, as bash asks for it."""
    processes.cwd = repo.root

    def offered(line: str, **environ: str) -> list[str]:
        words = line.split(" ")
        ran = processes.run(_BAYOU_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), **environ)
        assert (ran.code, ran.err) == (0, "")
        return [row.partition(",")[2] for row in ran.out.splitlines() if row]

    return offered


@pytest.fixture
def filled(repo, command):
    for name in ("web1", "web2", "db"):
        assert command("model", "create", "host", name).code == 0
    (repo.root / "file").write_text("x")
    for name in ("report", "usage"):
        assert command("data", "put", "web1", name, "file").code == 0
    assert command("workflow", "create", "nightly").code == 0
    assert command("workflow", "run", "nightly", "--json").code in (0, 1)
    return repo


def state_of(root: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file() and not file.name.endswith(("-wal", "-shm"))
    }


def test_models_items_workflows_runs_and_paths_are_completed(filled, offers, command):
    before = state_of(filled.root)

    assert offers("bayou data get we") == ["web1", "web2"]
    assert offers("bayou model get d") == ["db"]
    assert offers("bayou data get web1 ") == ["report", "usage"]
    assert offers("bayou data rename web1 us") == ["usage"]
    assert offers("bayou workflow get n") == ["nightly"]
    assert offers("bayou workflow run n") == ["nightly"]
    assert offers("bayou model create command/s") == ["command/shell"]
    assert offers("bayou datastore cat data/") == ["data/host/"]
    assert offers("bayou data put web1 report ") == [""]  # a file: the shell completes it
    assert offers("bayou data ge") == ["get"]
    assert state_of(filled.root) == before
    runs = command("workflow", "run", "search", "--json").document["runs"]
    assert offers("bayou workflow resume ") == [*(run["run_id"] for run in runs), "latest"]
    assert offers("bayou workflow run logs la") == ["latest"]
    assert offers("bayou workflow graph la") == ["latest"]


def test_latest_is_not_offered_where_no_workflow_has_run(repo, offers, command):
    command("data", "list")

    assert offers("bayou workflow resume ") == []


def test_undelete_offers_what_is_deleted(filled, offers, command):
    (filled.root / "file").write_text("y")
    for name in ("usage", "kept"):
        assert command("data", "put", "web1", name, "file").code == 0
    assert command("data", "rename", "web1", "kept", "renamed").code == 0
    assert offers("bayou data undelete web1 ") == []

    assert command("data", "delete", "web1", "report", "-y").code == 0
    assert command("data", "delete", "web1", "usage", "--version", "1", "-y").code == 0

    assert offers("bayou data undelete web1 ") == ["report", "usage"]
    assert offers("bayou data undelete web1 r") == ["report"]
    assert offers("bayou data get web1 ") == ["renamed", "usage"]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("bayou datastore cat data/ho\tmore", "<datastore><cat><data/host/more>"),
        ("bayou data get web1 rep\tmore", "<data><get><web1><report><more>"),
    ],
    ids=["directory", "item"],
)
def test_bash_puts_no_space_behind_a_directory(filled, tmp_path, command, typed, completed):
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "bayou"
    script.write_text(
        f"#!/bin/sh\n[ -n \"$_BAYOU_COMPLETE\" ] && exec '{sys.executable}' -m bayou\nprintf '<%s>' \"$@\"; echo\n"
    )
    script.chmod(0o755)
    (tmp_path / "completion").write_text(command("completion", "bash").out)

    shown = typed_in_bash(f"PATH={folder}:$PATH; . {tmp_path}/completion", typed, completed)

    assert completed in shown


def typed_in_bash(prepare: str, line: str, wanted: str) -> str:
    """Type two lines into an interactive bash; return what its terminal shows, up to `wanted`."""
    main, end = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "dumb", "PS1": "$ "}
    with subprocess.Popen(
        ["bash", "--norc", "-i"], stdin=end, stdout=end, stderr=end, env=env, process_group=0
    ) as bash:
        os.close(end)
        os.write(main, f"{prepare}\n{line}\n".encode())
        shown, until = b"", time.monotonic() + 30
        while wanted.encode() not in shown and time.monotonic() < until:
            if select.select([main], [], [], 0.5)[0]:
                shown += os.read(main, 4096)
            elif b"\n<" in shown:
                break  # it has printed something else
        bash.kill()
    os.close(main)
    return shown.decode(errors="replace")


def test_another_repo_is_completed_from_outside(filled, offers, tmp_path):
    assert offers(f"bayou --repo {filled.root} data get d") == ["db"]
    assert offers("bayou data get d", BAYOU_REPO=str(filled.root)) == ["db"]


def test_a_damaged_catalog_and_a_place_without_a_repo_offer_nothing_and_print_nothing(filled, offers, processes):
    filled.catalog.write_bytes(b"no database at all, and longer than a header of SQLite would be" * 20)

    assert offers("bayou data get web1 ") == []
    processes.cwd = filled.root.parent
    assert offers("bayou data get ") == []


def test_names_that_a_terminal_would_obey_are_not_offered(filled, offers):
    with Records(filled) as records:
        from bayou.models import resolve_model

        records.data.save(resolve_model(filled, "web1"), "two words", b"x")

    assert offers("bayou data get web1 ") == ["report", "usage"]
