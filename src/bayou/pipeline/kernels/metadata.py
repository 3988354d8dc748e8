"""Parse metadata: records of a part of a tree as rows of the catalog, read by the function that the point way uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
from msgspec import Struct

from bayou.pipeline.arrow import INT, TEXT, batches_of_rows, rows

LINES = pyarrow.schema({"path": TEXT, "kind": TEXT, "row": TEXT, "stamp": TEXT, "why": TEXT, "mtime": INT})
"""What is told of one file or directory: of what `kind` the answer is, and the row, as JSON, where it is one."""

Line = tuple[Any, ...]
"""A row of `LINES`."""

_AT_ONCE = 1000


class Parse(Struct, frozen=True):
    """A kernel: a part of a tree to batches of `LINES`. `read` is the caller's, and is pickled with it."""

    read: Callable[[Any], Iterator[Line]]

    def __call__(self, part: Any) -> Iterator[pyarrow.RecordBatch]:
        return batches_of_rows(LINES, self.read(part), _AT_ONCE)


def lines(found: pyarrow.RecordBatch) -> Iterator[Line]:
    """Yield the lines of a batch."""
    return rows(found, LINES.names)
