"""State belongs to this user on this machine; what came from elsewhere is set aside, not applied (17.5, 17.13; V24)."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import bayou
from bayou.config import ownership
from bayou.config.trust import user_folder
from bayou.core.errors import StateError
from bayou.data.metadata import Options
from bayou.data.spool import receive
from bayou.repo import Repo, init_repo, open_repo
from bayou.state.database import Database
from bayou.sync.plan.policy import ModelRef
from tests.cli.conftest import Ran

Command = Callable[..., Ran]


@pytest.fixture
def shared(tmp_path: Path, command: Command) -> Repo:
    """A repo with a store and two files in it, in sync."""
    (tmp_path / "store").mkdir()
    made = init_repo(tmp_path / "repo")
    assert command("datastore", "setup", (tmp_path / "store").as_uri(), "--repo", str(made.root)).code == 0
    with bayou.open(made.root) as opened:
        opened.tree.write("files/a", b"a")
        opened.tree.write("files/b", b"b")
    assert command("datastore", "sync", "--repo", str(made.root)).code == 0
    return open_repo(made.root)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Become another user, or the same on another machine."""

    def move() -> None:
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))

    return move


def payload(store: Path) -> set[str]:
    return {path.name for path in (store / "files").rglob("*") if path.is_file()}


def index(command: Command, root: Path) -> int:
    found = command("datastore", "status", "--repo", str(root), "--json").document["index"]["entries"]
    assert isinstance(found, int)
    return found


def test_17_5_a_prepared_change_set_and_journal_do_nothing(shared: Repo, tmp_path, command, elsewhere):
    """A committed .bayou/ that deletes a file here and another in the team's store, and pushes a third."""
    with Database(shared.state / "sync.db") as database, database.transaction() as db:
        (place,) = db.execute("SELECT id FROM place").fetchone()
        rows = [("write", "files/new"), ("delete", "files/a")]
        db.executemany(
            f"INSERT INTO journal (place, kind, path, state, owner, closed) VALUES ({place}, ?, ?, 'done', 'x', 1)",
            rows,
        )
    (shared.state / "changes").mkdir()
    config = shared.config.datastore
    change = {"place": [config.url, None, None], "placements": [], "writes": [], "deletes": ["files/b"]}
    (shared.state / "changes" / "01J.json").write_text(json.dumps({"owner": [], **change}))
    (shared.tree_root / "files" / "new").write_text("pushed by nobody")
    elsewhere()

    listed = command("data", "list", "--repo", str(shared.root))
    synced = command("datastore", "sync", "--repo", str(shared.root), "--json")

    assert listed.code == 0
    assert "not made by you on this machine" in listed.err
    assert (shared.tree_root / "files" / "b").read_text() == "b"
    assert synced.code == 0
    assert synced.document["pushed"] == {"files": 0, "bytes": 0, "deleted": 0, "renumbered": 0}
    assert synced.document["untracked"] == ["files/new"]
    assert index(command, shared.root) == 2
    assert (shared.tree_root / "files" / "a").read_text() == "a", "payload is never moved"


def test_what_was_set_aside_is_shown_and_can_be_taken_over(shared: Repo, tmp_path, command, elsewhere):
    """A repo that is mounted into a container, or was restored from a backup, with changes that wait to be pushed."""
    with bayou.open(shared.root) as opened:
        opened.tree.write("files/c", b"c")
        opened.tree.delete("files/a")
    elsewhere()
    assert command("data", "list", "--repo", str(shared.root)).code == 0

    shown = command("trust", "show", "--repo", str(shared.root), "--json").document
    (need,) = shown["needs"]
    assert (need["what"], need["allowed"], shown["allowed"]) == ("state", False, False)
    assert "1 written files" in need["value"]
    assert "1 deletes" in need["value"]

    allowed = command("trust", "allow", "--yes", "--repo", str(shared.root), "--json")
    assert allowed.code == 0, allowed.err
    assert allowed.document["allowed"], "the state that was made meanwhile had nothing to do, and is gone"
    pushed = command("datastore", "sync", "--repo", str(shared.root), "--json").document["pushed"]
    assert (pushed["files"], pushed["deleted"]) == (1, 1)


def test_two_owners_use_one_state_after_it_was_taken_over(shared: Repo, tmp_path, command, elsewhere, monkeypatch):
    """The host and the container: neither sets aside what the other uses."""
    elsewhere()
    command("datastore", "sync", "--repo", str(shared.root))
    command("trust", "allow", "--yes", "--repo", str(shared.root))
    owner = shared.root / ".bayou" / "state" / "owner"
    assert len(owner.read_text().split()) == 2

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ran = command("datastore", "sync", "--repo", str(shared.root))
    assert "not made by you" not in ran.err
    assert len(owner.read_text().split()) == 2


def test_state_in_use_with_changes_of_its_own_is_not_replaced(shared: Repo, command, elsewhere):
    elsewhere()
    command("data", "list", "--repo", str(shared.root))
    with bayou.open(shared.root) as opened:
        opened.tree.write("files/later", b"later")

    ran = command("trust", "allow", "--yes", "--repo", str(shared.root), "--json")

    assert (ran.code, ran.error["code"]) == (1, "state_error")
    assert "datastore sync" in ran.error["hint"]


@pytest.mark.parametrize("refused", [False, True])
def test_state_in_use_with_an_input_in_its_spool_is_not_replaced(shared: Repo, command, elsewhere, refused):
    """V22: an append that waits for the store, or an input that could not be used, is nowhere else."""
    elsewhere()
    command("data", "list", "--repo", str(shared.root))
    with receive(shared, "append", ModelRef("host", "1", "web"), "log", b"line", Options()) as spooled:
        kept = spooled.refuse() if refused else spooled.path

    shown = command("trust", "allow", "--yes", "--repo", str(shared.root), "--json")

    assert (shown.code, shown.error["code"]) == (1, "state_error")
    assert ("1 inputs that were refused" if refused else "1 inputs that are no versions") in shown.error["message"]
    assert kept.read_bytes() == b"line"


def test_an_input_in_state_that_was_set_aside_is_shown_and_used(shared: Repo, tmp_path, command, elsewhere):
    (tmp_path / "one").write_text("one ")
    assert command("model", "create", "host", "web", "--repo", str(shared.root)).code == 0
    put = command("data", "put", "web", "log", str(tmp_path / "one"), "--streaming", "--repo", str(shared.root))
    assert put.code == 0, put.err
    (model,) = (found.parent.name for found in (shared.tree_root / "data" / "host").glob("*/log"))
    receive(shared, "append", ModelRef("host", model, "web"), "log", b"two", Options()).release()
    elsewhere()
    command("data", "list", "--repo", str(shared.root))

    (need,) = command("trust", "show", "--repo", str(shared.root), "--json").document["needs"]
    assert need["value"] == "1 inputs that are no versions yet"
    assert command("trust", "allow", "--yes", "--repo", str(shared.root)).code == 0
    assert command("datastore", "sync", "--repo", str(shared.root)).code == 0
    assert command("data", "get", "web", "log", "--repo", str(shared.root)).out == "one two"


def test_a_repo_that_is_moved_or_copied_by_its_user_keeps_its_state(shared: Repo, tmp_path, command):
    with bayou.open(shared.root) as opened:
        opened.tree.write("files/c", b"c")
    shutil.move(shared.root, tmp_path / "moved")

    ran = command("datastore", "sync", "--repo", str(tmp_path / "moved"), "--json")

    assert ran.document["pushed"]["files"] == 1


def test_state_without_a_mark_is_foreign(tmp_path, command):
    made = init_repo(tmp_path / "repo")
    (made.root / ".bayou" / "state" / "changes").mkdir(parents=True)
    (made.root / ".bayou" / "state" / "changes" / "1.json").write_text("{}")

    ran = command("data", "list", "--repo", str(made.root))

    assert ran.code == 0
    assert "not made by you" in ran.err
    (aside,) = (made.root / ".bayou" / "set-aside").iterdir()
    assert (aside / "state" / "changes" / "1.json").exists()


@pytest.mark.parametrize("thing", ["file", "link", "fifo"])
def test_what_is_no_directory_in_the_place_of_the_state_is_set_aside(tmp_path, command, thing):
    made = init_repo(tmp_path / "repo")
    state = made.root / ".bayou" / "state"
    if thing == "file":
        state.write_text("x")
    elif thing == "link":
        (made.root / "models" / "state").mkdir()
        state.symlink_to(made.root / "models" / "state")
    else:
        os.mkfifo(state)

    assert command("data", "list", "--repo", str(made.root)).code == 0
    assert state.is_dir()
    assert not state.is_symlink()


def test_another_repo_s_state_behind_a_link_is_not_used(shared: Repo, tmp_path, command):
    """Its mark is good, but it is not this repo's."""
    clone = init_repo(tmp_path / "clone")
    (clone.root / ".bayou" / "state").symlink_to(shared.root / ".bayou" / "state")

    ran = command("data", "list", "--repo", str(clone.root), "--json")

    assert (ran.code, ran.error["code"]) == (1, "trust_needed")


def test_a_database_that_git_put_in_the_place_of_ours_is_refused(shared: Repo, tmp_path, command):
    """Git overwrites ignored files: a later commit can replace a file of a state that is ours."""
    (tmp_path / "prepared").mkdir()
    with Database(tmp_path / "prepared" / "sync.db"):
        pass
    for end in ("", "-wal", "-shm"):
        Path(f"{shared.state / 'sync.db'}{end}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "prepared" / "sync.db", shared.state / "sync.db")

    ran = command("datastore", "sync", "--repo", str(shared.root), "--json")

    assert (ran.code, ran.error["code"]) == (1, "state_error")
    assert "not the one that you made here" in ran.error["message"]


def test_a_change_set_that_git_put_among_ours_is_not_carried_out(shared: Repo, command):
    (shared.state / "changes").mkdir(exist_ok=True)
    change = {
        "place": [shared.config.datastore.url, None, None],
        "placements": [],
        "writes": [],
        "deletes": ["files/a"],
    }
    (shared.state / "changes" / "01J.json").write_text(json.dumps({"owner": ["0" * 32], **change}))

    synced = command("datastore", "sync", "--repo", str(shared.root), "--json").document
    command("model", "create", "net", "m", "--repo", str(shared.root))
    command("data", "put", "m", "x", str(shared.file), "--repo", str(shared.root))
    renamed = command("data", "rename", "m", "x", "y", "--repo", str(shared.root), "--json")

    assert synced["pushed"]["deleted"] == 0
    assert (shared.tree_root / "files" / "a").exists()
    assert (renamed.code, renamed.error["code"]) == (1, "state_error")
    assert "not noted by you" in renamed.error["message"]


@pytest.mark.parametrize("way", ["at first", "later"])
def test_a_catalog_that_came_with_the_clone_is_not_believed(tmp_path, command, way):
    """What it says decides what is listed, and what `data gc` deletes."""
    evil, made = init_repo(tmp_path / "evil"), init_repo(tmp_path / "repo")
    for one in (evil, made):
        assert command("model", "create", "net", "m", "--repo", str(one.root)).code == 0
    (tmp_path / "in").write_text("x")
    assert command("data", "put", "m", "planted", str(tmp_path / "in"), "--repo", str(evil.root)).code == 0
    if way == "later":
        assert command("data", "put", "m", "mine", str(tmp_path / "in"), "--repo", str(made.root)).code == 0
    for end in ("-wal", "-shm"):
        Path(f"{made.root}/.bayou/catalog.db{end}").unlink(missing_ok=True)
    with closing(sqlite3.connect(evil.root / ".bayou" / "catalog.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(evil.root / ".bayou" / "catalog.db", made.root / ".bayou" / "catalog.db")

    items = command("data", "list", "--repo", str(made.root), "--json").document["items"]

    assert [item["name"] for item in items] == (["mine"] if way == "later" else [])


def test_a_catalog_that_is_a_link_is_not_opened(tmp_path, command):
    made = init_repo(tmp_path / "repo")
    victim = tmp_path / "victim.sqlite"
    with closing(sqlite3.connect(victim)) as db:
        db.execute("CREATE TABLE t (x)")
    before = victim.read_bytes()
    (made.root / ".bayou" / "catalog.db").symlink_to(victim)
    (made.root / ".bayou" / "catalog.db.lock").symlink_to(tmp_path / "new-file")

    assert command("data", "list", "--repo", str(made.root)).code == 0
    assert victim.read_bytes() == before
    assert not (tmp_path / "new-file").exists()


def test_proof_that_the_clone_brought_along_proves_nothing(tmp_path, monkeypatch):
    made = init_repo(tmp_path / "repo")
    assert made.state.is_dir()
    monkeypatch.setenv("HOME", str(made.root))
    (user_folder() / "state").mkdir(parents=True)
    (one,) = ownership.owner_ids(made.root / ".bayou" / "state" / "owner")
    (user_folder() / "state" / one).write_text("x")
    ownership._verified.clear()

    with pytest.raises(StateError, match="lies in the repo itself"):
        _ = made.state
    assert (made.root / ".bayou" / "set-aside").is_dir()


def test_a_home_that_cannot_be_written_is_said_and_ci_goes_on_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    made = init_repo(tmp_path / "repo")

    with pytest.raises(StateError, match="which state is yours"):
        _ = made.state
    monkeypatch.setenv("BAYOU_TRUST", "1")
    assert made.state.is_dir()


def test_17_13_only_this_user_reads_what_is_kept(shared: Repo, tmp_path, command):
    assert command("model", "create", "net", "m", "--repo", str(shared.root)).code == 0
    (tmp_path / "in").write_text("secret")
    assert command("data", "put", "m", "x", str(tmp_path / "in"), "--repo", str(shared.root)).code == 0
    assert command("datastore", "sync", "--repo", str(shared.root)).code == 0
    with bayou.open(shared.root) as opened:
        opened.tree.append("logs/l", b"line\n")

    local = shared.root / ".bayou"
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (local, *local.rglob("*"))}
    assert len(modes) > 20
    assert {str(path): oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_a_shared_directory_keeps_its_own_modes(tmp_path, command):
    (tmp_path / "team").mkdir(mode=0o775)
    (tmp_path / "team").chmod(0o775)
    made = init_repo(tmp_path / "repo")
    assert command("datastore", "setup", str(tmp_path / "team"), "--repo", str(made.root)).code == 0
    assert command("model", "create", "net", "m", "--repo", str(made.root)).code == 0
    (tmp_path / "in").write_text("for all")
    assert command("data", "put", "m", "x", str(tmp_path / "in"), "--repo", str(made.root)).code == 0

    (raw,) = (tmp_path / "team").rglob("raw")
    assert stat.S_IMODE(raw.stat().st_mode) & 0o044 == 0o044
