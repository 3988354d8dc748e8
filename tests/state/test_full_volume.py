"""A full volume is named as the cause, whatever SQLite calls it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bayou.core.errors import StateError
from bayou.data.catalog.database import CatalogFile
from bayou.state.database import Database, database_error


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mounted = tmp_path / "volume"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def fill(volume: Path, *, leave: int) -> None:
    with open(volume / "filler", "wb", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(4096)):
                pass
        file.truncate(file.tell() - leave)


def write_rows(path: Path) -> None:
    with Database(path) as database:
        for number in range(20):
            with database.transaction() as db:
                db.execute("INSERT INTO forgotten VALUES (1, ?)", (f"{number:04}" * 1000,))


@pytest.mark.parametrize("leave", [0, 16 << 10, 48 << 10])
def test_a_full_volume_of_sync_db_is_named(volume: Path, leave: int) -> None:
    path = volume / "sync.db"
    Database(path).close()
    fill(volume, leave=leave)
    with pytest.raises(StateError, match="disk is full") as caught:
        write_rows(path)
    assert caught.value.hint == "free some space on the volume of .bayou"


@pytest.mark.parametrize("leave", [0, 16 << 10])
def test_a_full_volume_of_the_catalog_is_named(volume: Path, leave: int) -> None:
    catalog = CatalogFile(volume / "catalog.db")
    catalog.read(lambda _: None)
    catalog.close()
    fill(volume, leave=leave)
    with pytest.raises(StateError, match="disk is full") as caught:
        catalog.write(lambda db: db.execute("CREATE TABLE more (text)").fetchall())
    catalog.close()
    assert caught.value.hint == "free some space on the volume of .bayou"


@pytest.mark.parametrize(("free", "named"), [(0, True), (1 << 30, False)])
def test_an_error_of_a_disk_with_space_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, named: bool
) -> None:
    real = os.statvfs(tmp_path)
    fields = [*real[:4], free // real.f_frsize, *real[5:]]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    told = database_error(tmp_path / "sync.db", error)
    assert told.message == ("sync.db: the disk is full (disk I/O error)" if named else "sync.db: disk I/O error")
    assert ("free some space" in str(told.hint)) is named
