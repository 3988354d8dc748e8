"""Many files, each an object of its own, more than there are connections: each arrives once, is counted, fails alone.

`test_packs.py` does the same to packs.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import Any

import pytest

from bayou.core.errors import CredentialsExpired, DeadlinePassed, Unavailable
from bayou.core.ids import ulid
from bayou.objectstore.keys import Key
from bayou.objectstore.retry import RetryPolicy
from bayou.sync.report import SyncOptions, SyncReport
from bayou.sync.transfer.executor import Sender, Upload, send_all
from bayou_testing.faults import Fail, LoseResponse, Reset, Rule, Silent
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.sync.conftest import OBJECTS, Clone, Team
from tests.sync.indexes import entries_of
from tests.sync.many_files import SMALL, THREADS, a, few_connections, pull_fresh
from tests.sync.test_failures_errors import DENIED, bayou

__all__ = ["a", "few_connections"]

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("loose_objects")]

EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
OTHERS = {"files/empty": b"", "files/limit": b"x" * (1 << 16), "files/more": b"y" * ((1 << 16) + 1)}


def counted(report: SyncReport, proxy: HttpProxy) -> None:
    """What a report says was sent is what came."""
    assert report.requests.total == proxy.log.count()
    assert report.requests.put == len([row for row in proxy.log.writes() if "delete" not in row.query])


def test_everything_arrives_and_is_counted(s3_team: Team, a: Clone, proxy: HttpProxy) -> None:
    large = {"files/large": os.urandom(1 << 20) * 20}
    files = SMALL | OTHERS | large
    a.write_all(files)
    pushed = a.push()
    assert (pushed.exit_code, pushed.pushed.files, pushed.failed) == (0, len(files), [])
    parts = proxy.log.count(method="PUT", path="large", query="partNumber")
    assert parts >= 2, "how many depends on the speed of the link"
    assert proxy.log.count(method="PUT", path=OBJECTS) - parts == len(SMALL) + 3, "and that is all"
    counted(pushed, proxy)

    proxy.log.clear()
    pulled, files_there = pull_fresh(s3_team)
    assert files_there == a.files
    assert (pulled.exit_code, pulled.pulled.files) == (0, len(files) + 1)
    counted(pulled, proxy)
    assert a.sync().requests.total == 1, "and there is nothing left to do"


def test_f085_passing_trouble_does_not_fail_anything_and_is_counted(s3_team: Team, a: Clone, proxy: HttpProxy) -> None:
    def trouble() -> list[Rule]:
        return [
            Rule(Fail(503), nth=10, every=30),
            Rule(Fail(429), nth=20, every=30),
            Rule(Reset(), nth=30, every=30),
        ]

    a.write_all(SMALL)
    fresh = s3_team.clone("fresh")
    for command in (a.push, fresh.pull):
        rules = trouble()
        proxy.log.clear()
        proxy.faults.add(*rules)
        report = command()
        failed = sum(map(proxy.faults.applied, rules))
        proxy.faults.clear()
        assert (report.exit_code, report.failed) == (0, [])
        assert failed >= 20
        assert report.requests.total == proxy.log.count() >= len(SMALL) + failed
    assert fresh.files == a.files


@pytest.mark.parametrize("fault", [LoseResponse(), Fail(500, applied=True)])
@pytest.mark.parametrize("nth", [1, 100])
def test_f010_an_upload_whose_answer_is_lost_goes_to_the_same_key(
    s3_team: Team, a: Clone, proxy: HttpProxy, fault: Any, nth: int
) -> None:
    a.write_all(SMALL)
    rule = Rule(fault, method="PUT", path=OBJECTS, nth=nth)
    proxy.faults.add(rule)
    report = a.push()
    assert proxy.faults.applied(rule) == 1
    assert (report.exit_code, report.pushed.files) == (0, len(SMALL))
    rows = proxy.log.rows(method="PUT", path=OBJECTS)
    assert (len(rows), len({row.path for row in rows})) == (len(SMALL) + 1, len(SMALL))
    assert report.requests.put == len(proxy.log.writes())
    assert len(api.log(a.repo, 10)) == 3, "one commit"
    assert pull_fresh(s3_team)[1] == a.files
    assert len(s3_team.payload_keys()) == len(SMALL) + 1
    assert (a.status().journal_paths, a.status().in_sync) == (0, True)


def test_t13_an_upload_that_may_have_been_made_twice_is_known_to_be(a: Clone, proxy: HttpProxy) -> None:
    """A request that is still under way may write its object after a collection has deleted it."""
    for path, data in SMALL.items():
        a.lay(path, data)
    uploads = [Upload(path, ulid(), len(data), sha256(data).digest(), 0) for path, data in SMALL.items()]
    lost, busy = Rule(LoseResponse(), path="/050$", times=1), Rule(Fail(503), path="/051$", times=1)
    proxy.faults.add(lost, busy)
    sent = list(send_all(Sender(a.repo.store(), a.repo.tree_root), uploads, len(uploads)))
    stored = {one.path: one.stored for one in sent if isinstance(one, Upload) and one.stored is not None}
    assert stored.keys() == SMALL.keys()
    assert {path for path, one in stored.items() if one.repeated} == {"files/050", "files/051"}


def test_f101_uploads_that_were_refused_are_named_and_not_sent_again(s3_team: Team, a: Clone, proxy: HttpProxy) -> None:
    a.write_all(SMALL)
    proxy.faults.add(Rule(Fail(403, DENIED), method="PUT", path=r"/(057|142|199)$"))
    code, said, _ = bayou(a, "datastore", "sync", "--push")
    assert code == 1
    assert sorted(one["path"] for one in said["failed"]) == ["files/057", "files/142", "files/199"]
    assert all("not this one" in one["message"] for one in said["failed"])
    assert said["pushed"]["files"] == len(SMALL) - 3
    assert proxy.log.count(method="PUT", status=403) == 3
    assert said["requests"]["put"] == len(proxy.log.writes())

    proxy.faults.clear()
    proxy.log.clear()
    assert a.push().pushed.files == 3
    assert proxy.log.count(method="PUT", path=OBJECTS) == 3
    assert pull_fresh(s3_team)[1] == a.files


def test_f084_a_server_that_never_answers_is_waited_for_no_longer_than_the_deadline(
    s3_team: Team, a: Clone, proxy: HttpProxy
) -> None:
    a.write_all(SMALL)
    silent = Rule(Silent(), path=OBJECTS)
    proxy.faults.add(silent)
    # Long enough for every thread to send its request, on a busy machine too.
    code, said, errors = bayou(a, "datastore", "sync", "--push", "--timeout", "5")
    assert (code, said) == (124, None)
    assert json.loads(errors)["error"]["code"] == "deadline_passed"
    assert proxy.faults.applied(silent) >= THREADS
    proxy.faults.clear()
    assert a.push().pushed.files == len(SMALL), "the journal kept it, and no lock was left behind"

    fresh = s3_team.clone("fresh")
    proxy.faults.add(silent)
    with pytest.raises(DeadlinePassed):
        api.sync(fresh.repo, SyncOptions(mode="pull"), timeout=5)
    assert proxy.faults.applied(silent) >= THREADS
    proxy.faults.clear()
    fresh.pull()
    assert fresh.files == a.files


def test_f096_credentials_that_expire_on_the_way_are_one_error_and_lose_nothing(
    s3_team: Team, a: Clone, proxy: HttpProxy
) -> None:
    a.write_all(SMALL)
    proxy.faults.add(Rule(Fail(400, EXPIRED), method="PUT", path=OBJECTS, nth=180, times=10_000))
    with pytest.raises(CredentialsExpired):
        a.push()
    proxy.faults.clear()
    proxy.log.clear()
    assert a.push().pushed.files == len(SMALL)
    # What arrived is known to be there; but for what was under way when the first push ended, and may come in late.
    assert proxy.log.count(method="PUT", path=OBJECTS) <= len(SMALL) - 179 + 2 * THREADS
    assert len(s3_team.payload_keys()) == len(SMALL) + 1, "and the rest went to the same keys"
    assert pull_fresh(s3_team)[1] == a.files


def test_what_is_missing_or_damaged_in_the_store_is_named_and_the_rest_arrives(s3_team: Team, a: Clone) -> None:
    a.write_all(SMALL)
    a.push()
    store, entries = s3_team.store(), entries_of(s3_team.store())
    store.delete([entries["files/070"].key])
    store.put(Key(entries["files/080"].key), b"z" * entries["files/080"].size)
    store.put(Key(entries["files/090"].key), b"short")
    report, files = pull_fresh(s3_team)
    assert report.missing == ["files/070"]
    assert {one.path for one in report.failed} == {"files/080", "files/090"}
    assert files == {path: data for path, data in a.files.items() if path[-3:] not in ("070", "080", "090")}


@pytest.mark.parametrize("status", [500, 503])
def test_an_object_that_answers_5xx_throughout_fails_alone(
    s3_team: Team, a: Clone, proxy: HttpProxy, status: int
) -> None:
    large = {"files/large": os.urandom(1 << 20) * 20}
    a.write_all(SMALL | large)
    proxy.faults.add(Rule(Fail(status), path=r"/~.*/(057|large)$"))
    pushed = a.push()
    assert (pushed.exit_code, pushed.pushed.files) == (1, len(SMALL) - 1)
    assert sorted((one.path, one.code) for one in pushed.failed) == [
        ("files/057", "store_unavailable"),
        ("files/large", "store_unavailable"),
    ]
    proxy.faults.clear()
    assert a.push().pushed.files == 2, "the failed paths stay journaled"

    proxy.faults.add(Rule(Fail(status), method="GET", path=r"/~.*/(057|large)$"))
    fresh = s3_team.clone("fresh")
    pulled = fresh.pull()
    assert (pulled.exit_code, sorted(one.path for one in pulled.failed)) == (1, ["files/057", "files/large"])
    assert fresh.files == {path: data for path, data in a.files.items() if path not in ("files/057", "files/large")}

    fresh.write("files/mine", "a change here")
    synced = fresh.sync()
    assert (synced.exit_code, synced.pushed.files) == (1, 1), "a pull of nothing but broken objects blocks no push"
    proxy.faults.clear()
    assert fresh.sync().exit_code == 0
    a.pull()
    assert fresh.files == a.files


def test_v17_changes_that_wait_for_a_failed_file_of_their_version_are_named(
    s3_team: Team, a: Clone, proxy: HttpProxy
) -> None:
    """A version moves whole. The 100,000 interleavings found a delete that waited, of which the report said nothing."""
    raw, metadata, part = (f"data/t/m/n/1/{name}" for name in ("raw", "metadata.yaml", "part"))
    a.write_all(SMALL | {raw: b"1", metadata: b"1", part: b"1"})
    a.push()
    a.write_all({raw: b"2", metadata: b"2", "files/new": b"2"})
    a.delete(part)
    proxy.faults.add(Rule(Fail(503), path=r"/~.*/raw$"))

    pushed = a.push()

    assert (pushed.exit_code, pushed.pushed.files) == (1, 1), "the other file is committed"
    assert [one.path for one in pushed.failed] == [raw]
    assert pushed.warnings == [f"data/t/m/n/1: 2 other changes of this version not pushed either, because of {raw}"]
    proxy.faults.clear()
    again = a.push()
    assert (again.exit_code, again.pushed.files, again.pushed.deleted) == (0, 2, 1)
    assert pull_fresh(s3_team)[1] == a.files


@pytest.mark.parametrize("nth", [1, 100])
@pytest.mark.parametrize("scope", [OBJECTS, None])
def test_v12_a_store_that_is_down_ends_a_push_soon_and_with_one_error(
    s3_team: Team, a: Clone, proxy: HttpProxy, nth: int, scope: str | None
) -> None:
    """All of it, or only its writes; from the first upload, or on the way."""
    a.write_all(SMALL)
    down = Rule(Fail(503), path=scope, nth=nth + (scope is None), times=100_000)  # a push begins with its head
    proxy.faults.add(down)
    with pytest.raises(Unavailable):
        a.push()
    attempts = RetryPolicy().attempts
    # Some for each thread, and not for each of the 200 files; how many, depends on which thread notices first.
    assert attempts <= proxy.faults.applied(down) <= len(SMALL) * attempts // 4
    proxy.faults.clear()
    assert len(api.log(a.repo, 10)) == 2, "nothing was committed"
    assert a.push().pushed.files == len(SMALL)
    assert pull_fresh(s3_team)[1] == a.files


def test_v12_a_store_that_is_down_ends_a_pull_soon_and_with_one_error(
    s3_team: Team, a: Clone, proxy: HttpProxy
) -> None:
    a.write_all(SMALL)
    a.push()
    fresh = s3_team.clone("fresh")
    down = Rule(Fail(503), method="GET", path=OBJECTS, nth=50, times=100_000)
    proxy.faults.add(down)
    with pytest.raises(Unavailable):
        fresh.pull()
    assert proxy.faults.applied(down) <= len(SMALL) * RetryPolicy().attempts // 4
    proxy.faults.clear()
    fresh.pull()
    assert fresh.files == a.files


def test_v4_one_upload_to_a_store_that_is_down_is_an_error_of_the_command(a: Clone, proxy: HttpProxy) -> None:
    a.write("files/one", "1")
    upload = Rule(Fail(503), method="PUT", path=OBJECTS)
    proxy.faults.add(upload)
    report = a.push()
    assert [one.path for one in report.failed] == ["files/one"], "the store answers for its head"
    proxy.faults.add(Rule(Fail(503), method="HEAD"))
    with pytest.raises(Unavailable):
        a.push()
