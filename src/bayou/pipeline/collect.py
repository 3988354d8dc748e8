"""Collection on Spark: the listing against all that roots name, and the deletes, in tasks.

The order is that of `sync.collect`: what was listed is fixed before the collection is announced, what is retained is
read after it, and only then is anything deleted. Nodes, pages and probes, and the trash, are this process's own affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from bayou.deadline import Deadline
from bayou.errors import NodeMissing
from bayou.index.entry import Entry
from bayou.index.node import Ref
from bayou.index.nodes import StoreNodes
from bayou.index.tree import Tree
from bayou.pipeline.arrow import ddl, key_bytes, key_text, rows
from bayou.pipeline.bound import ended_by
from bayou.pipeline.failure import spark_errors
from bayou.pipeline.kernels.compare import CASES, DAMAGED, OBJECT, TRASH_REFUSED, WASTED
from bayou.pipeline.kernels.sweep import (
    DELETED,
    KEPT,
    LEFTOVER,
    OLD,
    ONCE,
    SWEPT,
    TRASH,
    Delete,
    Sweep,
    stores_around,
)
from bayou.pipeline.parts import divide
from bayou.pipeline.progress import watching
from bayou.pipeline.session import log_of
from bayou.pipeline.shared import require_store
from bayou.pipeline.sources.entries import leaf_refs
from bayou.pipeline.sources.listing import listed
from bayou.pipeline.sources.named import named
from bayou.pipeline.stream import batches, tasks_of
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.recipe import Recipe
from bayou.store.store import Store
from bayou.store.transport import ObjectMeta
from bayou.sync.compare import MOST_NAMED
from bayou.sync.garbage import Garbage, internal_garbage, is_inside
from bayou.sync.progress import Progress
from bayou.sync.retained import Retained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_ROWS = 50_000
"""Keys of one part."""

_LEAF = 512
"""Entries of a leaf, as a rule."""

_PARTS_PER_TASK = 4
_MOST_PARTS = 1000


@contextmanager
def sweeping(
    spark: SparkSession,
    store: Store,
    recipe: Recipe,
    *,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
) -> Iterator[SweepOnSpark]:
    """Open a collection (`sync.garbage.Sweep`) whose work is done by tasks."""
    with ended_by(spark, deadline):
        require_store(spark, recipe.url)
        yield SweepOnSpark(spark, store, recipe, progress)


@dataclass(slots=True)
class SweepOnSpark:
    """One collection, step by step.

    The server keeps what each step brought, without the way to make it again: of what it loses nothing may be listed
    anew, later than the collection was announced, nor judged by nodes that are gone since (V5, T13). Then this fails.
    """

    spark: SparkSession
    store: Store
    recipe: Recipe
    progress: Progress | None
    _objects: DataFrame | None = None
    _others: Set[str] = frozenset()
    _number: int = 0
    _swept: DataFrame | None = None
    _internal: Sequence[ObjectMeta] = field(default_factory=list)
    _doomed: Sequence[ObjectMeta] = field(default_factory=list)

    def take_stock(self) -> int:
        """List the store, once and for all; return the time of its newest object, in ms."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        self._internal = [meta for page in self.store.list(keys.as_listed(keys.INTERNAL)) for meta in page]
        tasks = tasks_of(self.spark)
        found = listed(self.spark, self.recipe, divide(self.store, tasks * _PARTS_PER_TASK), tasks)
        payload = found.where(~f.startswith("key", f.lit(f"{keys.INTERNAL}/".encode())))
        with watching(self.spark, self.progress, "listing"):
            self._objects = payload.localCheckpoint()
        marks = self._objects.where(f.contains("key", f.lit(f"/{keys.INTERNAL}/".encode()))).select("key")
        self._others = self._stores(marks)
        for outside in self._others:
            self._objects = self._objects.where(~f.startswith("key", f.lit(key_bytes(f"{outside}/"))))
        newest = f.max(f.unix_micros("modified")).alias("newest")
        (row,) = self._objects.agg(f.count("*").alias("number"), newest).collect()
        self._number = row["number"]
        return max([(row["newest"] or 0) // 1000, *(meta.modified for meta in self._internal)])

    def judge(self, kept: Retained, trash: Tree, before: int) -> Garbage:
        """Say what of that listing is garbage. What of the current index cannot be read is raised."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        assert self._objects is not None
        trees = {KEPT: [*kept.current, *kept.recent], ONCE: kept.earlier, WASTED: leaf_refs(trash)}
        nothing = f.lit(None).cast("binary").alias("sha256")
        objects = self._objects.select(
            "key", f.lit(OBJECT).alias("kind"), "size", nothing, "etag", "version", "modified"
        )
        cases = named(self.spark, self.recipe, trees, tasks_of(self.spark)).select(*CASES.names).union(objects)
        rows = self._number + sum(map(len, trees.values())) * _LEAF
        ordered = cases.repartition(min(_MOST_PARTS, max(tasks_of(self.spark), -(-rows // _ROWS))), "key")
        with watching(self.spark, self.progress, "looking for garbage", files=self._number):
            swept = ordered.sortWithinPartitions("key").mapInArrow(Sweep(before), ddl(SWEPT))
            self._swept = swept.localCheckpoint()
        sums = self._swept.groupBy("what").agg(f.count("*"), f.sum("size")).collect()
        counts = {what: (number, size) for what, number, size in sums}
        if DAMAGED in counts:
            self._check([*kept.current, *trees[WASTED]])
        (old, old_bytes), (left, left_bytes) = (counts.get(what, (0, 0)) for what in (OLD, LEFTOVER))
        self._doomed = internal_garbage(self._internal, kept, before)
        size = old_bytes + left_bytes + sum(meta.size for meta in self._doomed)
        wasted = self._trash() if TRASH in counts else []
        inside = {entry.path for entry in wasted if is_inside(entry.path, self._others)}
        refused = [*(self._refused() if TRASH_REFUSED in counts else ()), *sorted(inside)]
        wasted = [entry for entry in wasted if entry.path not in inside]
        return Garbage(old, left, len(self._doomed), size, wasted, refused)

    def delete(self) -> None:
        """Delete what was judged to be garbage; what is gone already is no error."""
        assert self._swept is not None
        found = self._swept.where(f"what IN ('{OLD}', '{LEFTOVER}')").select("key")
        with spark_errors(log_of(self.spark)), watching(self.spark, self.progress, "deleting"):
            found.mapInArrow(Delete(self.recipe), ddl(DELETED)).agg({"deleted": "sum"}).collect()
        self.store.delete([keys.as_listed(meta.key) for meta in self._doomed])

    def _check(self, needed: Sequence[Ref]) -> None:
        """Raise what is wrong with the first of the nodes without which nothing can be told from garbage."""
        assert self._swept is not None
        bad = {key_text(row["key"]) for row in self._swept.where(f"what = '{DAMAGED}'").select("key").collect()}
        for ref in needed:
            if ref.node in bad:
                StoreNodes(self.store).load(0, ref)
                raise NodeMissing(f"a task could not read index node {ref.node}", hint="run the command again")

    def _stores(self, marks: DataFrame) -> frozenset[str]:
        """Return the directories that are other stores, given the keys that tell of one: not ours to collect (V9)."""
        found = marks.mapInArrow(stores_around, "outside binary").distinct().collect()
        return frozenset(key_text(row["outside"]) for row in found)

    def _refused(self) -> list[str]:
        """Return the first paths of rows of the trash that nothing is deleted by."""
        assert self._swept is not None
        found = self._swept.where(f"what = '{TRASH_REFUSED}'").select("key").orderBy("key").limit(MOST_NAMED)
        return [key_text(row["key"]) for row in found.collect()]

    def _trash(self) -> list[Entry]:
        """Return the rows of the trash that no root needs, in order."""
        assert self._swept is not None
        found = self._swept.where(f"what = '{TRASH}'").drop("what").orderBy("key")
        told = (row for one in batches(self.spark, found) for row in rows(one, SWEPT.names[1:]))
        return [Entry(*keys.parse_payload(key_text(key)), *rest) for key, *rest in told]  # type: ignore[arg-type]
