"""The allow-list: section 6 of tests/failures.md. The layout makes a list of names to skip needless."""

from __future__ import annotations

import hashlib
import uuid

import pytest

from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.objectstore.keys import as_listed, payload
from bayou.repo import open_repo
from bayou.sync.service import Datastore
from bayou_testing.proxy import HttpProxy
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import Team
from tests.sync.indexes import commit_rows, entries_of


def lay_remotely(team: Team, **files: str) -> None:
    """Put objects into the bucket by hand; `__` stands for a slash."""
    for name, content in files.items():
        team.store().put(as_listed(name.replace("__", "/")), content.encode())


def test_f042_databases_cross_in_neither_direction(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write("data/t/x", "payload")
    databases = ["_catalog.db", "data/_catalog.db", "data/t/_catalog.db-wal", "files/a/b/_catalog.db-shm"]
    for path in databases:
        a.lay(path, "database")
    pushed = a.push(adopt=True)
    assert (pushed.pushed.files, pushed.exit_code) == (1, 0)
    (warning,) = pushed.warnings
    assert all(path in warning for path in databases)
    assert a.pull().exit_code == 0
    assert a.push().engine == "fast"

    content, push = b"database", ulid()
    rows = {
        path: Entry(path, push, len(content), hashlib.sha256(content).digest(), None, None, 0)
        for path in ("data/t/_catalog.db", "top/_catalog.db-wal")
    }
    for path in rows:
        team.store().put(payload(path, push), content)
    commit_rows(team.store(), rows)
    met = b.sync()
    assert sorted(one.path for one in met.refused) == sorted(rows)
    assert (met.exit_code, b.files) == (0, {"data/t/x": b"payload"})
    again = b.push()
    assert (again.engine, again.refused) == ("fast", [])
    a.sync()
    assert a.push().engine == "fast"
    b.write("data/t/y", "another")
    assert b.sync().pushed.files == 1
    assert entries_of(team.store()).keys() == {"data/t/x", "data/t/y", *rows}


def test_f043_what_lies_beside_the_payload_roots_stays_at_home(team: Team) -> None:
    a = team.clone("a")
    a.lay(".read-model.sqlite", "x")
    a.lay("projections/today/x", "x")
    a.lay("files/x", "payload")
    report = a.push(adopt=True)
    assert (report.pushed.files, report.exit_code) == (1, 0)
    (warning,) = report.warnings
    assert ".read-model.sqlite" in warning
    assert "projections" in warning
    assert entries_of(team.store()).keys() == {"files/x"}
    assert (team.uploads(), team.payload_keys()) == (["files/x"], set())


def test_f044_temporary_files_and_locks_are_never_uploaded(team: Team) -> None:
    a = team.clone("a")
    for path in (
        f"files/.bayou-{ulid()}.tmp",
        f"data/t/.{uuid.uuid4()}.tmp",
        f"data/t/raw.tmp.4711.{uuid.uuid4()}",
        ".lock",
        "data/.lock",
        "data/.datastore.lock",
        ".locks/x.lock",
        "data/.locks/x.lock",
    ):
        a.lay(path, "left over")
    a.lay("files/x", "payload")
    with Datastore(a.repo) as program, program.tree.writing("files/half") as file:
        file.write(b"half")
        file.flush()
        assert a.push(adopt=True).pushed.files == 1
    a.push()
    c = team.clone("c")
    c.sync()
    assert c.files == {"files/x": b"payload", "files/half": b"half"}
    assert (team.uploads(), team.payload_keys()) == (["files/half", "files/x"], set())


def test_f045_secrets_stay_where_they_are(team: Team) -> None:
    lay_remotely(team, secrets__other="theirs", files__y="payload")
    a = newcomer(team, "a")
    a.lay("secrets/k", "key")
    a.lay("../secrets/k", "key")
    a.lay("files/x", "payload")
    set_up(a, team)
    assert a.push(adopt=True).exit_code == 0
    a.pull()
    assert a.files == {"files/x": b"payload", "files/y": b"payload", "secrets/k": b"key"}
    assert (a.repo.root / ".bayou/secrets/k").read_text() == "key"
    assert [key for key in team.payload_keys() if "secrets" in key] == ["secrets/other"]
    assert team.uploads() == ["files/x"]


def test_f046_the_programs_own_files_stay_local(team: Team) -> None:
    lay_remotely(team, catalog_db="old", **{".bayou__catalog.db": "old", "data___catalog.db": "old"})
    a = newcomer(team, "a")
    assert a.repo.state.is_dir()  # made by this program, and so its own
    assert not a.repo.catalog.exists()
    own = ["models/m.yaml", "extensions/e.py", ".bayou/catalog.db", ".bayou/state/kept"]
    for name in own:
        file = a.repo.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("own")
    a.lay("files/x", "payload")
    before = team.payload_keys()
    set_up(a, team)
    assert open_repo(a.repo.root).config.datastore.url == team.url
    assert all((a.repo.root / name).read_text() == "own" for name in own)
    assert (team.uploads(), team.payload_keys()) == (["files/x"], before)
    assert a.files == {"files/x": b"payload"}
    assert a.sync().engine == "fast"


def test_f047_what_is_excluded_is_neither_fetched_nor_removed_and_costs_nothing(
    s3_team: Team, proxy: HttpProxy
) -> None:
    a, b = s3_team.clone("a", exclude=["logs/**"]), s3_team.clone("b")
    b.write_all({"logs/day/host": b"log", "files/x": b"x"})
    b.sync()
    a.lay("logs/day/own", "our own log")
    assert a.pull().pulled.files == 1
    assert a.push().exit_code == 0
    assert a.files == {"files/x": b"x", "logs/day/own": b"our own log"}
    assert a.status().in_sync
    proxy.log.clear()
    assert a.sync().engine == "fast"
    assert len(proxy.log.rows()) == 1
    b.write("logs/day/host", "more")
    b.sync()
    assert (a.sync().exit_code, a.status().in_sync) == (0, True)
    assert entries_of(s3_team.store()).keys() == {"files/x", "logs/day/host"}


def test_f047_what_is_excluded_no_longer_arrives(team: Team) -> None:
    a, b = team.clone("a", exclude=["logs/**", "*.bin"]), team.clone("b")
    b.write_all({"logs/day/host": b"log", "files/x.bin": b"x"})
    b.sync()
    a.sync()
    assert a.files == {}
    a.repo.file.write_text(a.repo.file.read_text().replace('"logs/**", ', ""))
    a.reopen()
    assert not a.status().in_sync
    assert a.sync().pulled.files == 1
    assert (a.files, a.status().in_sync) == ({"logs/day/host": b"log"}, True)


@pytest.mark.parametrize("mode", ["write", "delete"])
def test_f047_a_change_of_ours_to_what_is_excluded_stays_here(team: Team, mode: str) -> None:
    a, b = team.clone("a", exclude=["logs/**"]), team.clone("b")
    b.write("logs/x", "theirs")
    b.sync()
    a.sync()
    a.write("logs/x", "ours") if mode == "write" else a.delete("logs/x")
    report = a.sync()
    assert (report.pushed.files, report.pushed.deleted, report.conflicts) == (0, 0, [])
    assert a.status().journal_paths == 0
    b.sync()
    assert b.files == {"logs/x": b"theirs"}
