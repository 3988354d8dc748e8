"""Observe the paths that need a decision, hash them if necessary, and choose the action for each (`ObserveKernel`).

The kernel reads the tree and changes nothing, so it may run twice. `ParquetKernel` writes the rows of another kernel to
a file in its task, so that Spark returns only the name of the file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow
from msgspec import Struct
from msgspec.structs import astuple, replace
from pyarrow import parquet

from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.spark.arrow import BYTES, ENTRIES, INT, TEXT, batch, rows
from bayou.spark.kernels.transfer import Kernel
from bayou.state import file_stats
from bayou.state.base import Why
from bayou.state.file_stats import CachedHash
from bayou.state.journal import JournalRow, JournalSnapshot
from bayou.sync.context import still_absent
from bayou.sync.plan import steps
from bayou.sync.plan.decision_table import LocalState
from bayou.sync.plan.local_scanner import FileScan, ObservedPath
from bayou.sync.plan.policy import Policy
from bayou.sync.plan.windows import Candidate
from bayou.sync.report import Failure
from bayou.worktree.hashing import Content, FileStat

_FLAG = pyarrow.bool_()
_ENTRY = {name: ENTRIES.field(name).type for name in ENTRIES.names if name != "path"}
_STAT = {"size": INT, "mtime": INT, "ctime": INT, "inode": INT}

SIDES: dict[str, dict[str, pyarrow.DataType]] = {
    "file": _STAT,
    "skip": {"kind": TEXT, "reason": TEXT},
    "cached": {**_STAT, "sha256": BYTES, "settled": INT, "matches": INT},
    "journal": {"rows": TEXT},
    "absent": {"why": TEXT},
    "listed": {"size": INT, "mtime": INT},
    "hashed": {"size": INT, "etag": TEXT, "version": TEXT, "sha256": BYTES},
    "base": _ENTRY,
    "remote": _ENTRY,
}
"""The sources of information about a path, with their columns."""

PATHS = pyarrow.schema(
    {"path": TEXT, **{f"{side}_{name}": kind for side, columns in SIDES.items() for name, kind in columns.items()}}
)
"""A path, with the columns of all sides."""

OBSERVED = pyarrow.schema(
    {
        "path": TEXT,
        "action": TEXT,
        "named": _FLAG,
        "bytes": INT,
        "size": INT,
        "mtime": INT,
        "ctime": INT,
        "inode": INT,
        "sha256": BYTES,
        "deleted": _FLAG,
        "ours": _FLAG,
        "absent": _FLAG,
        "through": INT,
        "scanned_at": INT,
        "finish": _FLAG,
        "fresh": _FLAG,
        "settled": _FLAG,
        "matches": INT,
        "note": TEXT,
        "text": TEXT,
    }
)
"""An observed path, its `Action`, and the bytes to transfer; or, without an action, a `note` with its `text`: the kind
of something in the tree that is no payload, or the code of a failure."""

_POSITIONS = {name: at for at, name in enumerate(PATHS.names)}
_SIZE = list(_ENTRY).index("size")
"""The position of a column that every entry has: `push` is null for a discovered object."""
_START = {side: _POSITIONS[f"{side}_{next(iter(columns))}"] for side, columns in SIDES.items()}


class ObserveKernel(Struct, frozen=True):
    """A kernel: from rows of `PATHS`, or of some of its columns, to rows of `OBSERVED`, in the same order.

    `marks` are the journal's rows that name directories, `through` is its newest row. `policy_changed`: the policy is
    not the one that absences were decided by. `same_index`: the store's index equals base, so `remote` has no columns.
    """

    root: Path
    remote_id: int
    policy: tuple[str, tuple[str, ...]]
    adopt: bool
    marks: tuple[JournalRow, ...]
    through: int
    policy_changed: bool
    same_index: bool

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        policy = Policy.of(*self.policy)  # type: ignore[arg-type]
        for found in batches:
            paths = map(_PathRow, rows(_with_all_columns(found), PATHS.names))
            out = [row for path in paths for row in self._rows(path, policy)]
            if out:
                yield batch(OBSERVED, list(zip(*out, strict=True)))

    def entries(self, found: Callable[[], Iterable[Entry]]) -> Iterator[Candidate]:
        """Yield the observations of entries that only the store has."""
        policy = Policy.of(*self.policy)  # type: ignore[arg-type]
        before = (None,) * (_START["remote"] - 1)
        for entry in found():
            for row in self._rows(_PathRow((entry.path, *before, *astuple(entry)[1:])), policy):
                yield _candidate(row)

    def _rows(self, path_row: _PathRow, policy: Policy) -> Iterator[tuple[object, ...]]:
        if path_row.has("skip"):
            kind, reason = path_row.of("skip")
            yield _note(path_row.path, kind, reason)
        base, remote = path_row.entry("base"), path_row.entry("base" if self.same_index else "remote")
        why = cast("Why | None", path_row.of("absent")[0])
        back = self.policy_changed and why is not None and not policy.still(path_row.path, why)
        named = path_row.has("journal") or base != remote or back
        if not named and (not self._differs(path_row) or policy.excluded(path_row.path)):
            return
        yield self._observe(path_row, base, remote, why, policy, named=named)

    def _differs(self, path_row: _PathRow) -> bool:
        """Return whether a scan of the tree would observe the path: it differs from base, or is not here any more."""
        before = path_row.known()
        stat = path_row.stat()
        if stat is None:
            return before is not None and before.matches == self.remote_id
        return before is None or before.matches != self.remote_id or not before.is_current(stat)

    def _observe(
        self,
        path_row: _PathRow,
        base: Entry | None,
        remote: Entry | None,
        why: Why | None,
        policy: Policy,
        *,
        named: bool,
    ) -> tuple[object, ...]:
        path = path_row.path
        away = why is not None and still_absent(self.root, policy, path, why)
        listed = {path: cast("tuple[int, int]", path_row.of("listed"))} if path_row.has("listed") else {}
        scanner = FileScan(self.root, self.adopt, {path} if away else (), listed)
        before, now = path_row.known(), time.time_ns()
        seen = scanner.at(path, path_row.stat(), self._journaled(path_row), before, now)
        if isinstance(seen, Failure):
            return _note(path, seen.code, seen.message)
        step = steps.decide_path(seen, base, remote, path_row.hashes(base, remote), policy)
        content, state = seen.content, seen.state
        fresh = content is not None and (before is None or before.stat != content.stat)
        moves = remote.size if remote is not None and step.action.pulls else 0
        if content is not None and step.action.pushes:
            moves = content.size
        *_, settled, matches = file_stats.refresh_row(path, content, now, before) if content and fresh else (None, None)
        stat = content.stat if content else (None, None, None, None)
        return (
            *(path, step.action.value, named, moves),
            *(*stat, content.sha256 if content else None),
            *(state.deleted, state.ours, state.absent, seen.through, now, seen.finish_delete),
            *(fresh, settled, matches),
            *(None, None),
        )

    def _journaled(self, path_row: _PathRow) -> JournalSnapshot:
        """Return the journal's rows about one path; `through` is still the newest row of the whole journal."""
        text = cast("str | None", path_row.of("journal")[0])
        own = sorted((JournalRow(*row) for row in json.loads(text)), key=lambda row: row.id) if text else []
        snapshot = JournalSnapshot.of([*self.marks, *own])
        snapshot.through = self.through
        return snapshot


class _PathRow:
    """A row of `PATHS`."""

    __slots__ = ("_row", "path")

    def __init__(self, row: tuple[object, ...]) -> None:
        self._row = row
        self.path = cast("str", row[0])

    def has(self, side: str) -> bool:
        return self._row[_START[side]] is not None

    def of(self, side: str) -> tuple[Any, ...]:
        start = _START[side]
        return self._row[start : start + len(SIDES[side])]

    def stat(self) -> FileStat | None:
        return FileStat(*self.of("file")) if self.has("file") else None

    def known(self) -> CachedHash | None:
        if not self.has("cached"):
            return None
        *stat, sha256, settled, matches = self.of("cached")
        return CachedHash(FileStat(*stat), sha256, bool(settled), matches)

    def entry(self, side: str) -> Entry | None:
        values = self.of(side)
        return None if values[_SIZE] is None else Entry(self.path, *values)

    def hashes(self, *entries: Entry | None) -> dict[str, Entry]:
        if not self.has("hashed"):
            return {}
        size, etag, version, sha256 = self.of("hashed")
        return {
            entry.path: replace(entry, sha256=sha256)
            for entry in entries
            if entry is not None
            and entry.sha256 is None
            and (entry.size, entry.etag, entry.version) == (size, etag, version)
        }


def _with_all_columns(found: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Return a batch with all columns of `PATHS`; those that it lacks are null."""
    missing = [field for field in PATHS if field.name not in found.schema.names]
    for field in missing:
        found = found.append_column(field, pyarrow.nulls(found.num_rows, field.type))
    return found


def _note(path: str, note: object, text: object) -> tuple[object, ...]:
    return (path, None, False, 0, *([None] * (len(OBSERVED) - 6)), note, text)


def read_candidates(found: pyarrow.RecordBatch) -> Iterator[Candidate]:
    """Yield the observations of rows of `OBSERVED` that have an action."""
    return map(_candidate, rows(found, OBSERVED.names))


def _candidate(row: tuple[object, ...]) -> Candidate:
    path, _, named, _, *content_of, deleted, ours, absent, through, now, finish, fresh, settled, matches = row[:-2]
    *stat, sha256 = cast("list[Any]", content_of)
    content = Content(sha256, stat[0], FileStat(*stat)) if sha256 is not None else None
    here = None if finish else content
    state = LocalState(here.sha256 if here else None, here.size if here else None, deleted, ours, absent)  # type: ignore[arg-type]
    observed = ObservedPath(path, state, content, through, now, finish_delete=finish)  # type: ignore[arg-type]
    kept = (path, *stat, sha256, settled, matches) if fresh else None
    return Candidate(observed, cast("bool", named), cast("file_stats.Row | None", kept))


WRITTEN = pyarrow.schema({"file": TEXT})


class ParquetKernel(Struct, frozen=True):
    """A kernel: write the rows of `kernel` to a Parquet file in `folder`, if there are any, and yield the file's name.

    A task that runs twice leaves two files; the driver gets the name of one.
    """

    kernel: Kernel
    folder: Path

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        found = self.kernel(batches)
        first = next(found, None)
        if first is None:
            return
        name = f"{ulid()}.parquet"
        with parquet.ParquetWriter(self.folder / name, first.schema) as writer:
            writer.write_batch(first)
            for more in found:
                writer.write_batch(more)
        yield batch(WRITTEN, [[name]])
