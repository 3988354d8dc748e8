"""Keep what a kernel yields in a file, where its task runs, and tell no more than the file's name.

A task that runs twice leaves two files; whoever reads the names is told of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow
from msgspec import Struct
from pyarrow import parquet

from bayou.core.ids import ulid
from bayou.pipeline.arrow import TEXT, batch
from bayou.pipeline.kernels.handed_out import Kernel

KEPT = pyarrow.schema({"file": TEXT})


class Kept(Struct, frozen=True):
    """A kernel: what `kernel` makes of its input goes to a Parquet file in `folder`, if it is anything at all."""

    kernel: Kernel
    folder: Path

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        found = self.kernel(batches)
        first = next(found, None)
        if first is None:
            return
        name = f"{ulid()}.parquet"
        with parquet.ParquetWriter(self.folder / name, first.schema) as writer:
            writer.write_batch(first)
            for more in found:
                writer.write_batch(more)
        yield batch(KEPT, [[name]])
