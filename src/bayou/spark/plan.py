"""The plan of a sync on Spark: the tree's files, what `sync.db` knows, base and the store's entries, joined by path.

What needs no decision drops out where it is. The others are looked at, and hashed where they must be, by tasks; what
they find stays in files, in order of path, from which this process reads a few at a time.

What `sync.db` knows of paths, as Parquet files: workers read those, and never open the database.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import partial, reduce
from operator import attrgetter, or_
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow
from msgspec import Struct
from pyarrow import compute, parquet

from bayou.index.tree import IndexTree
from bayou.index.tree import scan as entries_of
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.spark.arrow import BYTES, INT, TEXT, batch, batches, ddl, rows, tasks_of
from bayou.spark.kernels.plan import KEPT, SIDES, Kept, LookAt, looked
from bayou.spark.progress import watching
from bayou.spark.session import interrupt_at_deadline, interrupt_on_error
from bayou.spark.sources.sync_inputs import SENT, Inputs, sent, sync_inputs
from bayou.state.database import Database
from bayou.state.journal import JournalRow
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.windows import Looked, Note, Planned
from bayou.worktree.scan import scan

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.connect.session import SparkSession

CACHED, LISTED, ABSENT, HASHED, JOURNAL = "cached", "listed", "absent", "hashed", "journal"

_ROWS = """
SELECT path, json_group_array(json_array(id, kind, path, state, owner, closed)) FROM journal
WHERE place = ? AND kind != 'tree' GROUP BY path
"""
_TABLES = {
    CACHED: (
        "SELECT path, size, mtime, ctime, inode, sha256, settled, matches FROM file WHERE ? IS NOT NULL",
        {"size": INT, "mtime": INT, "ctime": INT, "inode": INT, "sha256": BYTES, "settled": INT, "matches": INT},
    ),
    LISTED: ("SELECT path, size, mtime FROM untracked WHERE place = ?", {"size": INT, "mtime": INT}),
    ABSENT: ("SELECT path, why FROM absent WHERE place = ?", {"why": TEXT}),
    HASHED: (
        "SELECT path, size, etag, version, sha256 FROM known WHERE place = ?",
        {"size": INT, "etag": TEXT, "version": TEXT, "sha256": BYTES},
    ),
    JOURNAL: (
        _ROWS,
        {"rows": TEXT},
    ),
}
SCHEMAS = {name: pyarrow.schema({"path": TEXT, **columns}) for name, (_, columns) in _TABLES.items()}
"""The stat cache; files known to be untracked; what is absent on purpose; hashes of discovered objects; the journal."""

_STATE_AT_ONCE = 10_000


class Exported(Struct, frozen=True):
    """The files of the tables that are not empty, and the newest row of the journal then."""

    files: dict[str, Path]
    through: int


def export(database: Database, place: int, folder: Path) -> Exported:
    """Write what is known of a place's paths to Parquet files, all as of one moment, a few rows at a time."""
    found: dict[str, Path] = {}
    with database.snapshot() as db:
        (through,) = db.execute("SELECT coalesce(max(id), 0) FROM journal WHERE place = ?", (place,)).fetchone()
        for name, (statement, _) in _TABLES.items():
            rows = db.execute(statement, (place,))
            some = rows.fetchmany(_STATE_AT_ONCE)
            if not some:
                continue
            found[name] = folder / f"{name}.parquet"
            with parquet.ParquetWriter(found[name], SCHEMAS[name]) as writer:
                while some:
                    writer.write_batch(batch(SCHEMAS[name], list(zip(*some, strict=True))))
                    some = rows.fetchmany(_STATE_AT_ONCE)
    return Exported(found, through)


_PER_TASK = 2
"""Parts for each task that runs at once: so one with a large file leaves the others' small ones to the rest."""

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""The work is in Python: what Java compiles for these plans takes a new server a second, and saves nothing."""

_TALLIED = ("path", "action", "bytes", "note", "text")

_MOST_PARTS = 256
"""Files of a result: all of them are open while it is read."""

_AT_ONCE = 1024


def plan(spark: SparkSession, recipe: StoreSpec, context: SyncContext, remote: IndexTree, folder: Path) -> Planned:
    """Find out which paths need a decision, and look at them. `folder`, which workers see, keeps what is found.

    The journal is read first and the tree after it, as everywhere: what is written meanwhile has a newer row.
    """
    context.journal.close_abandoned()
    exported = export(context.database, context.remote_id, folder)
    marks = tuple(context.journal.marks())
    base = context.base.tree()
    same = (base.root.digest if base.root else None) == (remote.root.digest if remote.root else None)
    policy = context.policy
    kernel = LookAt(
        root=context.root,
        place=context.remote_id,
        policy=(policy.hydrate, policy.exclude),
        adopt=context.options.adopt,
        marks=marks,
        through=exported.through,
        moved=context.base.remote.policy != policy.text,
        same=same,
    )
    if not exported.files and base.root is None and remote.root is not None and _shows_nothing(context):
        return _of_the_store_alone(kernel, remote, marks, exported.through)
    inputs = Inputs(context.root, exported.files, base, None if same else remote, context.repo.state / "nodes")
    found = folder / "looked"
    with (
        interrupt_on_error(spark),
        interrupt_at_deadline(spark, context.deadline),
        watching(spark, context.progress, "comparing"),
    ):
        parts = compare(spark, recipe, inputs, kernel, found)
    return _result(parts, marks, exported.through, context.store)


def compare(spark: SparkSession, recipe: StoreSpec, inputs: Inputs, kernel: LookAt, target: Path) -> list[Path]:
    """Have tasks join the inputs, look at what needs it, and keep that in `target`; return each task's file, in which
    paths are in order."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    tasks = tasks_of(spark)
    words = sync_inputs(spark, recipe, inputs, tasks).repartition(min(tasks * _PER_TASK, _MOST_PARTS), "path")
    columns = [name for name in words.columns if name != "path"]
    # One shuffle for all sides; a chain of full joins would have one for each. No side says two things of a path.
    whole = words.groupBy("path").agg(*(f.first(name, ignorenulls=True).alias(name) for name in columns))
    asked = whole.sortWithinPartitions("path").where(_asked(columns, kernel))
    # Not by Spark's own writer, whose classes alone take a new server two seconds to load.
    target.mkdir()
    told = asked.mapInArrow(Kept(kernel, target), ddl(KEPT))
    return [target / name for found in batches(spark, told) for name in found.column("file").to_pylist()]


def _shows_nothing(context: SyncContext) -> bool:
    """Whether the tree holds nothing, and everything that the store has is wanted."""
    policy = context.policy
    return policy.hydrate == "full" and not policy.exclude and next(scan(context.root), None) is None


def _of_the_store_alone(kernel: LookAt, remote: IndexTree, marks: tuple[JournalRow, ...], through: int) -> Planned:
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


def _result(parts: Sequence[Path], marks: tuple[JournalRow, ...], through: int, store: Store) -> Planned:
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
