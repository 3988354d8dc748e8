"""What a review of trust found, each as a test: ways around permissions, harm to honest users (17; V23, V24, V26)."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import bayou
from bayou.config import ownership
from bayou.config.git_index import placed_by_git
from bayou.core.errors import StateError, TrustNeeded
from bayou.repo import Repo, init_repo, open_repo
from tests.cli.conftest import Ran
from tests.trusting import trust

Command = Callable[..., Ran]


def configured(root: Path, lines: str) -> Repo:
    made = init_repo(root)
    made.file.write_text(f"{made.file.read_text()}{lines}\n")
    return open_repo(root)


def git(root: Path, *args: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *names, "-C", str(root), *args], check=True, capture_output=True)


# ---- code ----


@pytest.mark.parametrize("link", ["models", "extensions", "models to __pycache__", "file"])
def test_code_behind_a_link_is_not_run(tmp_path: Path, command: Command, link: str) -> None:
    root = init_repo(tmp_path / "repo").root
    code = root / "code" / ("__pycache__" if "cache" in link else "models")
    code.mkdir(parents=True)
    (code / "e.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass E:\n  type = 'evil/x'\n")
    if link == "extensions":
        (root / "extensions").symlink_to("code")
    else:
        (root / "extensions").mkdir()
    if link.startswith("models"):
        (root / "extensions" / "models").symlink_to(code)
    elif link == "file":
        (root / "extensions" / "models").mkdir()
        (root / "extensions" / "models" / "e.py").symlink_to(code / "e.py")
        trust(root)  # a permission is for the link, and not for what it leads to

    for args in (("types",), ("describe", "evil/x"), ("create", "evil/x", "a")):
        command("model", *args, "--repo", str(root))

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("thing", ["/dev/zero", "/dev/stdin", "/proc/self/task", "fifo"])
def test_looking_at_extensions_takes_no_time_and_no_memory(tmp_path: Path, command: Command, thing: str) -> None:
    root = init_repo(tmp_path / "repo").root
    (root / "extensions").mkdir()
    target = root / "extensions" / ("models" if thing == "fifo" else "a.py")
    if thing == "fifo":
        os.mkfifo(target)
    else:
        target.symlink_to(thing)

    assert command("trust", "show", "--repo", str(root)).code == 0
    assert command("model", "types", "--repo", str(root)).code in (0, 1)


# ---- where credentials go ----


@pytest.mark.parametrize(
    ("options", "url"),
    [('endpoint = "http://127.0.0.1:9"', "s3://team/p"), ("use_emulator = true", "az://team/p")],
)
def test_options_of_a_file_without_a_url_are_asked_about_with_the_url_of_a_variable(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, options: str, url: str
) -> None:
    monkeypatch.setenv("BAYOU_DATASTORE", url)
    root = configured(tmp_path / "repo", f"[datastore.options]\n{options}").root

    with pytest.raises(TrustNeeded, match="sends data, and your credentials"):
        open_repo(root).store()

    assert not command("trust", "show", "--repo", str(root), "--json").document["allowed"]
    assert command("trust", "allow", "--yes", "--repo", str(root)).code == 0
    open_repo(root).config.datastore.require_trust()


def test_a_permission_for_one_store_s_endpoint_is_none_for_another_s(tmp_path: Path) -> None:
    lines = 'url = "s3://team/p"\n[datastore.options]\nendpoint = "http://127.0.0.1:9"'
    made = configured(tmp_path / "repo", lines)
    trust(made.root)
    open_repo(made.root).config.datastore.require_trust()

    made.file.write_text(made.file.read_text().replace("s3://team/p", "az://team/p"))

    with pytest.raises(TrustNeeded):
        open_repo(made.root).config.datastore.require_trust()


def test_blanks_around_a_url_hide_nothing(tmp_path: Path, command: Command) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    root = init_repo(tmp_path / "repo").root
    with (root / "bayou.toml").open("a") as file:
        file.write(f'url = " {(tmp_path / "precious").as_uri()}"\n')

    assert command("datastore", "sync", "--repo", str(root)).code != 0
    assert os.listdir(tmp_path / "precious") == ["file"]


def test_an_address_that_contradicts_itself_is_called_unencrypted(tmp_path: Path) -> None:
    made = configured(tmp_path / "repo", '[spark]\nremote = "sc://h:1/;use_ssl=true;use_ssl=false"')

    with pytest.raises(TrustNeeded, match="unencrypted"):
        made.config.spark.require_trust()


def test_every_link_out_of_the_repo_is_listed(tmp_path: Path, command: Command) -> None:
    root = init_repo(tmp_path / "repo").root
    for name in ("tree", "conflicts"):
        (tmp_path / name).mkdir()
        (root / ".bayou" / name).symlink_to(tmp_path / name)

    needs = command("trust", "show", "--repo", str(root), "--json").document["needs"]

    assert [need["where"] for need in needs] == [".bayou/tree", ".bayou/conflicts"]


def test_copies_behind_a_link_are_no_conflicts(tmp_path: Path, command: Command) -> None:
    (tmp_path / "other" / "files").mkdir(parents=True)
    (tmp_path / "other" / "files" / "x").write_text("mine")
    root = init_repo(tmp_path / "repo").root
    (root / ".bayou" / "conflicts").mkdir()
    (root / ".bayou" / "conflicts" / "20260101T000000.000000Z").symlink_to(tmp_path / "other")

    assert command("datastore", "conflicts", "drop", "files/x", "--repo", str(root)).code != 0
    assert (tmp_path / "other" / "files" / "x").exists()


@pytest.mark.parametrize(
    "line",
    [
        'path = "a\\u0000b"',
        'path = "~nosuchuser/x"',
        "deep = " + "[" * 100_000,
        "[sync]\nconcurrency = " + "9" * 5000,
    ],
)
def test_a_configuration_that_cannot_be_is_an_error_and_no_bug(tmp_path: Path, command: Command, line: str) -> None:
    root = init_repo(tmp_path / "repo").root
    with (root / "bayou.toml").open("a") as file:
        file.write(f"{line}\n")

    ran = command("data", "list", "--repo", str(root), "--json")

    assert (ran.code, ran.error["code"]) == (2, "config_invalid")


# ---- what Git puts among our files ----


@pytest.fixture
def pulled(tmp_path: Path, command: Command) -> tuple[Repo, Path]:
    """A clone in use, with a store, and the repo that it was cloned from."""
    (tmp_path / "store").mkdir()
    up = init_repo(tmp_path / "up").root
    (up / "bayou.toml").write_text(f'{(up / "bayou.toml").read_text()}url = "{(tmp_path / "store").as_uri()}"\n')
    git(up, "init", "-q")
    git(up, "add", ".")
    git(up, "commit", "-qm", "1")
    subprocess.run(["git", "clone", "-q", str(up), str(tmp_path / "clone")], check=True)
    clone = tmp_path / "clone"
    with bayou.open(clone) as opened:
        opened.tree.write("files/a", b"a")
        opened.tree.write("files/b", b"b")
    assert command("datastore", "sync", "--repo", str(clone)).code == 0
    return open_repo(clone), up


def commit(up: Path, clone: Path, *args: str) -> None:
    git(up, "add", "-f", ".bayou")
    git(up, "commit", "-qm", "evil")
    git(clone, "pull", "-q", *args)
    ownership._verified.clear()  # another process


@pytest.mark.parametrize("name", ["nodes", "sync.db", "sync.lock", "owners", "sync.db-wal"])
def test_a_link_that_git_puts_into_our_state_leads_nowhere(tmp_path: Path, command: Command, pulled, name: str) -> None:
    repo, up = pulled
    victim = tmp_path / "victim"
    if name in ("nodes", "owners"):
        victim.mkdir()
        for number in range(600):
            (victim / f"{number:064x}.parquet").write_text("mine")
    elif name == "sync.db":
        with closing(sqlite3.connect(victim)) as db:
            db.execute("CREATE TABLE mine (x)")
    before = victim.read_bytes() if victim.is_file() else len(list(victim.iterdir())) if victim.exists() else None
    (up / ".bayou" / "state").mkdir(exist_ok=True)
    (up / ".bayou" / "state" / name).symlink_to(victim)
    commit(up, repo.root)

    ran = command("datastore", "sync", "--repo", str(repo.root))

    assert ran.code == 0, ran.err
    assert "a commit of this repo has put into .bayou/" in ran.err
    now = victim.read_bytes() if victim.is_file() else len(list(victim.iterdir())) if victim.exists() else None
    assert now == before


def test_a_log_that_git_puts_beside_our_database_is_not_applied(tmp_path: Path, command: Command, pulled) -> None:
    """SQLite would take its pages for ours: here, rows of the journal that delete what the team has."""
    repo, up = pulled
    scratch = tmp_path / "scratch"
    shutil.copytree(repo.root / ".bayou" / "state", scratch)
    with closing(sqlite3.connect(scratch / "sync.db", isolation_level=None)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        (place,) = db.execute("SELECT id FROM place").fetchone()
        db.execute(
            "INSERT INTO journal (place, kind, path, state, owner, closed)"
            f" VALUES ({place}, 'delete', 'files/a', 'done', 'x', 1)"
        )
        (up / ".bayou" / "state").mkdir(exist_ok=True)
        shutil.copy(scratch / "sync.db-wal", up / ".bayou" / "state" / "sync.db-wal")
    (repo.tree_root / "files" / "a").unlink()
    commit(up, repo.root)
    assert (repo.root / ".bayou" / "state" / "sync.db-wal").exists()

    synced = command("datastore", "sync", "--repo", str(repo.root), "--json").document

    assert synced["pushed"]["deleted"] == 0
    assert synced["pulled"]["files"] == 1, "a file that is missing is fetched again"


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("below", ["", "deep/inside"])
def test_the_index_tells_what_git_put_there(tmp_path: Path, version: str, below: str) -> None:
    root = tmp_path / "top" / below
    (root / ".bayou" / "state").mkdir(parents=True)
    git(tmp_path / "top", "init", "-q")
    git(tmp_path / "top", "config", "index.version", version)
    for name in (".a", ".bashrc", ".bayou/state/kept", ".bayou/state/changed", ".bayou-not", "z"):
        (root / name).write_text("as it was")
    git(tmp_path / "top", "add", "-f", ".")
    git(tmp_path / "top", "update-index", "--index-version", version)
    (root / ".bayou" / "state" / "changed").write_text("by us")
    (root / ".bayou" / "state" / "new").write_text("by us")

    assert placed_by_git(root, ".bayou") == [".bayou/state/kept"]


def test_no_git_no_index_and_a_broken_one_name_nothing(tmp_path: Path) -> None:
    (tmp_path / ".bayou").mkdir()
    assert placed_by_git(tmp_path, ".bayou") == []
    (tmp_path / ".git").mkdir()
    assert placed_by_git(tmp_path, ".bayou") == []
    for data in (b"", b"DIRC", b"DIRC" + b"\xff" * 8, b"DIRC\0\0\0\2\0\0\0\5.bayou/" + b"x" * 70):
        (tmp_path / ".git" / "index").write_bytes(data)
        assert placed_by_git(tmp_path, ".bayou") == []


# ---- honest users ----


def test_two_homes_in_turn_each_find_their_own_state_again(tmp_path: Path, command: Command, monkeypatch) -> None:
    """cron, sudo -u, a container: what one has not pushed yet is there when it comes back."""
    (tmp_path / "store").mkdir()
    made = init_repo(tmp_path / "repo")
    assert command("datastore", "setup", (tmp_path / "store").as_uri(), "--repo", str(made.root)).code == 0
    with bayou.open(made.root) as opened:
        opened.tree.write("files/a", b"a")
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    assert command("data", "list", "--repo", str(made.root)).code == 0
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    pushed = command("datastore", "sync", "--repo", str(made.root), "--json").document["pushed"]

    assert pushed["files"] == 1


def test_state_of_another_user_is_left_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo bayou …` must not take a user's state away."""
    made = init_repo(tmp_path / "repo")
    assert made.state.is_dir()
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    ownership._verified.clear()

    with pytest.raises(StateError, match="belongs to another user"):
        _ = made.state
    assert (made.root / ".bayou" / "state" / "owner").exists()


def test_state_whose_mark_was_lost_works_again_once_it_is_taken_over(tmp_path: Path, command: Command) -> None:
    (tmp_path / "store").mkdir()
    made = init_repo(tmp_path / "repo")
    assert command("datastore", "setup", (tmp_path / "store").as_uri(), "--repo", str(made.root)).code == 0
    with bayou.open(made.root) as opened:
        opened.tree.write("files/a", b"a")
    (made.root / ".bayou" / "state" / "owner").unlink()
    assert command("data", "list", "--repo", str(made.root)).code == 0

    assert command("trust", "allow", "--yes", "--repo", str(made.root), "--json").document["allowed"]
    assert command("datastore", "sync", "--repo", str(made.root), "--json").document["pushed"]["files"] == 1


def test_state_is_never_taken_from_behind_a_link(tmp_path: Path, command: Command) -> None:
    other = init_repo(tmp_path / "other")
    assert other.state.is_dir()
    clone = init_repo(tmp_path / "clone")
    (clone.root / ".bayou" / "set-aside").mkdir()
    (clone.root / ".bayou" / "set-aside" / "zz").symlink_to(other.root / ".bayou")

    command("trust", "allow", "--yes", "--repo", str(clone.root))

    assert (other.root / ".bayou" / "state" / "owner").exists()


RACE = """
import sys
from pathlib import Path
from bayou.config.ownership import own_catalog, own_state
local = Path(sys.argv[1])
state = own_state(local)
(state / "mark").touch()
own_catalog(local)
assert own_state(local) == state and (state / "mark").exists()
"""


@pytest.mark.parametrize("kind", ["foreign", "fresh"])
def test_many_processes_that_meet_at_first_agree_on_one_state(tmp_path: Path, processes, kind: str) -> None:
    local = init_repo(tmp_path / "repo").root / ".bayou"
    if kind == "foreign":
        (local / "state").mkdir()
        (local / "state" / "foreign").write_text("x")
        (local / "catalog.db").write_text("x")

    started = [processes.script(RACE, str(local)) for _ in range(6)]
    ended = [processes.finish(one) for one in started]

    assert [one.code for one in ended] == [0] * 6, [one.err for one in ended]
    assert (local / "state" / "mark").exists()
    aside = list((local / "set-aside").iterdir()) if (local / "set-aside").exists() else []
    assert not [one for one in aside if (one / "state" / "mark").exists()]


def test_a_home_that_is_the_repo_works_with_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = init_repo(tmp_path / "repo")
    monkeypatch.setenv("HOME", str(made.root))
    monkeypatch.setenv("BAYOU_TRUST", "1")

    assert made.state.is_dir()


def test_a_store_that_was_set_up_while_it_was_empty_stays_allowed(tmp_path: Path, command: Command) -> None:
    (tmp_path / "store").mkdir()
    made = init_repo(tmp_path / "repo")
    assert command("datastore", "setup", (tmp_path / "store").as_uri(), "--repo", str(made.root)).code == 0
    (tmp_path / "store" / ".bayou" / "head.json").unlink()
    (tmp_path / "store" / "other").write_text("x")

    ran = command("datastore", "status", "--repo", str(made.root), "--json")

    assert ran.code in (0, 1, 4)
    assert "trust_needed" not in ran.err


def test_a_set_aside_database_that_would_take_all_memory_is_only_counted_as_unreadable(
    tmp_path: Path, processes
) -> None:
    local = init_repo(tmp_path / "repo").root / ".bayou"
    (local / "set-aside" / "1" / "state").mkdir(parents=True)
    with closing(sqlite3.connect(local / "set-aside" / "1" / "state" / "sync.db")) as db:
        db.execute("CREATE TABLE journal (kind, k, path GENERATED ALWAYS AS (hex(zeroblob(400000000)) || k) VIRTUAL)")
        db.execute("CREATE TABLE pending (x)")
        db.execute("CREATE TABLE intent (x)")
        db.execute("INSERT INTO journal (kind, k) VALUES ('write', 1), ('write', 2), ('delete', 3)")
        db.commit()
    script = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
    script += " sys.argv[1:] = ['trust', 'show', '--json', '--repo', sys.argv[1]]; from bayou.cli import main; main()"

    ran = processes.finish(processes.script(script, str(tmp_path / "repo"), HOME=os.environ["HOME"]))

    assert ran.code == 0, ran.err
    (need,) = json.loads(ran.out)["needs"]
    assert need["value"] == "a database that cannot be read"
