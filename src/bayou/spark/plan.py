"""Plan a sync on Spark: join the tree's files, the state in `sync.db`, base and the store's entries by path.

A filter drops the paths that need no decision. Tasks observe the others (`kernels.plan`), hash them if necessary, and
write the result to files in order of path, from which this process reads a few rows at a time. Workers never open
`sync.db`: this process exports its tables as Parquet files.
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
from bayou.spark.kernels.plan import SIDES, WRITTEN, ObserveKernel, ParquetKernel, read_candidates
from bayou.spark.progress import watching
from bayou.spark.session import interrupt_at_deadline, interrupt_on_error
from bayou.spark.sources.sync_inputs import SENT, Inputs, parse_requests, sync_inputs
from bayou.state.database import Database
from bayou.state.journal import JournalRow
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.windows import Candidate, Comparison, Note
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
"""The stat cache; known untracked files; files absent on purpose; hashes of discovered objects; the journal."""

_STATE_ROWS = 10_000
_PARTS_PER_TASK = 2
"""Partitions for each task that runs at once, so that a partition with a large file does not delay the others."""

_MOST_PARTS = 256
"""The most files of a result: all of them are open while it is read."""

_RESULT_ROWS = 1024
_TALLIED = ("path", "action", "bytes", "note", "text")

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""The work is in Python: compiling code for these plans takes a new server a second and saves nothing."""


class ExportedTables(Struct, frozen=True):
    """The Parquet files of the tables that are not empty, and the id of the journal's newest row at that time."""

    files: dict[str, Path]
    through: int


def export(database: Database, remote: int, folder: Path) -> ExportedTables:
    """Write the state of a remote's paths to Parquet files from one snapshot of the database, a few rows at a time."""
    found: dict[str, Path] = {}
    with database.snapshot() as db:
        (through,) = db.execute("SELECT coalesce(max(id), 0) FROM journal WHERE place = ?", (remote,)).fetchone()
        for name, (statement, _) in _TABLES.items():
            rows = db.execute(statement, (remote,))
            some = rows.fetchmany(_STATE_ROWS)
            if not some:
                continue
            found[name] = folder / f"{name}.parquet"
            with parquet.ParquetWriter(found[name], SCHEMAS[name]) as writer:
                while some:
                    writer.write_batch(batch(SCHEMAS[name], list(zip(*some, strict=True))))
                    some = rows.fetchmany(_STATE_ROWS)
    return ExportedTables(found, through)


def plan(spark: SparkSession, spec: StoreSpec, context: SyncContext, remote: IndexTree, folder: Path) -> Comparison:
    """Find the paths that need a decision and observe them. `folder`, which workers see, keeps the result.

    This reads the journal before the tree, like every scan: a file that is written meanwhile has a newer row.
    """
    context.journal.close_abandoned()
    exported = export(context.database, context.remote_id, folder)
    marks = tuple(context.journal.marks())
    base = context.base.tree()
    same = (base.root.digest if base.root else None) == (remote.root.digest if remote.root else None)
    policy = context.policy
    kernel = ObserveKernel(
        root=context.root,
        remote_id=context.remote_id,
        policy=(policy.hydrate, policy.exclude),
        adopt=context.options.adopt,
        marks=marks,
        through=exported.through,
        policy_changed=context.base.remote.policy != policy.text,
        same_index=same,
    )
    if not exported.files and base.root is None and remote.root is not None and _is_first_full_pull(context):
        return _plan_pull_of_all(kernel, remote, marks, exported.through)
    inputs = Inputs(context.root, exported.files, base, None if same else remote, context.repo.state / "nodes")
    found = folder / "candidates"
    with (
        interrupt_on_error(spark),
        interrupt_at_deadline(spark, context.deadline),
        watching(spark, context.progress, "comparing"),
    ):
        parts = compare(spark, spec, inputs, kernel, found)
    return _result(parts, marks, exported.through, context.store)


def compare(spark: SparkSession, spec: StoreSpec, inputs: Inputs, kernel: ObserveKernel, target: Path) -> list[Path]:
    """Have tasks join the inputs by path, observe the paths that need it, and write the result to `target`.

    Return the file of each task, in which paths are in order.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    tasks = tasks_of(spark)
    inputs_by_path = sync_inputs(spark, spec, inputs, tasks).repartition(
        min(tasks * _PARTS_PER_TASK, _MOST_PARTS), "path"
    )
    columns = [name for name in inputs_by_path.columns if name != "path"]
    # One shuffle for all sides; a chain of full joins would need one for each. No side has two rows of a path.
    joined = inputs_by_path.groupBy("path").agg(*(f.first(name, ignorenulls=True).alias(name) for name in columns))
    candidates = joined.sortWithinPartitions("path").where(_may_need_decision(columns, kernel))
    # The kernel writes the files: a new server takes two seconds to load the classes of Spark's own writer.
    target.mkdir()
    written = candidates.mapInArrow(ParquetKernel(kernel, target), ddl(WRITTEN))
    return [target / name for found in batches(spark, written) for name in found.column("file").to_pylist()]


def _is_first_full_pull(context: SyncContext) -> bool:
    """Return whether the tree is empty and the policy wants every file of the store."""
    policy = context.policy
    return policy.hydrate == "full" and not policy.exclude and next(scan(context.root), None) is None


def _plan_pull_of_all(
    kernel: ObserveKernel, remote: IndexTree, marks: tuple[JournalRow, ...], through: int
) -> Comparison:
    """Plan a first pull into an empty tree: only the store has entries, so that there is nothing to compare.

    This process reads the leaves, a window at a time, while earlier windows are transferred. A file that appears in the
    tree meanwhile is found when its path is written, as in every pull.
    """
    assert remote.root is not None
    counts, sizes = Counter({Action.PULL: remote.root.entries}), Counter({Action.PULL: remote.root.bytes})
    return Comparison(counts, sizes, (), marks, through, partial(kernel.entries, partial(entries_of, remote)))


def _may_need_decision(names: Container[str], kernel: ObserveKernel) -> Column:
    """Return the condition for paths that may need a decision: all that the kernel would not drop, and few others."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    here = f.col("file_size").isNotNull()
    conditions = [f.col("skip_kind").isNotNull()]
    if "cached_size" in names:
        known = f.col("cached_matches").eqNullSafe(kernel.remote_id)
        unchanged = known & (f.col("cached_settled") == 1)
        for name in SIDES["file"]:
            unchanged &= f.col(f"cached_{name}") == f.col(f"file_{name}")
        conditions += [here & ~f.coalesce(unchanged, f.lit(False)), ~here & known]
    else:
        conditions.append(here)
    if "journal_rows" in names:
        conditions.append(f.col("journal_rows").isNotNull())
    if not kernel.same_index:
        both = [
            [f.col(f"{side}_{name}") if f"{side}_{name}" in names else f.lit(None) for side in ("base", "remote")]
            for name in SIDES["base"]
        ]
        conditions += [~mine.eqNullSafe(theirs) for mine, theirs in both]
    if kernel.policy_changed and "absent_why" in names:
        conditions.append(f.col("absent_why").isNotNull())
    return reduce(or_, conditions)


def _result(parts: Sequence[Path], marks: tuple[JournalRow, ...], through: int, store: Store) -> Comparison:
    """Count actions and collect notes, in one pass over a few columns; add the tasks' requests to those of `store`."""
    counts: Counter[Action] = Counter()
    sizes: Counter[Action] = Counter()
    notes: list[Note] = []
    for part in parts:
        with parquet.ParquetFile(part) as file:
            for found in file.iter_batches(_RESULT_ROWS, columns=list(_TALLIED)):
                for path, action, moved, note, text in rows(found, _TALLIED):
                    if action is None and note == SENT:
                        store.add_requests(parse_requests(str(text)))
                    elif action is None:
                        notes.append(Note(str(path), str(note), str(text)))
                    else:
                        counts[Action(action)] += 1
                        sizes[Action(action)] += cast("int", moved)
    return Comparison(counts, sizes, notes, marks, through, partial(_merged, parts))


def _merged(parts: Sequence[Path]) -> Iterator[Candidate]:
    """Yield the rows of all files in order of path, holding only a few in memory."""
    return heapq.merge(*map(_read, parts), key=attrgetter("observed.path"))


def _read(part: Path) -> Iterator[Candidate]:
    with parquet.ParquetFile(part) as file:
        for found in file.iter_batches(_RESULT_ROWS):
            yield from read_candidates(found.filter(compute.field("action").is_valid()))
