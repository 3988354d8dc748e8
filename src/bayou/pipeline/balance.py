"""Divide rows among tasks by what they cost, and not by their number: one huge file among small ones, or one model that
has most of them, must not leave the other tasks without work."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BUCKETS = 64
"""For each task: enough to even out, few enough to count here."""

REQUEST = 1 << 16
"""What a request costs besides its bytes, in bytes: a small file takes as long as this many."""


def balanced(frame: DataFrame, key: str, size: str, tasks: int) -> DataFrame:
    """Return the same rows in `tasks` parts of about the same cost; a row costs its `size` and a request."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    buckets = tasks * _BUCKETS
    placed = frame.withColumn("_bucket", f.pmod(f.xxhash64(key), f.lit(buckets)).cast("int"))
    cost = f.sum(f.col(size) + REQUEST).alias("cost")
    costs = {row["_bucket"]: row["cost"] for row in placed.groupBy("_bucket").agg(cost).collect()}
    if not costs:
        return frame
    task_of = frame.sparkSession.createDataFrame(list(assign(costs, tasks).items()), "_bucket int, _task int")
    joined = placed.join(f.broadcast(task_of), "_bucket")
    return joined.repartitionById(tasks, "_task").select(*frame.columns)


def assign(costs: Mapping[int, int], tasks: int) -> dict[int, int]:
    """Give each bucket a task: the costliest first, always to whoever has the least."""
    load = [(0, task) for task in range(tasks)]
    found: dict[int, int] = {}
    for bucket, cost in sorted(costs.items(), key=lambda item: (-item[1], item[0])):
        least, task = load[0]
        heapq.heapreplace(load, (least + cost, task))
        found[bucket] = task
    return found
