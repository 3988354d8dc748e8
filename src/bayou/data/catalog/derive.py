"""What a record's file says, as a row of the catalog.

Writers and rebuilds derive rows by the same functions, so a row does not tell who made it.

The files that rows are derived from, read one after the other.

Make the rows of some files say what the files say.

What a refresh did.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from bayou.core import limits
from bayou.core.clock import format_utc, parse_utc
from bayou.core.documents import read_at_most
from bayou.core.errors import BayouError, RecordDamaged
from bayou.data import document
from bayou.data.catalog.rows import Made, OutputRow, RunRow, VersionRow
from bayou.data.catalog.schema import KEYS, TABLES, Values, drop, key_of, put, quoted, tell, told, values
from bayou.data.layout import most_bytes, names_metadata, version_path
from bayou.data.metadata import Metadata
from bayou.state.change_feed import ChangeFeed
from bayou.worktree.durability import os_reason
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DirEntryRef, DirFdCache

Row = VersionRow | OutputRow | RunRow
Fields = Mapping[str, Any]

ROOTS = ("data", "outputs", "workflow-runs")
"""The payload roots that the catalog tells of."""

_OUTPUT = re.compile(r"outputs/(?P<type>.+)/(?P<model_id>[^/]+)/(?P<id>[^/]+)\.yaml")
_RUN = re.compile(r"workflow-runs/(?P<workflow_id>[^/]+)/(?P<run_id>[^/]+)\.yaml")
_WORDS_OF_STEP = ("name", "model", "method", "error")


def is_record(path: str) -> bool:
    """Say whether the file at `path` has a row in the catalog, or is named there as bad."""
    if path.startswith("data/"):
        return names_metadata(path)
    return _OUTPUT.fullmatch(path) is not None or _RUN.fullmatch(path) is not None


def derive(path: str, data: bytes) -> Row:
    """Return the row of a record's file; `RecordDamaged` if it does not say what it should."""
    if path.startswith("data/"):
        return version_row(path, Metadata.from_bytes(data, path))
    fields = document.load(data, path)
    return output_row(path, fields) if path.startswith("outputs/") else run_row(path, fields)


def version_row(path: str, metadata: Metadata) -> VersionRow:
    """Return the row of a version. Its place is what the path of its `metadata.yaml` says, whatever stands in it."""
    place = version_path(path)
    if place is None:
        raise document.damaged(path, f"the number of a version is at most {limits.VERSION_MAX}")
    owner = metadata.owner
    return VersionRow(
        model=owner.model,
        model_id=place.model_id,
        type=place.type,
        name=place.name,
        version=place.version,
        id=metadata.id,
        size=metadata.size,
        sha256=metadata.sha256,
        content_type=metadata.content_type,
        created_at=_time(path, "created_at", metadata.created_at),
        tags=metadata.tags,
        lifetime=metadata.lifetime,
        keep=metadata.keep,
        streaming=metadata.streaming,
        deleted=metadata.deleted,
        renamed_to=metadata.renamed_to,
        run=owner.run,
        workflow=owner.workflow,
        job=owner.job,
        step=owner.step,
        output=owner.output,
        repo=owner.repo,
    )


def output_row(path: str, fields: Fields) -> OutputRow:
    """Return the row of an output from the fields of its file."""
    place = _OUTPUT.fullmatch(path)
    assert place is not None
    return OutputRow(
        id=place["id"],
        model=text_in(path, fields, "model"),
        model_id=place["model_id"],
        type=place["type"],
        method=text_in(path, fields, "method"),
        status=text_in(path, fields, "status"),
        started_at=_time(path, "started_at", text_in(path, fields, "started_at")),
        finished_at=maybe_text_in(path, fields, "finished_at"),
        duration_s=number_in(path, fields, "duration_s"),
        data=tuple(made_in(path, one) for one in records_in(path, fields, "data")),
        error=maybe_text_in(path, fields, "error"),
        run=maybe_text_in(path, fields, "run"),
        workflow=maybe_text_in(path, fields, "workflow"),
        job=maybe_text_in(path, fields, "job"),
        step=maybe_text_in(path, fields, "step"),
        tags=_tags(path, fields),
    )


def run_row(path: str, fields: Fields) -> RunRow:
    """Return the row of a workflow run from the fields of its file."""
    place = _RUN.fullmatch(path)
    assert place is not None
    return RunRow(
        run_id=place["run_id"],
        workflow_id=place["workflow_id"],
        workflow=text_in(path, fields, "workflow"),
        status=text_in(path, fields, "status"),
        started_at=_time(path, "started_at", text_in(path, fields, "started_at")),
        finished_at=maybe_text_in(path, fields, "finished_at"),
        failed_step=maybe_text_in(path, fields, "failed_step"),
        by=maybe_text_in(path, fields, "by"),
        tags=_tags(path, fields),
        words=_words(path, fields),
    )


def _words(path: str, fields: Fields) -> str:
    """Return what a search for text looks at: who, what, with which inputs, and what went wrong."""
    found = [fields["workflow"], fields.get("by"), fields.get("failed_step")]
    for mapping in (fields.get("inputs"), fields.get("tags")):
        if isinstance(mapping, dict):
            found += [f"{key}={value}" for key, value in mapping.items()]
    for job in records_in(path, fields, "jobs"):
        found.append(job.get("name"))
        for step in records_in(path, job, "steps"):
            found += [step.get(key) for key in _WORDS_OF_STEP]
    return "\n".join(str(one) for one in found if one).casefold()


def made_in(path: str, found: Fields) -> Made:
    """Return what a record says of one version that it made; `RecordDamaged` if that is not whole."""
    name, version, size, sha256 = (found.get(key) for key in ("name", "version", "size", "sha256"))
    if not (isinstance(name, str) and type(version) is int and type(size) is int):
        raise _wrong(path, "data")
    if not (0 < version <= limits.VERSION_MAX and 0 <= size <= limits.SIZE_MAX):
        raise _wrong(path, "data")
    return Made(name, version, size, sha256 if isinstance(sha256, str) else None)


def _time(path: str, key: str, text: str) -> str:
    """Return a time as Bayou writes it, so that times can be compared as they stand."""
    try:
        return format_utc(parse_utc(text))
    except ValueError:
        raise _wrong(path, key) from None


def text_in(path: str, fields: Fields, key: str) -> str:
    """Return the text of a field; `RecordDamaged` if it is missing or something else. So do those that follow."""
    value = fields.get(key)
    if not isinstance(value, str):
        raise _wrong(path, key)
    return value


def maybe_text_in(path: str, fields: Fields, key: str) -> str | None:
    """Return the text of a field that may be missing."""
    return None if fields.get(key) is None else text_in(path, fields, key)


def number_in(path: str, fields: Fields, key: str) -> float | None:
    """Return the number of a field that may be missing: a finite one."""
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= limits.COUNT_MAX:
        raise _wrong(path, key)
    return float(value)


def records_in(path: str, fields: Fields, key: str) -> list[Fields]:
    """Return the list of mappings that a field is; none if it is missing."""
    value = fields.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _wrong(path, key)
    return value


def _tags(path: str, fields: Fields) -> Mapping[str, str]:
    value = fields.get("tags") or {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for pair in value.items() for one in pair):
        raise _wrong(path, "tags")
    return value


def _wrong(path: str, key: str) -> RecordDamaged:
    return RecordDamaged(
        f"{path} cannot be read: {key} is missing or not what it should be",
        hint="bayou datastore verify says whether it is what was stored",
    )


class Read(Struct, frozen=True):
    """A record's file: what stands in its row, or (None) why there is none. `hidden`: nobody could look at it.

    `stamp` is equal as long as the file is; None if a write in the moment of reading could have left it as it is.
    """

    path: str
    row: Values | None
    stamp: str | None
    why: str = ""
    hidden: bool = False


class Absent(Struct, frozen=True):
    """There is no such file here; what that means is for others to say."""

    path: str


def stamp(status: os.stat_result) -> str:
    """Return what changes whenever a file does, once it has settled."""
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"


def stamp_of(found: FileStat) -> str:
    """Return the stamp of a file that a scan has found."""
    return f"{found.size}:{found.mtime_ns}:{found.ctime_ns}:{found.inode}"


def read_all(root: Path, found: Iterable[str]) -> Iterator[Read | Absent]:
    """Read the records at these paths, in order of path."""
    trail = DirFdCache(root)
    try:
        for path in sorted(found):
            try:
                data, status, settled = _content(trail.locate(path), most_bytes(path))
            except (FileNotFoundError, NotADirectoryError):
                trail.close()
                yield Absent(path)
                continue
            except (OSError, BayouError) as error:
                trail.close()
                reason = error.message if isinstance(error, BayouError) else os_reason(error)
                yield Read(path, None, None, f"{path} cannot be read: {reason}", hidden=True)
                continue
            mark = stamp(status) if settled else None
            try:
                yield Read(path, values(derive(path, data))[1], mark)
            except RecordDamaged as error:
                yield Read(path, None, mark, error.message)
    finally:
        trail.close()


def _content(spot: DirEntryRef, most: int) -> tuple[bytes, os.stat_result, bool]:
    """Return a file's bytes, its stat from before, and whether a later write is sure to change that.

    Of a file that has more than `most` bytes it returns a little more than that, which no reader takes (V25).
    """
    descriptor = os.open(spot.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=spot.directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(spot.path)
        settled = FileStat.of(status).settled(time.time_ns())
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return read_at_most(file, most), status, settled
    finally:
        os.close(descriptor)


_BATCH = 1000

Gone = Callable[[Collection[str]], Collection[str]]
"""Says which of some paths whose files are not here are gone for good; the rows of the others stay (V20)."""


def apply(db: sqlite3.Connection, found: Iterable[Read | Absent], gone: Gone) -> int:
    """Change the rows of records that were read; return how many rows are not what they were.

    What cannot be parsed has no row, and is named as bad; what cannot be read keeps the row that it has.
    """
    change = _Change(db)
    absent: list[str] = []
    for one in found:
        if isinstance(one, Absent):
            absent.append(one.path)
        else:
            change.take(one)
    change.write()
    lost = gone(absent) if absent else ()
    db.executemany("DELETE FROM bad WHERE path = ?", [(path,) for path in absent])
    return change.count + drop(db, lost)


class _Change:
    """Rows on their way into the catalog."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: dict[str, list[Values]] = {table: [] for table in TABLES}
        self._bad = {path for (path,) in db.execute("SELECT path FROM bad")}
        # Hot: the first build of a large catalog has nothing to compare with.
        self._new = {table: db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None for table in TABLES}
        self.count = 0

    def take(self, one: Read) -> None:
        if one.row is None:
            self._db.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, ?)", (one.path, one.why, one.stamp))
            self._bad.add(one.path)
            if not one.hidden:
                self.count += drop(self._db, [one.path])
            return
        if one.path in self._bad:
            self._db.execute("DELETE FROM bad WHERE path = ?", (one.path,))
        table, key = key_of(one.path)
        had = None if self._new[table] else self._had(table, key)
        if had is None or had[:-1] != one.row:
            self.count += 1
        if had is None or had != (*one.row, one.stamp):
            self._rows[table].append((*one.row, one.stamp))
            if len(self._rows[table]) >= _BATCH:
                self.write()

    def write(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                put(self._db, table, rows)
                rows.clear()

    def _had(self, table: str, key: Values) -> Values | None:
        where = " AND ".join(f'"{name}" = ?' for name in KEYS[table])
        found: Values | None = self._db.execute(
            f"SELECT {quoted((*TABLES[table], 'stamp'))} FROM {table} WHERE {where}", key
        ).fetchone()
        return found


class Refreshed(Struct, frozen=True):
    """Why everything was looked at, if it was (`rows` there are then), and how many rows are not what they were.

    `warnings` are for a person to read, whatever else there is to tell.
    """

    rebuilt: str | None = None
    changed: int = 0
    rows: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str | None:
        """What to tell a person, in one line; None if there is nothing to tell."""
        if self.rebuilt is not None:
            return f"the catalog {self.rebuilt}: rebuilt, {_count(self.rows, 'row')}" if self.rows else None
        return f"the catalog caught up with {_count(self.changed, 'change')}" if self.changed else None


def is_current(db: sqlite3.Connection, feed: ChangeFeed) -> bool:
    """Whether the catalog reflects all that the feed tells of, and no change is under way."""
    return told(db, "position") == feed.cursor.dump() and not feed.cursor.open


def settle(db: sqlite3.Connection, place: str, position: str, why: str | None, changed: int) -> Refreshed:
    """Note the place and the position that the catalog reflects from now on, in the transaction that made it so."""
    tell(db, "place", place)
    tell(db, "position", position)
    tell(db, "why", None)
    if why is None:
        return Refreshed(changed=changed)
    rows = sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
    return Refreshed(why, changed, rows)


def empty(db: sqlite3.Connection) -> None:
    """Forget everything: it was of another datastore."""
    for table in (*TABLES, "bad", "folder", "pending", "recent"):
        db.execute(f"DELETE FROM {table}")
    tell(db, "former", None)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
