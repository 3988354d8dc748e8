"""Section 3 of tests/failures.md: content decides what has changed, in both directions."""

from __future__ import annotations

import os
import shutil
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.objectstore import keys
from bayou.worktree.hashing import FileStat
from bayou_testing.faults import Hold, Rule
from bayou_testing.proxy import HttpProxy
from tests.sync.conftest import Clone, Team, is_payload
from tests.sync.indexes import commit_rows, entries_of, head_of

HEAD = r"head\.json$"
DAY_MS = 86_400_000
FILES = {f"data/t/m/n{number}/1/raw": f"content {number}".encode() for number in range(8)}
SCARCE = 3
"""Seconds that a thread may take to get somewhere; only ever waited for when a test fails."""


def moved(proxy: HttpProxy) -> tuple[int, int]:
    """Count payload that went up and came down."""
    rows = [row for row in proxy.log.rows() if is_payload(row.path) and "list-type" not in row.query]
    return sum(row.method == "PUT" for row in rows), sum(row.method == "GET" for row in rows)


def replace_by_copies(clone: Clone) -> None:
    """Give every file new times and a new inode, and the same bytes."""
    for path in clone.files:
        file = clone.repo.tree_root / path
        copy = file.with_name("copy")
        shutil.copyfile(file, copy)
        os.replace(copy, file)


@pytest.mark.parametrize("journaled", [False, True], ids=["by hand", "after mark_dirty"])
def test_f021_new_times_are_no_change_whatever_a_peers_clock_says(
    s3_team: Team, proxy: HttpProxy, journaled: bool
) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write_all(FILES)
    a.sync()
    b.sync()
    store = s3_team.store()
    later = {path: replace(row, modified=row.modified + DAY_MS) for path, row in entries_of(store).items()}
    commit_rows(store, dict(later))
    for clone in (a, b):
        before = {path: (clone.repo.tree_root / path).stat().st_ino for path in FILES}
        replace_by_copies(clone)
        assert all((clone.repo.tree_root / path).stat().st_ino != before[path] for path in FILES)
        if journaled:
            clone.mark_dirty()
        proxy.log.clear()

        report = clone.sync()

        assert moved(proxy) == (0, 0)
        assert (report.exit_code, report.conflicts, report.untracked) == (0, [], [])
        assert clone.status().in_sync
        assert clone.sync().engine == "fast"
    assert entries_of(store) == later, "nobody touched the rows"


def test_times_and_inodes_beyond_64_bits_with_a_sign_are_no_obstacle(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time after 2262 is what a broken clock or archive leaves; mergerfs and CIFS have inodes from 2^63 on."""
    of = FileStat.of

    def large(status: os.stat_result) -> FileStat:
        names = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
        given = {name: getattr(status, name) for name in names}
        return of(SimpleNamespace(**given | {"st_ino": 2**64 - status.st_ino}))  # type: ignore[arg-type]

    monkeypatch.setattr(FileStat, "of", large)
    a, b = team.clone("a"), team.clone("b")
    for name, seconds in {"far": 3 * 10**11, "later": 10**10, "early": -(10**9)}.items():
        a.write(f"files/{name}", name)
        os.utime(a.repo.tree_root / "files" / name, (seconds, seconds))
    assert a.sync().pushed.files == 3
    assert b.sync().pulled.files == 3
    assert b.files == a.files
    a.write("files/far", "other")
    os.utime(a.repo.tree_root / "files/far", (10**10, 10**10))
    assert a.sync().pushed.files == 1
    assert b.sync().pulled.files == 1
    for clone in (a, b):
        assert clone.sync().engine == "fast"


@pytest.mark.parametrize("namespace", [None, "infra"])
def test_f022_a_fresh_tree_sends_nothing_back(s3_team: Team, proxy: HttpProxy, namespace: str | None) -> None:
    a = s3_team.clone("a", namespace=namespace)
    a.write_all(FILES)
    a.sync()
    fresh = s3_team.clone("fresh", namespace=namespace)
    fresh.pull()
    assert fresh.files == FILES, "each at its plain path"
    for _ in range(2):
        proxy.log.clear()
        for command in (fresh.push, fresh.pull):
            fresh.reopen()
            assert command().engine == "fast"
        assert not proxy.log.writes()
        assert moved(proxy) == (0, 0)
        assert fresh.status().in_sync
    fresh.mark_dirty()
    proxy.log.clear()
    assert fresh.push().pushed.files == 0
    assert not proxy.log.writes(), "a whole scan finds nothing to send either"


def test_f023_writing_the_same_bytes_again_is_no_change(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    proxy.log.clear()
    heads = []
    for _ in range(3):
        a.write("files/derived", "always the same")

        report = a.push()

        assert report.exit_code == 0
        assert a.status().journal_paths == 0
        assert a.status().in_sync
        heads.append(head_of(s3_team.store()).head.commit)
    assert moved(proxy)[0] == 1
    assert len(set(heads)) == 1, "no commit without a change"


def test_f024_entries_without_a_hash_are_compared_by_content(s3_team: Team, proxy: HttpProxy) -> None:
    store = s3_team.store()
    for path, data in FILES.items():
        store.put(keys.payload(path, None), data)
    founder, a = s3_team.clone("founder"), s3_team.clone("a")
    founder.write("files/first", "1")
    founder.push()
    a.pull()
    path, *_ = FILES
    assert entries_of(store)[path].sha256 is None
    replace_by_copies(a)  # so that every file is read again
    a.mark_dirty()
    proxy.log.clear()

    assert a.push().pushed.files == 0

    assert moved(proxy)[0] == 0
    assert (a.status().journal_paths, a.status().journal_bulk) == (0, False)
    a.write(path, "x" * len(FILES[path]))
    proxy.log.clear()
    assert a.push().pushed.files == 1
    assert moved(proxy)[0] == 1
    fetched = store.get(keys.payload(path, None))
    assert fetched is not None
    assert bytes(fetched.data) == FILES[path], "what was found stays where it is"
    assert entries_of(store)[path].push is not None
    assert founder.pull().exit_code == 0
    assert founder.files[path] == b"x" * len(FILES[path])


def test_f024_a_file_of_the_same_size_is_not_believed(s3_team: Team) -> None:
    """The file lies there before the first pull: size says nothing."""
    path, *_ = FILES
    s3_team.store().put(keys.payload(path, None), FILES[path])
    a = s3_team.clone("a")
    a.lay(path, "y" * len(FILES[path]))

    report = a.pull()

    assert [one.path for one in report.conflicts] == [path]
    assert a.files == {path: FILES[path]}
    assert report.conflicts[0].copy is not None
    with open(report.conflicts[0].copy) as copy:
        assert copy.read() == "y" * len(FILES[path])


def test_f025_the_same_bytes_from_two_peers_are_no_conflict(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/base", "0")
    a.sync()
    b.sync()
    for clone in (a, b):
        clone.write("files/both", "the same")
    a.sync()
    proxy.log.clear()

    report = b.sync()

    assert (report.exit_code, report.conflicts) == (0, [])
    assert moved(proxy) == (0, 0), "whoever sees the other's commit uploads nothing"
    assert s3_team.uploads() == ["files/base", "files/both"]
    assert b.status().in_sync
    assert b.status().journal_paths == 0


def test_f025_a_race_with_the_same_bytes_leaves_one_object_too_many(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/base", "0")
    a.sync()
    b.sync()
    for clone in (a, b):
        clone.write("files/both", "the same")
    release = threading.Event()
    hold = Hold(release)
    proxy.faults.add(Rule(hold, method="PUT", path=HEAD, nth=1))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(a.sync()))
    thread.start()
    assert hold.arrived.wait(SCARCE)

    second = b.sync()
    release.set()
    thread.join()

    assert [report.exit_code for report in (*results, second)] == [0, 0]
    assert not any(report.conflicts for report in (*results, second))
    rows = entries_of(s3_team.store())
    assert rows.keys() == {"files/base", "files/both"}
    assert s3_team.uploads() == ["files/base", "files/both", "files/both"]
    for clone in (a, b):
        assert clone.sync().exit_code == 0
        assert clone.status().in_sync
        assert clone.status().journal_paths == 0
        assert clone.files["files/both"] == b"the same"
    assert entries_of(s3_team.store()) == rows
