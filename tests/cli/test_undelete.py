"""`data delete` says what it deletes, and `data undelete` brings it back while the store has it."""

from __future__ import annotations

import shutil

import pytest
from msgspec.structs import replace
from tests.cli.terminal import at_terminal
from tests.sync.indexes import commit_rows, entries_of

from bayou.index.head import read_head
from bayou.index.key_range import KeyRange
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.repo import open_repo

PACKED, LOOSE = b"small", b"large " * 60_000


@pytest.fixture
def shared(repo, command, tmp_path):
    """A repo with a model, a store, and a function that puts content."""
    assert command("datastore", "setup", f"file://{tmp_path}/store", "--json").code == 0
    assert command("model", "create", "host", "web").code == 0

    def put(name: str, content: bytes) -> int:
        (repo.root / "input").write_bytes(content)
        ran = command("data", "put", "web", name, "input", "--tag", "env=prod", "--json")
        assert ran.code == 0, ran.err
        return ran.document["version"]

    return put


def entries(repo) -> dict[str, str | None]:
    """The push of every path that the store's index has."""
    store = open_repo(repo.root).store()
    seen = read_head(store)
    return {row.path: row.push for row in scan(IndexTree(StoreNodes(store), seen.head.root), KeyRange.under("data/"))}


UNDELETED = {"model": "web", "name": "report", "version": 3, "restored_from": 2, "pushed": True}


@pytest.mark.parametrize("content", [PACKED, LOOSE], ids=["packed", "loose"])
def test_deleted_data_comes_back_as_a_new_version_with_the_old_bytes_and_tags(repo, shared, command, content, tmp_path):
    shared("report", b"first")
    shared("report", content)
    before = entries(repo)
    deleted = command("data", "delete", "web", "report", "-y")
    assert "`bayou data undelete web report`" in deleted.err

    ran = command("data", "undelete", "web", "report", "--json")

    assert (ran.code, ran.document) == (0, UNDELETED)
    assert command("data", "get", "web", "report", "-o", str(tmp_path / "back")).code == 0
    assert (tmp_path / "back").read_bytes() == content
    known = command("data", "get", "web", "report", "--json").document
    assert (known["tags"], known["restored_from"], known["version"]) == ({"env": "prod"}, 2, 3)
    raws = {path: push for path, push in entries(repo).items() if path.endswith("/raw")}
    assert [path.rsplit("/", 2)[1] for path in raws] == ["3"]
    assert not set(raws.values()) & set(before.values())  # copied under a new push id, never linked again


def test_one_version_comes_back_beside_those_that_are_there_and_another_clone_gets_it(repo, shared, command, tmp_path):
    for content in (b"one", b"two", b"three"):
        shared("report", content)
    deleted = command("data", "delete", "web", "report", "--version", "1", "-y")
    assert "undelete web report --version 1`" in deleted.err

    assert command("data", "undelete", "web", "report", "--version", "1", "--json").document["version"] == 4

    shutil.copytree(repo.root, tmp_path / "clone", ignore=shutil.ignore_patterns(".bayou"))
    clone = ["--repo", str(tmp_path / "clone")]
    assert command(*clone, "datastore", "sync").code == 0
    assert command(*clone, "data", "get", "web", "report").out == "one"
    assert command(*clone, "data", "get", "web", "report", "--version", "3").out == "three"


@pytest.mark.parametrize(
    ("file", "place"), [("raw", {"stored": 1 << 40}), ("metadata.yaml", {"offset": None})], ids=str
)
def test_v25_a_row_of_the_history_that_no_client_writes_is_passed_over(repo, shared, command, file, place):
    shared("report", b"the content")
    store = open_repo(repo.root).store()
    row = next(row for path, row in entries_of(store).items() if path.endswith(f"/report/1/{file}"))
    commit_rows(store, {row.path: replace(row, **place)})
    assert command("data", "delete", "web", "report", "-y").code == 0

    ran = command("data", "undelete", "web", "report", "--json")

    assert ran.code == 0, ran.err
    assert command("data", "get", "web", "report").out == "the content"


def test_what_is_collected_names_the_oldest_commit_that_can_be_read(repo, shared, command):
    shared("report", LOOSE)
    command("data", "delete", "web", "report", "-y")
    assert command("datastore", "gc", "--grace", "0").code == 0
    shutil.rmtree(repo.state / "nodes")  # copies of nodes are no proof that the content is there

    ran = command("data", "undelete", "web", "report", "--json")

    newest = command("datastore", "log", "--json").document["commits"]
    assert (ran.code, ran.error["code"]) == (1, "history_collected")
    assert any(row["commit"] in ran.error["message"] for row in newest)
    assert command("data", "versions", "web", "report", "--json").document["versions"][-1]["deleted"] is True


def test_what_cannot_come_back_is_told_apart(repo, shared, command):
    shared("report", b"here")
    command("data", "put", "web", "draft", "input", "--offline")
    hidden = command("data", "delete", "web", "draft", "-y", "--offline")
    assert "undelete" not in hidden.err  # it was never pushed

    assert command("data", "undelete", "web", "draft", "--json").error["code"] == "history_collected"
    assert command("data", "undelete", "web", "never", "--json").error["code"] == "data_not_found"
    assert command("data", "undelete", "web", "report", "--version", "9", "--json").error["code"] == "data_not_found"
    assert "not deleted" in command("data", "undelete", "web", "report", "--version", "1", "--json").error["message"]
    known = command("data", "undelete", "web", "report", "--json").error
    assert (known["code"], known["message"]) == ("usage", "report of web is not deleted")
    assert "`bayou data versions web report`" in known["hint"]
    assert command("data", "undelete", "web", "report", "--offline", "--json").error["code"] == "offline"
    command("data", "rename", "web", "report", "summary")
    assert "renamed to summary" in command("data", "undelete", "web", "report", "--json").error["message"]


def test_a_directory_that_is_the_datastore_keeps_nothing(repo, command):
    command("model", "create", "host", "web")
    (repo.root / "input").write_bytes(b"x")
    command("data", "put", "web", "report", "input")
    deleted = command("data", "delete", "web", "report", "-y")

    assert "undelete" not in deleted.err
    assert "; this cannot be undone" in deleted.out + deleted.err
    assert command("data", "undelete", "web", "report", "--json").error["code"] == "history_collected"


def test_a_delete_in_a_directory_says_before_it_asks_that_it_cannot_be_undone(repo, command):
    command("model", "create", "host", "web")
    (repo.root / "input").write_bytes(b"x")
    command("data", "put", "web", "report", "input")

    code, shown = at_terminal("n\n", "data", "delete", "web", "report")

    assert code == 2
    assert "This cannot be undone" in " ".join(shown.split())
    assert command("data", "get", "web", "report").out == "x"


def test_a_delete_from_a_store_does_not_say_that_it_cannot_be_undone(repo, shared, command):
    shared("report", b"x")

    _, shown = at_terminal("y\n", "data", "delete", "web", "report")

    assert "undelete" in shown
    assert "cannot be undone" not in shown


def test_a_delete_at_a_terminal_says_what_goes_before_it_asks(repo, shared, command):
    shared("report", b"12345")
    shared("report", b"1234567")

    code, shown = at_terminal("n\n", "data", "delete", "web", "report")

    assert code == 2
    assert "delete 2 versions of web report (12 B), the latest of 20" in shown
    assert len(command("data", "versions", "web", "report", "--json").document["versions"]) == 2


def test_a_delete_that_was_not_pushed_yet_can_be_undone(repo, shared, command):
    shared("report", b"old")
    command("data", "delete", "web", "report", "-y", "--offline")

    assert command("data", "undelete", "web", "report", "--json").document["restored_from"] == 1
    assert command("data", "get", "web", "report").out == "old"


def test_reading_what_was_deleted_names_the_command_that_brings_it_back(shared, command):
    shared("my report", b"first")
    assert command("data", "delete", "web", "my report", "-y").code == 0

    ran = command("data", "get", "web", "my report", "--json")

    assert ran.error["hint"] == "`bayou data undelete web 'my report'` brings it back, if the store still has it"
    assert command("data", "undelete", "web", "my report").code == 0


def test_a_version_that_was_never_pushed_is_not_said_to_come_back(repo, shared, command):
    shared("report", b"first")
    (repo.root / "input").write_bytes(b"second")
    assert command("data", "put", "web", "report", "input", "--offline").code == 0

    deleted = command("data", "delete", "web", "report", "--version", "2", "-y")

    assert (deleted.code, deleted.err) == (0, "")
