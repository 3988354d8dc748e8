"""What writing and reading commands send, counted at the server (V15, V17)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayou.cli import run
from bayou.leases import STORE, open_leases
from bayou_testing.faults import Fail, Rule, Silent
from bayou_testing.proxy import HttpProxy
from tests.session.commands import Commands, clones, held
from tests.sync.conftest import Team

pytestmark = pytest.mark.s3

HEAD = r"/\.bayou/head\.json$"
LEASE = r"/\.bayou/leases/"
PAYLOAD = r"/packs/"
REFUSED = Fail(403, b"<Error><Code>AccessDenied</Code><Message>No.</Message></Error>")

READING = [
    ["datastore", "status"],
    ["datastore", "log"],
    ["datastore", "conflicts"],
    ["datastore", "lock", "status"],
    ["datastore", "sync", "--pull"],
    ["datastore", "sync", "--dry-run"],
    ["datastore", "verify"],
    ["datastore", "hydrate"],
    ["model", "list"],
    ["model", "get", "one"],
    ["data", "list"],
    ["data", "list", "one", "--all-versions"],
    ["data", "get", "one", "log"],
    ["data", "versions", "one", "log"],
    ["data", "query", "name == 'log'"],
    ["data", "gc", "--dry-run"],
    ["data", "prune", "--dry-run"],
]


def test_one_push_on_success(s3_team: Team, proxy: HttpProxy, commands: Commands) -> None:
    (a,), _ = clones(s3_team, "a")
    proxy.log.clear()

    ran = commands.run(a, *commands.put(a, "one"))

    assert (ran.code, ran.document["version"]) == (0, 1)
    assert proxy.log.count(method="PUT", path=HEAD) == 1
    assert not [row for row in proxy.log.writes() if row.method == "DELETE"]
    assert held(a) == []


def test_one_push_when_the_body_fails(s3_team: Team, proxy: HttpProxy, commands: Commands) -> None:
    """What an earlier command, offline, has left to push goes along; and there is one error, the body's."""
    (a,), _ = clones(s3_team, "a")
    commands.run(a, *commands.put(a, "one"), "--offline")
    proxy.log.clear()

    ran = commands.run(a, "data", "append", "one", "log", str(a.repo.file), "--json")

    assert (ran.code, ran.error["code"]) == (1, "not_streaming")
    assert proxy.log.count(method="PUT", path=HEAD) == 1
    assert (held(a), a.status().journal_paths) == ([], 0)


def test_f100_one_push_when_the_push_fails(s3_team: Team, proxy: HttpProxy, commands: Commands) -> None:
    (a, b), _ = clones(s3_team, "a", "b")
    proxy.faults.add(Rule(REFUSED, method="PUT", path=HEAD))
    proxy.log.clear()

    ran = commands.run(a, *commands.put(a, "one"))

    assert ran.document["version"] == 1, "what was done is shown"
    assert (ran.document["pushed"], ran.document["waiting"]) == (False, 2)
    assert (ran.code, ran.error["code"]) == (5, "not_pushed")
    assert ran.error["message"].startswith("what was written here could not be pushed: ")
    assert proxy.log.count(method="PUT", path=HEAD) == 1
    assert held(a) == []
    proxy.faults.clear()
    assert commands.run(a, "datastore", "sync", "--push", "--json").document["pushed"]["files"] == 2
    b.pull()
    assert b.files == a.files


def test_v17_when_body_and_push_fail_one_message_names_both_and_the_body_comes_first(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    (a,), _ = clones(s3_team, "a")
    commands.run(a, *commands.put(a, "one"), "--offline")
    proxy.faults.add(Rule(REFUSED, method="PUT", path=HEAD))

    ran = commands.run(a, "data", "append", "one", "log", str(a.repo.file), "--json")

    assert (ran.code, ran.error["code"]) == (1, "not_streaming")
    first, second = ran.error["message"].split("; ", 1)
    assert "streaming" in first
    assert second.startswith("what was written here could not be pushed: ")
    proxy.faults.clear()
    assert (held(a), a.status().journal_paths) == ([], 2)


def test_f100_files_that_the_store_refuses_are_named_and_pushed_the_next_time(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    (a,), _ = clones(s3_team, "a")
    proxy.faults.add(Rule(REFUSED, method="PUT", path=PAYLOAD))

    ran = commands.run(a, *commands.put(a, "one"))

    assert (ran.code, ran.error["code"]) == (5, "not_pushed")
    assert (ran.document["version"], ran.document["pushed"]) == (1, False)
    assert "/raw: " in "".join(ran.document["warnings"])
    proxy.faults.clear()
    assert commands.run(a, "datastore", "sync", "--push", "--json").document["pushed"]["files"] == 2


def test_an_explicit_sync_pushes_once_and_its_counts_are_its_own(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    (a,), _ = clones(s3_team, "a")
    commands.run(a, *commands.put(a, "one"), "--offline")
    proxy.log.clear()

    ran = commands.run(a, "datastore", "sync", "--json")

    assert ran.document["pushed"]["files"] == 2
    assert proxy.log.count(method="PUT", path=HEAD) == 1
    assert not proxy.log.rows(path=LEASE)
    assert sum(ran.document["requests"].values()) == len(proxy.log.rows())


def test_f078_v15_reading_commands_answer_while_leases_are_held_and_write_nothing(
    s3_team: Team, proxy: HttpProxy, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, b), _ = clones(s3_team, "a", "b")
    assert commands.run(a, *commands.put(a, "one")).code == 0
    b.pull()
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "0")
    monkeypatch.setenv("BAYOU_REPO", str(b.repo.root))
    with open_leases(a.repo).acquire_all([STORE]):
        for command in READING:
            proxy.log.clear()
            assert run(command) == 0, command
            assert {row.method for row in proxy.log.rows()} <= {"GET", "HEAD"}, command
            if "lock" not in command:
                assert not proxy.log.rows(path=LEASE), command


def test_f094_definitions_need_no_store_at_all(s3_team: Team, proxy: HttpProxy, commands: Commands) -> None:
    (a,), _ = clones(s3_team, "a")
    proxy.faults.add(Rule(Silent()))
    proxy.log.clear()
    with_store_held = [
        ["init", "inner"],
        ["model", "create", "@org/shell", "two"],
        ["model", "list"],
        ["model", "get", "one"],
        ["--help"],
        ["data", "--help"],
    ]

    for one in [commands.start(a, *command) for command in with_store_held]:
        assert one.finish().code == 0

    assert proxy.log.rows() == []


def test_f096_expired_credentials_are_named_and_the_version_is_saved_here(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    (a,), _ = clones(s3_team, "a")
    body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    proxy.faults.add(Rule(Fail(400, body)))

    ran = commands.run(a, *commands.put(a, "one"))

    assert (ran.code, ran.error["code"]) == (5, "not_pushed")
    assert "could not be pushed: credentials for s3://sync-tests" in ran.error["message"]
    assert "aws" in ran.error["hint"]
    proxy.faults.clear()
    assert commands.run(a, "datastore", "sync", "--json").document["pushed"]["files"] == 2


def test_f084_f086_a_store_that_never_answers_ends_a_session_at_its_deadline(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    (a,), _ = clones(s3_team, "a")
    proxy.faults.add(Rule(Silent()))

    ran = commands.run(a, *commands.put(a, "one"), BAYOU_SYNC_TIMEOUT="1")

    assert (ran.code, ran.error["code"], ran.document["waiting"]) == (5, "not_pushed", 2)
    assert "--timeout" not in ran.error["hint"]  # `data put` has none
    refused = commands.run(a, "data", "rename", "one", "log", "other", "--json", BAYOU_SYNC_TIMEOUT="1")
    assert (refused.code, refused.error["code"]) == (124, "deadline_passed")
    proxy.faults.clear()
    assert (held(a), a.sync().pushed.files) == ([], 2)


@pytest.mark.parametrize("path", [HEAD, PAYLOAD], ids=["pull", "push"])
def test_f086_a_deadline_in_a_pull_or_a_push_is_one_message_and_frees_the_lease(
    s3_team: Team, proxy: HttpProxy, commands: Commands, path: str
) -> None:
    (a,), _ = clones(s3_team, "a")
    proxy.faults.add(Rule(Silent(), path=path))

    ran = commands.run(a, *commands.put(a, "one"), BAYOU_SYNC_TIMEOUT="1")

    assert ran.code == 5
    (line,) = ran.err.strip().splitlines()
    assert json.loads(line)["error"]["code"] == "not_pushed"
    assert held(a) == []


def test_a_session_that_wrote_nothing_sends_one_request_besides_those_of_its_lease(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    """F123: the pull reads the head, and the push needs no other."""
    (a,), _ = clones(s3_team, "a")
    commands.run(a, *commands.put(a, "one"))
    proxy.log.clear()

    ran = commands.run(a, "data", "append", "one", "log", str(a.repo.file), "--json")

    assert ran.error["code"] == "not_streaming"
    others = [row for row in proxy.log.rows() if "/leases/" not in row.path]
    assert [(row.method, Path(row.path).name, row.status) for row in others] == [("GET", "head.json", 200)]
