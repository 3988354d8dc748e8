"""Files that Spark's tasks move: the same as this process would, whatever happens to a task."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import Any

import pyarrow
import pytest
from msgspec.structs import replace

from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, Cancelled, CannotConnect, SparkFailed
from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.objectstore.spec import StoreSpec
from bayou.packs.write import PACK_BYTES
from bayou.spark import division, transfer
from bayou.spark.kernels.transfer import Kernel
from bayou.spark.transfer import SparkTransfer
from bayou.sync.transfer.executor import Downloaded, ThreadTransfer, Upload
from bayou.worktree.staging import StagingArea
from tests.spark.test_packed_kernels import members, packed_entry
from tests.spark.test_transfer_kernels import Place, entry

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COUNT = 120
Batches = Iterable[pyarrow.RecordBatch]
Results = Iterator[pyarrow.RecordBatch]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    monkeypatch.setattr(division, "LEAST", 20 * REQUEST)  # so that a few files are several tasks
    return Place(tmp_path)


@pytest.fixture
def uploads(place) -> list[Upload]:
    return [place.write(f"data/t/m/n/{at}/raw", b"%d" % at) for at in range(COUNT)]


@pytest.fixture
def mover(spark, place) -> SparkTransfer:
    return SparkTransfer(spark, place.spec, place.store, place.tree, place.staging, PACK_BYTES)


@pytest.fixture(params=["objects", "packs"])
def packed(request, mover, monkeypatch) -> bool:
    """Whether the files travel in packs; then a few files are several tasks and packs, too."""
    if request.param == "packs":
        monkeypatch.setattr(division, "LEAST", 20 * division.PACKED)
        monkeypatch.setattr(mover, "pack_size", 50)
    return bool(request.param == "packs")


def send(mover: SparkTransfer | ThreadTransfer, uploads: list[Upload], *, packed: bool) -> list[Upload]:
    """Upload everything; return the last result of each file."""
    results = mover.upload((), 0, iter(uploads)) if packed else mover.upload(iter(uploads), len(uploads))
    sent = [one for one in results if isinstance(one, Upload) and one.stored is not None]
    assert sorted(one.path for one in sent) == sorted(one.path for one in uploads)
    assert all((one.location is not None) == packed for one in sent)
    return sent


def entry_of(one: Upload) -> Entry:
    assert one.stored is not None
    return packed_entry(one) if one.location is not None else entry(one, etag=one.stored.etag)


def moved(
    mover: SparkTransfer | ThreadTransfer, place: Place, uploads: list[Upload], *, packed: bool = False
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Push everything and bring it back; return what then is in the store and what was staged, by path."""
    sent = send(mover, uploads, packed=packed)
    back = mover.download(map(entry_of, sent), COUNT)
    came = [one for one in back if isinstance(one, Downloaded)]
    assert len({one.file for one in came}) == len(came) == COUNT
    return place.files(), {one.path: one.file.read_bytes() for one in came}


def everything(place: Place) -> dict[str, bytes]:
    return {f"data/t/m/n/{at}/raw": b"%d" % at for at in range(COUNT)}


def meddled(mover: SparkTransfer, wrap: Callable[[Kernel], Kernel]) -> SparkTransfer:
    """Let something happen to every task of a mover."""
    run = mover._run
    meddling: Any = mover
    meddling._run = lambda window, to_batch, kernel, *rest: run(window, to_batch, wrap(kernel), *rest)
    return mover


def test_spark_moves_what_threads_move(mover, place, uploads):
    start = place.store.requests
    threads = moved(
        ThreadTransfer(place.store, place.tree, StagingArea(place.tree, place.staging), PACK_BYTES), place, uploads
    )
    by_threads = place.store.requests

    spark = moved(mover, place, uploads)

    assert spark == threads
    assert len(spark[1]) == COUNT
    assert place.store.requests - by_threads == by_threads - start  # V17


def test_spark_packs_what_threads_pack_in_order_of_path_and_reads_each_pack_once(mover, place, uploads):
    threads = ThreadTransfer(place.store, place.tree, StagingArea(place.tree, place.staging), PACK_BYTES)
    start = place.store.requests
    by_threads = moved(threads, place, uploads, packed=True)[1]
    between = place.store.requests
    before = set(members(place))

    by_spark = moved(mover, place, uploads, packed=True)[1]

    assert by_spark == by_threads == everything(place)
    assert (between - start).put == (place.store.requests - between).put == 1
    assert (between - start).get == (place.store.requests - between).get == 1
    (names,) = (paths for name, paths in members(place).items() if name not in before)
    assert names == sorted(names)


def test_objects_and_packs_go_together(mover, place, uploads, monkeypatch):
    monkeypatch.setattr(division, "LEAST", 20 * division.PACKED)
    results = {one.path: one for one in mover.upload(uploads[:50], 50, uploads[50:])}

    assert results.keys() == {one.path for one in uploads}
    assert all(one.stored is not None for one in results.values())
    assert {one.path for one in results.values() if one.location is None} == {one.path for one in uploads[:50]}
    assert sorted(path for paths in members(place).values() for path in paths) == sorted(
        one.path for one in uploads[50:]
    )


def test_a_large_number_goes_in_windows(mover, place, uploads, monkeypatch):
    monkeypatch.setattr(transfer, "WINDOW", 50)
    taken = []

    def watched() -> Iterator[Upload]:
        for one in uploads:
            taken.append(one)
            yield one

    results = mover.upload(watched(), COUNT)
    first = next(results)

    assert len(taken) == 50  # intents of one window are recorded before its job, and of no other
    assert {first.path, *(one.path for one in results)} == {one.path for one in uploads}


def test_what_is_expected_is_brought_once_and_what_is_wanted_otherwise_is_brought_anew(mover, place, uploads):
    sent = [entry(one, etag=one.stored.etag) for one in mover.upload(iter(uploads), COUNT)]
    start = place.store.requests
    first, second, other = sent[:50], sent[50:100], sent[100:]
    mover.expect(first)
    mover.expect(second)

    came = list(mover.download(iter([*first[10:], *other]), 60))
    again = replace(second[0], push=None)  # nobody has written that
    later = {one.path: one for one in mover.download(iter([again, *second[1:]]), 50)}

    assert {one.path for one in came} == {one.path for one in (*first[10:], *other)}
    assert all(one.file.read_bytes() == place.tree.joinpath(one.path).read_bytes() for one in came)
    assert later.keys() == {one.path for one in second}
    assert getattr(later[again.path], "file", None) is None
    assert (place.store.requests - start).get == COUNT + 1
    assert len(place.staged()) == 120
    mover.close()
    assert place.staged() == set()


def test_what_was_expected_and_is_not_wanted_any_more_ends_with_its_mover(mover, place, uploads):
    sent = [entry(one, etag=one.stored.etag) for one in mover.upload(iter(uploads), COUNT)]
    mover.expect(sent)

    mover.close()

    assert place.staged() == set()
    assert not list(place.staging.iterdir())


def test_tasks_that_fail_half_of_their_first_attempts_leave_no_trace(mover, place, uploads, tmp_path, packed):
    def half_fail(kernel: Kernel) -> Kernel:
        marks = str(tmp_path / f"marks-{type(kernel).__name__}")
        os.mkdir(marks)

        def run(batches: Batches) -> Results:
            from pyspark import TaskContext

            part = TaskContext.get().partitionId()
            done = list(kernel(batches)) if part % 4 else []
            if part % 2 == 0 and not os.path.exists(f"{marks}/{part}"):
                open(f"{marks}/{part}", "x").close()
                yield from done[:1]  # of every other of them, rows are on their way already
                raise RuntimeError("lost")
            yield from done or kernel(batches)

        return run

    objects, files = moved(meddled(mover, half_fail), place, uploads, packed=packed)

    assert files == everything(place)
    assert packed or sorted(objects.values()) == sorted(files.values())
    assert all(len(list(path.iterdir())) > 1 for path in tmp_path.glob("marks-*"))
    assert len(place.staged()) > COUNT  # what lost attempts have left; nobody takes it
    StagingArea(place.tree, place.staging).clear()
    assert place.staged() == set()


def twice(kernel: Kernel) -> Kernel:
    def run(batches: Batches) -> Results:
        work = list(batches)
        other: list[pyarrow.RecordBatch] = []
        copy = Thread(target=lambda: other.extend(kernel(iter(work))))
        copy.start()
        yield from kernel(iter(work))
        copy.join()
        yield from other

    return run


def test_two_copies_of_every_task_give_one_result_for_each_path(mover, place, uploads, packed):
    """As with speculation, at its worst: both copies finish, and both are heard."""
    objects, files = moved(meddled(mover, twice), place, uploads, packed=packed)

    assert files == everything(place)
    assert packed or sorted(objects.values()) == sorted(files.values())


def test_p1_of_a_file_that_two_copies_of_a_task_have_packed_one_place_is_known(mover, place, uploads, monkeypatch):
    monkeypatch.setattr(division, "LEAST", 20 * division.PACKED)
    monkeypatch.setattr(mover, "pack_size", 50)

    sent = send(meddled(mover, twice), uploads, packed=True)

    packs = members(place)
    copies = Counter(path for paths in packs.values() for path in paths)
    assert set(copies.values()) == {2}, "each copy writes its files, into packs of its own"
    assert all(len(set(paths)) == len(paths) for paths in packs.values())
    assert all(one.path in packs[one.location.pack] for one in sent)
    assert len(sent) == COUNT


def test_a_worker_that_is_killed_in_the_middle_is_replaced(mover, place, uploads, tmp_path, packed):
    def killed(kernel: Kernel) -> Kernel:
        mark = str(tmp_path / f"killed-{type(kernel).__name__}")

        def run(batches: Batches) -> Results:
            work = list(batches)
            if not os.path.exists(mark):
                open(mark, "x").close()
                for _ in kernel(one.slice(0, one.num_rows // 2) for one in work):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            yield from kernel(iter(work))

        return run

    objects, files = moved(meddled(mover, killed), place, uploads, packed=packed)

    assert files == everything(place)
    assert packed or sorted(objects.values()) == sorted(files.values())
    assert len(list(tmp_path.glob("killed-*"))) == 2


def test_v4_a_store_that_is_gone_is_the_error_that_it_is_for_the_point_way(spark, place, uploads, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    spec = StoreSpec.of("s3://bucket/x", None, {"endpoint": "http://127.0.0.1:9", "region": "us-east-1"}, 4)
    store = spec.open()
    mover = SparkTransfer(spark, spec, store, place.tree, place.staging, PACK_BYTES)
    threads = ThreadTransfer(store, place.tree, StagingArea(place.tree, place.staging), PACK_BYTES)
    raised: list[BayouError] = []

    for one in (threads, mover):
        with pytest.raises(CannotConnect) as caught:
            list(one.upload(uploads, COUNT))
        raised.append(caught.value)
        with pytest.raises(CannotConnect):
            list(one.download([entry(one) for one in uploads], COUNT))

    assert raised[0].hint == raised[1].hint


def test_v12_a_transfer_ends_when_nobody_listens_and_when_it_is_cancelled(spark, place, uploads, tmp_path):
    deadline = Deadline.after(240)
    mover = SparkTransfer(spark, place.spec, place.store, place.tree, place.staging, PACK_BYTES, deadline=deadline)
    mark = tmp_path / "mark"

    def stalls(kernel: Kernel) -> Kernel:
        def run(batches: Batches) -> Results:
            from pyspark import TaskContext

            if TaskContext.get().partitionId() == 2:
                mark.touch()
                time.sleep(600)
            yield from kernel(batches)

        return run

    def stalled() -> None:
        while not mark.exists():
            deadline.sleep(0.01)

    results = meddled(mover, stalls).upload(uploads, COUNT)
    first = next(results)
    assert isinstance(first, Upload)
    assert first.stored is not None
    stalled()
    results.close()
    mark.unlink()
    Thread(target=lambda: (stalled(), deadline.cancel())).start()
    with pytest.raises(Cancelled):
        list(mover.upload(uploads, COUNT))

    assert spark.range(4).count() == 4  # no task has a core for itself any more


def test_a_task_that_cannot_be_done_is_a_job_that_failed(mover, uploads):
    def broken(kernel: Kernel) -> Kernel:
        def run(batches: Batches) -> Results:
            raise ValueError("a mistake")
            yield

        return run

    with pytest.raises(SparkFailed):
        list(meddled(mover, broken).upload(uploads, COUNT))
