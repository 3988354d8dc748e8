"""A large sync without Spark: jobs and rows travel as they do to Spark's workers, in this process and at once."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayou.config import SparkConfig
from bayou.engine import select
from bayou.engine.job import Needs
from bayou.index.entry import Entry
from bayou.objectstore.spec import StoreSpec
from bayou.spark.executor import SparkEngines, decode, encode, schema_of
from bayou.sync.context import SyncContext
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import (
    BulkTransferExecutor,
    Downloaded,
    DownloadResults,
    Pause,
    TransferExecutor,
    Upload,
    UploadResults,
)

MakeMover = Callable[[SyncContext], BulkTransferExecutor]

PARTS = 5


@contextmanager
def without_spark(mover: MakeMover | None = None) -> Iterator[None]:
    """Let this process do what Spark would."""
    select.install(lambda: PretendedEngine(mover or (lambda context: AtOnce(context.executor))))
    try:
        yield
    finally:
        select.install(SparkEngines)


@dataclass(frozen=True)
class PretendedEngine:
    """A `SparkEngine` that starts nothing."""

    make_mover: MakeMover

    def is_server_running(self, config: SparkConfig) -> bool:
        return True

    @contextmanager
    def open(self, config: SparkConfig, needs: Needs, **_: object) -> Iterator[PretendedExecutor]:
        yield PretendedExecutor(self.make_mover)


@dataclass(frozen=True)
class PretendedExecutor:
    """Runs parts one after the other, in the reverse order. Job and rows are encoded and decoded, as for Spark."""

    make_mover: MakeMover
    engine: str = "spark"
    slots: int = 1

    def run(self, job: Any) -> Any:
        sent = pickle.dumps((job, list(job.parts(PARTS))))
        worker, parts = pickle.loads(sent)
        return job.fold(row for part in reversed(parts) for row in self._rows(worker, part))

    def _rows(self, job: Any, part: Any) -> Iterator[Any]:
        rows = list(job.run(part))
        return decode(job.row, encode(schema_of(job.row), rows)) if rows else iter(())

    def transfer_executor(self, spec: StoreSpec, context: SyncContext) -> BulkTransferExecutor:
        return self.make_mover(context)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Moves everything before anybody asks for results, as Spark may have done."""

    mover: TransferExecutor
    expected: deque[dict[str, tuple[Entry, Downloaded | Failure]]] = field(default_factory=deque)
    brought: list[Path] = field(default_factory=list)

    def upload(self, uploads: Iterable[Upload], count: int, packed: Iterable[Upload] = ()) -> UploadResults:
        done = list(self.mover.upload(uploads, count, packed))
        return (one for one in done)

    def close(self) -> None:
        """Remove what nobody has taken, as Spark's mover does."""
        for file in self.brought:
            file.unlink(missing_ok=True)

    def expect(self, entries: Sequence[Entry]) -> None:
        came = {one.path: one for one in self.mover.download(entries, len(entries)) if not isinstance(one, Pause)}
        self.expected.append({entry.path: (entry, came[entry.path]) for entry in entries})
        self.brought.extend(one.file for one in came.values() if isinstance(one, Downloaded) and one.file is not None)

    def download(self, entries: Iterable[Entry], count: int) -> DownloadResults:
        came = self.expected.popleft() if self.expected else {}
        rest: list[Entry] = []
        for entry in entries:
            expected, result = came.get(entry.path, (None, None))
            if expected == entry and result is not None:
                yield result
            else:
                rest.append(entry)
        yield from self.mover.download(rest, len(rest))
