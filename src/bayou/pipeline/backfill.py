"""Backfill on Spark: the records of a tree, read and parsed by tasks, as a stream for one load of the catalog here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bayou.core.deadline import Deadline
from bayou.core.progress import Progress
from bayou.pipeline.bound import ended_by
from bayou.pipeline.kernels.metadata import LINES, Line, Parse, lines
from bayou.pipeline.progress import watching
from bayou.pipeline.sources.source import load
from bayou.pipeline.stream import batches

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


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
    with ended_by(spark, deadline), watching(spark, progress, "reading records"):
        for batch in batches(spark, found):
            yield from lines(batch)
