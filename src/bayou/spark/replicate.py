"""Replicate on Spark: compare two indexes, copy what one lacks from store to store, and have tasks write its leaves.

The result is that of `maintenance.replica.point`, node for node. This process sees counts, the failures, and the
descriptions
of leaves; the workers need both stores and no directory of this machine.

Compare the entries of two stores, copy objects from one to the other, and write the leaves of what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow
from msgspec import Struct
from msgspec.structs import replace

from bayou.core.deadline import Deadline
from bayou.core.errors import SyncError
from bayou.core.progress import Progress
from bayou.index import node_store
from bayou.index.build import chunk_partition, join_partitions
from bayou.index.entry import Entry
from bayou.index.node import Child, Digest, Node, Root, leaf, name
from bayou.index.node_store import StagingSink, StoreSink
from bayou.index.tree import IndexTree, NodeSink
from bayou.maintenance.replica.copy import Age, Copied, Pair, copy_all
from bayou.maintenance.replica.plan import Counts
from bayou.maintenance.replica.point import MOST_FAILED, Made, PendingCopies
from bayou.objectstore.spec import StoreSpec
from bayou.spark import discover
from bayou.spark.arrow import (
    BYTES,
    ENTRIES,
    INT,
    REQUEST,
    TEXT,
    TIME,
    balanced,
    batch,
    batch_to_entries,
    ddl,
    rows,
    tasks_of,
)
from bayou.spark.discover import EDGE, LEAF, PIECES, LeafRow, in_batches
from bayou.spark.progress import watching
from bayou.spark.session import interrupt_at_deadline, seconds_left
from bayou.spark.shared_fs import require_store, store_of
from bayou.spark.sources.index_entries import entries, leaf_refs
from bayou.sync.report import Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_ENTRY = {"push": TEXT, "size": INT, "sha256": BYTES, "etag": TEXT, "version": TEXT, "modified": TIME}

PAIRS = pyarrow.schema(
    {"path": TEXT, **{f"{side}_{column}": kind for side in ("source", "target") for column, kind in _ENTRY.items()}}
)
"""The entries of one path in both stores; all of a side is null where that has none."""

DECIDED = pyarrow.schema([*PAIRS, pyarrow.field("action", TEXT)])
"""The same, and what makes the target what the source is (`Pair.action`)."""

RESULTS = pyarrow.schema(
    [
        *ENTRIES,
        pyarrow.field("sent", pyarrow.bool_()),
        pyarrow.field("code", TEXT),
        pyarrow.field("message", TEXT),
    ]
)
"""The target's entry of an object that was copied (`sent`: just now); or the path of one that was not, and why."""


def decide(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Rows of `PAIRS` to rows of `DECIDED`."""
    for found in batches:
        actions = [pair.action for pair in _pairs(found)]
        yield pyarrow.RecordBatch.from_arrays(
            [*(found.column(column) for column in PAIRS.names), pyarrow.array(actions, TEXT)], names=DECIDED.names
        )


class Copy(Struct, frozen=True):
    """A kernel: rows of `PAIRS` whose source's object is to be copied, to rows of `RESULTS`.

    Runs twice at times: a copy's key stands for its content, so the second time it is found, or written again the same.
    `seconds`: how long it may take to read or write one, however large.
    """

    source: StoreSpec
    target: StoreSpec
    age: Age
    seconds: float | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        source, target = store_of(self.source, self.seconds), store_of(self.target, self.seconds)
        again = _attempt() > 0
        age = replace(self.age, doubt=True) if again else self.age
        for found in batches:
            entries = [pair.source for pair in _pairs(found) if pair.source is not None]
            done = [_row(entry, result, again) for entry, result in copy_all(source, target, entries, age)]
            if done:
                yield batch(RESULTS, list(zip(*done, strict=True)))


class Sieve(Struct, frozen=True):
    """A kernel: of any rows that have a `path`, those that are held back, or (`inside` is False) those that are not."""

    held: PendingCopies
    inside: bool

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for found in batches:
            chosen = [self.held.back(path) == self.inside for path in found.column("path").to_pylist()]
            yield found.filter(pyarrow.array(chosen, pyarrow.bool_()))


class Written(Struct, frozen=True):
    """A kernel: entries of one sorted part to rows of `leaves.PIECES`; its whole leaves are stored, under the commit.

    `known` are leaves of the head that is being replaced, by digest: they are named again, and not written.
    """

    recipe: StoreSpec
    commit: str
    known: Mapping[Digest, str]

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        sink = _Reusing(StoreSink(store_of(self.recipe), self.commit), self.known)
        yield from in_batches(self.pieces((entry for found in batches for entry in batch_to_entries(found)), sink))

    def pieces(self, entries: Iterable[Entry], sink: NodeSink) -> Iterator[LeafRow]:
        for piece in chunk_partition(entries, sink):
            if isinstance(piece, Child):
                yield LeafRow(LEAF, piece.first, piece.last, piece.node, piece.entries, piece.bytes, None)
            else:
                edge = leaf(piece)
                named, written = name(edge.digest, self.commit), node_store.encode(edge)
                yield LeafRow(EDGE, edge.first, edge.last, named, edge.entries, edge.bytes, written)


class _Reusing:
    """A sink that knows some nodes already."""

    def __init__(self, sink: NodeSink, known: Mapping[Digest, str]) -> None:
        self._sink = sink
        self._known = known

    def save(self, node: Node) -> str:
        return self._known.get(node.digest) or self._sink.save(node)

    def flush(self) -> None:
        self._sink.flush()


def _pairs(found: pyarrow.RecordBatch) -> Iterator[Pair]:
    width = len(_ENTRY)
    for path, *sides in rows(found, PAIRS.names):
        assert isinstance(path, str)
        yield Pair(path, _entry(path, sides[:width]), _entry(path, sides[width:]))


def _entry(path: str, values: list[object]) -> Entry | None:
    # Its time is never null; an entry of discovery has neither push nor hash.
    return None if values[-1] is None else Entry(path, *values)  # type: ignore[arg-type]


def _row(entry: Entry, result: Copied | Failure, again: bool) -> tuple[object, ...]:
    if isinstance(result, Failure):
        return (entry.path, *([None] * len(_ENTRY)), False, result.code, result.message)
    # What an earlier attempt at this very task has sent was sent by us too.
    return (*(getattr(result.entry, column) for column in ENTRIES.names), result.sent or again, None, None)


def _attempt() -> int:
    """Return how often this task was tried before."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


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
    with interrupt_at_deadline(spark, deadline), ExitStack() as held:
        return _Job(spark, both, held, progress).compare()[1]


def replicate(
    spark: SparkSession,
    both: Both,
    age: Age,
    sink: StagingSink,
    agreed: Callable[[Counts], None],
    deadline: Deadline | None,
    progress: Progress | None,
) -> tuple[Made, Counts]:
    """Copy what the target lacks, and build its next tree under the commit of `sink`.

    `agreed` hears what there is to do before anything is copied, and may raise.
    """
    with interrupt_at_deadline(spark, deadline), ExitStack() as held:
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

    def tree(self, rows: DataFrame, sink: StagingSink) -> Root | None:
        """Sort entries into parts, have the leaves of each written where it is, and stitch."""
        both = self.both
        known: dict[Digest, str] = {ref.digest: ref.node for ref in leaf_refs(both.to_tree)}
        size = max((tree.root.entries for tree in (both.from_tree, both.to_tree) if tree.root), default=0)
        parts = min(_MOST_PARTS, max(1, -(-size // _ROWS)))
        ordered = rows.repartitionByRange(parts, "path").sortWithinPartitions("path")
        written = ordered.mapInArrow(Written(both.target, sink.commit, known), ddl(PIECES))
        with watching(self.spark, self.progress, "indexing", files=size):
            return join_partitions(discover.joined(_stream(written), sink.take, apart=True), sink)

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


def _stream(rows: DataFrame) -> Iterator[discover.LeafRow]:
    """Yield rows in the order of parts, a few at a time."""
    return (discover.LeafRow(*row) for row in rows.toLocalIterator(prefetchPartitions=True))
