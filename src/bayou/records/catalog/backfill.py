"""A rebuild of the catalog: one job reads every record, and the rows are loaded here as they come.

The load is part of the rebuild's transaction, so that it takes effect as a whole, with the position that it reflects.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any

from bayou.engine.job import Needs
from bayou.engine.parts import groups
from bayou.engine.progress import Stage
from bayou.quick import dataclass
from bayou.records.catalog.derive import ROOTS, is_record
from bayou.records.catalog.files import read_all
from bayou.records.catalog.lines import Line, Told, directories, line_of, told_by
from bayou.records.catalog.schema import INDEXES
from bayou.records.catalog.survey import Survey, divide, survey_below, survey_up_to
from bayou.records.engine import Engine, needs_of
from bayou.repo import Repo
from bayou.tree.scan import Found, places, scan

_PLACES_PER_PART = 4
_RECORDS = 1000
"""Records of one part, where they lie in one directory and so cannot be divided otherwise."""

_MANY = 20_000
"""Records that are loaded sooner into tables without indexes."""

Take = Callable[[Iterator[Told]], int]
"""Loads what was told, and returns how many rows are not what they were."""


@dataclass(frozen=True, slots=True)
class Part:
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


@dataclass(frozen=True, slots=True)
class _Load:
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


@dataclass(frozen=True, slots=True)
class Backfill:
    """How one refresh of a catalog reads everything. `warnings` says why Spark did not, where it should have."""

    repo: Repo
    engine: Engine
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
    found = places(root, wanted * _PLACES_PER_PART)
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
