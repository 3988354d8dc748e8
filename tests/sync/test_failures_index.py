"""Section 1 of tests/failures.md: index merge and commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import AccessDenied, BayouError, Unavailable, UnknownFormat
from bayou.engine.parts import objects
from bayou.objectstore import keys
from bayou_testing.faults import Fail, Hold, LoseResponse, Rule
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import UPLOADS, Clone, Team
from tests.sync.indexes import content_of, entries_of, head_of
from tests.sync.turns import Turns, turns

__all__ = ["turns"]

HEAD = r"head\.json$"
NODES = r"/\.bayou/nodes/"
SCARCE = 3
"""Seconds that a thread may take to get somewhere; only ever waited for when a test fails."""


pytestmark = pytest.mark.usefixtures("no_backoff")


def commits(clone: Clone) -> list[tuple[int, int]]:
    """The log, oldest first: number and how many paths each commit added."""
    return [(row.seq, row.added) for row in reversed(api.log(clone.repo, 100))]


def content(team: Team) -> dict[str, bytes]:
    return content_of(team.store())


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        results.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_f001_a_newcomers_first_push_keeps_what_others_have_pushed(s3_team: Team) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write_all({f"files/{number:02}": b"a's" for number in range(20)})
    a.sync()
    b.write("files/of-b", "b's")

    assert b.push().pushed.files == 1

    assert len(entries_of(s3_team.store())) == 21
    c = s3_team.clone("c")
    assert c.pull().pulled.files == 21
    assert a.pull().pulled.files == 1
    assert a.files == c.files


@pytest.mark.usefixtures("both_ways")
def test_f002_a_push_on_an_older_base_keeps_the_commit_in_between(s3_team: Team) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/f0", "0")
    a.sync()
    b.sync()
    b.write("files/f2", "2")
    b.push()
    a.write("files/f1", "1")

    a.push()

    assert content(s3_team) == {"files/f0": b"0", "files/f1": b"1", "files/f2": b"2"}
    assert commits(a) == [(1, 0), (2, 1), (3, 1), (4, 1)]


@pytest.mark.usefixtures("both_ways")
def test_f003_a_swap_that_comes_too_late_is_refused_and_merged_again(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/f0", "0")
    a.sync()
    b.sync()
    a.write("files/f1", "1")
    b.write("files/f2", "2")
    release = threading.Event()
    hold = Hold(release)
    proxy.faults.add(Rule(hold, method="PUT", path=HEAD, nth=1))
    proxy.log.clear()

    thread, results = in_thread(a.push)
    assert hold.arrived.wait(SCARCE)
    theirs = b.push().commit
    release.set()
    thread.join()

    (report,) = results
    assert report.exit_code == 0
    assert proxy.log.count(method="PUT", path=HEAD, status=412) == 1
    head = head_of(s3_team.store()).head
    assert theirs is not None
    assert (head.parent, head.commit) == (theirs.commit, report.commit.commit)
    assert [row.seq for row in head.log] == list(range(1, head.seq + 1))
    assert content(s3_team) == {"files/f0": b"0", "files/f1": b"1", "files/f2": b"2"}
    assert s3_team.uploads() == ["files/f0", "files/f1", "files/f2"], "its payload is not uploaded twice"


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("who", ["adds", "deletes"])
def test_f004_a_neighbour_survives_the_emptying_of_its_leaf_in_every_order(
    tmp_path: Path, turns: Turns, quick_probe: None, who: str
) -> None:
    """One of them is interrupted by the other before each of its requests in turn."""
    number = 0
    while True:
        number += 1
        root = tmp_path / str(number)
        (root / "store").mkdir(parents=True)
        team = Team(root, (root / "store").as_uri(), {})
        a, b = team.clone("a"), team.clone("b")
        turns.at = 0
        a.write("files/only", "1")
        a.sync()
        b.sync()
        a.delete("files/only")
        b.write("files/neighbour", "2")
        first, second = (a, b) if who == "deletes" else (b, a)
        turns.before(number, second.push)

        first.push()

        if not turns.came:
            assert number > 2, "there are requests to come between"
            break
        turns.at = 0
        assert content(team) == {"files/neighbour": b"2"}, f"before request {number}"
        assert not [one for one in turns.seen if one.verb == "delete"], "a commit deletes nothing"
        for clone in (a, b):
            clone.sync()
            assert clone.files == {"files/neighbour": b"2"}


def test_f005_a_leaf_that_cannot_be_read_is_no_older_format(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/f0", "0")
    a.sync()
    before = head_of(s3_team.store())
    b.write("files/f1", "1")
    proxy.faults.add(Rule(Fail(503), method="GET", path=NODES))
    proxy.log.clear()

    with pytest.raises(Unavailable) as raised:
        b.push()

    assert raised.value.exit_code == 1
    assert head_of(s3_team.store()) == before
    assert proxy.log.count(method="GET", path=NODES) > 1, "it was tried again"
    assert not proxy.log.rows(method="PUT", path=r"/\.bayou/")


def test_f006_an_unknown_format_is_refused_by_every_command(s3_team: Team) -> None:
    a = s3_team.clone("a")
    a.write("files/f0", "0")
    a.sync()
    store = s3_team.store()
    fetched = store.get(keys.HEAD)
    assert fetched is not None
    store.put(keys.HEAD, bytes(fetched.data).replace(b'"format":2', b'"format":99'))
    a.write("files/f1", "1")
    stranger = newcomer(s3_team, "b", {"files/f2": "2"})
    before = {meta.key: meta.etag for page in store.list() for meta in page}

    for command in (
        a.sync,
        a.push,
        a.pull,
        lambda: set_up(stranger, s3_team),
        lambda: api.verify(a.repo, deep=False, repair=True),
        lambda: api.collect(a.repo, dry_run=False, grace_s=0),
    ):
        with pytest.raises(UnknownFormat, match="99") as raised:
            command()
        assert "newer Bayou" in (raised.value.hint or "")

    assert {meta.key: meta.etag for page in store.list() for meta in page} == before
    assert a.files == {"files/f0": b"0", "files/f1": b"1"}
    assert stranger.repo.config.datastore.url is None


def test_f007_a_repair_keeps_what_was_committed_while_it_looked(s3_team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    store = s3_team.store()
    for name in ("found", "sixth"):
        store.put(keys.payload(f"files/{name}", None), name.encode())
    a, b = s3_team.clone("a"), s3_team.clone("b")
    b.write("files/f0", "0")
    b.sync()
    a.sync()
    for name in ("later", "taken"):
        store.put(keys.payload(f"files/{name}", None), b"unindexed")
    import bayou.maintenance.verify_compare as job_module

    real = objects

    def meanwhile(asked: Any, part: Any) -> Any:
        monkeypatch.setattr(job_module, "objects", real)
        found = list(real(asked, part))
        b.write_all({f"files/f{number}": b"new" for number in range(1, 6)})
        b.write("files/taken", "b's")
        b.delete("files/sixth", "files/f0")
        b.push()
        return found

    monkeypatch.setattr(job_module, "objects", meanwhile)

    first = api.verify(a.repo, deep=False, repair=True)
    second = api.verify(a.repo, deep=False, repair=True)

    expected = {"files/found", "files/later", "files/taken", *(f"files/f{number}" for number in range(1, 6))}
    assert entries_of(store).keys() == expected
    assert (first.repaired, second.repaired) == (1, 0)
    assert second.ok
    assert entries_of(store)["files/taken"].push is not None, "what was committed since knows better"
    assert (second.trash, second.leftovers, second.unindexed) == (1, 1, ["files/taken"])


@pytest.mark.usefixtures("both_ways")
def test_f008_a_pull_during_a_commit_writes_nothing(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    b.write_all({"files/f1": b"1", "files/f2": b"2"})
    b.sync()
    b.write("files/f3", "3")
    release = threading.Event()
    hold = Hold(release)
    proxy.faults.add(Rule(hold, method="GET", path=UPLOADS, nth=1))
    proxy.log.clear()

    thread, results = in_thread(a.pull)
    assert hold.arrived.wait(SCARCE)
    before = len(proxy.log.writes())
    theirs = b.push()
    of_b = len(proxy.log.writes()) - before
    release.set()
    thread.join()

    assert results[0].exit_code == 0
    assert theirs.commit is not None
    assert head_of(s3_team.store()).head.commit == theirs.commit.commit
    assert len(proxy.log.writes()) == of_b == theirs.requests.put, "A sent neither PUT nor DELETE"
    assert a.pull().pulled.files == 1


@pytest.mark.usefixtures("both_ways")
def test_f009_a_node_that_cannot_be_written_fails_the_push_and_a_retry_uploads_nothing_again(
    s3_team: Team, proxy: HttpProxy
) -> None:
    a = s3_team.clone("a")
    a.write("files/f0", "0")
    a.sync()
    before = head_of(s3_team.store())
    a.write("files/f1", "1")
    refusal = Rule(Fail(403), method="PUT", path=NODES)
    proxy.faults.add(refusal)

    with pytest.raises(AccessDenied) as raised:
        a.push()

    assert raised.value.exit_code != 0
    assert "403" in raised.value.message
    assert head_of(s3_team.store()) == before
    assert a.status().journal_paths == 1
    proxy.faults.clear()
    proxy.log.clear()
    report = a.push()
    assert report.exit_code == 0
    assert report.commit is not None
    assert not proxy.log.rows(method="PUT", path=UPLOADS)
    assert content(s3_team) == {"files/f0": b"0", "files/f1": b"1"}
    assert a.status().journal_paths == 0


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("fault", [LoseResponse(), Fail(500, applied=True)], ids=["lost", "500"])
@pytest.mark.parametrize("path", [UPLOADS, NODES, HEAD], ids=["payload", "node", "head"])
def test_f010_a_write_whose_answer_is_lost_is_made_once(s3_team: Team, proxy: HttpProxy, fault: Any, path: str) -> None:
    a = s3_team.clone("a")
    a.write("files/f0", "0")
    a.sync()
    a.write("files/f1", "1")
    rule = Rule(fault, method="PUT", path=path, nth=1)
    proxy.faults.add(rule)
    proxy.log.clear()

    report = a.push()

    assert proxy.faults.applied(rule) == 1
    assert (report.exit_code, report.pushed.files) == (0, 1)
    assert commits(a)[-1] == (3, 1)
    assert [seq for seq, _ in commits(a)] == [1, 2, 3], "one commit"
    assert content(s3_team) == {"files/f0": b"0", "files/f1": b"1"}
    assert a.status().journal_paths == 0
    assert a.status().in_sync
    uploads = proxy.log.rows(method="PUT", path=UPLOADS)
    assert len({row.path for row in uploads}) == 1, "a repeated upload goes to the same key"
    assert len(uploads) == (2 if path == UPLOADS else 1)
    assert s3_team.uploads() == ["files/f0", "files/f1"]


@pytest.mark.usefixtures("both_ways")
def test_f010_a_swap_whose_answer_is_lost_for_good_is_found_in_the_log_later(s3_team: Team, proxy: HttpProxy) -> None:
    """The swap took effect; every later request is refused, until the next command."""
    a = s3_team.clone("a")
    a.write("files/f0", "0")
    a.sync()
    a.write("files/f1", "1")
    swap = Rule(LoseResponse(), method="PUT", path=HEAD, nth=1)
    proxy.faults.add(swap, Rule(Fail(503), method="PUT", path=HEAD, nth=2, times=1000))
    proxy.faults.add(Rule(Fail(503), method="GET", path=HEAD, nth=2, times=1000))

    with pytest.raises(BayouError):
        a.push()

    assert proxy.faults.applied(swap) == 1
    proxy.faults.clear()
    proxy.log.clear()
    assert a.push().exit_code == 0
    assert not proxy.log.writes(), "there is nothing left to write"
    assert [seq for seq, _ in commits(a)] == [1, 2, 3]
    assert content(s3_team) == {"files/f0": b"0", "files/f1": b"1"}
    assert (a.status().journal_paths, a.status().in_sync) == (0, True)
