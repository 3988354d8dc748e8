"""Replicate on Spark: compare two indexes, copy what one lacks from store to store, and have tasks write its leaves.

The result is that of `maintenance.replica.point`, node for node. This process sees counts, the failures, and the descriptions
of leaves; the workers need both stores and no directory of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import SyncError
from bayou.core.progress import Progress
from bayou.index.build import join_partitions
from bayou.index.node import Digest, Root
from bayou.index.node_store import Staging
from bayou.index.tree import IndexTree
from bayou.maintenance.replica.copy import Age
from bayou.maintenance.replica.plan import Counts
from bayou.maintenance.replica.point import MOST_FAILED, Made, PendingCopies
from bayou.objectstore.spec import StoreSpec
from bayou.pipeline.arrow import ENTRIES, ddl
from bayou.pipeline.balance import REQUEST, balanced
from bayou.pipeline.bound import ended_by, seconds_left
from bayou.pipeline.kernels import leaves
from bayou.pipeline.kernels.copies import DECIDED, PAIRS, RESULTS, Copy, Sieve, Written, decide
from bayou.pipeline.kernels.leaves import PIECES
from bayou.pipeline.progress import watching
from bayou.pipeline.shared import require_store
from bayou.pipeline.sources.entries import entries, leaf_refs
from bayou.pipeline.stream import tasks_of
from bayou.sync.report import Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_ROWS = 25_000
"""Entries of one part when leaves are written."""

_MOST_PARTS = 1000
_BYTES = 256 << 20
"""What one task copies: little enough to be copied again, should its worker die."""

_MOST_HELD = 100_000
"""Objects that may fail before the whole is given up: this process has to know them all."""


class Both(Struct, frozen=True):
    """The two stores, as workers open them, and the tree of each."""

    source: StoreSpec
    target: StoreSpec
    from_tree: IndexTree
    to_tree: IndexTree


def survey(spark: SparkSession, both: Both, deadline: Deadline | None, progress: Progress | None) -> Counts:
    """Say how much there is to do. Nothing is written."""
    with ended_by(spark, deadline), ExitStack() as held:
        return _Job(spark, both, held, progress).compare()[1]


def replicate(
    spark: SparkSession,
    both: Both,
    age: Age,
    sink: Staging,
    agreed: Callable[[Counts], None],
    deadline: Deadline | None,
    progress: Progress | None,
) -> tuple[Made, Counts]:
    """Copy what the target lacks, and build its next tree under the commit of `sink`.

    `agreed` hears what there is to do before anything is copied, and may raise.
    """
    with ended_by(spark, deadline), ExitStack() as held:
        require_store(spark, both.target.url, writes=True)
        job = _Job(spark, both, held, progress, deadline)
        decided, counts = job.compare()
        agreed(counts)
        results, made = job.copy(decided, age, counts) if counts.copies else (None, Made(None))
        made.root = job.tree(_settled(decided, results, made), sink)
        made.failed = made.failed[:MOST_FAILED]
        return made, counts


class _Job(Struct, frozen=True):
    """The steps of one replication. What they keep on the server goes with `held`."""

    spark: SparkSession
    both: Both
    held: ExitStack
    progress: Progress | None
    deadline: Deadline | None = None

    def compare(self) -> tuple[DataFrame, Counts]:
        """Bring together the entries of each path (`DECIDED`), and count what has to be done."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        both, tasks = self.both, tasks_of(self.spark)
        require_store(self.spark, both.target.url)
        source = _side(entries(self.spark, both.source, both.from_tree, tasks), "source")
        target = _side(entries(self.spark, both.target, both.to_tree, tasks), "target")
        pairs = source.join(target, "path", "full").select(*PAIRS.names)
        decided = self._keep(pairs.mapInArrow(decide, ddl(DECIDED)))
        known = max((tree.root.entries for tree in (both.from_tree, both.to_tree) if tree.root), default=0)
        with watching(self.spark, self.progress, "comparing", files=known):
            found = decided.groupBy("action").agg(
                f.count("*").alias("number"),
                f.sum("source_size").alias("bytes"),
                f.count("target_modified").alias("had"),
            )
            by = {row["action"]: row for row in found.collect()}
        copies = by.get("copy")
        return decided, Counts(
            copies["number"] if copies else 0,
            copies["bytes"] if copies else 0,
            copies["had"] if copies else 0,
            by["record"]["number"] if "record" in by else 0,
            by["delete"]["number"] if "delete" in by else 0,
        )

    def copy(self, decided: DataFrame, age: Age, counts: Counts) -> tuple[DataFrame, Made]:
        """Copy objects, so many bytes a task (`RESULTS`); add up what was copied, and name what was not."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        copies = decided.where(decided["action"] == "copy").select(*PAIRS.names)
        cost, tasks = counts.bytes + counts.copies * REQUEST, tasks_of(self.spark)
        if cost <= _BYTES:  # one task could do it: to balance it would take longer
            shared = copies.repartition(tasks, "path")
        else:
            shared = balanced(copies, "path", "source_size", min(_MOST_PARTS, max(tasks, cost // _BYTES)))
        kernel = Copy(self.both.source, self.both.target, age, seconds_left(self.deadline))
        results = self._keep(shared.mapInArrow(kernel, ddl(RESULTS)))
        with watching(self.spark, self.progress, "replicating", files=counts.copies, bytes=counts.bytes):
            (row,) = results.agg(
                f.count_if("sent").alias("copied"),
                f.sum(f.when(f.col("sent"), f.col("size"))).alias("bytes"),
                f.count("code").alias("failures"),
            ).collect()
        made = Made(None, row["copied"], row["bytes"] or 0, failures=row["failures"])
        if made.failures:
            failed = results.where("code IS NOT NULL").orderBy("path").select("path", "code", "message")
            made.failed = [Failure(*one) for one in failed.limit(_MOST_HELD).collect()]
        if made.failures > _MOST_HELD:
            raise SyncError(
                f"{made.failures} objects cannot be read, as {made.failed[0].path}: {made.failed[0].message}; "
                "the replica was not changed",
                hint="bayou datastore verify says what is wrong with this datastore",
            )
        return results, made

    def tree(self, rows: DataFrame, sink: Staging) -> Root | None:
        """Sort entries into parts, have the leaves of each written where it is, and stitch."""
        both = self.both
        known: dict[Digest, str] = {ref.digest: ref.node for ref in leaf_refs(both.to_tree)}
        size = max((tree.root.entries for tree in (both.from_tree, both.to_tree) if tree.root), default=0)
        parts = min(_MOST_PARTS, max(1, -(-size // _ROWS)))
        ordered = rows.repartitionByRange(parts, "path").sortWithinPartitions("path")
        written = ordered.mapInArrow(Written(both.target, sink.commit, known), ddl(PIECES))
        with watching(self.spark, self.progress, "indexing", files=size):
            return join_partitions(leaves.joined(_stream(written), sink.take, apart=True), sink)

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Let the server keep what a frame has, so that it is made once."""
        frame.persist()
        self.held.callback(frame.unpersist)
        return frame


def _settled(decided: DataFrame, results: DataFrame | None, made: Made) -> DataFrame:
    """Return all entries of the target's next tree: what it keeps, what was copied, and what is held back."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    names = ENTRIES.names[1:]
    there = [f.col(f"target_{name}").alias(name) for name in names]
    kept = [*there[:-1], f.col("source_modified").alias(names[-1])]
    found = decided.where(decided["action"].isin("keep", "record")).select("path", *kept)
    if results is not None:
        found = found.union(results.where("code IS NULL").select(*ENTRIES.names))
    if not made.failures:
        return found
    held = PendingCopies.of(made.failed)
    stays = decided.where("target_modified IS NOT NULL").select("path", *there)
    apart = stays.mapInArrow(Sieve(held, inside=True), ddl(ENTRIES))
    return found.mapInArrow(Sieve(held, inside=False), ddl(ENTRIES)).union(apart)


def _side(frame: DataFrame, side: str) -> DataFrame:
    return frame.withColumnsRenamed({name: f"{side}_{name}" for name in ENTRIES.names[1:]})


def _stream(rows: DataFrame) -> Iterator[leaves.Row]:
    """Yield rows in the order of parts, a few at a time."""
    return (leaves.Row(*row) for row in rows.toLocalIterator(prefetchPartitions=True))
