"""Kernels that move packs, and the division of packs among tasks. Without Spark."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections import Counter
from collections.abc import Iterable
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core.errors import AccessDenied
from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.objectstore import keys
from bayou.objectstore.transport import PutResult
from bayou.packs.read import read_one
from bayou.packs.write import PACK_BYTES
from bayou.spark import division, transfer
from bayou.spark.division import divide_downloads, divide_uploads
from bayou.spark.kernels.transfer import (
    DownloadResults,
    QueuedUpload,
    Reports,
    TransferRow,
    UploadResults,
    Uploads,
    outcomes,
)
from bayou.sync.transfer.executor import Downloaded, Upload
from tests.spark.test_transfer_kernels import Place, completed, entry, queued, rows_of, sent


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def uploads(place) -> list[Upload]:
    return [place.write(f"data/t/m/n/{at}/raw", b"x" * at) for at in range(40)]


PACK = 300
"""The size of a pack of a few of the files of `uploads`."""


def packed_entry(one: Upload) -> Entry:
    assert one.location is not None
    place = one.location
    return entry(one, pack=place.pack, offset=place.offset, stored=place.stored, method=place.method)


def results_of(place: Place, rows: Iterable[TransferRow], uploads: list[Upload]) -> list[Upload]:
    return completed(outcomes(rows, UploadResults({one.path: one for one in uploads}), place.store), Upload)


def members(place: Place) -> dict[str, list[str]]:
    """Return the paths in each pack, by the pack's name."""
    packs = {file.stem: zipfile.ZipFile(file) for file in place.objects.rglob("*.zip")}
    return {name: pack.namelist()[:-1] for name, pack in packs.items()}


def test_a_task_packs_its_files_in_order_and_says_where_each_is(place, uploads):
    uploads.sort(key=lambda one: one.path)
    rows = place.upload(uploads, packed=True, pack_size=PACK)

    results = results_of(place, rows, uploads)
    assert [one.path for one in results] == [one.path for one in uploads]
    packs = list(dict.fromkeys(one.location.pack for one in results))
    assert [path for name in packs for path in members(place)[name]] == [one.path for one in uploads]
    assert [(row.size, row.sha256) for row in rows if row.path] == [(one.size, one.sha256) for one in uploads]
    for one in results:
        data = read_one(place.store, packed_entry(one))
        assert (len(data), hashlib.sha256(data).digest()) == (one.size, one.sha256)
        assert (one.stored.etag, one.stored.version, one.stored.repeated) == (None, None, False)
    assert sent(rows)["put"] == len(packs) == len(members(place)) > 3


def test_the_last_pack_of_a_task_is_as_large_as_its_others(place):
    uploads = [place.write(f"files/{at:03}", os.urandom(1000)) for at in range(70)]

    place.upload(uploads, packed=True, pack_size=32_000)  # for two packs it is a little too much

    sizes = [len(paths) for paths in members(place).values()]
    assert len(sizes) == 2
    assert max(sizes) - min(sizes) <= 2


def test_p1_each_attempt_at_a_task_writes_packs_of_its_own_and_the_first_row_of_a_path_counts(place, uploads):
    first = place.upload(uploads, packed=True, pack_size=PACK)
    before = set(members(place))
    second = place.upload(uploads, packed=True, pack_size=PACK)

    written = set(members(place))
    assert before < written
    assert len(written) == 2 * len(before)
    lost, rest = first[:20], second  # the first attempt has reported this much before it was lost
    results = results_of(place, [*lost, *rest], uploads)
    assert len(results) == len(uploads)
    assert {one.path for one in results if one.location.pack in before} == {row.path for row in lost}
    assert all(read_one(place.store, packed_entry(one)) is not None for one in results)


def test_v11_a_file_of_a_pack_is_reported_only_after_the_store_has_the_pack(place, uploads, tmp_path, monkeypatch):
    (tmp_path / "reports").mkdir()
    reports = Reports(tmp_path / "reports")
    put, known = type(place.store).put, set[str | None]()

    def watched(store: Any, key: Any, data: bytes) -> PutResult:
        known.update(row.pack for row in reports.new())
        assert str(key) not in {str(keys.pack(name)) for name in known if name}
        return put(store, key, data)

    monkeypatch.setattr(type(place.store), "put", watched)
    kernel = Uploads(place.spec, place.tree, PACK, reports=tmp_path / "reports")
    rows = rows_of(kernel([queued(uploads, packed=True)]))

    assert len(known) > 1, "a task that has not ended reports packs"
    known.update(row.pack for row in reports.new())
    assert known == {row.pack for row in rows if row.outcome == "done"} == set(members(place))


def test_p3_a_file_that_changed_is_in_no_pack_and_one_that_grew_is_as_it_was(place, uploads):
    (place.tree / uploads[7].path).write_bytes(b"other bytes")
    (place.tree / uploads[8].path).unlink()
    with open(place.tree / uploads[9].path, "ab") as file:
        file.write(b"more")

    results = {one.path: one for one in results_of(place, place.upload(uploads, packed=True), uploads)}

    assert [path for path, one in results.items() if one.stored is None] == [uploads[7].path, uploads[8].path]
    assert read_one(place.store, packed_entry(results[uploads[9].path])) == b"x" * 9
    ((_, paths),) = members(place).items()
    assert sorted(paths) == sorted(one.path for one in uploads if one not in uploads[7:9])


def test_k19_a_row_with_another_hash_than_the_push_wants_is_no_upload(place, uploads):
    other = TransferRow("done", uploads[0].path, 5, b"5" * 32, pack="p", offset=0, stored=5, method=0)

    (result,) = results_of(place, [other], uploads)

    assert (result.stored, result.location) == (None, None)


def test_k13_a_pack_whose_put_was_repeated_says_so(place, uploads, monkeypatch):
    put = type(place.store).put
    monkeypatch.setattr(type(place.store), "put", lambda *args: replace(put(*args), repeated=True))

    results = results_of(place, place.upload(uploads, packed=True), uploads)

    assert {one.stored.repeated for one in results} == {True}


def test_the_files_of_a_pack_that_the_store_refuses_fail_and_the_other_packs_arrive(place, uploads, monkeypatch):
    put, puts = type(place.store).put, list[int]()

    def refused(store: Any, key: Any, data: bytes) -> PutResult:
        puts.append(len(data))
        if len(puts) == 2:
            raise AccessDenied("no")
        return put(store, key, data)

    monkeypatch.setattr(type(place.store), "put", refused)
    rows = place.upload(uploads, packed=True, pack_size=PACK)

    failed = {row.path for row in rows if row.outcome == "failed"}
    done = {row.path for row in rows if row.outcome == "done"}
    assert failed
    assert {row.code for row in rows if row.outcome == "failed"} == {AccessDenied.code}
    assert done == {path for paths in members(place).values() for path in paths}
    assert failed | done == {one.path for one in uploads}


def test_a_task_reads_each_of_its_packs_once(place, uploads):
    results = results_of(place, place.upload(uploads, packed=True, pack_size=PACK), uploads)

    rows = place.download([packed_entry(one) for one in results])

    staged = completed(outcomes(rows, DownloadResults(place.staging), place.store), Downloaded)
    assert {one.path: one.file.read_bytes() for one in staged} == {
        f"data/t/m/n/{at}/raw": b"x" * at for at in range(40)
    }
    assert all(one.durable for one in staged)
    assert sent(rows)["get"] == len(members(place))


def test_p7_the_files_of_a_pack_that_is_gone_are_not_there_and_those_of_a_damaged_one_fail(place, uploads):
    results = results_of(place, place.upload(uploads, packed=True, pack_size=PACK), uploads)
    gone, damaged, *_ = packs = list(dict.fromkeys(one.location.pack for one in results))
    (place.objects / keys.pack(gone)).unlink()
    file = place.objects / keys.pack(damaged)
    file.write_bytes(b"?" * file.stat().st_size)

    rows = place.download([packed_entry(one) for one in results if one.size])

    of = {one.path: one.location.pack for one in results}
    outcome_of = {"nothing": gone, "failed": damaged}
    for row in rows:
        if row.path is not None:
            assert outcome_of.get(row.outcome, of[row.path]) == of[row.path]
    assert {of[row.path] for row in rows if row.path is not None} == set(packs)
    assert {row.code for row in rows if row.outcome == "failed"} == {"bad_content"}


UPLOADS = st.lists(st.tuples(st.integers(0, 1 << 18), st.booleans()), min_size=1, max_size=300)


def some_uploads(sizes: Iterable[tuple[int, bool]]) -> list[QueuedUpload]:
    return [
        QueuedUpload(Upload(f"files/{at:04}", "p", size, b"", 0), packed) for at, (size, packed) in enumerate(sizes)
    ]


@given(UPLOADS, st.integers(1, 40), st.sampled_from([1 << 16, 1 << 20]))
def test_a_task_packs_or_sends_objects_and_has_enough_for_a_full_pack(sizes, most, pack_size):
    window = some_uploads(sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "LEAST", 4 * REQUEST)
        task_of = divide_uploads(window, most, pack_size)

    tasks: dict[int, list[QueuedUpload]] = {}
    for task, item in zip(task_of, window, strict=True):
        tasks.setdefault(task, []).append(item)
    assert sorted(tasks) == list(range(len(tasks)))
    packing = [items for items in tasks.values() if items[0].packed]
    assert all(len({item.packed for item in items}) == 1 for items in tasks.values())
    assert len(packing) <= most
    assert len(tasks) - len(packing) <= most
    largest = max(size for size, _ in sizes)
    if len(packing) > 1:
        per_pack = sum(size for size, packed in sizes if packed) / len(packing)
        assert per_pack >= pack_size
        costs = [sum(item.upload.size + division.PACKED for item in items) for items in packing]
        assert max(costs) - min(costs) <= 2 * (largest + division.PACKED)


def test_small_files_between_large_ones_make_full_packs(place):
    window = some_uploads([(1000, True), (300_000, False)] * 20_000)

    task_of = divide_uploads(window, 16, PACK_BYTES)

    files = Counter(task for task, item in zip(task_of, window, strict=True) if item.packed)
    assert [count * 1000 >= PACK_BYTES for count in files.values()] == [True, True]
    assert len(set(task_of)) == 16 + 2


@given(st.lists(st.integers(0, 12), min_size=1, max_size=400), st.integers(1, 20))
def test_a_pack_is_read_by_one_task(packs, most):
    entries = [
        Entry(f"files/{at}", "p", 9000, b"", None, None, 0, None, f"pack {pack}" if pack else None, 0, 8000, 8)
        for at, pack in enumerate(packs)
    ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "LEAST", REQUEST)
        task_of = divide_downloads(entries, most)

    readers: dict[str | None, set[int]] = {}
    for task, one in zip(task_of, entries, strict=True):
        readers.setdefault(one.pack or one.path, set()).add(task)
    assert {len(tasks) for tasks in readers.values()} == {1}
    assert set(task_of) == set(range(max(task_of) + 1))
    assert len(set(task_of)) <= most


@pytest.mark.parametrize("removed", [False, True])
def test_p1_a_pack_of_an_attempt_that_outlives_its_job_is_never_named(place, uploads, tmp_path, monkeypatch, removed):
    """A straggler has begun its report and holds its pack; another attempt at its task ends, and so does the job."""
    directory = tmp_path / "reports"
    directory.mkdir()
    reports = Reports(directory)
    put, arrived, over = type(place.store).put, Event(), Event()

    def held(*args: Any) -> PutResult:
        if not arrived.is_set():
            arrived.set()
            assert over.wait(60)
        return put(*args)

    monkeypatch.setattr(type(place.store), "put", held)
    kernel = Uploads(place.spec, place.tree, PACK_BYTES, reports=directory)
    late: list[TransferRow] = []
    straggler = Thread(target=lambda: late.extend(rows_of(kernel([queued(uploads, packed=True)]))))
    straggler.start()
    assert arrived.wait(60)

    rows = rows_of(kernel([queued(uploads, packed=True)]))
    heard = [*rows, *reports.new()]
    if removed:
        transfer._remove(directory)
    over.set()
    straggler.join(60)

    if not removed:
        heard += reports.new()
        assert {row.pack for row in heard if row.path} == {late[0].pack, rows[0].pack}
    results = results_of(place, heard, uploads)
    assert len(results) == len(uploads)
    assert {one.location.pack for one in results} == {rows[0].pack}
    assert set(members(place)) == {rows[0].pack, late[0].pack}  # it has arrived, for gc
