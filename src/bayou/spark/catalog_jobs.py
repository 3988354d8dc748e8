"""Backfill on Spark: the records of a tree, read and parsed by tasks, as a stream for one load of the catalog here.

Parse metadata: records of a part of a tree as rows of the catalog, read by the function that the point way uses.

Judge and weigh items: the versions of each, together and in order, by the function that the point way uses.

Retention on Spark: the catalog's versions, brought together by item and sorted, judged where they are.

What the catalog says is read by tasks; only what may go comes back, in order of item and number, as a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.progress import Progress
from bayou.spark.arrow import INT, TEXT, batches, batches_of_rows, ddl, rows
from bayou.spark.progress import watching
from bayou.spark.session import interrupt_at_deadline
from bayou.spark.sources.source import load
from bayou.spark.sql import views
from bayou.spark.sql.views import VERSION, read_parts

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

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


def backfill(
    spark: SparkSession,
    parts: Sequence[Any],
    read: Callable[[Any], Iterator[Line]],
    *,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
) -> Generator[Line, None, None]:
    """Yield what `read` tells of each of the parts, a task for each; never held whole here.

    A task that runs twice reads twice, and one of its answers counts.
    """
    found = load(spark, "metadata", LINES, parts, Parse(read))
    with interrupt_at_deadline(spark, deadline), watching(spark, progress, "reading records"):
        for batch in batches(spark, found):
            yield from lines(batch)


RULINGS = pyarrow.schema({"row": TEXT, "why": TEXT, "bytes": INT, "unclear": TEXT})
"""A version that may go: its row, as JSON, why, and what that frees; or why one cannot be judged."""

ITEM = ("type", "model_id", "name")
"""What the versions of an item have in common: the first columns of their rows."""


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


def retention_lines(found: pyarrow.RecordBatch) -> Iterator[Line]:
    """Yield the lines of a batch."""
    return rows(found, RULINGS.names)


_MOST_TASKS = 1000


def retention(
    spark: SparkSession,
    file: Path,
    court: Callable[[Sequence[Line]], Iterator[Line]],
    *,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
) -> Generator[Line, None, None]:
    """Yield what a court says of the items of a catalog, by item and number.

    An item is judged by one task, however many versions it has: all of them decide on each.
    """
    parts = views.ranges(file, VERSION)
    versions = read_parts(spark, parts, partial(views.read, file, VERSION), VERSION.schema)
    together = versions.repartitionByRange(max(1, min(len(parts), _MOST_TASKS)), *ITEM)
    judged = together.sortWithinPartitions(*ITEM, "version").mapInArrow(Judge(court), ddl(RULINGS))
    with interrupt_at_deadline(spark, deadline), watching(spark, progress, "judging versions"):
        for batch in batches(spark, judged):
            yield from retention_lines(batch)
