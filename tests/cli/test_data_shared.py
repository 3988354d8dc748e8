"""`bayou data` on a shared store: sessions as people have them, in two clones."""

from __future__ import annotations

import errno
import io
import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sync.conftest import Clone, Team, Wire

from bayou.core.errors import AccessDenied
from bayou.core.ids import ulid
from bayou.data.layout import Owner
from bayou.data.records import Records
from bayou.data.runs import Run
from bayou.leases import STORE, model_key, open_leases
from bayou.models import find_model
from bayou.state.database import Database
from bayou_testing.faulty import Fault


class Person:
    """Somebody who types commands in one clone."""

    def __init__(self, clone: Clone, command: Callable[..., Any]) -> None:
        self.clone, self.command = clone, command

    def run(self, *args: str, typed: bytes | None = None) -> Any:
        """Run a command, whatever comes of it."""
        with pytest.MonkeyPatch.context() as patch:
            if typed is not None:
                patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
            return self.command("--repo", str(self.clone.repo.root), *args)

    def does(self, *args: str, typed: bytes | None = None) -> dict[str, Any]:
        """Run a command that must go well; return its document."""
        ran = self.run(*args, "--json", typed=typed)
        assert ran.code == 0, ran.err
        return ran.document

    @property
    def names(self) -> list[str]:
        return sorted(item["name"] for item in self.does("data", "list")["items"])


@pytest.fixture
def people(command):
    """Two clones of one repo: they share their definitions, as Git would, and a store."""

    def make(team: Team, **datastore: Any) -> tuple[Person, Person]:
        ann = Person(team.clone("ann", **datastore), command)
        ann.does("model", "create", "aws/ec2", "web", "--arg", "region=eu")
        bob = Person(team.clone("bob", **datastore), command)
        shutil.copytree(ann.clone.repo.root / "models", bob.clone.repo.root / "models", dirs_exist_ok=True)
        return ann, bob

    return make


def a_session(ann: Person, bob: Person) -> None:
    """Put, list, get, versions, query, rename, gc: what one does, the other sees after a sync."""
    assert (
        ann.does("data", "put", "web", "report", "-", "--tag", "env=prod", "--keep", "2", typed=b'{"cost": 1}')[
            "version"
        ]
        == 1
    )
    assert bob.names == []
    bob.does("datastore", "sync")
    assert bob.names == ["report"]
    assert bob.does("data", "get", "web", "report")["content"] == {"cost": 1}

    # Bob's put pulls first, so Ann's version is there and his is the next.
    ann.does("data", "put", "web", "report", "-", "--keep", "2", typed=b'{"cost": 22}')
    assert bob.does("data", "put", "web", "report", "-", "--keep", "2", typed=b'{"cost": 333}')["version"] == 3
    ann.does("datastore", "sync")
    versions = ann.does("data", "versions", "web", "report")["versions"]
    assert [(row["version"], row["latest"]) for row in versions] == [(1, False), (2, False), (3, True)]
    assert ann.does("data", "query", 'name == "report" && latest', "--select", "attributes.cost")["results"] == [333]

    renamed = {"old": "report", "new": "costs", "version": 3, "pushed": True}
    assert ann.does("data", "rename", "web", "report", "costs") == renamed
    bob.does("datastore", "sync")
    assert bob.does("data", "get", "web", "report")["name"] == "costs"
    assert bob.names == ["costs"]

    planned = bob.does("data", "gc", "--dry-run")
    collected = bob.does("data", "gc", "-y")
    assert {**planned, "pushed": True} == collected
    assert (collected["expired"], collected["versions_deleted"]) == (0, 1)
    ann.does("datastore", "sync")
    assert [row["version"] for row in ann.does("data", "versions", "web", "costs")["versions"]] == [2, 3]
    assert ann.clone.files == bob.clone.files
    assert ann.does("datastore", "verify")["ok"]
    assert ann.does("datastore", "sync")["engine"] == "fast"


def test_content_that_was_changed_here_is_got_again_as_the_hint_says(people, team: Team):
    ann, _ = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"good")
    raw = Path(ann.does("data", "get", "web", "report")["path"])
    raw.write_bytes(b"evil")

    error = ann.run("data", "get", "web", "report", "--json").error

    assert error["code"] == "content_damaged"
    assert f"remove {shlex.quote(str(raw))} before the next sync" in error["hint"]
    raw.unlink()
    assert ann.does("data", "get", "web", "report")["content"] == "good"


def test_data_that_is_not_here_may_be_on_another_machine(people, team: Team):
    ann, bob = people(team)
    bob.does("datastore", "sync")
    ann.does("data", "put", "web", "report", "-", typed=b"1")

    error = bob.run("data", "get", "web", "report", "--json").error

    fetch = "`bayou datastore sync --pull` fetches what others have pushed"
    assert (error["code"], error["hint"]) == (
        "data_not_found",
        f"see what there is with `bayou data list web`; {fetch}",
    )


def test_a_session_of_two_people_on_a_directory(people, team: Team):
    a_session(*people(team))


@pytest.mark.s3
def test_a_session_of_two_people_on_s3(people, s3_team: Team):
    a_session(*people(s3_team))


def test_looking_at_data_sends_nothing(people, team: Team, wire: Wire):
    """V15: neither a request nor a lease; content that is here is read here."""
    ann, _ = people(team)
    ann.does("data", "put", "web", "report", "-", "--keep", "1", typed=b"one")
    wire.seen.clear()

    ann.does("data", "list")
    ann.does("data", "versions", "web", "report")
    ann.does("data", "get", "web", "report")
    ann.does("data", "query", "content == 'one'")
    ann.does("data", "gc", "--dry-run")
    ann.does("data", "prune", "--dry-run")

    assert wire.seen == []


def test_content_that_is_not_here_is_fetched_when_it_is_read(people, team: Team, wire: Wire):
    ann, _ = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"far away")
    lazy = Person(team.clone("lazy", hydrate="lazy"), ann.command)
    lazy.does("datastore", "sync")
    assert lazy.names == ["report"]
    wire.seen.clear()

    assert lazy.does("data", "list")["total"] == 1
    assert wire.seen == []
    assert lazy.does("data", "get", "web", "report")["content"] == "far away"
    assert {one.verb for one in wire.seen} <= {"get", "head"}


def test_what_is_put_offline_waits_and_keeps_its_number_if_it_can(people, team: Team):
    ann, bob = people(team)
    assert ann.does("data", "put", "web", "report", "-", "--offline", typed=b"ann")["version"] == 1
    assert bob.does("data", "put", "web", "report", "-", typed=b"bob")["version"] == 1

    ann.does("datastore", "sync")
    bob.does("datastore", "sync")

    assert [ann.does("data", "get", "web", "report", "--version", str(n))["content"] for n in (1, 2)] == ["bob", "ann"]
    assert ann.clone.files == bob.clone.files


def test_f100_what_was_put_is_told_also_if_it_cannot_be_pushed(people, team: Team, wire: Wire):
    ann, bob = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"one")
    wire.cut(Fault(verb="put", key=r"^\.bayou/packs/", error=lambda: AccessDenied("403: you may not write")))

    ran = ann.run("data", "put", "web", "report", "-", "--json", typed=b"two")

    assert ran.code != 0
    assert ran.document["version"] == 2
    wire.cut()
    ann.does("datastore", "sync", "--push")
    bob.does("datastore", "sync")
    assert bob.does("data", "get", "web", "report")["content"] == "two"


def test_f041_a_full_disk_refuses_a_put_before_anything_is_written(people, team: Team, monkeypatch):
    """The volume of `.bayou/state` has no room for the journal's next page."""
    ann, _ = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"one")
    files, listed = ann.clone.files, ann.does("data", "list")
    real = Database._open

    def on_a_full_disk(self: Database) -> Any:
        connection = real(self)
        connection.execute("PRAGMA max_page_count = 1")  # SQLite makes that the number of pages there are
        return connection

    name = "n" * 200
    with monkeypatch.context() as patch:
        patch.setattr(Database, "_open", on_a_full_disk)
        ran = [
            ann.run("data", "put", "web", f"{name}{number}", "-", "--offline", "--json", typed=b"x")
            for number in range(40)
        ]

    refused = [one for one in ran if one.code != 0]
    assert refused
    assert {one.error["code"] for one in refused} == {"state_error"}
    assert all("full" in one.error["message"] for one in refused)
    written = sum(one.code == 0 for one in ran)
    assert len(ann.clone.files) == len(files) + 2 * written
    assert len(ann.does("data", "list")["items"]) == len(listed["items"]) + written
    assert not list(ann.clone.repo.tree_root.rglob(".bayou-*"))


def test_a_disk_that_fills_during_a_put_leaves_no_half_version(people, team: Team, monkeypatch):
    ann, _ = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"one")
    files, listed = ann.clone.files, ann.does("data", "list")
    real = os.fsync

    def full(descriptor: int) -> None:
        if "/data/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        ran = ann.run("data", "put", "web", "report", "-", "--json", typed=b"two")

    assert ran.code == 1
    assert ran.error["code"] == "tree_error"
    assert "space" in f"{ran.error['message']} {ran.error['hint']}"
    assert ann.clone.files == files
    assert ann.does("data", "list") == {**listed, "notes": ["1 change not pushed"]}
    assert "the input is kept here" in ran.error["hint"]  # V22
    assert ann.does("data", "put", "web", "report", "-", typed=b"three")["version"] == 3
    assert ann.does("data", "get", "web", "report", "--version", "2")["content"] == "two"


def test_a_collection_of_most_of_a_store_needs_no_second_permission(people, team: Team):
    """The guard against mass deletes is for what nobody meant; this was asked for, and peers follow it."""
    ann, bob = people(team)
    with Records(ann.clone.repo) as records:
        model = find_model(ann.clone.repo, "web").ref
        with records.data.stage() as stage:
            for number in range(105):
                stage.save(model, "report", b"%d" % number, keep="1")
            stage.publish()
    ann.does("datastore", "sync")
    bob.does("datastore", "sync")

    assert ann.does("data", "gc", "-y")["versions_deleted"] == 104
    bob.does("datastore", "sync")

    assert [row["version"] for row in bob.does("data", "versions", "web", "report")["versions"]] == [105]


def test_data_of_a_run_goes_once_everybody_can_know_that_the_run_is_gone(people, team: Team):
    """F119: a gc looks at all that the store has; a look at this machine alone says nothing it cannot know."""
    ann, bob = people(team)
    model, run = find_model(ann.clone.repo, "web").ref, ulid()
    with Records(ann.clone.repo) as records:
        records.runs.save(Run(run, "w1", "nightly", "succeeded", "2030-01-01T00:00:00.000Z"))
        owner = Owner.of(model, ann.clone.repo.config.repo_id, run=run)
        records.data.save(model, "scratch", b"x", lifetime="run", owner=owner)
    ann.does("datastore", "sync")
    assert bob.does("data", "put", "web", "other", "-", typed=b"y")["version"] == 1, "pulls what is the model's"
    assert "scratch" in bob.names

    assert bob.does("data", "gc", "--dry-run")["expired"] == 0
    assert bob.does("data", "gc", "-y")["expired"] == 0
    with Records(ann.clone.repo) as records:
        records.runs.delete(run)
    ann.does("datastore", "sync")
    assert bob.does("data", "gc", "--dry-run")["expired"] == 0
    assert bob.does("data", "gc", "-y")["expired"] == 1
    assert bob.names == ["other"]


@pytest.mark.parametrize("verb", ["put", "gc"])
def test_somebody_who_waits_for_a_lease_is_told_for_whom(people, team: Team, verb, monkeypatch):
    """F092: exit 75 and a stable code, or 5 where the version is saved here; only a person hears who holds it."""
    ann, bob = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"one")
    bob.does("datastore", "sync")
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "1")
    monkeypatch.setattr("bayou.leases.acquire.NOTIFY_FIRST_S", 0.1)
    args = {"put": ("put", "web", "x", "-"), "gc": ("gc", "-y")}[verb]
    model = find_model(ann.clone.repo, "web").ref
    key = STORE if verb == "gc" else model_key(model.type, model.id)
    with open_leases(ann.clone.repo).acquire_all([key]):
        script = bob.run("data", *args, "--json", typed=b"x")
        person = bob.run("data", *args, typed=b"x")

    code, error = (5, "not_pushed") if verb == "put" else (75, "lease_timeout")
    assert (script.code, person.code) == (code, code)
    assert script.error["code"] == error
    assert person.err.startswith("waiting: ")
    assert "error: " in person.err


def test_a_clone_without_the_definition_works_with_what_is_in_the_store(people, team: Team):
    ann, _ = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"one")
    carl = Person(team.clone("carl"), ann.command)
    carl.does("datastore", "sync")

    assert carl.does("data", "get", "web", "report")["content"] == "one"
    assert carl.does("data", "put", "web", "report", "-", typed=b"two")["version"] == 2
    pruned = carl.does("data", "prune", "-y")
    assert (pruned["models"], pruned["versions_deleted"]) == (0, 0)
    assert "web" in pruned["warnings"][0]


def test_f118_a_prune_without_a_yes_removes_nothing(people, team: Team):
    ann, bob = people(team)
    ann.does("data", "put", "web", "report", "-", typed=b"one")
    bob.does("datastore", "sync")
    ann.does("data", "delete", "web", "report", "-y")
    ann.does("model", "delete", "web", "-y")
    bob.does("data", "put", "web", "late", "-", typed=b"late")
    bob.does("datastore", "sync")
    shutil.rmtree(bob.clone.repo.root / "models")

    assert bob.does("data", "prune", "--dry-run")["versions_deleted"] == 1
    assert bob.run("data", "prune", "--json").code == 2
    assert bob.names == ["late"]
    assert bob.does("data", "prune", "-y")["models"] == 1
    assert bob.names == []


def test_the_catalog_hears_of_what_a_sync_has_brought(people, team: Team) -> None:
    ann, bob = people(team)
    assert bob.names == []
    ann.does("data", "put", "web", "usage", "-", typed=b"1")

    bob.does("datastore", "sync", "--pull")

    listed = bob.does("data", "list")
    assert [item["name"] for item in listed["items"]] == ["usage"]
    assert "notes" not in listed, "nothing was left to catch up with"


def test_a_user_without_a_name_can_push(repo, tmp_path, command, monkeypatch):
    """As in a container that runs as a number: neither the environment nor the system has a name."""
    (tmp_path / "shared").mkdir()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)

    assert command("datastore", "setup", (tmp_path / "shared").as_uri()).code == 0
    (row,) = command("datastore", "log", "--json").document["commits"]
    assert row["by"].startswith(f"uid {os.getuid()}@")


def test_a_new_clone_is_told_to_sync_before_it_looks_for_data(people, team: Team) -> None:
    ann, bob = people(team)
    ann.does("data", "put", "web", "page", typed=b"1")

    assert bob.run("data", "get", "web", "page", "--json").error["hint"] == (
        "`bayou datastore sync --pull` fetches what others have pushed"
    )
    assert "`bayou datastore sync --pull`" in bob.run("data", "list").err
    bob.does("datastore", "sync", "--pull")
    assert bob.does("data", "get", "web", "page")["content"] == "1"
    assert "data list" in bob.run("data", "get", "web", "other", "--json").error["hint"]
