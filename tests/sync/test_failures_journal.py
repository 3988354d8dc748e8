"""Journal and mutations: section 5 of tests/failures.md. These tests check the part that sync plays."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import StateError, UsageError
from bayou.repo import init_repo, open_repo
from bayou.state.database import Database
from bayou.sync.service import Datastore
from bayou_testing.faults import Hold, Rule
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.sync import children
from tests.sync.conftest import UPLOADS, Clone, Team
from tests.sync.indexes import entries_of, read_entry
from tests.trusting import trust

RAW = "data/t/m/n/1/raw"

PUT = """
from bayou.repo import open_repo
from bayou.sync.service import Datastore
from bayou.worktree.atomic_write import AtomicFile

root, path, content, moment = sys.argv[1:]
if moment == "before the rename":
    AtomicFile.rename = die
elif moment == "after the rename":
    after(AtomicFile, "rename")
with Datastore(open_repo(root)) as datastore:
    datastore.tree.write(path, content.encode())
"""

# A process for each put and each push; forks of one that has loaded everything already.
ROUNDS = """
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.status import status
from bayou.sync import run
from bayou.sync.report import SyncOptions
from bayou.sync.service import Datastore

def put(number):
    with Datastore(open_repo(sys.argv[1])) as datastore:
        datastore.tree.write(f"data/t/m/n/{number}/raw", f"round {number}".encode())

def push(_):
    repo = open_repo(sys.argv[1])
    report = sync(Connection(repo), SyncOptions(mode="push", walk=False))
    assert (report.engine, report.pushed.files) == ("point", 1), report
    now = status(Connection(repo))
    assert (now.journal_paths, now.journal_bulk, now.in_sync) == (0, False, True), now

for number in range(1, int(sys.argv[2]) + 1):
    for step in (put, push):
        child = os.fork()
        if child == 0:
            step(number)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (step, number)
"""


def fresh(team: Team, name: str = "c") -> dict[str, bytes]:
    """What somebody who comes now gets to see."""
    clone = team.clone(name)
    assert clone.sync().exit_code == 0
    return clone.files


def test_f034_what_one_process_puts_the_next_one_pushes(team: Team) -> None:
    a = team.clone("a")
    a.sync()
    children.run(PUT, a.repo.root, RAW, "whole", "never")
    assert a.status().journal_paths == 1
    assert a.push(walk=False).pushed.files == 1
    assert fresh(team) == {RAW: b"whole"}


@pytest.mark.parametrize("before", [None, b"old"], ids=["new", "over an older file"])
def test_f034_a_put_that_is_killed_before_its_rename_is_nothing(team: Team, before: bytes | None) -> None:
    a = team.clone("a")
    a.write("files/other", "other")
    if before is not None:
        a.write(RAW, before)
    a.sync()
    there = fresh(team)
    assert children.run_to_death(PUT, a.repo.root, RAW, "half", "before the rename")
    assert a.status().journal_paths == 1
    report = a.push(walk=False)
    assert (report.pushed.files, report.pushed.deleted, report.commit) == (0, 0, None)
    assert a.status().journal_paths == 0
    assert {path: content for path, content in a.files.items() if not path.endswith(".tmp")} == there
    assert fresh(team, "d") == there


def test_f034_a_put_that_is_killed_after_its_rename_is_pushed(team: Team) -> None:
    a = team.clone("a")
    a.sync()
    assert children.run_to_death(PUT, a.repo.root, RAW, "whole", "after the rename")
    assert a.push(walk=False).pushed.files == 1
    assert (a.status().journal_paths, fresh(team)) == (0, {RAW: b"whole"})


def put_and_push(team: Team, rounds: int) -> None:
    a = team.clone("a")
    a.sync()
    children.run(ROUNDS, a.repo.root, rounds)
    assert len(fresh(team)) == rounds


def test_f035_the_journal_is_empty_after_every_push(team: Team) -> None:
    put_and_push(team, 12)


@pytest.mark.soak
def test_f035_the_journal_is_empty_after_every_push_of_203(team: Team) -> None:
    put_and_push(team, 203)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_f036_what_a_body_wrote_before_it_failed_goes_with_the_next_push(
    team: Team, error: type[BaseException]
) -> None:
    a = team.clone("a")
    a.sync()

    def body() -> None:
        with Datastore(a.repo) as datastore:
            datastore.tree.write("files/one", b"1")
            datastore.tree.write("files/two", b"2")
            with datastore.tree.writing("files/half") as file:
                file.write(b"ha")
                raise error("the body's own")

    with pytest.raises(error, match="the body's own"):
        body()
    assert a.status().journal_paths == 3
    assert a.push(walk=False).pushed.files == 2
    assert a.status().journal_paths == 0
    assert fresh(team) == {"files/one": b"1", "files/two": b"2"}


def test_f037_a_report_that_is_written_after_a_push_goes_with_the_next(team: Team) -> None:
    a = team.clone("a")
    record = "workflow-runs/w/r.yaml"
    with Datastore(a.repo) as datastore:
        datastore.tree.write(record, b"status: running")
        datastore.sync.push_changed()
        datastore.tree.write("outputs/t/m/report.yaml", b"report")
        datastore.tree.write(record, b"status: succeeded")
        assert datastore.sync.push_changed().pushed.files == 2
    assert fresh(team) == {record: b"status: succeeded", "outputs/t/m/report.yaml": b"report"}


@pytest.mark.usefixtures("both_ways")
def test_f038_a_file_that_is_appended_to_all_through_a_push_is_pushed_as_it_was(
    s3_team: Team, proxy: HttpProxy
) -> None:
    a = s3_team.clone("a")
    a.write(RAW, "line 1\n")
    a.sync()
    with Datastore(a.repo) as program:
        stream = program.sync.mark_dirty(RAW)
        program.tree.append(RAW, b"line 2\n")
        for number in (3, 4):
            upload = Hold(threading.Event())
            proxy.faults.add(Rule(upload, method="PUT", path=UPLOADS, nth=1))
            reports: list[Any] = []
            push = threading.Thread(target=lambda into=reports: into.append(a.push(walk=False)))
            push.start()
            assert upload.arrived.wait(30)
            program.tree.append(RAW, f"line {number}\n".encode())
            upload.release.set()
            push.join()
            assert (reports[0].exit_code, reports[0].pushed.files) == (0, 1)
            assert a.status().journal_paths == 1
            store = s3_team.store()
            entry = entries_of(store)[RAW]
            stored = read_entry(store, entry)
            assert hashlib.sha256(stored).digest() == entry.sha256
            assert stored.count(b"\n") == number - 1
        stream.done()
    last = a.sync()
    assert (last.pushed.files, last.conflicts) == (1, [])
    assert a.status().journal_paths == 0
    assert fresh(s3_team) == {RAW: b"line 1\nline 2\nline 3\nline 4\n"}


CHURN = """
from bayou.repo import open_repo
from bayou.sync.service import Datastore

files = ["data/t/m/n/1/raw", "data/t/m/n/1/metadata.yaml"]
with Datastore(open_repo(sys.argv[1])) as datastore:
    for number in range(50):
        if sys.argv[2] == "put":
            datastore.tree.write_many([(path, b"x" * 5_000) for path in files])
        else:
            datastore.tree.delete_many(files)
"""


def test_f039_puts_deletes_and_pushes_of_one_name_never_trip_over_each_other(team: Team) -> None:
    a = team.clone("a")
    a.sync()
    both = [children.start(CHURN, a.repo.root, what) for what in ("put", "delete")]
    while any(process.poll() is None for process in both):
        assert a.push(walk=False).exit_code == 0
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    assert a.sync().exit_code == 0
    assert set(a.files.values()) <= {b"x" * 5_000}
    assert fresh(team) == a.files
    if not a.files:
        assert not (a.repo.tree_root / "data/t").exists()
    a.delete("data/t/m/n/1/raw", "data/t/m/n/1/metadata.yaml")
    assert not (a.repo.tree_root / "data/t").exists()


def test_f040_every_verb_touches_only_the_tree_of_its_own_repo(tmp_path: Path) -> None:
    clones = []
    for name in ("one", "two"):
        repo = init_repo(tmp_path / name)
        (tmp_path / f"data of {name}").mkdir()
        repo.file.write_text(f'{repo.file.read_text()}path = "{tmp_path}/data of {name}"\n')
        trust(repo.root)
        (repo.root / ".bayou/tree").write_text("a trap: whoever takes it for a directory fails")
        clones.append(Clone(open_repo(repo.root)))
    one, two = clones
    one.write("files/x", "1")
    two.write("files/x", "2")
    two.write("files/y", "2")
    two.delete("files/y")
    one.mark_dirty()
    with Datastore(one.repo) as datastore:
        datastore.sync.mark_deleted("files/other")
        datastore.sync.push_changed()
        datastore.sync.pull_changed()
        assert datastore.sync.hydrate().files == 0
        assert datastore.tree.exists("files/x")
    for clone in clones:
        assert clone.sync().exit_code == 0
        assert (clone.status().healthy, clone.status().tree) == (True, str(clone.repo.tree_root))
        assert api.conflicts(clone.repo) == []
    with pytest.raises(UsageError):
        api.log(one.repo, 1)
    assert (one.files, two.files) == ({"files/x": b"1"}, {"files/x": b"2"})


def test_f041_a_full_disk_refuses_a_write_before_anything_is_written(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = team.clone("a")
    a.write("files/x", "old")
    a.sync()
    real = Database._open

    def on_a_full_disk(self: Database) -> Any:
        connection = real(self)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    def write_until_it_fails() -> None:
        for number in range(100):
            a.write_all({f"files/{'n' * 200}{number}-{item}": b"new" for item in range(50)})

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_open", on_a_full_disk)
        with pytest.raises(StateError) as refused:
            write_until_it_fails()
    written = len(a.files) - 1
    assert "full" in refused.value.message
    assert "space" in (refused.value.hint or "")
    assert written % 50 == 0
    assert a.sync().pushed.files == written


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_v7_what_was_written_where_nobody_can_look_now_is_pushed_later(
    team: Team, monkeypatch, known: bool, large: bool
) -> None:
    if large:
        monkeypatch.setattr("bayou.sync.run.MOST_HELD", 0)
    here, there = team.clone("here"), team.clone("there")
    here.write_all({"files/other": b"1", **({"files/shut/new": b"1"} if known else {})})
    here.push(engine="point")
    there.pull(engine="point")
    if known:
        there.delete("files/shut/new")
        there.push(engine="point")
    here.write("files/shut/new", b"22")
    shut = str(here.repo.tree_root / "files/shut")

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(shut) or path == "shut":
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return call(path, *args, **kwargs)

        return refuse

    with monkeypatch.context() as closed:
        closed.setattr(os, "lstat", refusing(os.lstat))
        closed.setattr(os, "open", refusing(os.open))
        blind = here.sync(engine="point")
    report = here.sync(engine="point")

    assert {(one.path, one.code) for one in blind.failed} == {
        ("files/shut", "unreadable"),
        ("files/shut/new", "unreadable"),
    }
    assert (report.pushed.files, report.untracked, report.failed) == (1, [], [])
    there.pull(engine="point")
    assert there.files["files/shut/new"] == b"22"
