"""The work on the files of a sync, done by Spark's tasks: each gets about as many bytes and files as any other.

Tasks see the tree and its staging directory as files; what they read and write there is what threads of the caller
would have. So what each is to do lies there too, and not in the job, which Spark would have to sort; and so does what
each reports while it runs, so that a killed driver has recorded what its tasks had done (V19). The caller's process
holds one window of records at a time.
"""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.iterators import Prefetcher, batched
from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.spark.arrow import batches, ddl, entries_to_batch, tasks_of
from bayou.spark.kernels import transfer
from bayou.spark.kernels.transfer import MOVED, Kernel, Reports, TransferRow, in_rows, outcomes
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
"""Records of one job, which this process holds: whatever a sync decides at a time is one job."""

_LEAST = 512 * REQUEST
"""What a task is worth, in bytes and requests: less takes longer to hand over than to do."""

_ROUNDS = 8
"""Tasks for each that runs at once: so the last ones leave no core without work for long."""


class Sized(Protocol):
    """A record of a file or object."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)
R = TypeVar("R")


class _Expected(Struct, frozen=True):
    """Downloads that have begun before anybody asked for them."""

    entries: Mapping[str, Entry]
    results: Generator[Downloaded | Failure, None, None] | None


class SparkMover:
    """A `Mover` whose work is done by the workers of a session.

    `store` is the caller's own, and counts the requests of all. `SparkNotShared` if workers do not see the directories.
    Whoever has placed what came closes it.
    """

    def __init__(
        self,
        spark: SparkSession,
        recipe: StoreSpec,
        store: Store,
        root: Path,
        staging: Path,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        staging.mkdir(parents=True, exist_ok=True)
        require_shared(spark, root, "the tree")
        require_shared(spark, staging, "the directory that downloads go to")
        self._spark = spark
        self._recipe = recipe
        self._store = store
        self._root = root
        self._staging = staging
        self._deadline = deadline
        self._folders: list[Path] = []
        self._expected: deque[_Expected] = deque()

    def upload(self, uploads: Iterable[Upload], count: int) -> executor.UploadResults:
        """Write objects; the first job runs from now on."""
        return executor.raise_if_down(self._store, _under_way(self._uploads(batched(uploads, WINDOW))))

    def _uploads(self, windows: Iterator[Sequence[Upload]]) -> Generator[Upload | Failure | None, None, None]:
        first = next(windows, None)
        yield from self._send(first) if first is not None else (None,)
        for window in windows:
            yield from _under_way(self._send(window))

    def _send(self, window: Sequence[Upload]) -> Generator[Upload | Failure | None, None, None]:
        reports = self._staging / temporary_name()
        kernel = transfer.Uploads(self._recipe, self._root, seconds_left(self._deadline), reports)
        return self._run(window, transfer.to_batch, kernel, transfer.Sent({one.path: one for one in window}), reports)

    def download(self, entries: Iterable[Entry], count: int) -> Iterator[Downloaded | Failure]:
        return executor.raise_if_down(self._store, self._downloads(entries))

    def _downloads(self, entries: Iterable[Entry]) -> Iterator[Downloaded | Failure]:
        wanted = {entry.path: entry for entry in entries}
        if self._expected:
            yield from self._arriving(self._expected.popleft(), wanted)
        for window in batched(wanted.values(), WINDOW):
            yield from self._fetch(window)

    def expect(self, entries: Sequence[Entry]) -> None:
        """Begin with what a later `download` will ask for, if it still does; each of these calls must have one."""
        some = entries[:WINDOW]
        self._expected.append(_Expected({entry.path: entry for entry in some}, self._fetch(some) if some else None))

    def close(self) -> None:
        """End what nobody has asked for, and remove what downloads have left, once nobody takes any more of them."""
        for job in self._expected:
            if job.results is not None:
                job.results.close()
        for folder in self._folders:
            _remove(folder)

    def _arriving(self, job: _Expected, wanted: dict[str, Entry]) -> Iterator[Downloaded | Failure]:
        """Yield what was expected and is wanted as it was, and take that out of `wanted`."""
        for one in job.results or ():
            if wanted.get(one.path) == job.entries[one.path]:
                del wanted[one.path]
                yield one

    def _fetch(self, window: Sequence[Entry]) -> Generator[Downloaded | Failure, None, None]:
        folder = self._staging / temporary_name()
        folder.mkdir()
        self._folders.append(folder)
        reports = self._staging / temporary_name()
        kernel = transfer.Downloads(self._recipe, self._root, folder, seconds_left(self._deadline), reports)
        return _under_way(self._run(window, entries_to_batch, kernel, transfer.Came(folder), reports))

    def _run(
        self,
        window: Sequence[T],
        to_batch: Callable[[Sequence[T]], pyarrow.RecordBatch],
        kernel: Kernel,
        from_row: Callable[[TransferRow], R],
        reports: Path,
    ) -> Generator[R | Failure | None, None, None]:
        """Run one job: yield None once it runs, then what its tasks bring, as they do.

        The caller that closes this ends the job. `reports` is where the kernel reports to.
        """
        file = self._staging / temporary_name()
        with (
            spark_errors(log_of(self._spark)),
            interrupt_at_deadline(self._spark, self._deadline),
            removed_at_end(file),
            _folder(reports),
        ):
            tasks = transfer.write(file, to_batch(window), self._divide(window))
            numbers = self._spark.range(0, tasks, 1, tasks)
            done = numbers.mapInArrow(transfer.HandedOut(file, kernel), ddl(MOVED))
            found = Prefetcher(batches(self._spark, done), name="bayou-spark-results")
            whole = False
            try:
                yield None
                yield from outcomes(_rows(found, Reports(reports)), from_row, self._store)
                whole = True
            finally:
                if not whole:
                    interrupt_all(self._spark)
                    found.close()

    def _divide(self, window: Sequence[Sized]) -> list[int]:
        return divide([one.size for one in window], tasks_of(self._spark) * _ROUNDS)


def _rows(found: Prefetcher[pyarrow.RecordBatch], reports: Reports) -> Iterator[TransferRow]:
    """Yield what tasks report while they run, and what Spark hands over when they end: most paths come twice.

    What was reported before the job failed is yielded before that is raised: it need not be done again.
    """
    try:
        for some in found.poll():
            yield from reports.new()
            if some is not None:
                yield from in_rows(some)
    except (Exception, KeyboardInterrupt):
        yield from reports.new()
        raise


def _under_way(job: Generator[R | Failure | None, None, None]) -> Generator[R | Failure, None, None]:
    """Let a job begin; return what it brings."""
    next(job)
    return cast("Generator[R | Failure, None, None]", job)


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a directory for a while. A task that still runs afterwards reports in vain."""
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
def removed_at_end(file: Path) -> Iterator[None]:
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def divide(sizes: Sequence[int], most: int) -> list[int]:
    """Return the task of each file, so that bytes and files are spread evenly; a huge one is first, and alone.

    There are `most` tasks at most, and fewer where there is not enough to do for as many. Neighbours stay together:
    what lies in one directory is one task's, and is told in order of path.
    """
    costs = [size + REQUEST for size in sizes]
    whole = sum(costs)
    tasks = max(1, min(most, len(sizes), whole // _LEAST))
    huge = {at for at, cost in enumerate(costs) if cost * tasks >= whole}
    rest, parts = whole - sum(costs[at] for at in huge), tasks - len(huge)
    load: Counter[int] = Counter()
    part_of: list[int] = []
    before = 0
    for at, cost in enumerate(costs):
        if at in huge:
            part = -1 - at
        else:
            part = (2 * before + cost) * parts // (2 * rest)
            before += cost
        part_of.append(part)
        load[part] += cost
    number = {part: at for at, (part, _) in enumerate(load.most_common())}
    return [number[part] for part in part_of]
