"""What a shell offers: names of this repo, without a request, a write or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    assert offers("bayou workflow resume ") == [run["run_id"] for run in runs]


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
