"""A `sync.db` that is no database any more: set aside with its bytes, and reported; sync recovers without it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bayou.config.ownership import ASIDE
from bayou.core.errors import StateError, StateSetAside
from bayou.state.database import Database
from bayou.sync.service import Datastore
from tests.sync.conftest import Clone, Team

FILES = {f"files/{number:04}": b"%d" % number for number in range(300)}
PAGE = 4096


@pytest.fixture
def a(team: Team) -> Clone:
    """A clone in sync, with an unpushed delete and an unpushed file."""
    clone = team.clone("a")
    clone.write_all(FILES)
    clone.sync()
    clone.delete("files/0000")
    clone.write("files/new", b"new")
    return clone


def database(clone: Clone) -> Path:
    return clone.repo.state / "sync.db"


def kept(clone: Clone) -> list[Path]:
    """Every directory of what was set aside."""
    return sorted((clone.repo.root / ".bayou" / ASIDE).glob("*"))


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def overwrite(start: int, data: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(start)
            file.write(data)

    return change


DAMAGES = {
    "text": lambda path: path.write_bytes(b"this is no database, however long one looks at it" * 100),
    "short text": lambda path: path.write_bytes(b"no"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "wrong header": overwrite(0, b"SQLite format 9\0"),
    "truncated": cut(PAGE * 3),
    "cut within a page": cut(PAGE * 2 + 100),
    "empty": cut(0),
    "a bad first page": overwrite(100, b"\xff" * 400),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_database_is_set_aside_with_its_bytes_and_sync_recovers(
    team: Team, a: Clone, damage: Callable[[Path], object]
) -> None:
    damage(database(a))
    left = database(a).read_bytes()

    with pytest.warns(StateSetAside, match="not pushed yet are lost") as told:
        report = a.sync()

    (folder,) = kept(a)
    assert len(told) == 1
    assert f".bayou/{ASIDE}/{folder.name}" in str(told[0].message)
    assert (folder / "sync.db").read_bytes() == left
    # As after a lost state directory: the delete is lost, and the file that was not pushed is untracked.
    assert (report.exit_code, report.untracked, report.pushed.deleted) == (0, ["files/new"], 0)
    assert a.files == {**FILES, "files/new": b"new"}
    assert a.push(adopt=True).pushed.files == 1
    assert a.status().in_sync
    c = team.clone("c")
    c.sync()
    assert c.files == a.files
    assert kept(a) == [folder]


def test_the_log_of_a_damaged_database_goes_along(a: Clone) -> None:
    wal = database(a).with_name("sync.db-wal")
    with closing(sqlite3.connect(database(a), isolation_level=None)) as db:
        db.execute("UPDATE place SET seq = seq + 1")
        log = wal.read_bytes()
        content = database(a).read_bytes()
    wal.write_bytes(log)  # as a killed process leaves it
    database(a).write_bytes(b"x" * len(content))

    with pytest.warns(StateSetAside):
        a.sync()

    (folder,) = kept(a)
    assert (folder / "sync.db").read_bytes() == b"x" * len(content)
    assert log
    assert (folder / "sync.db-wal").read_bytes() == log


OPENINGS: dict[str, Callable[[Clone], object]] = {
    "status": Clone.status,
    "sync": Clone.sync,
    "write": lambda clone: clone.write("files/x", b"x"),
    "mark": Clone.mark_dirty,
}


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS.keys())
def test_whatever_opens_it_sets_it_aside(a: Clone, opening: Callable[[Clone], object]) -> None:
    database(a).write_bytes(b"garbage" * 1000)
    with pytest.warns(StateSetAside):
        opening(a)
    assert len(kept(a)) == 1


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_command_says_that_it_set_a_database_aside(a: Clone, option: tuple[str, ...]) -> None:
    database(a).write_bytes(b"garbage" * 1000)

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bayou", "datastore", "status", *option]
        return subprocess.run(command, cwd=a.repo.root, capture_output=True, text=True, timeout=60, check=False)

    first, second = run(), run()
    assert (first.returncode, second.returncode) == (0, 0)
    told = first.stdout if option else first.stderr
    assert f"sync.db was damaged and is not used; it was moved to .bayou/{ASIDE}/{kept(a)[0].name}." in told
    assert "sync --adopt" in told
    assert ASIDE not in second.stdout + second.stderr
    assert len(kept(a)) == 1


def test_a_database_of_a_newer_version_stays(a: Clone) -> None:
    with closing(sqlite3.connect(database(a))) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StateError, match="another version of Bayou"):
        a.sync()
    assert kept(a) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_database_that_may_not_be_read_stays(a: Clone) -> None:
    database(a).chmod(0)
    with pytest.raises(StateError):
        a.sync()
    database(a).chmod(0o600)
    assert kept(a) == []
    assert a.push().pushed.deleted == 1


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM]
)
def test_a_database_that_only_cannot_be_used_now_stays(a: Clone, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = code
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_prepare", fail)
        with pytest.raises(StateError):
            a.sync()
    assert kept(a) == []
    assert a.push().pushed.deleted == 1


def test_a_database_that_a_living_process_journals_to_is_not_moved_from_under_it(a: Clone) -> None:
    with Datastore(a.repo) as program:
        mark = program.sync.mark_dirty("files")
        with closing(sqlite3.connect(database(a))) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        overwrite(0, b"garbage" * 100)(database(a))
        with pytest.raises(StateError, match="still works with it") as caught:
            a.sync()
        assert "end that process" in (caught.value.hint or "")
        assert kept(a) == []
        with pytest.raises(StateError, match="not a database"):
            mark.done()
    with pytest.warns(StateSetAside):
        a.sync()


def leaf_of(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return int(page)


def test_damage_that_a_statement_meets_ends_the_command_and_the_next_one_sets_the_file_aside(a: Clone) -> None:
    page = leaf_of(database(a), "file")
    overwrite((page - 1) * PAGE, b"\xff" * PAGE)(database(a))
    a.status()  # meets nothing of that table
    assert kept(a) == []

    with pytest.raises(StateError, match="malformed") as caught:
        a.sync()
    assert "the next command checks the file" in (caught.value.hint or "")
    assert kept(a) == []

    with pytest.warns(StateSetAside):
        a.status()
    assert len(kept(a)) == 1
    assert a.sync().exit_code == 0
    assert not list(a.repo.state.glob("sync.db-suspect"))


def test_a_suspected_database_that_turns_out_to_be_whole_is_used_on(a: Clone) -> None:
    suspect = database(a).with_name("sync.db-suspect")
    suspect.touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert a.push().pushed.deleted == 1
    assert not suspect.exists()
    assert kept(a) == []
