"""What `sync.db` waits for the disk with, and what not."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import StateError
from bayou.index.entry import Entry
from bayou.state.database import Database, dump_entry, load_entry
from tests.sync.conftest import Team

FULL, NORMAL = 2, 1
INSERT = "INSERT INTO upload (place, path, push, size, sha256, gc) VALUES (1, ?, 'p', 0, x'', 0)"


def level(database: Database) -> object:
    return database.rows("PRAGMA synchronous")[0][0]


def test_a_note_does_not_wait_and_the_next_transaction_does(tmp_path: Path) -> None:
    with Database(tmp_path / "sync.db") as database:
        assert level(database) == FULL
        with database.note() as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (NORMAL,)
            db.execute(INSERT, ("files/x",))
        assert level(database) == FULL
        with database.transaction() as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (FULL,)


def test_a_note_is_whole_or_nothing_and_others_see_it(tmp_path: Path) -> None:
    with Database(tmp_path / "sync.db") as database, Database(tmp_path / "sync.db") as other:
        with pytest.raises(StateError), database.note() as db:
            db.executemany(INSERT, [("files/x",), (None,)])
        assert level(database) == FULL
        assert not other.rows("SELECT path FROM upload")
        with database.note() as db:
            db.execute(INSERT, ("files/y",))
        assert other.rows("SELECT path FROM upload") == [("files/y",)]


def test_a_database_that_waits_for_nothing_goes_on_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "pragmas", ("journal_mode = WAL", "synchronous = OFF"))
    with Database(tmp_path / "sync.db") as database:
        with database.note() as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (0,)
        assert level(database) == 0


def test_only_records_of_uploads_are_notes(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else that a sync writes must outlive a power cut."""
    tables: set[str] = set()
    note = Database.note

    class Watched:
        def __init__(self, database: Database) -> None:
            self._note = note(database)

        def __enter__(self) -> sqlite3.Connection:
            db = self._note.__enter__()
            db.set_authorizer(self._see)
            return db

        def __exit__(self, *error: object) -> bool | None:
            self._db().set_authorizer(None)
            return self._note.__exit__(*error)  # type: ignore[arg-type]

        def _db(self) -> sqlite3.Connection:
            return databases[-1]._connection

        @staticmethod
        def _see(action: int, table: str | None, *_: object) -> int:
            if action in (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE) and table is not None:
                tables.add(table)
            return sqlite3.SQLITE_OK

    databases: list[Database] = []

    def watched(database: Database) -> Watched:
        databases.append(database)
        return Watched(database)

    monkeypatch.setattr(Database, "note", watched)
    a, b = team.clone("a"), team.clone("b")
    a.write("files/x", b"1")
    a.write("files/y", b"1")
    a.push()
    b.pull()
    a.write("files/x", b"2")
    b.write("files/x", b"3")
    b.delete("files/y")
    a.sync()
    b.sync()
    assert tables == {"upload", "place"}, "of places only when their head was seen last"


texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
rows = st.builds(
    Entry,
    path=st.just("files/x"),
    push=texts,
    size=st.integers(-(2**63), 2**63 - 1),
    sha256=st.none() | st.binary(min_size=32, max_size=32),
    etag=texts,
    version=texts,
    modified=st.integers(-(2**63), 2**63 - 1),
    at=texts,
    pack=texts,
    offset=numbers,
    stored=numbers,
    method=numbers,
)


@given(rows)
def test_a_row_of_base_is_the_stores_verbatim_whatever_it_says(row: Entry) -> None:
    """V25: no client of ours wrote most of these; base keeps them as they are, or this tree is never in sync."""
    assert load_entry(row.path, dump_entry(row)) == row
