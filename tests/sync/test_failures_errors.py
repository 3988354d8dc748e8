"""Section 11 of tests/failures.md, and the deadlines of its section 10, as far as sync is concerned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import BayouError, CredentialsExpired, DeadlinePassed
from bayou.sync.report import SyncOptions
from bayou_testing.faults import Fail, Reset, Rule, Silent
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.sync.conftest import Clone, Team

pytestmark = pytest.mark.s3

DENIED = b"<Error><Code>AccessDenied</Code><Message>not this one</Message></Error>"


def bayou(clone: Clone, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a command with `--json`; return its exit code, the one document on stdout, and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "bayou", *arguments, "--json"],
        cwd=clone.repo.root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


@pytest.mark.usefixtures("loose_objects")
def test_f101_uploads_that_were_refused_are_named_and_the_rest_is_committed(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write("files/first", "so that there is a head")
    a.push()
    a.write_all({f"files/{number:03}": b"x" for number in range(100)})
    proxy.faults.add(Rule(Fail(403, DENIED), method="PUT", path=r"/(007|042|099)$"))
    code, said, _ = bayou(a, "datastore", "sync", "--push")
    assert code == 1
    assert sorted(one["path"] for one in said["failed"]) == ["files/007", "files/042", "files/099"]
    assert all("not this one" in one["message"] for one in said["failed"])
    assert said["pushed"]["files"] == 97, "what was committed is what is counted"

    proxy.faults.clear()
    proxy.log.clear()
    code, said, _ = bayou(a, "datastore", "sync", "--push")
    assert (code, said["pushed"]["files"], said["failed"]) == (0, 3, [])
    assert proxy.log.count(method="PUT", path=r"/files/") == 3, "nothing that was uploaded goes up again"
    fresh = s3_team.clone("d")
    assert fresh.pull().pulled.files == 101


def test_f102_warnings_are_part_of_the_one_document(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write("files/good", "1")
    a.lay("unknown-directory/x", "stays here")
    (a.repo.tree_root / "files/link").symlink_to("good")
    proxy.faults.add(Rule(Fail(503), method="PUT", times=1))
    code, said, errors = bayou(a, "datastore", "sync")
    assert code == 0
    assert any("unknown-directory" in warning for warning in said["warnings"])
    assert said["refused"] == ["files/link"]
    assert said["requests"]["put"] == proxy.log.count(method="PUT"), "the retry is counted"
    assert errors == ""


@pytest.mark.usefixtures("loose_objects")
def test_f085_passing_trouble_does_not_fail_a_push_of_many_files(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write_all({f"files/{number:03}": b"x" * 100 for number in range(100)})
    proxy.faults.add(Rule(Fail(503), every=10), Rule(Fail(429), every=11), Rule(Reset(), every=13))
    report = a.push()
    proxy.faults.clear()
    assert (report.pushed.files, report.failed, report.exit_code) == (100, [], 0)
    assert s3_team.clone("c").pull().pulled.files == 100
    assert report.requests.total > 110


def test_f084_f086_a_store_that_never_answers_ends_every_command_at_its_deadline(
    s3_team: Team, proxy: HttpProxy
) -> None:
    a = s3_team.clone("a")
    a.write("files/x", "1")
    proxy.faults.add(Rule(Silent()))
    for command in (
        ["sync", "--timeout", "1"],
        ["sync", "--push", "--timeout", "1"],
        ["sync", "--pull", "--timeout", "1"],
        ["verify", "--timeout", "1"],
        ["setup", s3_team.url + "-other", "--option", f"endpoint={proxy.url}", "--timeout", "1"],
    ):
        code, said, errors = bayou(a, "datastore", *command)
        assert code == 124, (command, errors)
        assert said is None
        (line,) = errors.strip().splitlines()
        assert json.loads(line)["error"]["code"] == "deadline_passed"
    code, said, _ = bayou(a, "datastore", "status", "--timeout", "1")
    assert (code, said["healthy"]) == (1, False)
    proxy.faults.clear()
    assert a.push().pushed.files == 1, "the journal kept it, and no lock was left behind"


def test_f096_expired_credentials_come_first_and_nothing_is_changed(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write("files/x", "1")
    body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    proxy.faults.add(Rule(Fail(400, body)))
    with pytest.raises(CredentialsExpired) as caught:
        a.push()
    assert caught.value.message.startswith("credentials")
    proxy.faults.clear()
    assert s3_team.keys() == {}
    assert a.status().journal_paths == 1
    assert a.push().pushed.files == 1


@pytest.mark.usefixtures("loose_objects")
def test_credentials_that_expire_in_the_middle_of_a_push_lose_nothing(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write("files/first", "1")
    a.push()
    a.write_all({f"files/{number:03}": b"x" for number in range(40)})
    body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    proxy.faults.add(Rule(Fail(400, body), method="PUT", path=r"/files/", nth=20, times=1000))
    with pytest.raises(BayouError):
        a.push()
    proxy.faults.clear()
    assert a.push().pushed.files == 40
    assert s3_team.clone("c").pull().pulled.files == 41


def test_a_deadline_in_a_sync_is_one_error_and_leaves_no_lock(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write("files/x", "1")
    proxy.faults.add(Rule(Silent()))
    with pytest.raises(DeadlinePassed):
        api.sync(a.repo, SyncOptions(mode="push"), timeout=0.5)
    proxy.faults.clear()
    assert a.sync().pushed.files == 1
