"""The steps of a comparison on Spark: read the index, list the store, bring both together, read what must be read."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bayou.deadline import Deadline
from bayou.errors import NodeDamaged
from bayou.index.check import damage_of, outline
from bayou.index.head import Head
from bayou.index.nodes import StoreNodes
from bayou.index.span import Spans
from bayou.pipeline.arrow import ddl, key_text
from bayou.pipeline.balance import REQUEST, balanced
from bayou.pipeline.bound import seconds_left
from bayou.pipeline.kernels import judge
from bayou.pipeline.kernels.compare import (
    CASES,
    DAMAGED,
    ENTRY,
    FINDINGS,
    NAMELESS,
    OBJECT,
    TRASH_REFUSED,
    UNSAFE,
    WASTED,
    Compare,
    ReadBack,
    inside,
)
from bayou.pipeline.parts import divide
from bayou.pipeline.progress import watching
from bayou.pipeline.sources.listing import judged
from bayou.pipeline.sources.named import named
from bayou.pipeline.stream import tasks_of
from bayou.quick import dataclass
from bayou.store.recipe import Recipe
from bayou.store.store import Store
from bayou.sync.compare import MOST_NAMED, Unsafe
from bayou.sync.judge import Rules
from bayou.sync.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_ROWS = 50_000
"""Keys of one part."""

_PARTS_PER_TASK = 4
_MOST_PARTS = 1000
_BYTES = 256 << 20
"""What one task reads: little enough to be read once more, should its worker die."""


class Sum(NamedTuple):
    """How many findings of one kind there are, and the bytes of their objects."""

    number: int = 0
    size: int = 0


Sums = defaultdict[str, Sum]


@dataclass(frozen=True, slots=True)
class Index:
    """What an index says: cases (`CASES`) and how many, rows that nothing is done by, and what is out of sight."""

    cases: DataFrame
    unsafe: list[Unsafe]
    entries: int
    unsafes: int
    damaged: list[str]
    hidden: Spans


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one comparison. What they keep on the server goes with `held`."""

    spark: SparkSession
    store: Store
    recipe: Recipe
    held: ExitStack
    progress: Progress | None
    deadline: Deadline | None = None

    def read_index(self, head: Head) -> Index:
        """Read the branches here and the leaves in tasks, and learn which nodes cannot be used."""
        source = StoreNodes(self.store)
        index, trash = outline(source, head.root), outline(source, head.trash)
        trees = {ENTRY: index.leaves, WASTED: trash.leaves}
        entries = head.root.entries if head.root is not None else 0
        found = self._keep(named(self.spark, self.recipe, trees, tasks_of(self.spark)))
        with watching(self.spark, self.progress, "reading the index", files=entries):
            counts = _counts(found, "kind")
        bad = found.where(f"kind = '{DAMAGED}'").select("key", "reason").collect() if DAMAGED in counts else []
        why = {key_text(row["key"]): row["reason"] for row in bad}
        for tree in (index, trash):
            lost = [ref for ref in tree.leaves if ref.node in why]
            tree.damage.extend(damage_of(ref, 0, NodeDamaged(why[ref.node])) for ref in lost)
        return Index(
            found.where(f"kind IN ('{ENTRY}', '{WASTED}')").select(*CASES.names),
            _unsafe(found) if not counts.keys().isdisjoint(UNSAFE) else [],
            entries,
            sum(counts.get(kind, 0) for kind in UNSAFE),
            [one.error.message for one in (*index.damage, *trash.damage)],
            Spans(one.span for one in index.damage),
        )

    def list_store(self) -> tuple[DataFrame, dict[str, int]]:
        """List the store; return what each object is judged to be (`kernels.judge`), and how many are judged so."""
        tasks = tasks_of(self.spark)
        found = self._keep(judged(self.spark, self.recipe, divide(self.store, tasks * _PARTS_PER_TASK), tasks))
        with watching(self.spark, self.progress, "listing"):
            counts = _counts(found, "verdict")
        if judge.STORE not in counts:
            return found, counts
        marks = found.where(f"verdict = '{judge.STORE}'").select("key").distinct().collect()
        others = frozenset(key_text(row["key"]) for row in marks)
        found = self._keep(found.mapInArrow(partial(judge.without_others, others), ddl(judge.JUDGED)))
        return found, _counts(found, "verdict")

    def compare(self, cases: DataFrame, rules: Rules, entries: int, listed: int) -> tuple[DataFrame, Sums]:
        """Bring together what is known of each key, and judge it (`FINDINGS`)."""
        parts = min(_MOST_PARTS, max(tasks_of(self.spark), -(-(entries + listed) // _ROWS)))
        ordered = cases.repartition(parts, "key").sortWithinPartitions("key")
        found = self._keep(ordered.mapInArrow(Compare(self.recipe, rules), ddl(FINDINGS)))
        with watching(self.spark, self.progress, "verifying", files=entries):
            return found, _sums(found)

    def read_back(self, entries: DataFrame, files: int, size: int) -> tuple[DataFrame, Sums]:
        """Read objects, so many bytes a task, and judge entries by them (`FINDINGS`)."""
        if not files:
            return entries, defaultdict(Sum)
        parts = min(_MOST_PARTS, (size + files * REQUEST) // _BYTES)
        tasks = tasks_of(self.spark)
        shared = balanced(entries, "path", "size", max(parts, tasks)) if parts else entries.repartition(tasks, "path")
        found = self._keep(shared.mapInArrow(ReadBack(self.recipe, seconds_left(self.deadline)), ddl(FINDINGS)))
        with watching(self.spark, self.progress, "reading", files=files, bytes=size):
            return found, _sums(found)

    def strays(self, unindexed: DataFrame, cases: DataFrame, number: int) -> tuple[DataFrame, DataFrame, int]:
        """Set apart, and count, the objects that others have as their directory: no tree can hold both."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        if not number:
            return unindexed, unindexed, 0
        crowded = cases.mapInArrow(inside, "path string").distinct().withColumn("crowded", f.lit(True))
        found = self._keep(unindexed.join(crowded, "path", "left").select(*FINDINGS.names, "crowded"))
        apart = found.where("crowded").drop("crowded")
        return found.where("crowded IS NULL").drop("crowded"), apart, apart.count()

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Let the server keep what a frame has, so that it is made once."""
        frame.persist()
        self.held.callback(frame.unpersist)
        return frame


def _unsafe(found: DataFrame) -> list[Unsafe]:
    """Return the first of the rows that nothing is done by, in order of path."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    bad = found.where(f.col("kind").isin(*UNSAFE)).select("key", "kind", "reason").orderBy("key").limit(MOST_NAMED)
    return [
        Unsafe(key_text(key), reason, trash=kind == TRASH_REFUSED, nameless=kind == NAMELESS)
        for key, kind, reason in bad.collect()
    ]


def objects(listing: DataFrame) -> DataFrame:
    """Return the payload of a listing, whoever wrote it, as cases (`CASES`)."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    payload = listing.where(f.col("verdict").isin(judge.PAYLOAD, judge.PUSHED))
    key = f.coalesce("key", f.col("path").cast("binary")).alias("key")
    told = ("size", f.lit(None).cast("binary").alias("sha256"), "etag", "version", "modified")
    return payload.select(key, f.lit(OBJECT).alias("kind"), *told)


def of(found: DataFrame, finding: str) -> DataFrame:
    return found.where(f"finding = '{finding}'")


def _counts(found: DataFrame, column: str) -> dict[str, int]:
    return dict(found.groupBy(column).count().collect())


def _sums(found: DataFrame) -> Sums:
    from pyspark.sql import functions as f  # noqa: PLC0415

    told = found.groupBy("finding").agg(f.sum("number"), f.sum("size")).collect()
    return defaultdict(Sum, {finding: Sum(number, size or 0) for finding, number, size in told})
