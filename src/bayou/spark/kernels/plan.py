"""Look at the paths that need a decision, hash what must be, and say what the table of actions makes of each.

Reads the tree and changes nothing, so it may run twice.

Keep what a kernel yields in a file, where its task runs, and tell no more than the file's name.

A task that runs twice leaves two files; whoever reads the names is told of one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import parquet

from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.spark.arrow import BYTES, INT, TEXT, TIME, batch, rows
from bayou.spark.kernels.transfer import Kernel
from bayou.state import file_stats
from bayou.state.base import Why
from bayou.state.file_stats import CachedHash
from bayou.state.journal import JournalRow, JournalSnapshot
from bayou.sync.context import still_absent
from bayou.sync.plan import steps
from bayou.sync.plan.decision_table import LocalState
from bayou.sync.plan.local_scanner import FileScan, Observed
from bayou.sync.plan.policy import Policy
from bayou.sync.plan.windows import Looked
from bayou.sync.report import Failure
from bayou.worktree.hashing import Content, FileStat

_FLAG = pyarrow.bool_()
_ENTRY = {"push": TEXT, "size": INT, "sha256": BYTES, "etag": TEXT, "version": TEXT, "modified": TIME}
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
"""Who says something of a path."""

PATHS = pyarrow.schema(
    {"path": TEXT, **{f"{side}_{name}": kind for side, columns in SIDES.items() for name, kind in columns.items()}}
)
"""One path, and all that is said of it."""

LOOKED = pyarrow.schema(
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
        "looked": INT,
        "finish": _FLAG,
        "fresh": _FLAG,
        "settled": _FLAG,
        "matches": INT,
        "note": TEXT,
        "text": TEXT,
    }
)
"""A path that was looked at, the `Action` that follows, and how many bytes that moves; or, without an action, a `note`:
of something in the tree that is no payload (its kind), or the code of a failure, and the words for it."""

_PLACES = {name: at for at, name in enumerate(PATHS.names)}
_START = {side: _PLACES[f"{side}_{next(iter(columns))}"] for side, columns in SIDES.items()}


class LookAt(Struct, frozen=True):
    """A kernel: rows of `PATHS`, or of some of its columns, to rows of `LOOKED`, in the same order.

    `marks` are the journal's rows that name directories, `through` its newest row. `moved`: the policy is another than
    the one that absences were decided under. `same`: the store says of every path what base says, and is not asked.
    """

    root: Path
    place: int
    policy: tuple[str, tuple[str, ...]]
    adopt: bool
    marks: tuple[JournalRow, ...]
    through: int
    moved: bool
    same: bool

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        policy = Policy.of(*self.policy)  # type: ignore[arg-type]
        for found in batches:
            out = [row for said in rows(_whole(found), PATHS.names) for row in self._rows(_Said(said), policy)]
            if out:
                yield batch(LOOKED, list(zip(*out, strict=True)))

    def entries(self, found: Callable[[], Iterable[Entry]]) -> Iterator[Looked]:
        """Yield what is to be decided about entries of the store that nobody else has a word on."""
        policy = Policy.of(*self.policy)  # type: ignore[arg-type]
        before = (None,) * (_START["remote"] - 1)
        for one in found():
            values = (one.push, one.size, one.sha256, one.etag, one.version, one.modified)
            for row in self._rows(_Said((one.path, *before, *values)), policy):
                yield _looked(row)

    def _rows(self, said: _Said, policy: Policy) -> Iterator[tuple[object, ...]]:
        if said.has("skip"):
            kind, reason = said.of("skip")
            yield _note(said.path, kind, reason)
        base, remote = said.entry("base"), said.entry("base" if self.same else "remote")
        why = cast("Why | None", said.of("absent")[0])
        back = self.moved and why is not None and not policy.still(said.path, why)
        named = said.has("journal") or base != remote or back
        if not named and (not self._walked(said) or policy.excluded(said.path)):
            return
        yield self._look(said, base, remote, why, policy, named=named)

    def _walked(self, said: _Said) -> bool:
        """Whether a walk asks for a path: it is not as base has it, or not here any more."""
        before = said.known()
        stat = said.stat()
        if stat is None:
            return before is not None and before.matches == self.place
        return before is None or before.matches != self.place or not before.is_current(stat)

    def _look(
        self, said: _Said, base: Entry | None, remote: Entry | None, why: Why | None, policy: Policy, *, named: bool
    ) -> tuple[object, ...]:
        path = said.path
        away = why is not None and still_absent(self.root, policy, path, why)
        listed = {path: cast("tuple[int, int]", said.of("listed"))} if said.has("listed") else {}
        look = FileScan(self.root, self.adopt, {path} if away else (), listed)
        before, now = said.known(), time.time_ns()
        seen = look.at(path, said.stat(), self._journaled(said), before, now)
        if isinstance(seen, Failure):
            return _note(path, seen.code, seen.message)
        step = steps.decide_path(seen, base, remote, said.hashes(base, remote), policy)
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

    def _journaled(self, said: _Said) -> JournalSnapshot:
        """Return the journal as far as it is about one path; its newest row is that of all."""
        told = said.of("journal")[0]
        mine = (
            sorted((JournalRow(*row) for row in json.loads(cast("str", told))), key=lambda row: row.id) if told else []
        )
        found = JournalSnapshot.of([*self.marks, *mine])
        found.through = self.through
        return found


class _Said:
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
        # Its time is never null; an entry of discovery has no push.
        return None if values[-1] is None else Entry(self.path, *values)

    def hashes(self, *entries: Entry | None) -> dict[str, Entry]:
        if not self.has("hashed"):
            return {}
        size, etag, version, sha256 = self.of("hashed")
        return {
            one.path: replace(one, sha256=sha256)
            for one in entries
            if one is not None and one.sha256 is None and (one.size, one.etag, one.version) == (size, etag, version)
        }


def _whole(found: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Return a batch with the columns of those too who say nothing of any path."""
    nothing = [field for field in PATHS if field.name not in found.schema.names]
    for field in nothing:
        found = found.append_column(field, pyarrow.nulls(found.num_rows, field.type))
    return found


def _note(path: str, note: object, text: object) -> tuple[object, ...]:
    return (path, None, False, 0, *([None] * (len(LOOKED) - 6)), note, text)


def looked(found: pyarrow.RecordBatch) -> Iterator[Looked]:
    """Yield what rows of `LOOKED` that have an action say."""
    return map(_looked, rows(found, LOOKED.names))


def _looked(row: tuple[object, ...]) -> Looked:
    path, _, named, _, *content_of, deleted, ours, absent, through, now, finish, fresh, settled, matches = row[:-2]
    *stat, sha256 = cast("list[Any]", content_of)
    content = Content(sha256, stat[0], FileStat(*stat)) if sha256 is not None else None
    here = None if finish else content
    state = LocalState(here.sha256 if here else None, here.size if here else None, deleted, ours, absent)  # type: ignore[arg-type]
    observed = Observed(path, state, content, through, now, finish_delete=finish)  # type: ignore[arg-type]
    kept = (path, *stat, sha256, settled, matches) if fresh else None
    return Looked(observed, cast("bool", named), cast("file_stats.Row | None", kept))


KEPT = pyarrow.schema({"file": TEXT})


class Kept(Struct, frozen=True):
    """A kernel: what `kernel` makes of its input goes to a Parquet file in `folder`, if it is anything at all."""

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
        yield batch(KEPT, [[name]])
