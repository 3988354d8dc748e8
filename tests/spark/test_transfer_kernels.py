"""Kernels that move files: batches of records in, batches of results out, twice if need be. Without Spark."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core.errors import (
    CannotConnect,
    DeadlinePassed,
    DeleteFailed,
    NotFound,
    SparkFailed,
    TreeError,
    Unavailable,
)
from bayou.core.ids import ulid
from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.objectstore import keys, open_store
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.transport import PutResult, Requests
from bayou.packs.write import PACK_BYTES
from bayou.spark.arrow import entries_to_batch
from bayou.spark.division import divide
from bayou.spark.kernels import transfer
from bayou.spark.kernels.transfer import (
    DownloadResults,
    Downloads,
    QueuedUpload,
    Reports,
    TransferRow,
    UploadResults,
    Uploads,
    outcomes,
    queued_to_batch,
    report_done,
    result_rows,
    task_error,
    to_batches,
    to_rows,
    upload_row,
)
from bayou.sync.report import Failure
from bayou.sync.transfer import executor
from bayou.sync.transfer.executor import Downloaded, Pause, ThreadTransfer, Upload, raise_if_down
from bayou.worktree.staging import StagingArea


class Place:
    """A tree, its staging directory, and a store in a directory."""

    def __init__(self, root: Path) -> None:
        self.tree, self.staging, self.objects = root / "tree", root / "incoming", root / "store"
        for directory in (self.staging, self.objects):
            directory.mkdir(parents=True)
        self.spec = StoreSpec.of(self.objects.as_uri(), None, {}, 4)
        self.store = open_store(self.objects.as_uri())

    def write(self, path: str, data: bytes) -> Upload:
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return Upload(path, ulid(), len(data), hashlib.sha256(data).digest(), 0)

    def object_of(self, one: Upload) -> Path:
        return self.objects / keys.payload(one.path, one.push)

    def files(self) -> dict[str, bytes]:
        """Return every object that is there."""
        return {str(path): path.read_bytes() for path in self.objects.rglob("*") if path.is_file()}

    def staged(self) -> set[Path]:
        return {path for path in self.staging.rglob("*") if path.is_file()}

    def upload(self, uploads: list[Upload], *, packed: bool = False, pack_size: int = PACK_BYTES) -> list[TransferRow]:
        return rows_of(Uploads(self.spec, self.tree, pack_size)([queued(uploads, packed=packed)]))

    def download(self, entries: list[Entry]) -> list[TransferRow]:
        return rows_of(Downloads(self.spec, self.tree, self.staging)([entries_to_batch(entries)]))


T = TypeVar("T")


def queued(uploads: list[Upload], *, packed: bool = False) -> pyarrow.RecordBatch:
    return queued_to_batch([QueuedUpload(one, packed) for one in uploads])


def completed(found: Iterable[Any], kind: type[T]) -> list[T]:
    """Return the results, which are all of this kind; where one came late, a pause is between them."""
    results = [one for one in found if not isinstance(one, Pause)]
    assert [one for one in results if not isinstance(one, kind)] == []
    return results


def rows_of(batches) -> list[TransferRow]:
    return [row for found in batches for row in to_rows(found)]


def by_path(rows: list[TransferRow]) -> dict[str, str]:
    return {row.path: row.outcome for row in rows if row.path is not None}


def sent(rows: list[TransferRow]) -> dict[str, int]:
    return {row.code: row.requests for row in rows if row.outcome == "sent"}


def entry(one: Upload, **fields) -> Entry:
    values: dict[str, Any] = {
        "push": one.push,
        "size": one.size,
        "sha256": one.sha256,
        "etag": None,
        "version": None,
        "modified": 0,
    }
    return Entry(one.path, **(values | fields))


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def uploads(place) -> list[Upload]:
    return [place.write(f"data/t/m/n/{at}/raw", b"x" * at) for at in range(40)]


def test_an_upload_gives_the_results_of_the_point_way(place, uploads):
    rows = place.upload(uploads)

    assert {place.object_of(one).read_bytes() for one in uploads} == {b"x" * at for at in range(40)}
    results = completed(outcomes(rows, UploadResults({one.path: one for one in uploads}), place.store), Upload)
    again = ThreadTransfer(place.store, place.tree, StagingArea(place.tree, place.staging), PACK_BYTES)
    assert {one.path: one.stored.etag is not None for one in results} == {
        one.path: one.stored.etag is not None
        for one in completed(filter(None, again.upload(uploads, len(uploads))), Upload)
    }
    assert {(one.path, one.push, one.size, one.sha256, one.gc) for one in results} == {
        (one.path, one.push, one.size, one.sha256, one.gc) for one in uploads
    }


def test_v11_a_task_that_runs_twice_writes_the_same_bytes_to_the_same_keys(place, uploads):
    first = place.upload(uploads)
    objects = place.files()

    second = place.upload(uploads)

    assert place.files() == objects
    assert by_path(first) == by_path(second) == dict.fromkeys((one.path for one in uploads), "done")


def test_t13_an_upload_by_a_task_may_have_been_made_by_another_attempt_too(place, uploads):
    results = outcomes(place.upload(uploads), UploadResults({one.path: one for one in uploads}), place.store)

    assert all(one.stored.repeated for one in completed(results, Upload))


def test_a_file_that_changed_meanwhile_is_left_for_the_next_push(place, uploads):
    (place.tree / uploads[7].path).write_bytes(b"other bytes")
    (place.tree / uploads[8].path).unlink()

    rows = place.upload(uploads)

    found = completed(outcomes(rows, UploadResults({one.path: one for one in uploads}), place.store), Upload)
    results = {one.path: one for one in found}
    assert [path for path, one in results.items() if one.stored is None] == [uploads[7].path, uploads[8].path]
    assert not place.object_of(uploads[7]).exists()


@pytest.mark.timeout(60)
def test_nobody_waits_for_a_fifo_in_the_place_of_a_file(place, uploads):
    file = place.tree / uploads[5].path
    file.unlink()
    os.mkfifo(file)

    results = list(outcomes(place.upload(uploads), UploadResults({one.path: one for one in uploads}), place.store))

    (failed,) = (one for one in results if isinstance(one, Failure))
    assert (failed.path, failed.code) == (uploads[5].path, "tree_error")
    assert len(results) == 40


def test_what_is_appended_meanwhile_is_not_looked_at(place, uploads):
    with open(place.tree / uploads[9].path, "ab") as file:
        file.write(b"more")

    place.upload(uploads)

    assert place.object_of(uploads[9]).read_bytes() == b"x" * 9


def test_small_files_are_opened_by_one_thread_and_large_ones_by_whoever_sends_them(place, monkeypatch):
    opened: dict[str, bool] = {}
    as_it_is = executor.open_regular

    def watched(path: str, flags: int) -> int:
        opened[Path(path).name] = threading.current_thread().name == "bayou-uploads"
        return as_it_is(path, flags)

    monkeypatch.setattr(executor, "open_regular", watched)
    uploads = [
        place.write(f"files/{size}", b"x" * size)
        for size in (1, executor._SMALL_BYTES, executor._SMALL_BYTES + 1, 1 << 20)
    ]

    place.upload(uploads)

    assert opened == {
        "1": True,
        str(executor._SMALL_BYTES): True,
        str(executor._SMALL_BYTES + 1): False,
        str(1 << 20): False,
    }


@pytest.mark.parametrize("slow", [False, True])
def test_where_reading_takes_long_many_threads_read(place, monkeypatch, slow):
    by_one: list[bool] = []
    as_it_is = executor.open_regular

    def watched(path: str, flags: int) -> int:
        by_one.append(threading.current_thread().name == "bayou-uploads")
        return as_it_is(path, flags)

    monkeypatch.setattr(executor, "open_regular", watched)
    monkeypatch.setattr(executor, "QUICK_READ_S", -1.0 if slow else 1e9)
    uploads = [place.write(f"files/{at}", b"x") for at in range(executor._SAMPLE + 20)]

    rows = place.upload(uploads)

    assert by_path(rows) == dict.fromkeys((one.path for one in uploads), "done")
    assert by_one.count(True) == (executor._SAMPLE if slow else len(uploads))
    assert len(by_one) == len(uploads), "a file was opened twice"


def test_what_is_wrong_with_one_path_is_told_beside_the_others(place, uploads):
    link = place.tree / uploads[3].path
    link.unlink()
    link.symlink_to(place.tree / uploads[4].path)

    results = list(outcomes(place.upload(uploads), UploadResults({one.path: one for one in uploads}), place.store))

    (failed,) = (one for one in results if isinstance(one, Failure))
    assert (failed.path, failed.code) == (uploads[3].path, "unreadable")
    assert len(results) == 40


def test_v17_a_task_tells_what_it_sent(place, uploads):
    rows = place.upload(uploads)

    assert sent(rows) == {"put": 40, "bytes_out": sum(range(40))}
    assert sent(place.download([entry(one) for one in uploads[1:]])) == {"get": 39, "bytes_in": sum(range(40))}


def test_v17_requests_of_tasks_are_counted_with_our_own(place):
    before = place.store.requests
    rows = [TransferRow("sent", code="put", requests=3), TransferRow("sent", code="bytes_out", requests=500)] * 2

    assert list(outcomes(rows, lambda row: pytest.fail(str(row)), place.store)) == []
    assert place.store.requests - before == Requests(put=6, bytes_out=1000)


def test_downloads_are_staged_and_durable(place, uploads, monkeypatch):
    place.upload(uploads)
    synced = []
    monkeypatch.setattr(StagingArea, "sync", lambda _, files: synced.extend(files))

    rows = place.download([entry(one) for one in uploads])

    results = completed(outcomes(rows, DownloadResults(place.staging), place.store), Downloaded)
    assert {one.path: one.file.read_bytes() for one in results} == {
        f"data/t/m/n/{at}/raw": b"x" * at for at in range(40)
    }
    assert {one.sha256 for one in results} == {one.sha256 for one in uploads}
    assert all(one.durable for one in results)
    assert set(synced) == {one.file for one in results} == place.staged()


def test_a_download_that_runs_twice_touches_nothing_of_the_first(place, uploads):
    place.upload(uploads)
    first = place.download([entry(one) for one in uploads])
    files = {path: path.stat() for path in place.staged()}

    second = place.download([entry(one) for one in uploads])

    assert {path: path.stat() for path in files} == files
    assert len(place.staged()) == 80
    assert by_path(first) == by_path(second)
    StagingArea(place.tree, place.staging).clear()
    assert place.staged() == set()


def test_v14_a_task_that_outlives_its_job_does_not_bring_its_directory_back(place, uploads):
    """Spark interrupts tasks without waiting for their end: the job may have removed its directory before."""
    place.upload(uploads)
    folder = place.staging / "removed"

    rows = rows_of(Downloads(place.spec, place.tree, folder)([entries_to_batch([entry(one) for one in uploads])]))

    assert "done" not in {row.outcome for row in rows}
    assert not folder.exists()


def test_objects_that_are_gone_damaged_or_changed_leave_no_file(place, uploads):
    place.upload(uploads)
    place.object_of(uploads[5]).unlink()
    place.object_of(uploads[6]).write_bytes(b"y" * 6)
    plain = place.objects / "files/plain"
    plain.parent.mkdir()
    plain.write_bytes(b"z")
    listed = next(meta for page in place.store.list() for meta in page if meta.key == "files/plain")
    plain.write_bytes(b"!")
    os.utime(plain, (1, 1))
    found = Entry("files/plain", None, 1, None, listed.etag, None, 0)

    results = list(
        outcomes(place.download([*map(entry, uploads[5:7]), found]), DownloadResults(place.staging), place.store)
    )

    outcome_of = {result.path: result for result in results if not isinstance(result, Pause)}
    assert outcome_of.pop(uploads[5].path) == Downloaded(uploads[5].path)
    failed = {path: result.code for path, result in outcome_of.items() if isinstance(result, Failure)}
    assert failed == {uploads[6].path: "bad_content", "files/plain": "precondition_failed"}
    assert failed.keys() == outcome_of.keys()
    assert place.staged() == set()


def test_v12_a_task_has_the_time_that_the_caller_has(place, uploads):
    rows = rows_of(Uploads(place.spec, place.tree, PACK_BYTES, 0.0)([queued(uploads)]))

    assert by_path(rows) == {}
    with pytest.raises(DeadlinePassed):
        list(outcomes(rows, UploadResults({}), place.store))


def test_what_stops_a_task_is_raised_as_what_it_was(place):
    def broken():
        yield Downloaded("files/a", Path("staged"), b"1")
        place.store.put(keys.HEAD, b"")
        raise CannotConnect("nothing answers", hint="start it")

    rows = rows_of(
        to_batches(result_rows(broken(), lambda one: TransferRow("done", one.path, file="staged"), place.store))
    )
    came: list[Any] = []

    with pytest.raises(CannotConnect, match="nothing answers") as caught:
        came.extend(outcomes(rows, DownloadResults(Path("/staging")), place.store))

    assert caught.value.hint == "start it"
    assert [row.outcome for row in rows] == ["done", "sent", "stopped"]  # V17: also what was sent in vain


@pytest.mark.parametrize("kind", [CannotConnect, NotFound, TreeError])
def test_an_error_keeps_its_class(kind):
    made = task_error(TransferRow("stopped", code=kind.__name__, message="m", hint="h"))

    assert (type(made), made.message, made.hint) == (kind, "m", "h")


@pytest.mark.parametrize("name", [DeleteFailed.__name__, "annotations", "Mapping", "gone"])
def test_an_error_that_cannot_be_made_again_is_spark_s(name):
    assert type(task_error(TransferRow("stopped", code=name, message="m"))) is SparkFailed


def test_each_path_comes_once_however_often_it_is_told(place):
    rows = [
        TransferRow("done", "files/a", file="one"),
        TransferRow("done", "files/b", file="two"),
        TransferRow("done", "files/a", file="three"),
    ]

    assert [
        one.file.name for one in completed(outcomes(rows, DownloadResults(Path("/staging")), place.store), Downloaded)
    ] == [
        "one",
        "two",
    ]


TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.none() | st.integers(0, 2**62)
ROWS = st.builds(
    TransferRow,
    st.sampled_from(["done", "nothing", "failed"]),
    TEXTS,
    NUMBERS,
    st.none() | st.binary(max_size=32),
    TEXTS,
    TEXTS,
    st.none() | st.booleans(),
    TEXTS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    NUMBERS,
)


@given(st.lists(ROWS, max_size=20))
def test_rows_cross_as_they_are(some):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "BATCH_ROWS", 7)
        assert rows_of(to_batches(some)) == some


DONE = ROWS.map(lambda row: row._replace(outcome="done", code=None, message=None, hint=None, requests=None))


@given(st.lists(DONE, max_size=20), st.lists(st.integers(0, 200), max_size=4))
def test_a_report_is_read_record_by_record_however_it_grows(tmp_path_factory, some, cuts):
    folder, grown = tmp_path_factory.mktemp("reports"), tmp_path_factory.mktemp("grown")
    list(report_done(some, folder))
    (report,) = folder.iterdir()
    data = report.read_bytes()
    reports, at = Reports(grown), 0
    found: list[Any] = []

    for end in [*sorted(cuts), len(data)]:  # a torn record is one that is not there yet
        with open(grown / "report", "ab") as file:
            file.write(data[at:end])
        at = max(at, end)
        found.extend(reports.new())

    assert found == some
    assert list(reports.new()) == []


def test_v19_a_task_reports_each_upload_once_it_is_acknowledged_and_before_it_ends(place, uploads, tmp_path):
    (tmp_path / "reports").mkdir()
    reports = Reports(tmp_path / "reports")
    stored: list[Any] = []

    class Watched:
        """The uploads of a task, between which the driver looks."""

        def __iter__(self):
            for row in result_rows(
                executor.send_all(executor.Sender(place.store, place.tree), uploads, len(uploads)),
                upload_row,
                place.store,
            ):
                stored.extend(reports.new())
                yield row

    rows = list(report_done(Watched(), tmp_path / "reports"))

    # The last look is before the row that tells of requests: by then every upload has been reported.
    assert stored == [row for row in rows if row.outcome == "done"]
    assert len(stored) == 40
    assert all(place.object_of(one).exists() for one in uploads)


def test_only_what_is_done_is_reported_since_another_attempt_may_do_the_rest(tmp_path):
    rows = [
        TransferRow("done", "a"),
        TransferRow("failed", "b", code="c"),
        TransferRow("nothing", "c"),
        TransferRow("sent", code="put", requests=1),
    ]

    assert list(report_done(rows, tmp_path)) == rows
    assert list(Reports(tmp_path).new()) == [TransferRow("done", "a")]


def test_a_record_that_was_written_in_part_hides_no_other(tmp_path):
    list(report_done([TransferRow("done", "a"), TransferRow("done", "b")], tmp_path))
    (report,) = tmp_path.iterdir()
    (tmp_path / "full").write_bytes(report.read_bytes()[:7] + b"\n" + report.read_bytes())

    assert sorted(row.path for row in Reports(tmp_path).new()) == ["a", "a", "b", "b"]


def test_downloads_are_durable_before_they_are_reported(place, uploads, monkeypatch, tmp_path):
    place.upload(uploads)
    (tmp_path / "reports").mkdir()
    reports, seen = Reports(tmp_path / "reports"), []
    monkeypatch.setattr(transfer, "DURABLE_BATCH", 10)
    monkeypatch.setattr(StagingArea, "sync", lambda _, files: seen.append((len(list(reports.new())), len(list(files)))))
    kernel = Downloads(place.spec, place.tree, place.staging, reports=tmp_path / "reports")

    rows = rows_of(kernel([entries_to_batch([entry(one) for one in uploads])]))

    assert len([row for row in rows if row.outcome == "done"]) == 40
    assert seen == [(0, 10), (10, 10), (10, 10), (10, 10)]
    assert len(list(reports.new())) == 10


SIZES = st.lists(st.integers(0, 1 << 20) | st.sampled_from([0, 5000, 1 << 30, 1 << 40]), min_size=1, max_size=300)


@given(SIZES, st.integers(1, 40))
def test_no_task_has_much_more_to_do_than_another(sizes, most):
    task_of = divide([size + REQUEST for size in sizes], most)

    loads = [0] * (max(task_of) + 1)
    for task, size in zip(task_of, sizes, strict=True):
        loads[task] += size + REQUEST
    assert len(loads) <= most
    assert min(loads) > 0
    # However it is divided, somebody has the average, and somebody the largest file.
    assert max(loads) <= sum(loads) / len(loads) + max(sizes) + REQUEST
    assert max(loads) - min(loads) <= 2 * (max(sizes) + REQUEST)
    assert loads == sorted(loads, reverse=True)


@given(st.integers(1, 3000), st.integers(0, 1 << 16), st.integers(1, 40))
def test_files_of_one_size_are_spread_by_their_number(count, size, most):
    task_of = divide([size + REQUEST] * count, most)

    numbers = [task_of.count(task) for task in range(max(task_of) + 1)]
    assert max(numbers) - min(numbers) <= 1


@given(st.lists(st.integers(0, 1 << 16), min_size=40, max_size=500), st.integers(1, 16))
def test_neighbours_stay_together(sizes, most):
    task_of = divide([size + REQUEST for size in sizes], most)

    assert len(list(groupby(task_of))) == max(task_of) + 1


@given(st.lists(st.integers(0, 1 << 16), min_size=1, max_size=500), st.integers(2, 16), st.data())
def test_a_huge_file_is_the_first_task_and_alone(sizes, most, data):
    at = data.draw(st.integers(0, len(sizes)))
    sizes.insert(at, 1 << 40)

    task_of = divide([size + REQUEST for size in sizes], most)

    assert task_of[at] == 0
    assert task_of.count(0) == 1


def numbers(*tasks: int) -> list[pyarrow.RecordBatch]:
    return [pyarrow.RecordBatch.from_pydict({"id": [task]}) for task in tasks]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_each_task_finds_its_own_records_in_the_file(tmp_path_factory, tasks):
    task_of = [sorted(set(tasks)).index(task) for task in tasks]
    records = pyarrow.RecordBatch.from_pydict({"at": list(range(len(tasks)))})
    file = tmp_path_factory.mktemp("handed") / "out"

    count = transfer.write_records(file, records, task_of)

    kernel = transfer.TaskKernel(file, iter)
    found = [[at for got in kernel(numbers(task)) for at in got.column(0).to_pylist()] for task in range(count)]
    assert found == [[at for at, mine in enumerate(task_of) if mine == task] for task in range(max(task_of) + 1)]
    assert list(kernel(numbers(0))) == list(kernel(numbers(0)))  # a task may run twice


def test_a_task_without_records_is_a_mistake_and_not_a_gap(tmp_path):
    records = pyarrow.RecordBatch.from_pydict({"at": [1, 2]})
    with pytest.raises(ValueError, match="nothing to do for task 1"):
        transfer.write_records(tmp_path / "out", records, [0, 2])


@pytest.mark.parametrize("alone", [True, False])
def test_a_task_whose_only_object_answers_5xx_fails_that_path_alone(place, uploads, alone):
    broken = Failure(uploads[0].path, Unavailable.code, "503")
    tasks = [iter([broken]), iter([] if alone else [replace(uploads[1], stored=PutResult("e", None))])]
    rows = [row for results in tasks for row in result_rows(results, upload_row, place.store)]
    came = raise_if_down(place.store, outcomes(rows, UploadResults({one.path: one for one in uploads}), place.store))
    assert [one.path for one in came] == [one.path for one in uploads[: 1 if alone else 2]]


def test_v4_a_store_that_does_not_answer_for_its_head_either_is_down(place, uploads, monkeypatch):
    def down(*_: object) -> None:
        raise Unavailable("503")

    monkeypatch.setattr(type(place.store), "head", down)
    rows = result_rows(
        iter([Failure(one.path, Unavailable.code, "503") for one in uploads[:3]]), pytest.fail, place.store
    )
    with pytest.raises(Unavailable):
        list(raise_if_down(place.store, outcomes(rows, UploadResults({}), place.store)))
