"""The files of a datastore as plain files: what is written where, what is refused, and what an early end leaves."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core.errors import AccessDenied, CredentialsExpired, NotFound, Offline, UsageError
from bayou.core.progress import NoProgress
from bayou.index.head import read_head
from bayou.objectstore import keys
from bayou.repo import init_repo, open_repo
from bayou.sync.report import ExportReport
from bayou.sync.transfer import executor
from bayou_testing.faulty import Fault
from tests import api
from tests.maintenance.replicas import compact, damage
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, entries_of

FILES = {
    "files/a.txt": b"the content of a\n" * 40,
    "files/sub/b.bin": bytes(range(256)),
    "files/sub/empty": b"",
    "files/large": os.urandom(300 << 10),
    "data/t/m/n/1/raw": b"raw " * 100,
    "data/t/m/n/1/metadata.yaml": b"name: n\n",
}


@pytest.fixture
def ann(team: Team) -> Clone:
    clone = team.clone("ann")
    clone.write_all(FILES)
    clone.push()
    return clone


def export(clone: Clone, target: Path, **options: Any) -> ExportReport:
    return api.export(clone.repo, target, **options)


def files_in(target: Path) -> dict[str, bytes]:
    return {file.relative_to(target).as_posix(): file.read_bytes() for file in target.rglob("*") if file.is_file()}


def test_every_file_gets_its_name_and_its_bytes(ann: Clone, team: Team, tmp_path: Path):
    before = team.keys()
    ben = team.clone("ben")

    report = export(ben, tmp_path / "new" / "out")

    assert (report.files, report.bytes) == (6, sum(map(len, FILES.values())))
    assert (report.failed, report.failures) == ([], 0)
    assert files_in(tmp_path / "new" / "out") == FILES
    assert team.keys() == before
    assert ben.files == {}


def test_files_have_the_mode_and_the_time_of_files(ann: Clone, team: Team, tmp_path: Path):
    old = os.umask(0o022)
    try:
        export(ann, tmp_path / "out")
    finally:
        os.umask(old)

    entries = entries_of(team.store())
    for path in FILES:
        status = (tmp_path / "out" / path).stat()
        assert status.st_mode & 0o777 == 0o644
        assert status.st_mtime_ns // 1_000_000 == entries[path].modified


def test_what_only_this_tree_has_is_not_exported(ann: Clone, tmp_path: Path):
    ann.write("files/a.txt", b"changed here")
    ann.lay("files/mine", b"mine")
    (tmp_path / "out").mkdir()

    export(ann, tmp_path / "out")

    assert files_in(tmp_path / "out") == FILES


def test_a_pack_is_read_once(ann: Clone, tmp_path: Path, wire: Wire):
    ann.write_all({f"files/many/{number:04}": os.urandom(3000) for number in range(1000)})
    ann.push()
    wire.seen.clear()

    assert export(ann, tmp_path / "out").files == 1006

    assert files_in(tmp_path / "out") == ann.files
    assert {one.verb for one in wire.seen} == {"get"}
    assert len(wire.sent("get", keys.PACKS)) == 2


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("files/sub", {"files/sub/b.bin", "files/sub/empty"}),
        ("files/sub/", {"files/sub/b.bin", "files/sub/empty"}),
        ("files/a.txt", {"files/a.txt"}),
        ("data", {"data/t/m/n/1/raw", "data/t/m/n/1/metadata.yaml"}),
        (".", set(FILES)),
    ],
)
def test_one_path_and_what_is_below_it(ann: Clone, tmp_path: Path, prefix: str, expected: set[str]):
    assert export(ann, tmp_path / "out", prefix=prefix).files == len(expected)
    assert set(files_in(tmp_path / "out")) == expected


def test_a_path_is_not_a_prefix_of_names(ann: Clone, tmp_path: Path):
    with pytest.raises(NotFound, match="nothing at files/su") as caught:
        export(ann, tmp_path / "out", prefix="files/su")
    assert caught.value.hint is not None
    assert "files/sub/" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_not_empty_is_refused(ann: Clone, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        export(ann, tmp_path / "out")
    assert files_in(tmp_path / "out") == {"mine": b"mine"}
    with pytest.raises(UsageError, match="is not a directory"):
        export(ann, tmp_path / "out" / "mine")
    for managed in (ann.repo.tree_root / "files" / "out", ann.repo.local / "out"):
        with pytest.raises(UsageError, match="which Bayou manages"):
            export(ann, managed)
        assert not managed.exists()


def test_a_second_export_to_the_same_place_is_refused(ann: Clone, tmp_path: Path):
    export(ann, tmp_path / "out")
    with pytest.raises(UsageError, match="is not empty"):
        export(ann, tmp_path / "out")


def test_a_datastore_that_is_a_directory_and_work_offline_are_errors(ann: Clone, tmp_path: Path):
    with pytest.raises(Offline):
        api.export(replace(ann.repo, offline=True), tmp_path / "out")
    with pytest.raises(UsageError, match="whose files have their names"):
        api.export(open_repo(init_repo(tmp_path / "alone").root), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_and_missing_files_are_named_and_the_rest_is_written(ann: Clone, team: Team, tmp_path: Path):
    ann.write("files/other", b"in another pack")
    ann.push()
    entries = entries_of(team.store())
    damage(team, entries["files/a.txt"])
    team.store().delete([entries["files/other"].key, entries["files/large"].key])

    report = export(ann, tmp_path / "out")

    assert {(one.path, one.code) for one in report.failed} == {
        ("files/a.txt", "bad_content"),
        ("files/other", "missing"),
        ("files/large", "missing"),
    }
    assert report.failures == 3
    assert files_in(tmp_path / "out").keys() == FILES.keys() - {"files/a.txt", "files/large"}


@pytest.mark.parametrize("path", ["files/../../out", "/files/x", "files/a\\b", "files/\x01", "elsewhere/x"])
def test_no_row_leads_out_of_the_directory(ann: Clone, team: Team, tmp_path: Path, path: str):
    """V21, V25: the rows of a hostile index are refused and named."""
    entry = entries_of(team.store())["files/a.txt"]
    commit_rows(team.store(), {path: replace(entry, path=path)})

    report = export(ann, tmp_path / "target" / "out")

    assert [(one.path, one.code) for one in report.failed] == [(path, "path_refused")]
    assert files_in(tmp_path / "target" / "out") == FILES
    assert set(os.listdir(tmp_path / "target")) == {"out"}


def test_a_file_in_the_way_of_a_directory_is_named(ann: Clone, team: Team, tmp_path: Path):
    entry = entries_of(team.store())["files/a.txt"]
    commit_rows(team.store(), {"files/a.txt/below": replace(entry, path="files/a.txt/below")})

    report = export(ann, tmp_path / "out")

    assert [(one.path, one.code) for one in report.failed] == [("files/a.txt/below", "path_refused")]
    assert files_in(tmp_path / "out") == FILES


def test_files_that_a_compaction_moves_meanwhile_are_written(ann: Clone, team: Team, tmp_path: Path, monkeypatch):
    """P7: the head that the export began with names packs that are gone."""
    ann.write("files/changed", b"before")
    ann.push()
    stale = read_head(team.store())
    old = [entry.key for entry in entries_of(team.store()).values()]
    ann.write("files/changed", b"after")
    ann.push()
    compact(team.store())
    team.store().delete(old)
    heads = [stale]
    monkeypatch.setattr("bayou.sync.read_file.read_head", lambda store: heads.pop() if heads else read_head(store))

    report = export(ann, tmp_path / "out")

    assert [(one.path, one.code) for one in report.failed] == [("files/changed", "changed")]
    assert files_in(tmp_path / "out") == FILES


def test_files_that_the_store_does_not_give_out_are_named(ann: Clone, tmp_path: Path, wire: Wire):
    wire.cut(Fault("get", keys.PACKS, error=lambda: AccessDenied("not this one")))

    report = export(ann, tmp_path / "out")

    assert {(one.path, one.code) for one in report.failed} == {
        (path, "access_denied") for path in FILES.keys() - {"files/large"}
    }
    assert files_in(tmp_path / "out") == {"files/large": FILES["files/large"]}


def test_a_large_file_that_did_not_arrive_leaves_no_part_of_it(
    ann: Clone, tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(executor, "THRESHOLD", 100 << 10)
    wire.cut(Fault("get", "/large$", error=lambda: AccessDenied("not this one")))

    report = export(ann, tmp_path / "out")

    assert [one.path for one in report.failed] == ["files/large"]
    assert set(os.listdir(tmp_path / "out")) == {"data", "files"}  # V14


def test_an_error_in_the_middle_says_how_much_was_written(ann: Clone, tmp_path: Path, wire: Wire):
    wire.cut(Fault("get", keys.PACKS, error=lambda: CredentialsExpired("they were valid for an hour")))

    with pytest.raises(CredentialsExpired) as caught:
        export(ann, tmp_path / "out")

    assert caught.value.__notes__ == [f"1 file of 307,200 bytes written to {tmp_path / 'out'}"]
    assert files_in(tmp_path / "out") == {"files/large": FILES["files/large"]}


def test_an_interrupted_export_leaves_whole_files_and_says_how_many(ann: Clone, tmp_path: Path):
    class Interrupt(NoProgress):
        def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        export(ann, tmp_path / "out", progress=Interrupt())

    found = files_in(tmp_path / "out")
    assert len(found) == 1
    assert found.items() <= FILES.items()
    (note,) = caught.value.__notes__
    assert note.startswith("1 file of ")
    assert set(os.listdir(tmp_path / "out")) == {"files"}  # V14: no temporary files


def test_progress_counts_every_file(ann: Clone, tmp_path: Path):
    class Seen:
        def __init__(self) -> None:
            self.stages: list[tuple[str, int | None, int | None]] = []
            self.files = self.bytes = 0
            self.thread = threading.current_thread()

        def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
            self.stages.append((what, files, bytes))

        def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
            assert threading.current_thread() is self.thread
            self.files += files
            self.bytes += bytes

        def skip(self, bytes: int) -> None:  # noqa: A002
            raise AssertionError("an export fetches all bytes")

        def share(self, done: float) -> None:
            raise AssertionError("the files are counted")

        def end(self) -> None:
            self.stages.append(("end", None, None))

    seen = Seen()
    total = sum(map(len, FILES.values()))

    export(ann, tmp_path / "out", progress=seen)

    assert seen.stages == [("exporting", 6, total), ("end", None, None)]
    assert (seen.files, seen.bytes) == (6, total)


def test_an_export_of_s3_is_whole(s3_team: Team, tmp_path: Path):
    ann = s3_team.clone("ann")
    ann.write_all(FILES)
    ann.push()

    assert export(s3_team.clone("ben"), tmp_path / "out").files == 6
    assert files_in(tmp_path / "out") == FILES
