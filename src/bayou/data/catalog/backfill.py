"""Rebuild the catalog from the records of a tree, and survey a datastore that is a directory.

A rebuild is one job: its workers read every record, and the driver loads the rows into the catalog as they arrive
(`Backfill`). The load is part of the caller's transaction, so the rows and the position that they reflect take effect
together.

A survey (`survey`) finds what changed in a directory datastore by stat alone, and opens no file. A directory whose
mtime is the remembered one still has the same names; in a directory with another mtime every record is compared. An
allocated version that has no metadata yet counts as an ordinary directory.

Workers send what they found to the driver as `BackfillRow` rows; `to_row` and `from_row` convert them.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from stat import S_ISDIR
from typing import Any, NamedTuple

from msgspec import Struct, field

from bayou.core import paths
from bayou.core.progress import Stage
from bayou.data.catalog.derive import ROOTS, MissingFile, RecordRead, is_record, read_all, stamp
from bayou.data.catalog.schema import INDEXES
from bayou.data.engine import CatalogEngine, needs_of
from bayou.data.layout import METADATA, version_number
from bayou.engine.job import Needs
from bayou.engine.parts import groups
from bayou.repo import Repo
from bayou.worktree.durability import os_reason
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DIRECTORY
from bayou.worktree.scan import ScannedFile, scan, subtrees

_MTIME_STEP_NS = 2_000_000_000
"""The coarsest mtime: a directory that changed less than this ago may change again under the same mtime."""

_VERSION_DEPTH = 5
_plain = re.compile(r"[0-9A-Za-z@][0-9A-Za-z_.@-]*").fullmatch


class DirectorySurvey(Struct):
    """The result of a survey.

    `found` has the records, with their stamps, of the directories that were `listed`; `changed` are known records that
    are not as they were, or are gone. `folders` are the directories to remember, with their mtimes; `gone` are those
    that no longer exist; `hidden` has those that could not be read, and why: nothing below them counts as gone (V20).
    """

    found: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)
    folders: dict[str, int | None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    hidden: dict[str, str] = field(default_factory=dict)


def survey(
    root: Path, remembered: Mapping[str, int | None], known: Iterable[tuple[str, str | None]]
) -> DirectorySurvey:
    """Survey a directory datastore. `remembered` has its directories with mtimes, `known` its records with stamps."""
    base = f"{root}/"
    scanner = _Scanner(base, remembered)
    scanner.walk([*ROOTS, *remembered])
    hidden = tuple(f"{path}/" for path in scanner.survey.hidden)
    for path, mark in known:
        if hidden and path.startswith(hidden):
            continue
        try:
            if mark is None or stamp(FileStat.of(os.lstat(base + path))) != mark:
                scanner.survey.changed.append(path)
        except OSError:
            scanner.survey.changed.append(path)
    return scanner.survey


def survey_up_to(root: Path, limit: int) -> DirectorySurvey | None:
    """Survey a directory datastore of which nothing is remembered; None as soon as it has more than `limit` records."""
    scanner = _Scanner(f"{root}/", {})
    scanner.walk(list(ROOTS), limit)
    return scanner.survey if len(scanner.survey.found) <= limit else None


def divide(root: Path, wanted: int) -> tuple[DirectorySurvey, list[str]]:
    """Survey the uppermost levels; return that with the directories of the next level, about `wanted` of them."""
    scanner = _Scanner(f"{root}/", {})
    front = list(ROOTS)
    while front and len(front) < wanted:
        front = [inner for path in front for inner in scanner.folder(path)]
    return scanner.survey, front


def survey_below(root: Path, tops: Iterable[str]) -> DirectorySurvey:
    """Survey some directories and everything below them, of which nothing is remembered."""
    scanner = _Scanner(f"{root}/", {})
    scanner.walk(list(tops))
    return scanner.survey


class _Scanner:
    """Adds directories to a survey, one at a time."""

    def __init__(self, base: str, remembered: Mapping[str, int | None]) -> None:
        self._base = base
        self._remembered = remembered
        self.survey = DirectorySurvey()

    def walk(self, waiting: list[str], limit: int | None = None) -> None:
        """Survey directories and everything below them; stop once there are more records than `limit`."""
        while waiting and (limit is None or len(self.survey.found) <= limit):
            waiting += self.folder(waiting.pop())

    def folder(self, path: str) -> list[str]:
        """Survey one directory; return the directories in it that are not remembered."""
        survey = self.survey
        if path in survey.folders:
            return []
        try:
            status = os.lstat(self._base + path)
            if not S_ISDIR(status.st_mode):
                raise FileNotFoundError(path)
            mtime = status.st_mtime_ns
            if path in self._remembered and self._remembered[path] == mtime:
                survey.folders[path] = mtime
                return []
            survey.folders[path] = mtime if mtime < time.time_ns() - _MTIME_STEP_NS else None
            return self._names(path)
        except (FileNotFoundError, NotADirectoryError):
            survey.gone.add(path)
        except OSError as error:
            survey.hidden[path] = os_reason(error)
        survey.folders.pop(path, None)
        return []

    def _names(self, path: str) -> list[str]:
        new: list[str] = []
        self.survey.listed.add(path)
        # By descriptor: a directory that became a symbolic link since the lstat is not followed.
        descriptor = os.open(self._base + path, DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    inner = f"{path}/{entry.name}"
                    if _plain(entry.name) is None and paths.refusal(f"{inner}/x") is not None:
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        if is_record(inner):
                            self.survey.found[inner] = stamp(FileStat.of(entry.stat(follow_symlinks=False)))
                    elif not self._is_version(inner, entry.name) and inner not in self._remembered:
                        new.append(inner)
        finally:
            os.close(descriptor)
        return new

    def _is_version(self, path: str, name: str) -> bool:
        """Add the metadata of a version directory to the survey; False if the name or the file does not fit."""
        if version_number(name) is None or path.count("/") < _VERSION_DEPTH - 1 or not path.startswith("data/"):
            return False
        metadata = f"{path}/{METADATA}"
        try:
            self.survey.found[metadata] = stamp(FileStat.of(os.lstat(self._base + metadata)))
        except FileNotFoundError:
            return False
        return True


class BackfillRow(NamedTuple):
    """A row of the job: a `BackfillFinding`. `kind` names its class, `row` is JSON."""

    path: str
    kind: str
    row: str | None = None
    stamp: str | None = None
    why: str | None = None
    mtime: int | None = None


class DirectoryStamp(Struct, frozen=True):
    """A directory to remember, with its mtime; None if that may still change unnoticed."""

    path: str
    mtime: int | None


class UnreadableDirectory(Struct, frozen=True):
    """A directory that could not be read."""

    path: str
    why: str


BackfillFinding = RecordRead | MissingFile | DirectoryStamp | UnreadableDirectory
"""A worker's result for one record or directory."""


def directories(seen: DirectorySurvey) -> Iterator[DirectoryStamp | UnreadableDirectory]:
    """Yield the directories of a survey, readable and unreadable."""
    yield from (DirectoryStamp(path, mtime) for path, mtime in seen.folders.items())
    yield from (UnreadableDirectory(path, f"{path} cannot be read: {why}") for path, why in seen.hidden.items())


def to_row(found: BackfillFinding) -> BackfillRow:
    """Encode a finding as a row that a worker sends to the driver."""
    match found:
        case RecordRead(path, None, stamp, why, hidden):
            return BackfillRow(path, "hidden" if hidden else "bad", stamp=stamp, why=why)
        case RecordRead(path, row, stamp):
            return BackfillRow(path, "row", json.dumps(row), stamp)
        case DirectoryStamp(path, mtime):
            return BackfillRow(path, "folder", mtime=mtime)
        case UnreadableDirectory(path, why):
            return BackfillRow(path, "closed", why=why)
        case MissingFile(path):
            return BackfillRow(path, "absent")


def from_row(line: BackfillRow) -> BackfillFinding:
    """Decode a row into the finding; the inverse of `to_row`."""
    path, kind, row, stamp, why, mtime = line
    match kind:
        case "row":
            return RecordRead(path, tuple(json.loads(row or "")), stamp)
        case "folder":
            return DirectoryStamp(path, mtime)
        case "closed":
            return UnreadableDirectory(path, why or "")
        case "absent":
            return MissingFile(path)
    return RecordRead(path, None, stamp, why or "", hidden=kind == "hidden")


def records_of(findings: Iterable[BackfillFinding]) -> Iterator[RecordRead | MissingFile]:
    """Yield the findings about records, without those about directories."""
    return (found for found in findings if isinstance(found, RecordRead | MissingFile))


_DIRECTORIES_PER_PART = 4
_RECORDS = 1000
"""Records of a part, where a list of records is divided and not the directories."""

_MANY = 20_000
"""From so many records on it is faster to load tables without indexes and to create the indexes afterwards."""

Take = Callable[[Iterator[BackfillFinding]], int]
"""Loads findings into the catalog, and returns how many rows it changed."""


class BackfillPart(Struct, frozen=True):
    """Directories to read with everything below them, records that were found already, and finished rows."""

    below: Sequence[str] = ()
    records: Sequence[str] = ()
    known: Sequence[BackfillRow] = ()


class CacheReader:
    """Reads the records of a part of a store's cache. A kernel."""

    row = BackfillRow

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, part: BackfillPart) -> Iterator[BackfillRow]:
        here = (found.path for top in part.below for found in scan(self.root, top) if isinstance(found, ScannedFile))
        yield from part.known
        yield from map(to_row, read_all(self.root, filter(is_record, here)))
        yield from map(to_row, read_all(self.root, part.records))


class DirectoryReader:
    """Reads the records and the directories of a part of a directory datastore. A kernel."""

    row = BackfillRow

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, part: BackfillPart) -> Iterator[BackfillRow]:
        yield from part.known
        for top in part.below:
            seen = survey_below(self.root, [top])
            yield from map(to_row, directories(seen))
            yield from map(to_row, read_all(self.root, seen.found))
        yield from map(to_row, read_all(self.root, part.records))


class _Load(Struct, frozen=True):
    """Loads rows into the catalog in a savepoint: a job that fails leaves nothing behind for its repetition."""

    db: sqlite3.Connection
    take: Take
    many: bool

    def __call__(self, rows: Iterable[BackfillRow]) -> int:
        with _savepoint(self.db), _without_indexes(self.db) if self.many else nullcontext():
            return self.take(map(from_row, rows))


class BackfillJob:
    """Reads every record of a tree and loads it. An `engine.job.Job`."""

    row = BackfillRow
    stage = Stage("reading records")

    def __init__(
        self,
        needs: Needs,
        reader: CacheReader | DirectoryReader,
        divided: Callable[[int], Sequence[BackfillPart]],
        load: Callable[[Iterable[BackfillRow]], int],
    ) -> None:
        self.needs = needs
        self._reader = reader
        self._divided = divided
        self._load = load

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return type(self._reader), (self._reader.root,)  # the database stays with the driver

    def parts(self, wanted: int) -> Sequence[BackfillPart]:
        return self._divided(wanted)

    def run(self, part: BackfillPart) -> Iterator[BackfillRow]:
        return self._reader.run(part)

    def fold(self, rows: Iterable[BackfillRow]) -> int:
        return self._load(rows)


class Backfill(Struct, frozen=True):
    """How a refresh of a catalog reads all records. `warnings` say why Spark did not, if it was chosen and failed."""

    repo: Repo
    engine: CatalogEngine
    warnings: list[str] = field(default_factory=list)

    def cache(self, db: sqlite3.Connection, root: Path, here: Iterator[str], take: Take) -> int:
        """Load the records of a store's cache. `here` lists them; it is read as far as the choice of engine needs."""
        limit = self._limit
        first = list(islice(here, limit + 1))

        def parts(wanted: int) -> Sequence[BackfillPart]:
            return _record_parts(first) if len(first) <= limit else _cache_parts(root, wanted)

        return self._run(CacheReader(root), parts, len(first), _Load(db, take, len(first) > min(limit, _MANY)))

    def directory(self, db: sqlite3.Connection, root: Path, take: Take) -> int:
        """Load the records of a directory datastore, and its directories."""
        limit = self._limit
        seen = survey_up_to(root, limit)

        def parts(wanted: int) -> Sequence[BackfillPart]:
            upper, front = divide(root, wanted * _DIRECTORIES_PER_PART) if seen is None else (seen, [])
            return [*_surveyed_parts(upper), *(BackfillPart(below=group) for group in groups(front, wanted))]

        count = limit + 1 if seen is None else len(seen.found)
        return self._run(DirectoryReader(root), parts, count, _Load(db, take, count > min(limit, _MANY)))

    @property
    def _limit(self) -> int:
        """The number of records up to which the driver lists all of them first; with more, workers list them."""
        limit = self.engine.limit(self.repo)
        return _MANY if limit is None else limit

    def _run(
        self,
        reader: CacheReader | DirectoryReader,
        parts: Callable[[int], Sequence[BackfillPart]],
        count: int,
        load: _Load,
    ) -> int:
        job = BackfillJob(needs_of(self.repo), reader, parts, load)
        return self.engine.run(self.repo, job, what="the catalog was rebuilt", count=count, warn=self.warnings.append)


def _cache_parts(root: Path, wanted: int) -> Sequence[BackfillPart]:
    found = subtrees(root, wanted * _DIRECTORIES_PER_PART)
    tops = [top for top in found if top is not None and top.partition("/")[0] in ROOTS]
    return [BackfillPart(below=group) for group in groups(ROOTS if None in found else tops, wanted)]


def _surveyed_parts(seen: DirectorySurvey) -> list[BackfillPart]:
    return [BackfillPart(known=list(map(to_row, directories(seen)))), *_record_parts(list(seen.found))]


def _record_parts(records: Sequence[str]) -> list[BackfillPart]:
    return [BackfillPart(records=records[at : at + _RECORDS]) for at in range(0, len(records), _RECORDS)]


@contextmanager
def _without_indexes(db: sqlite3.Connection) -> Iterator[None]:
    """Drop the indexes that queries use while rows are loaded, and create them again at the end.

    Rows arrive in path order, which is random order for their ids and times: to keep an index of those up to date while
    a million rows arrive, SQLite would rewrite pages all over the file again and again.
    """
    for name in INDEXES:
        db.execute(f"DROP INDEX IF EXISTS {name}")
    yield
    for statement in INDEXES.values():
        db.execute(statement)


@contextmanager
def _savepoint(db: sqlite3.Connection) -> Iterator[None]:
    """Roll back only this block if it fails; the caller goes on in the same transaction."""
    db.execute("SAVEPOINT backfill")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # on a full disk SQLite has rolled back by itself
            db.execute("ROLLBACK TO backfill")
            db.execute("RELEASE backfill")
        raise
    db.execute("RELEASE backfill")
