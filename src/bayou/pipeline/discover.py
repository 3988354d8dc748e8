"""Discovery on Spark: list a store in parts, drop what is not payload, sort, write the leaves, stitch the rest here.

The result is the tree of `index.discovery` and `index.build`, node for node, however the work was divided. This process
never sees the entries: only the leaves' descriptions, the edges of parts, counts, and some of the keys refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from bayou.core.deadline import Deadline
from bayou.core.progress import Progress
from bayou.engine.parts import divide
from bayou.index.build import FLUSH_EVERY, join_partitions
from bayou.index.discovery import IN_THE_WAY, Discovered, Refused, head_lost
from bayou.index.node import Root
from bayou.index.node_store import NodeFile, Staging
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.pipeline.arrow import ddl, key_text
from bayou.pipeline.bound import ended_by
from bayou.pipeline.kernels import judge, leaves
from bayou.pipeline.kernels.leaves import FOUND, PIECES, Leaves, Nested
from bayou.pipeline.progress import watching
from bayou.pipeline.sources.listing import judged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

MOST_REFUSED = 1000
"""Refused keys that are named; of more, only the number is told."""

_ROWS = 25_000
"""Entries of one part: some fifty leaves, against the two edges that it leaves to this process."""

_PARTS_PER_TASK = 4
_MOST_TASKS = 1000


def discover(
    spark: SparkSession,
    store: Store,
    recipe: StoreSpec,
    sink: Staging,
    *,
    carry: bool = False,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> Discovered:
    """List a store without a head, and build the tree of its payload in `sink`.

    Leaves are written to the store by tasks, under the commit of `sink`; with `carry` they go to `sink` as well as the
    rest, and nothing is written to the store (V15). Errors are those of `index.discovery.discover`.
    """
    tasks = _tasks(spark)
    found = judged(spark, recipe, divide(store, tasks * _PARTS_PER_TASK), tasks).persist()
    try:
        with ended_by(spark, deadline):
            with watching(spark, progress, "listing"):
                counts = _counts(found)
            with watching(spark, progress, "indexing", files=counts.get(judge.PAYLOAD, 0)):
                return _build(store, found, counts, Leaves(sink.commit, None if carry else recipe), sink)
    finally:
        found.unpersist()


def _build(store: Store, found: DataFrame, counts: Mapping[str, int], kernel: Leaves, sink: Staging) -> Discovered:
    if counts.get(judge.STORE):
        others = frozenset(key_text(row["key"]) for row in _with(found, judge.STORE).select("key").distinct().collect())
        found = found.mapInArrow(partial(judge.without_others, others), ddl(judge.JUDGED))
        counts = _counts(found)
    if counts.get(judge.PUSHED):
        (one,) = _with(found, judge.PUSHED).select("key").orderBy("key").limit(1).collect()
        raise head_lost(store, key_text(one["key"]))
    payload, entries = _with(found, judge.PAYLOAD).select(*FOUND), counts.get(judge.PAYLOAD, 0)
    refusals = counts.get(judge.REFUSED, 0)
    refused = _refused(found) if refusals else []
    try:
        root = _tree(payload, entries, kernel, sink)
    except Nested:
        inside = payload.select("path").mapInArrow(leaves.parent_directories, "path string").distinct()
        crowded = payload.join(inside, "path", "left_semi").select("path").distinct()
        named = crowded.orderBy("path").limit(MOST_REFUSED).collect()
        refused = sorted((*refused, *(Refused(row["path"], IN_THE_WAY) for row in named)), key=attrgetter("key"))
        refusals += crowded.count()
        root = _tree(payload.join(inside, "path", "left_anti"), entries, kernel, sink, apart=True)
    return Discovered(root, refused[:MOST_REFUSED], refusals, counts.get(judge.IGNORED, 0))


def _tree(payload: DataFrame, entries: int, kernel: Leaves, sink: Staging, *, apart: bool = False) -> Root | None:
    """Sort the entries into parts, have the leaves of each written where it is, and stitch."""
    if entries == 0:
        return None
    parts = min(_MOST_TASKS, -(-entries // _ROWS))
    ordered = payload.repartitionByRange(parts, "path").sortWithinPartitions(payload["path"], payload["size"].desc())
    rows = ordered.mapInArrow(kernel, ddl(PIECES))
    return join_partitions(leaves.joined(_stream(rows), _keeping(sink), apart=apart), sink)


def _keeping(sink: Staging) -> Callable[[NodeFile], None]:
    """Return what takes leaves that tasks have carried here, and stores some of them at a time."""
    taken = count(1)

    def keep(file: NodeFile) -> None:
        sink.take(file)
        if next(taken) % FLUSH_EVERY == 0:
            sink.flush()

    return keep


def _refused(found: DataFrame) -> list[Refused]:
    first = _with(found, judge.REFUSED).orderBy("key").limit(MOST_REFUSED).collect()
    return [Refused(key_text(row["key"]), row["reason"]) for row in first]


def _stream(rows: DataFrame) -> Iterator[leaves.Row]:
    """Yield rows in the order of parts, a few at a time."""
    return (leaves.Row(*row) for row in rows.toLocalIterator(prefetchPartitions=True))


def _counts(found: DataFrame) -> dict[str, int]:
    return {row["verdict"]: row["count"] for row in found.groupBy("verdict").count().collect()}


def _with(found: DataFrame, verdict: str) -> DataFrame:
    return found.where(found["verdict"] == verdict)


def _tasks(spark: SparkSession) -> int:
    """Return a number of tasks that keeps the cluster busy: what shuffles are told is made for it."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
