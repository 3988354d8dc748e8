"""A rebuild of more records than one process should read: Spark reads them, and the rows are loaded here as they come.

The load is part of the rebuild's transaction, so that it takes effect as a whole, with the position that it reflects.

What changed in a datastore that is a directory: told by stat alone, and no file is opened.

A directory whose mtime is the one that is remembered has the names that it had; in one that has changed, every record
is looked at. Claimed versions that have no metadata yet are directories like all others.

What workers tell of records, as plain values that can travel, and what becomes of it here.

Both ways of a rebuild read with the same functions; here is only how their answers cross.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bayou.core import paths
from bayou.core.deadline import Deadline
from bayou.data.catalog.derive import ROOTS, Absent, Read, is_record, read_all, stamp
from bayou.data.catalog.schema import INDEXES
from bayou.data.engine import CatalogEngine
from bayou.data.layout import METADATA, version_number
from bayou.repo import Repo
from bayou.worktree.durability import why
from bayou.worktree.safe_root import DIRECTORY
from bayou.worktree.scan import Found, scan

if TYPE_CHECKING:
    from bayou.spark.session import Session

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


def has_more(root: Path, limit: int) -> bool:
    """Say whether a directory datastore has more records than that; no more is looked at than it takes to tell."""
    look = _Look(f"{root}/", {})
    look.walk(list(ROOTS), limit)
    return len(look.survey.found) > limit


def divide(root: Path, wanted: int) -> tuple[Survey, list[str]]:
    """Look at the uppermost directories, until there are about `wanted` below them that nobody has looked into yet."""
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
            survey.hidden[path] = why(error)
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


Line = tuple[str, str, str | None, str | None, str | None, int | None]
"""`path, kind, row, stamp, why, mtime`: what `bayou.spark.catalog_jobs` carries."""


class Folder(Struct, frozen=True):
    """A directory to be remembered, with its mtime."""

    path: str
    mtime: int | None


class Closed(Struct, frozen=True):
    """A directory that could not be looked into."""

    path: str
    why: str


Told = Read | Absent | Folder | Closed


class Part(Struct, frozen=True):
    """What one task looks at: directories with all that is below them, and records that were found already."""

    below: Sequence[str] = ()
    records: Sequence[str] = ()


class CacheReader(Struct, frozen=True):
    """Reads the records of a part of a store's cache. It can be pickled."""

    root: Path

    def __call__(self, part: Part) -> Iterator[Line]:
        here = (found.path for top in part.below for found in scan(self.root, top) if isinstance(found, Found))
        return map(line_of, read_all(self.root, filter(is_record, here)))


class DirectoryReader(Struct, frozen=True):
    """Reads the records of a part of a directory datastore, and tells of its directories. It can be pickled."""

    root: Path

    def __call__(self, part: Part) -> Iterator[Line]:
        for place in part.below:
            seen = survey_below(self.root, [place])
            yield from map(line_of, directories(seen))
            yield from map(line_of, read_all(self.root, seen.found))
        yield from map(line_of, read_all(self.root, part.records))


def directories(seen: Survey) -> Iterator[Folder | Closed]:
    """Yield the directories of a survey."""
    yield from (Folder(path, mtime) for path, mtime in seen.folders.items())
    yield from (Closed(path, f"{path} cannot be read: {why}") for path, why in seen.hidden.items())


def line_of(one: Told) -> Line:
    """Return an answer as it crosses."""
    match one:
        case Read(path, None, stamp, why, hidden):
            return path, "hidden" if hidden else "bad", None, stamp, why, None
        case Read(path, row, stamp):
            return path, "row", json.dumps(row), stamp, None, None
        case Folder(path, mtime):
            return path, "folder", None, None, None, mtime
        case Closed(path, why):
            return path, "closed", None, None, why, None
        case Absent(path):
            return path, "absent", None, None, None, None


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


_PLACES_PER_TASK = 4
_RECORDS = 1000
"""Records of one part, where they lie in one directory and so cannot be divided otherwise."""

Take = Callable[[Iterator[Told]], int]
"""Loads what was told, and returns how many rows are not what they were."""


class Backfill(Struct, frozen=True):
    """How one refresh of a catalog uses Spark. `warnings` says why it did not, where it should have."""

    repo: Repo
    engine: CatalogEngine
    warnings: list[str] = field(default_factory=list)

    @property
    def limit(self) -> int | None:
        """How many records this process reads by itself; None: all."""
        return self.engine.limit(self.repo)

    def cache(self, db: sqlite3.Connection, root: Path, take: Take) -> int | None:
        """Load the records of a store's cache; None where Spark cannot: then nothing has changed."""
        return self._run(db, CacheReader(root), lambda tasks: (_cache_parts(root, tasks), ()), take)

    def directory(self, db: sqlite3.Connection, root: Path, take: Take) -> int | None:
        """Load the records of a directory datastore, its directories among them; None as above."""
        return self._run(db, DirectoryReader(root), lambda tasks: _directory_parts(root, tasks), take)

    def _run(
        self,
        db: sqlite3.Connection,
        read: CacheReader | DirectoryReader,
        divided: Callable[[int], tuple[Sequence[Part], Iterable[Told]]],
        take: Take,
    ) -> int | None:
        def job(spark: Session, deadline: Deadline) -> int:
            from bayou.spark.arrow import tasks_of  # noqa: PLC0415
            from bayou.spark.catalog_jobs import backfill  # noqa: PLC0415

            parts, seen = divided(tasks_of(spark) * _PLACES_PER_TASK)
            found = backfill(spark, parts, read, progress=self.engine.progress, deadline=deadline)
            with _whole(db), _loading(db), closing(found):
                return take(chain(seen, map(told_by, found)))

        return self.engine.run(self.repo, "the catalog was rebuilt", job, self.warnings.append)


def _cache_parts(root: Path, tasks: int) -> Sequence[Part]:
    from bayou.engine.parts import groups  # noqa: PLC0415
    from bayou.spark.sources.source import subtrees  # noqa: PLC0415

    found = subtrees(root, tasks * _PLACES_PER_TASK)
    named = [place for place in found if place is not None and place.partition("/")[0] in ROOTS]
    return [Part(below=some) for some in groups(ROOTS if None in found else named, tasks)]


def _directory_parts(root: Path, tasks: int) -> tuple[Sequence[Part], Iterable[Told]]:
    from bayou.engine.parts import groups  # noqa: PLC0415

    upper, front = divide(root, tasks * _PLACES_PER_TASK)
    records = list(upper.found)
    parts = [Part(below=some) for some in groups(front, tasks)]
    parts += [Part(records=records[at : at + _RECORDS]) for at in range(0, len(records), _RECORDS)]
    return parts, directories(upper)


@contextmanager
def _loading(db: sqlite3.Connection) -> Iterator[None]:
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
def _whole(db: sqlite3.Connection) -> Iterator[None]:
    """Undo what was done in here if it fails, and only that: somebody else goes on in the same transaction."""
    db.execute("SAVEPOINT backfill")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # on a full disk SQLite has rolled back by itself
            db.execute("ROLLBACK TO backfill")
            db.execute("RELEASE backfill")
        raise
    db.execute("RELEASE backfill")
