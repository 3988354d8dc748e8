"""The plan of a sync on Spark: the tree's files, what `sync.db` knows, base and the store's entries, joined by path.

What needs no decision drops out where it is. The others are looked at, and hashed where they must be, by tasks; what
they find stays in files, in order of path, from which this process reads a few at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import partial, reduce
from operator import attrgetter, or_
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyarrow import compute, parquet

from bayou.index.read import scan as entries_of
from bayou.index.tree import Tree
from bayou.pipeline.arrow import ddl, rows
from bayou.pipeline.bound import cancelled_with, ended_by
from bayou.pipeline.kernels.kept import KEPT, Kept
from bayou.pipeline.kernels.look import SIDES, LookAt, looked
from bayou.pipeline.progress import watching
from bayou.pipeline.sources.said import SENT, Inputs, said, sent
from bayou.pipeline.state import export
from bayou.pipeline.stream import batches, tasks_of
from bayou.store.recipe import Recipe
from bayou.store.store import Store
from bayou.sync.context import Context
from bayou.sync.journal import Row
from bayou.sync.plan import Action
from bayou.sync.windows import Looked, Note, Planned
from bayou.tree.scan import scan

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.connect.session import SparkSession

_PER_TASK = 2
"""Parts for each task that runs at once: so one with a large file leaves the others' small ones to the rest."""

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""The work is in Python: what Java compiles for these plans takes a new server a second, and saves nothing."""

_TALLIED = ("path", "action", "bytes", "note", "text")

_MOST_PARTS = 256
"""Files of a result: all of them are open while it is read."""

_AT_ONCE = 1024


def plan(spark: SparkSession, recipe: Recipe, context: Context, remote: Tree, folder: Path) -> Planned:
    """Find out which paths need a decision, and look at them. `folder`, which workers see, keeps what is found.

    The journal is read first and the tree after it, as everywhere: what is written meanwhile has a newer row.
    """
    context.journal.settle()
    exported = export(context.database, context.place, folder)
    marks = tuple(context.journal.marks())
    base = context.base.tree()
    same = (base.root.digest if base.root else None) == (remote.root.digest if remote.root else None)
    policy = context.policy
    kernel = LookAt(
        root=context.root,
        place=context.place,
        policy=(policy.hydrate, policy.exclude),
        adopt=context.options.adopt,
        marks=marks,
        through=exported.through,
        moved=context.base.place.policy != policy.text,
        same=same,
    )
    if not exported.files and base.root is None and remote.root is not None and _shows_nothing(context):
        return _of_the_store_alone(kernel, remote, marks, exported.through)
    inputs = Inputs(context.root, exported.files, base, None if same else remote, context.repo.state / "nodes")
    found = folder / "looked"
    with (
        cancelled_with(spark),
        ended_by(spark, context.deadline),
        watching(spark, context.progress, "comparing"),
    ):
        parts = compare(spark, recipe, inputs, kernel, found)
    return _result(parts, marks, exported.through, context.store)


def compare(spark: SparkSession, recipe: Recipe, inputs: Inputs, kernel: LookAt, target: Path) -> list[Path]:
    """Have tasks join the inputs, look at what needs it, and keep that in `target`; return each task's file, in which
    paths are in order."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    tasks = tasks_of(spark)
    words = said(spark, recipe, inputs, tasks).repartition(min(tasks * _PER_TASK, _MOST_PARTS), "path")
    columns = [name for name in words.columns if name != "path"]
    # One shuffle for all sides; a chain of full joins would have one for each. No side says two things of a path.
    whole = words.groupBy("path").agg(*(f.first(name, ignorenulls=True).alias(name) for name in columns))
    asked = whole.sortWithinPartitions("path").where(_asked(columns, kernel))
    # Not by Spark's own writer, whose classes alone take a new server two seconds to load.
    target.mkdir()
    told = asked.mapInArrow(Kept(kernel, target), ddl(KEPT))
    return [target / name for found in batches(spark, told) for name in found.column("file").to_pylist()]


def _shows_nothing(context: Context) -> bool:
    """Whether the tree holds nothing, and everything that the store has is wanted."""
    policy = context.policy
    return policy.hydrate == "full" and not policy.exclude and next(scan(context.root), None) is None


def _of_the_store_alone(kernel: LookAt, remote: Tree, marks: tuple[Row, ...], through: int) -> Planned:
    """Plan what nobody but the store has a word on, as in a first pull: there is nothing to compare it with.

    Its leaves are read here, a window at a time, while those before are on their way. What somebody writes meanwhile is
    seen when it is in the way, as always.
    """
    assert remote.root is not None
    counts, sizes = Counter({Action.PULL: remote.root.entries}), Counter({Action.PULL: remote.root.bytes})
    return Planned(counts, sizes, (), marks, through, partial(kernel.entries, partial(entries_of, remote)))


def _asked(names: Container[str], kernel: LookAt) -> Column:
    """Say which paths may need a decision: all that the kernel would not drop, and few others."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    here = f.col("file_size").isNotNull()
    asked = [f.col("skip_kind").isNotNull()]
    if "cached_size" in names:
        known = f.col("cached_matches").eqNullSafe(kernel.place)
        unchanged = known & (f.col("cached_settled") == 1)
        for name in SIDES["file"]:
            unchanged &= f.col(f"cached_{name}") == f.col(f"file_{name}")
        asked += [here & ~f.coalesce(unchanged, f.lit(False)), ~here & known]
    else:
        asked.append(here)
    if "journal_rows" in names:
        asked.append(f.col("journal_rows").isNotNull())
    if not kernel.same:
        both = [
            [f.col(f"{side}_{name}") if f"{side}_{name}" in names else f.lit(None) for side in ("base", "remote")]
            for name in SIDES["base"]
        ]
        asked += [~mine.eqNullSafe(theirs) for mine, theirs in both]
    if kernel.moved and "absent_why" in names:
        asked.append(f.col("absent_why").isNotNull())
    return reduce(or_, asked)


def _result(parts: Sequence[Path], marks: tuple[Row, ...], through: int, store: Store) -> Planned:
    """Count actions, and gather what is no payload or failed: one pass over a few columns. What tasks asked the store
    for goes to the tally of `store`."""
    counts: Counter[Action] = Counter()
    sizes: Counter[Action] = Counter()
    noted: list[Note] = []
    for part in parts:
        with parquet.ParquetFile(part) as file:
            for found in file.iter_batches(_AT_ONCE, columns=list(_TALLIED)):
                for path, action, moved, note, text in rows(found, _TALLIED):
                    if action is None and note == SENT:
                        store.add_requests(sent(str(text)))
                    elif action is None:
                        noted.append(Note(str(path), str(note), str(text)))
                    else:
                        counts[Action(action)] += 1
                        sizes[Action(action)] += cast("int", moved)
    return Planned(counts, sizes, noted, marks, through, partial(_merged, parts))


def _merged(parts: Sequence[Path]) -> Iterator[Looked]:
    """Yield the rows of all files in order; only a few are held."""
    return heapq.merge(*map(_read, parts), key=attrgetter("observed.path"))


def _read(part: Path) -> Iterator[Looked]:
    with parquet.ParquetFile(part) as file:
        for found in file.iter_batches(_AT_ONCE):
            yield from looked(found.filter(compute.field("action").is_valid()))
