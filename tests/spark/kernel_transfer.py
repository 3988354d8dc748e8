"""The transfers of a large sync without Spark: the same division and kernels, task after task in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from bayou.engine.parts import REQUEST
from bayou.objectstore.spec import StoreSpec
from bayou.spark import division
from bayou.spark.kernels import transfer
from bayou.spark.kernels.transfer import Kernel, Reports, TransferRow, outcomes, to_rows
from bayou.spark.transfer import SparkTransfer, _directory
from bayou.sync.context import SyncContext
from bayou.sync.report import Failure
from bayou.worktree.atomic_write import temporary_name
from tests.spark.without_spark import without_spark


class KernelTransfer(SparkTransfer):
    """Runs every task twice, as Spark may: both attempts report, and the second one's rows are returned."""

    def __init__(self, context: SyncContext, spec: StoreSpec) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bayou.spark.transfer.require_shared", lambda *_: None)
            size = context.repo.config.sync.pack_size
            super().__init__(None, spec, context.store, context.root, context.incoming.staging, size)

    @property
    def _most_tasks(self) -> int:
        return 4

    def _run(
        self,
        window: Sequence[Any],
        to_batch: Callable[[Sequence[Any]], pyarrow.RecordBatch],
        kernel: Kernel,
        from_row: Callable[[TransferRow], Any],
        reports: Path,
        task_of: Sequence[int],
    ) -> Generator[Any | Failure | None, None, None]:
        yield None
        file = self._staging / temporary_name()
        with _directory(reports):
            tasks = transfer.write_records(file, to_batch(window), task_of)
            rows = self._rows(transfer.TaskKernel(file, kernel), tasks, Reports(reports))
            yield from outcomes(rows, from_row, self._store)
        file.unlink()

    def _rows(self, kernel: Kernel, tasks: int, reports: Reports) -> Iterator[TransferRow]:
        for task in range(tasks):
            number = pyarrow.RecordBatch.from_pydict({"id": [task]})
            first = list(kernel([number]))
            second = list(kernel([number]))
            assert sum(batch.num_rows for batch in first) > 0
            yield from reports.new()
            for batch in second:
                yield from to_rows(batch)


@contextmanager
def kernels_without_spark() -> Iterator[None]:
    """Let this process compare and transfer as Spark's tasks would, in several tasks."""
    with without_spark(_mover), pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "LEAST", REQUEST)
        yield


def _mover(context: SyncContext) -> KernelTransfer:
    datastore = context.repo.config.datastore
    assert datastore.url is not None
    return KernelTransfer(context, StoreSpec.of(datastore.url, datastore.namespace, datastore.options, 4))
