"""The plan of a large sync without Spark: the same sources and kernel, joined here; so many cases take little time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bayou.index.entry import Entry
from bayou.objectstore import open_store
from bayou.objectstore.store import Store
from bayou.spark import plan
from bayou.spark.arrow import batch, rows
from bayou.spark.executor import SparkExecutor
from bayou.spark.kernels.plan import ObserveKernel, ParquetKernel
from bayou.spark.sources import index_entries, sync_inputs
from bayou.spark.sources.sync_inputs import Inputs, divide, read, schema_of
from bayou.sync.bulk import Bulk
from bayou.sync.context import SyncContext
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import Downloaded, TransferExecutor, Upload, UploadResults


@contextmanager
def without_spark() -> Iterator[None]:
    """Let this process do what Spark would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bulk, "run", lambda self, what, job: job(SparkExecutor(None), self.datastore.url))
        patch.setattr(plan, "compare", compare)
        patch.setattr(plan, "interrupt_at_deadline", lambda *_: nullcontext())
        patch.setattr(plan, "interrupt_on_error", lambda *_: nullcontext())
        opened: dict[str, Store] = {}
        for source in (index_entries, sync_inputs):
            patch.setattr(source, "store_of", lambda url: opened.setdefault(url, open_store(url)))
        patch.setattr("bayou.spark.executor.log_of", lambda _: None)
        patch.setattr("bayou.sync.bulk_pass._spark_mover", moving)
        yield


@contextmanager
def moving(context: SyncContext, *_: object) -> Iterator[AtOnce]:
    mover = AtOnce(context.executor)
    try:
        yield mover
    finally:
        mover.close()


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
        came = {one.path: one for one in self.mover.download(entries, len(entries))}
        self.expected.append({entry.path: (entry, came[entry.path]) for entry in entries})
        self.brought.extend(one.file for one in came.values() if isinstance(one, Downloaded) and one.file is not None)

    def download(self, entries: Iterable[Entry], count: int) -> Iterator[Downloaded | Failure]:
        came = self.expected.popleft() if self.expected else {}
        rest: list[Entry] = []
        for entry in entries:
            expected, result = came.get(entry.path, (None, None))
            if expected == entry:
                yield result
            else:
                rest.append(entry)
        yield from self.mover.download(rest, len(rest))


def compare(spark: None, spec: Any, inputs: Inputs, kernel: ObserveKernel, target: Path) -> list[Path]:
    sides, parts = divide(inputs, 3)
    schema = schema_of(sides)
    words: dict[str, list[Any]] = {}
    for part in parts:
        for found in read(spec, inputs.root, inputs.cache, schema, part):
            for row in rows(found, schema.names):
                before = words.setdefault(str(row[0]), [None] * len(row))
                words[str(row[0])] = [new if old is None else old for old, new in zip(before, row, strict=True)]
    target.mkdir()
    mixed = ([row for path, row in sorted(words.items()) if hash(path) % 3 == number] for number in range(3))
    return [
        target / name
        for mine in mixed
        for told in ParquetKernel(kernel, target)([batch(schema, list(zip(*mine, strict=True)))] if mine else [])
        for name in told.column("file").to_pylist()
    ]
