"""Judge and weigh items: the versions of each, together and in order, by the function that the point way uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow
from msgspec import Struct

from bayou.pipeline.arrow import INT, TEXT, batches_of_rows, rows

RULINGS = pyarrow.schema({"row": TEXT, "why": TEXT, "bytes": INT, "unclear": TEXT})
"""A version that may go: its row, as JSON, why, and what that frees; or why one cannot be judged."""

ITEM = ("type", "model_id", "name")
"""What the versions of an item have in common: the first columns of their rows."""

Line = tuple[Any, ...]
"""A row of `RULINGS`."""

_AT_ONCE = 1000


class Judge(Struct, frozen=True):
    """A kernel: rows of versions, sorted by item and number, to batches of `RULINGS`.

    `court` is the caller's, and is given the rows of one item at a time; it is pickled with the kernel.
    """

    court: Callable[[Sequence[Line]], Iterator[Line]]

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        versions = (row for found in batches for row in rows(found, found.schema.names))
        items = groupby(versions, key=itemgetter(*range(len(ITEM))))
        told = (line for _, item in items for line in self.court(list(item)))
        return batches_of_rows(RULINGS, told, _AT_ONCE)


def lines(found: pyarrow.RecordBatch) -> Iterator[Line]:
    """Yield the lines of a batch."""
    return rows(found, RULINGS.names)
