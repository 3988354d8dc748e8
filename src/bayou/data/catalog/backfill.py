"""A rebuild of the catalog: one job reads every record, and the rows are loaded here as they come.

The load is part of the rebuild's transaction, so that it takes effect as a whole, with the position that it reflects.

What changed in a datastore that is a directory: told by stat alone, and no file is opened.

A directory whose mtime is the one that is remembered has the names that it had; in one that has changed, every record
is looked at. Claimed versions that have no metadata yet are directories like all others.

What the workers of a rebuild tell of records and directories, and the rows in which that crosses to the driver.
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
from bayou.data.catalog.derive import ROOTS, Absent, Read, is_record, read_all, stamp
from bayou.data.catalog.schema import INDEXES
from bayou.data.engine import CatalogEngine, needs_of
from bayou.data.layout import METADATA, version_number
from bayou.engine.job import Needs
from bayou.engine.parts import groups
from bayou.repo import Repo
from bayou.worktree.durability import os_reason
from bayou.worktree.safe_root import DIRECTORY
from bayou.worktree.scan import Found, scan, subtrees

_STEP_NS = 2_000_000_000
"""A directory that changed less than this ago may change again without a trace in its mtime."""

_VERSION_DEPTH = 5
_plain = re.compile(r"[0-9A-Za-z@][0-9A-Za-z_.@-]*").fullmatch


class Survey(Struct):
    """What a look brought: the records, with their stamps, in directories that were listed; known ones that changed.

    `folders` are to be remembered; `hidden` are directories that could not be seen, and why: nothing below them is
    known to be gone (V20).
    """

    found: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)
    folders: dict[str, int | None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    hidden: dict[str, str] = field(default_factory=dict)


def survey(root: Path, remembered: Mapping[str, int | None], known: Iterable[tuple[str, str | None]]) -> Survey:
    """Look at a directory datastore. `remembered` has its directories with their mtimes, `known` records and stamps."""
    base = f"{root}/"
    look = _Look(base, remembered)
    look.walk([*ROOTS, *remembered])
    hidden = tuple(f"{path}/" for path in look.survey.hidden)
    for path, mark in known:
        if hidden and path.startswith(hidden):
            continue
        try:
            if mark is None or stamp(os.stat(base + path, follow_symlinks=False)) != mark:
                look.survey.changed.append(path)
        except OSError:
            look.survey.changed.append(path)
    return look.survey


def survey_up_to(root: Path, limit: int) -> Survey | None:
    """Look at a directory datastore as at something new; None as soon as it has more records than `limit`."""
    look = _Look(f"{root}/", {})
    look.walk(list(ROOTS), limit)
    return look.survey if len(look.survey.found) <= limit else None


def divide(root: Path, wanted: int) -> tuple[Survey, list[str]]:
    """Look at the uppermost directories, until there are about `wanted` below them to look into."""
    look = _Look(f"{root}/", {})
    front = list(ROOTS)
    while front and len(front) < wanted:
        front = [inner for path in front for inner in look.folder(path)]
    return look.survey, front


def survey_below(root: Path, places: Iterable[str]) -> Survey:
    """Look at some directories and all that is below them, as at something new."""
    look = _Look(f"{root}/", {})
    look.walk(list(places))
    return look.survey


class _Look:
    def __init__(self, base: str, remembered: Mapping[str, int | None]) -> None:
        self._base = base
        self._remembered = remembered
        self.survey = Survey()

    def walk(self, waiting: list[str], limit: int | None = None) -> None:
        """Look at directories and at all that is below them; at no more once there are more records than `limit`."""
        while waiting and (limit is None or len(self.survey.found) <= limit):
            waiting += self.folder(waiting.pop())

    def folder(self, path: str) -> list[str]:
        """Look at one directory; return those in it that nobody remembers."""
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
            survey.folders[path] = mtime if mtime < time.time_ns() - _STEP_NS else None
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
        # By descriptor: a directory that became a link since it was looked at is not followed.
        descriptor = os.open(self._base + path, DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    inner = f"{path}/{entry.name}"
                    if _plain(entry.name) is None and paths.refusal(f"{inner}/x") is not None:
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        if is_record(inner):
                            self.survey.found[inner] = stamp(entry.stat(follow_symlinks=False))
                    elif not self._version(inner, entry.name) and inner not in self._remembered:
                        new.append(inner)
        finally:
            os.close(descriptor)
        return new

    def _version(self, path: str, name: str) -> bool:
        """Take a directory for a version if it is called like one, and has metadata."""
        if version_number(name) is None or path.count("/") < _VERSION_DEPTH - 1 or not path.startswith("data/"):
            return False
        metadata = f"{path}/{METADATA}"
        try:
            self.survey.found[metadata] = stamp(os.lstat(self._base + metadata))
        except FileNotFoundError:
            return False
        return True


class Line(NamedTuple):
    """A row: what is told of one file or directory. `kind` says of what class it is, `row` is JSON."""

    path: str
    kind: str
    row: str | None = None
    stamp: str | None = None
    why: str | None = None
    mtime: int | None = None


class Folder(Struct, frozen=True):
    """A directory to be remembered, with its mtime."""

    path: str
    mtime: int | None


class Closed(Struct, frozen=True):
    """A directory that could not be looked into."""

    path: str
    why: str


Told = Read | Absent | Folder | Closed


def directories(seen: Survey) -> Iterator[Folder | Closed]:
    """Yield the directories of a survey."""
    yield from (Folder(path, mtime) for path, mtime in seen.folders.items())
    yield from (Closed(path, f"{path} cannot be read: {why}") for path, why in seen.hidden.items())


def line_of(one: Told) -> Line:
    """Return an answer as it crosses."""
    match one:
        case Read(path, None, stamp, why, hidden):
            return Line(path, "hidden" if hidden else "bad", stamp=stamp, why=why)
        case Read(path, row, stamp):
            return Line(path, "row", json.dumps(row), stamp)
        case Folder(path, mtime):
            return Line(path, "folder", mtime=mtime)
        case Closed(path, why):
            return Line(path, "closed", why=why)
        case Absent(path):
            return Line(path, "absent")


def told_by(line: Line) -> Told:
    """Return the answer that crossed."""
    path, kind, row, stamp, why, mtime = line
    match kind:
        case "row":
            return Read(path, tuple(json.loads(row or "")), stamp)
        case "folder":
            return Folder(path, mtime)
        case "closed":
            return Closed(path, why or "")
        case "absent":
            return Absent(path)
    return Read(path, None, stamp, why or "", hidden=kind == "hidden")


def records_of(told: Iterable[Told]) -> Iterator[Read | Absent]:
    """Yield the answers about records, and none about directories."""
    return (one for one in told if isinstance(one, Read | Absent))


_PLACES_PER_PART = 4
_RECORDS = 1000
"""Records of one part, where they lie in one directory and so cannot be divided otherwise."""

_MANY = 20_000
"""Records that are loaded sooner into tables without indexes."""

Take = Callable[[Iterator[Told]], int]
"""Loads what was told, and returns how many rows are not what they were."""


class Part(Struct, frozen=True):
    """Directories that are read with all that is below them, records that were found already, and what is known."""

    below: Sequence[str] = ()
    records: Sequence[str] = ()
    known: Sequence[Line] = ()


class CacheReader:
    """Reads the records of a part of a store's cache. A kernel."""

    row = Line

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, part: Part) -> Iterator[Line]:
        here = (found.path for top in part.below for found in scan(self.root, top) if isinstance(found, Found))
        yield from part.known
        yield from map(line_of, read_all(self.root, filter(is_record, here)))
        yield from map(line_of, read_all(self.root, part.records))


class DirectoryReader:
    """Reads the records of a part of a directory datastore, and tells of its directories. A kernel."""

    row = Line

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, part: Part) -> Iterator[Line]:
        yield from part.known
        for place in part.below:
            seen = survey_below(self.root, [place])
            yield from map(line_of, directories(seen))
            yield from map(line_of, read_all(self.root, seen.found))
        yield from map(line_of, read_all(self.root, part.records))


class _Load(Struct, frozen=True):
    """Loads rows into the catalog, in a savepoint: a job that fails leaves nothing for the one that does it again."""

    db: sqlite3.Connection
    take: Take
    many: bool

    def __call__(self, rows: Iterable[Line]) -> int:
        with _savepoint(self.db), _without_indexes(self.db) if self.many else nullcontext():
            return self.take(map(told_by, rows))


class BackfillJob:
    """Reads every record of a tree and loads it. An `engine.job.Job`."""

    row = Line
    stage = Stage("reading records")

    def __init__(
        self,
        needs: Needs,
        reader: CacheReader | DirectoryReader,
        divided: Callable[[int], Sequence[Part]],
        load: Callable[[Iterable[Line]], int],
    ) -> None:
        self.needs = needs
        self._reader = reader
        self._divided = divided
        self._load = load

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return type(self._reader), (self._reader.root,)  # the database stays with the driver

    def parts(self, wanted: int) -> Sequence[Part]:
        return self._divided(wanted)

    def run(self, part: Part) -> Iterator[Line]:
        return self._reader.run(part)

    def fold(self, rows: Iterable[Line]) -> int:
        return self._load(rows)


class Backfill(Struct, frozen=True):
    """How one refresh of a catalog reads everything. `warnings` says why Spark did not, where it should have."""

    repo: Repo
    engine: CatalogEngine
    warnings: list[str] = field(default_factory=list)

    def cache(self, db: sqlite3.Connection, root: Path, here: Iterator[str], take: Take) -> int:
        """Load the records of a store's cache. `here` finds them; it is asked for as many as decide on the engine."""
        limit = self._limit
        some = list(islice(here, limit + 1))

        def parts(wanted: int) -> Sequence[Part]:
            return _record_parts(some) if len(some) <= limit else _cache_parts(root, wanted)

        return self._run(CacheReader(root), parts, len(some), _Load(db, take, len(some) > min(limit, _MANY)))

    def directory(self, db: sqlite3.Connection, root: Path, take: Take) -> int:
        """Load the records of a directory datastore, and its directories."""
        limit = self._limit
        seen = survey_up_to(root, limit)

        def parts(wanted: int) -> Sequence[Part]:
            upper, front = divide(root, wanted * _PLACES_PER_PART) if seen is None else (seen, [])
            return [*_surveyed_parts(upper), *(Part(below=some) for some in groups(front, wanted))]

        count = limit + 1 if seen is None else len(seen.found)
        return self._run(DirectoryReader(root), parts, count, _Load(db, take, count > min(limit, _MANY)))

    @property
    def _limit(self) -> int:
        """How many records are looked for before the work begins: with more, parts are found by the way."""
        limit = self.engine.limit(self.repo)
        return _MANY if limit is None else limit

    def _run(
        self, reader: CacheReader | DirectoryReader, parts: Callable[[int], Sequence[Part]], count: int, load: _Load
    ) -> int:
        job = BackfillJob(needs_of(self.repo), reader, parts, load)
        return self.engine.run(self.repo, job, what="the catalog was rebuilt", count=count, warn=self.warnings.append)


def _cache_parts(root: Path, wanted: int) -> Sequence[Part]:
    found = subtrees(root, wanted * _PLACES_PER_PART)
    named = [place for place in found if place is not None and place.partition("/")[0] in ROOTS]
    return [Part(below=some) for some in groups(ROOTS if None in found else named, wanted)]


def _surveyed_parts(seen: Survey) -> list[Part]:
    return [Part(known=list(map(line_of, directories(seen)))), *_record_parts(list(seen.found))]


def _record_parts(records: Sequence[str]) -> list[Part]:
    return [Part(records=records[at : at + _RECORDS]) for at in range(0, len(records), _RECORDS)]


@contextmanager
def _without_indexes(db: sqlite3.Connection) -> Iterator[None]:
    """Do without the indexes of questions while rows come, and make them when all are there.

    Rows come in the order of their places, and in none of their ids and times: an index of a million of those that is
    made as they come is written to all over, again and again.
    """
    for name in INDEXES:
        db.execute(f"DROP INDEX IF EXISTS {name}")
    yield
    for statement in INDEXES.values():
        db.execute(statement)


@contextmanager
def _savepoint(db: sqlite3.Connection) -> Iterator[None]:
    """Undo what was done in here if it fails, and only that: the caller goes on in the same transaction."""
    db.execute("SAVEPOINT backfill")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # on a full disk SQLite has rolled back by itself
            db.execute("ROLLBACK TO backfill")
            db.execute("RELEASE backfill")
        raise
    db.execute("RELEASE backfill")
