"""`bayou datastore replicate`: what it passes on, what it prints, how it ends."""

from __future__ import annotations

import pytest

from bayou.core.errors import MassDelete, ReplicaRefused
from bayou.sync.report import Failure, ReplicateReport

URL = "s3://backup/team"


@pytest.fixture
def report() -> ReplicateReport:
    return ReplicateReport(url=URL, namespace="infra", copied=3, skipped=12, bytes=4096)


def test_it_prints_what_was_copied(command, api, repo, report):
    api.answer("replicate", report)

    told = command("datastore", "replicate", URL, "--namespace", "infra", "--json")

    assert (told.code, told.document) == (0, {"copied": 3, "skipped": 12, "bytes": 4096})
    spoken = command("datastore", "replicate", URL)
    assert "copied 3 files (4.1 KB); s3://backup/team (namespace infra) had 12 files already" in spoken.out + spoken.err


def test_it_passes_on_what_was_typed(command, api, repo, report):
    api.answer("replicate", report)

    command("datastore", "replicate", URL, "--option", "region=eu-west-1", "--option", "profile=backup", "--dry-run",
            "--engine", "spark", "--timeout", "2h", "--allow-mass-delete")  # fmt: skip

    (_, args, passed) = api.calls[0]
    assert args[1] == URL
    assert passed["options"] == {"region": "eu-west-1", "profile": "backup"}
    assert (passed["dry_run"], passed["engine"], passed["timeout"]) == (True, "spark", 7200.0)
    assert (passed["allow_mass_delete"], passed["namespace"]) == (True, None)


def test_what_could_not_be_copied_is_named_and_the_exit_code_says_so(command, api, repo, report):
    report.failed, report.failures = [Failure("files/a", "unreadable", "the object of files/a is missing")], 1
    report.deleted = 2
    api.answer("replicate", report)

    told = command("datastore", "replicate", URL, "--json")

    assert told.code == 1
    assert told.document["failed"] == [
        {"path": "files/a", "code": "unreadable", "message": "the object of files/a is missing"}
    ]
    assert told.document["deleted"] == 2
    assert "files/a" in command("datastore", "replicate", URL).err


def test_nothing_to_do_is_said_as_such(command, api, repo):
    api.answer("replicate", ReplicateReport(url=URL, skipped=12))

    spoken = command("datastore", "replicate", URL)

    assert "is a copy of this datastore already (12 files)" in spoken.out + spoken.err


@pytest.mark.parametrize("error", [ReplicaRefused("no copy of this one"), MassDelete("most of it")])
def test_a_refusal_is_an_error(command, api, repo, error):
    api.answer("replicate", error)

    told = command("datastore", "replicate", URL, "--json")

    assert (told.code, told.error["code"]) == (1, error.code)


def test_one_option_twice_is_a_mistake(command, api, repo):
    assert command("datastore", "replicate", URL, "--option", "region=a", "--option", "region=b").code == 2
