"""Retention on Spark: the catalog's versions, brought together by item and sorted, judged where they are.

What the catalog says is read by tasks; only what may go comes back, in order of item and number, as a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bayou.core.deadline import Deadline
from bayou.core.progress import Progress
from bayou.pipeline.arrow import ddl
from bayou.pipeline.bound import ended_by
from bayou.pipeline.kernels.retention import ITEM, RULINGS, Judge, Line, lines
from bayou.pipeline.progress import watching
from bayou.pipeline.sql import catalog
from bayou.pipeline.sql.tables import VERSION
from bayou.pipeline.sql.views import read_parts
from bayou.pipeline.stream import batches

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

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
    parts = catalog.ranges(file, VERSION)
    versions = read_parts(spark, parts, partial(catalog.read, file, VERSION), VERSION.schema)
    together = versions.repartitionByRange(max(1, min(len(parts), _MOST_TASKS)), *ITEM)
    judged = together.sortWithinPartitions(*ITEM, "version").mapInArrow(Judge(court), ddl(RULINGS))
    with ended_by(spark, deadline), watching(spark, progress, "judging versions"):
        for batch in batches(spark, judged):
            yield from lines(batch)
