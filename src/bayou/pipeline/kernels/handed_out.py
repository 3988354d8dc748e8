"""Hand out records to tasks through a file that all of them see: each reads its own part of it, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyarrow
from msgspec import Struct

Kernel = Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]


def write(file: Path, records: pyarrow.RecordBatch, task_of: Sequence[int]) -> int:
    """Write records, those of each task together, and return for how many tasks; no number may be left out."""
    order = sorted(range(len(task_of)), key=task_of.__getitem__)
    count = 0
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, records.schema) as writer:
        for task, rows in groupby(order, key=task_of.__getitem__):
            if task != count:
                raise ValueError(f"nothing to do for task {count}")
            writer.write_batch(records.take(pyarrow.array(list(rows))))
            count += 1
    return count


class HandedOut(Struct, frozen=True):
    """A kernel: the numbers of tasks to what `kernel` makes of their records."""

    file: Path
    kernel: Kernel

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        tasks = [number for found in batches for number in found.column(0).to_pylist()]
        with pyarrow.memory_map(str(self.file)) as source:
            reader = pyarrow.ipc.open_file(source)
            yield from self.kernel(reader.get_batch(task) for task in tasks)
