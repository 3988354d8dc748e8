"""Upload and download the files of a sync by Spark's tasks, balanced by bytes and requests (`SparkTransfer`).

Tasks see the tree and its staging directory as files, and read and write there what the caller's threads would
otherwise. The records of a job are in a file in the staging directory and not in Spark's plan, so that Spark does not
have to shuffle them. Tasks also report there while they run, so that a killed driver has recorded what its tasks had
done (V19). The caller's process holds one window of records at a time.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.iterators import Prefetcher, batched
from bayou.index.entry import Entry
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.spark.arrow import batches, ddl, entries_to_batch, tasks_of
from bayou.spark.division import divide_downloads, divide_uploads
from bayou.spark.kernels import transfer
from bayou.spark.kernels.transfer import MOVED, Kernel, QueuedUpload, Reports, TransferRow, outcomes, to_rows
from bayou.spark.session import interrupt_all, interrupt_at_deadline, log_of, seconds_left, spark_errors
from bayou.spark.shared_fs import require_shared
from bayou.sync.report import Failure
from bayou.sync.transfer import executor
from bayou.sync.transfer.executor import Downloaded, Upload
from bayou.worktree.atomic_write import temporary_name

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.connect.session import SparkSession

WINDOW = 100_000
"""The most records of one job, which this process holds in memory."""

_ROUNDS = 8
"""Tasks for each slot, so that the last tasks leave no core idle for long."""


class HasPath(Protocol):
    """A record of a file or an object."""

    @property
    def path(self) -> str: ...


T = TypeVar("T", bound=HasPath)
R = TypeVar("R")


class _Prefetch(Struct, frozen=True):
    """Downloads that were started before the call of `download` that takes them."""

    entries: Mapping[str, Entry]
    results: Generator[Downloaded | Failure, None, None] | None


class SparkTransfer:
    """A `TransferExecutor` whose uploads and downloads are done by the workers of a session.

    `store` is the caller's own client, and also counts the workers' requests. Raise `SparkNotShared` if the workers do
    not see the directories. The caller calls `close` after it has moved the downloads out of the staging directory.
    """

    def __init__(
        self,
        spark: SparkSession,
        spec: StoreSpec,
        store: Store,
        root: Path,
        staging: Path,
        pack_size: int,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        staging.mkdir(parents=True, exist_ok=True)
        require_shared(spark, root, "the tree")
        require_shared(spark, staging, "the directory that downloads go to")
        self._spark = spark
        self._spec = spec
        self._store = store
        self._root = root
        self._staging = staging
        self.pack_size = pack_size
        self._deadline = deadline
        self._folders: list[Path] = []
        self._prefetched: deque[_Prefetch] = deque()

    def upload(self, uploads: Iterable[Upload], count: int, packed: Iterable[Upload] = ()) -> executor.UploadResults:
        """Write objects and packs; the first job starts at once. A file comes once it is stored, and never before."""
        loose_items = (QueuedUpload(upload, packed=False) for upload in uploads)
        packed_items = (QueuedUpload(upload, packed=True) for upload in packed)
        windows = batched(chain(loose_items, packed_items), WINDOW)
        return executor.raise_if_down(self._store, _started(self._uploads(windows)))

    def _uploads(self, windows: Iterator[list[QueuedUpload]]) -> Generator[Upload | Failure | None, None, None]:
        first = next(windows, None)
        yield from self._send(first) if first is not None else (None,)
        for window in windows:
            yield from _started(self._send(window))

    def _send(self, window: list[QueuedUpload]) -> Generator[Upload | Failure | None, None, None]:
        window.sort(key=attrgetter("path"))  # files that are read together lie together in a pack
        reports = self._staging / temporary_name()
        kernel = transfer.Uploads(self._spec, self._root, self.pack_size, seconds_left(self._deadline), reports)
        return self._run(
            window,
            transfer.queued_to_batch,
            kernel,
            transfer.UploadResults({item.path: item.upload for item in window}),
            reports,
            divide_uploads(window, self._most_tasks, self.pack_size),
        )

    def download(self, entries: Iterable[Entry], count: int) -> Iterator[Downloaded | Failure]:
        return executor.raise_if_down(self._store, self._downloads(entries))

    def _downloads(self, entries: Iterable[Entry]) -> Iterator[Downloaded | Failure]:
        wanted = {entry.path: entry for entry in entries}
        if self._prefetched:
            yield from self._take(self._prefetched.popleft(), wanted)
        for window in batched(wanted.values(), WINDOW):
            yield from self._fetch(window)

    def expect(self, entries: Sequence[Entry]) -> None:
        """Start downloads that a later call of `download` will probably request; each call must be followed by one."""
        window = entries[:WINDOW]
        results = self._fetch(window) if window else None
        self._prefetched.append(_Prefetch({entry.path: entry for entry in window}, results))

    def close(self) -> None:
        """End downloads that were not requested, and remove the staged files that the caller has not moved."""
        for job in self._prefetched:
            if job.results is not None:
                job.results.close()
        for folder in self._folders:
            _remove(folder)

    def _take(self, job: _Prefetch, wanted: dict[str, Entry]) -> Iterator[Downloaded | Failure]:
        """Yield the prefetched results that are still wanted unchanged, and remove them from `wanted`."""
        for result in job.results or ():
            if wanted.get(result.path) == job.entries[result.path]:
                del wanted[result.path]
                yield result

    def _fetch(self, window: Sequence[Entry]) -> Generator[Downloaded | Failure, None, None]:
        folder = self._staging / temporary_name()
        folder.mkdir()
        self._folders.append(folder)
        reports = self._staging / temporary_name()
        kernel = transfer.Downloads(self._spec, self._root, folder, seconds_left(self._deadline), reports)
        task_of = divide_downloads(window, self._most_tasks)
        return _started(self._run(window, entries_to_batch, kernel, transfer.DownloadResults(folder), reports, task_of))

    def _run(
        self,
        window: Sequence[T],
        to_batch: Callable[[Sequence[T]], pyarrow.RecordBatch],
        kernel: Kernel,
        from_row: Callable[[TransferRow], R],
        reports: Path,
        task_of: Sequence[int],
    ) -> Generator[R | Failure | None, None, None]:
        """Run one job: yield None once it runs, then the results of its tasks as they arrive.

        Closing the generator ends the job. `reports` is the directory to which the kernel reports, `task_of` the task
        of each record.
        """
        file = self._staging / temporary_name()
        with (
            spark_errors(log_of(self._spark)),
            interrupt_at_deadline(self._spark, self._deadline),
            _removed_at_end(file),
            _directory(reports),
        ):
            tasks = transfer.write_records(file, to_batch(window), task_of)
            numbers = self._spark.range(0, tasks, 1, tasks)
            done = numbers.mapInArrow(transfer.TaskKernel(file, kernel), ddl(MOVED))
            found = Prefetcher(batches(self._spark, done), name="bayou-spark-results")
            complete = False
            try:
                yield None
                yield from outcomes(_rows(found, Reports(reports)), from_row, self._store)
                complete = True
            finally:
                if not complete:
                    interrupt_all(self._spark)
                    found.close()

    @property
    def _most_tasks(self) -> int:
        return tasks_of(self._spark) * _ROUNDS


def _rows(found: Prefetcher[pyarrow.RecordBatch], reports: Reports) -> Iterator[TransferRow]:
    """Yield the rows that tasks report while they run, and those that Spark returns when they end: most paths twice.

    If the job fails, this yields the rows reported so far before it raises: their work need not be done again (V19).
    """
    try:
        for batch in found.poll():
            yield from reports.new()
            if batch is not None:
                yield from to_rows(batch)
    except (Exception, KeyboardInterrupt):
        yield from reports.new()
        raise


def _started(job: Generator[R | Failure | None, None, None]) -> Generator[R | Failure, None, None]:
    """Start a job, and return the generator of its results."""
    next(job)
    return cast("Generator[R | Failure, None, None]", job)


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Make a directory, and remove it at the end; a task that still runs then fails to report."""
    path.mkdir(mode=0o700)
    try:
        yield
    finally:
        _remove(path)


def _remove(folder: Path) -> None:
    """Remove a directory that tasks may still write to, since Spark interrupts them without waiting for their end."""
    doomed = folder.with_name(temporary_name())
    with suppress(FileNotFoundError):
        folder.rename(doomed)  # from here on no task finds it
        shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def _removed_at_end(file: Path) -> Iterator[None]:
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
