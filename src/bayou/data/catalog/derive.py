"""Deriving the catalog's rows from the files of records, and applying them to the catalog.

`derive` turns the file of a record into a row. Writers and rebuilds both use it, so their rows are equal. `read_all`
reads files, and `apply` makes the rows of those files equal to them. `finish_refresh` stores the position that the
catalog reflects after that, and returns `RefreshReport`, the report.
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
from bayou.data.catalog.rows import OutputRow, RunRow, SavedVersion, VersionRow
from bayou.data.catalog.schema import KEYS, TABLES, Values, drop, get_meta, key_of, put, quoted, set_meta, values
from bayou.data.layout import is_metadata_path, max_bytes, version_path
from bayou.data.metadata import Metadata
from bayou.state.change_feed import ChangeFeed
from bayou.worktree.durability import os_reason
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DirEntryRef, DirFdCache

Row = VersionRow | OutputRow | RunRow
Fields = Mapping[str, Any]

ROOTS = ("data", "outputs", "workflow-runs")
"""The payload roots that have records with rows in the catalog."""

Gone = Callable[[Collection[str]], Collection[str]]
"""Returns which of the paths without a file are deleted for good; the rows of the other paths stay (V20)."""

_BATCH = 1000
_OUTPUT = re.compile(r"outputs/(?P<type>.+)/(?P<model_id>[^/]+)/(?P<id>[^/]+)\.yaml")
_RUN = re.compile(r"workflow-runs/(?P<workflow_id>[^/]+)/(?P<run_id>[^/]+)\.yaml")
_WORDS_OF_STEP = ("name", "model", "method", "error")


class RecordRead(Struct, frozen=True):
    """A record's file that was read: the columns of its row, or (None) `why` it has no row.

    `hidden` means that the file could not be opened, so its row may still be right. `stamp` changes whenever the file
    does; None if the file is so young that a write just after the read might not change it.
    """

    path: str
    row: Values | None
    stamp: str | None
    why: str = ""
    hidden: bool = False


class MissingFile(Struct, frozen=True):
    """A path without a file; `Gone` decides whether it was deleted."""

    path: str


class RefreshReport(Struct, frozen=True):
    """The report of a refresh: why it was a rebuild, if it was, how many rows `changed`, and how many there are.

    `rows` is counted only after a rebuild. `warnings` are for the user.
    """

    rebuilt: str | None = None
    changed: int = 0
    rows: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str | None:
        """The report in one line for the user; None if there is nothing to report."""
        if self.rebuilt is not None:
            return f"the catalog {self.rebuilt}: rebuilt, {_count(self.rows, 'row')}" if self.rows else None
        return f"the catalog caught up with {_count(self.changed, 'change')}" if self.changed else None


def is_record(path: str) -> bool:
    """Return whether the file at `path` has a row in the catalog, or is named there as bad."""
    if path.startswith("data/"):
        return is_metadata_path(path)
    return _OUTPUT.fullmatch(path) is not None or _RUN.fullmatch(path) is not None


def derive(path: str, data: bytes) -> Row:
    """Return the row of a record's file; `RecordDamaged` if the file is invalid."""
    if path.startswith("data/"):
        return version_row(path, Metadata.from_bytes(data, path))
    fields = document.load(data, path)
    return output_row(path, fields) if path.startswith("outputs/") else run_row(path, fields)


def version_row(path: str, metadata: Metadata) -> VersionRow:
    """Return the row of a version. Its key comes from the path of its `metadata.yaml`, not from the file."""
    location = version_path(path)
    if location is None:
        raise document.damaged(path, f"the number of a version is at most {limits.VERSION_MAX}")
    owner = metadata.owner
    return VersionRow(
        model=owner.model,
        model_id=location.model_id,
        type=location.type,
        name=location.name,
        version=location.version,
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
        files=metadata.files,
    )


def output_row(path: str, fields: Fields) -> OutputRow:
    """Return the row of an output from the fields of its file."""
    match = _OUTPUT.fullmatch(path)
    assert match is not None
    return OutputRow(
        id=match["id"],
        model=text_in(path, fields, "model"),
        model_id=match["model_id"],
        type=match["type"],
        method=text_in(path, fields, "method"),
        status=text_in(path, fields, "status"),
        started_at=_time(path, "started_at", text_in(path, fields, "started_at")),
        finished_at=optional_text_in(path, fields, "finished_at"),
        duration_s=number_in(path, fields, "duration_s"),
        data=tuple(saved_version_in(path, version) for version in records_in(path, fields, "data")),
        error=optional_text_in(path, fields, "error"),
        run=optional_text_in(path, fields, "run"),
        workflow=optional_text_in(path, fields, "workflow"),
        job=optional_text_in(path, fields, "job"),
        step=optional_text_in(path, fields, "step"),
        tags=_tags(path, fields),
    )


def run_row(path: str, fields: Fields) -> RunRow:
    """Return the row of a workflow run from the fields of its file."""
    match = _RUN.fullmatch(path)
    assert match is not None
    return RunRow(
        run_id=match["run_id"],
        workflow_id=match["workflow_id"],
        workflow=text_in(path, fields, "workflow"),
        status=text_in(path, fields, "status"),
        started_at=_time(path, "started_at", text_in(path, fields, "started_at")),
        finished_at=optional_text_in(path, fields, "finished_at"),
        failed_step=optional_text_in(path, fields, "failed_step"),
        by=optional_text_in(path, fields, "by"),
        tags=_tags(path, fields),
        words=_words(path, fields),
    )


def _words(path: str, fields: Fields) -> str:
    """Return the text that a search looks at: workflow, user, inputs, tags, steps and errors."""
    found = [fields["workflow"], fields.get("by"), fields.get("failed_step")]
    for mapping in (fields.get("inputs"), fields.get("tags")):
        if isinstance(mapping, dict):
            found += [f"{key}={value}" for key, value in mapping.items()]
    for job in records_in(path, fields, "jobs"):
        found.append(job.get("name"))
        for step in records_in(path, job, "steps"):
            found += [step.get(key) for key in _WORDS_OF_STEP]
    return "\n".join(str(word) for word in found if word).casefold()


def saved_version_in(path: str, found: Fields) -> SavedVersion:
    """Return a version that a record lists as saved; `RecordDamaged` if a field is missing or invalid."""
    name, version, size, sha256 = (found.get(key) for key in ("name", "version", "size", "sha256"))
    if not (isinstance(name, str) and type(version) is int and type(size) is int):
        raise _invalid(path, "data")
    if not (0 < version <= limits.VERSION_MAX and 0 <= size <= limits.SIZE_MAX):
        raise _invalid(path, "data")
    return SavedVersion(name, version, size, sha256 if isinstance(sha256, str) else None)


def _time(path: str, key: str, text: str) -> str:
    """Return a time as Bayou writes it, so that times compare as strings."""
    try:
        return format_utc(parse_utc(text))
    except ValueError:
        raise _invalid(path, key) from None


def text_in(path: str, fields: Fields, key: str) -> str:
    """Return the text of a field; `RecordDamaged` if it is missing or of another type. So do the next functions."""
    value = fields.get(key)
    if not isinstance(value, str):
        raise _invalid(path, key)
    return value


def optional_text_in(path: str, fields: Fields, key: str) -> str | None:
    """Return the text of a field that may be missing."""
    return None if fields.get(key) is None else text_in(path, fields, key)


def number_in(path: str, fields: Fields, key: str) -> float | None:
    """Return the number of a field that may be missing; the number is finite."""
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= limits.COUNT_MAX:
        raise _invalid(path, key)
    return float(value)


def records_in(path: str, fields: Fields, key: str) -> list[Fields]:
    """Return the list of mappings of a field; an empty list if it is missing."""
    value = fields.get(key) or []
    if not isinstance(value, list) or not all(isinstance(fields, dict) for fields in value):
        raise _invalid(path, key)
    return value


def _tags(path: str, fields: Fields) -> Mapping[str, str]:
    value = fields.get("tags") or {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise _invalid(path, "tags")
    return value


def _invalid(path: str, key: str) -> RecordDamaged:
    return document.damaged(path, f"{key} is missing or not what it should be")


def stamp(found: FileStat) -> str:
    """Return a text that changes whenever a stable file does."""
    return f"{found.size}:{found.mtime_ns}:{found.ctime_ns}:{found.inode}"


def read_all(root: Path, records: Iterable[str]) -> Iterator[RecordRead | MissingFile]:
    """Read the records at these paths, in order of path."""
    directories = DirFdCache(root)
    try:
        for path in sorted(records):
            try:
                data, found, stable = _read_file(directories.locate(path), max_bytes(path))
            except (FileNotFoundError, NotADirectoryError):
                directories.close()
                yield MissingFile(path)
                continue
            except (OSError, BayouError) as error:
                directories.close()
                reason = error.message if isinstance(error, BayouError) else os_reason(error)
                yield RecordRead(path, None, None, f"{path} cannot be read: {reason}", hidden=True)
                continue
            mark = stamp(found) if stable else None
            try:
                yield RecordRead(path, values(derive(path, data))[1], mark)
            except RecordDamaged as error:
                yield RecordRead(path, None, mark, error.message)
    finally:
        directories.close()


def _read_file(spot: DirEntryRef, most: int) -> tuple[bytes, FileStat, bool]:
    """Return a file's bytes, its stat from before the read, and whether a later write is sure to change the stat.

    Of a file that has more than `most` bytes it returns a little more than that, which every parser refuses (V25).
    """
    descriptor = os.open(spot.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=spot.directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(spot.path)
        found = FileStat.of(status)
        stable = found.settled(time.time_ns())
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return read_at_most(file, most), found, stable
    finally:
        os.close(descriptor)


def apply(db: sqlite3.Connection, found: Iterable[RecordRead | MissingFile], gone: Gone) -> int:
    """Make the rows of records equal to their files; return how many rows changed.

    A file that cannot be parsed has no row, and is listed as bad; a file that cannot be opened keeps its row.
    """
    writer = _RowWriter(db)
    absent: list[str] = []
    for file in found:
        if isinstance(file, MissingFile):
            absent.append(file.path)
        else:
            writer.add(file)
    writer.flush()
    deleted = gone(absent) if absent else ()
    db.executemany("DELETE FROM bad WHERE path = ?", [(path,) for path in absent])
    return writer.count + drop(db, deleted)


class _RowWriter:
    """Writes changed rows to the catalog in batches. `count` is how many changed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: dict[str, list[Values]] = {table: [] for table in TABLES}
        self._bad = {path for (path,) in db.execute("SELECT path FROM bad")}
        # Hot: the first build of a large catalog has nothing to compare with.
        self._new = {table: db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None for table in TABLES}
        self.count = 0

    def add(self, file: RecordRead) -> None:
        if file.row is None:
            self._db.execute("INSERT OR REPLACE INTO bad VALUES (?, ?, ?)", (file.path, file.why, file.stamp))
            self._bad.add(file.path)
            if not file.hidden:
                self.count += drop(self._db, [file.path])
            return
        if file.path in self._bad:
            self._db.execute("DELETE FROM bad WHERE path = ?", (file.path,))
        table, key = key_of(file.path)
        current = None if self._new[table] else self._current(table, key)
        if current is None or current[:-1] != file.row:
            self.count += 1
        if current is None or current != (*file.row, file.stamp):
            self._rows[table].append((*file.row, file.stamp))
            if len(self._rows[table]) >= _BATCH:
                self.flush()

    def flush(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                put(self._db, table, rows)
                rows.clear()

    def _current(self, table: str, key: Values) -> Values | None:
        where = " AND ".join(f'"{name}" = ?' for name in KEYS[table])
        found: Values | None = self._db.execute(
            f"SELECT {quoted((*TABLES[table], 'stamp'))} FROM {table} WHERE {where}", key
        ).fetchone()
        return found


def is_current(db: sqlite3.Connection, feed: ChangeFeed) -> bool:
    """Return whether the catalog reflects the feed's position, and no change is under way."""
    return get_meta(db, "position") == feed.cursor.dump() and not feed.cursor.open


def finish_refresh(
    db: sqlite3.Connection, datastore: str, position: str, why: str | None, changed: int
) -> RefreshReport:
    """Store the datastore and the position that the catalog reflects, in the transaction that made it so."""
    set_meta(db, "place", datastore)
    set_meta(db, "position", position)
    set_meta(db, "why", None)
    if why is None:
        return RefreshReport(changed=changed)
    rows = sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
    return RefreshReport(why, changed, rows)


def empty(db: sqlite3.Connection) -> None:
    """Delete all rows: they are of another datastore."""
    for table in (*TABLES, "bad", "folder", "pending", "recent"):
        db.execute(f"DELETE FROM {table}")
    set_meta(db, "former", None)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
