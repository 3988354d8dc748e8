"""A rebuild of more records than one process should read: Spark reads them, and the rows are loaded here as they come.

The load is part of the rebuild's transaction, so that it takes effect as a whole, with the position that it reflects.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bayou.core.deadline import Deadline
from bayou.records.catalog.derive import ROOTS
from bayou.records.catalog.lines import CacheReader, DirectoryReader, Part, Told, directories, told_by
from bayou.records.catalog.schema import INDEXES
from bayou.records.catalog.survey import divide
from bayou.records.engine import Engine
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.pipeline.session import Session

_PLACES_PER_TASK = 4
_RECORDS = 1000
"""Records of one part, where they lie in one directory and so cannot be divided otherwise."""

Take = Callable[[Iterator[Told]], int]
"""Loads what was told, and returns how many rows are not what they were."""


class Backfill(Struct, frozen=True):
    """How one refresh of a catalog uses Spark. `warnings` says why it did not, where it should have."""

    repo: Repo
    engine: Engine
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
            from bayou.pipeline.backfill import backfill  # noqa: PLC0415
            from bayou.pipeline.stream import tasks_of  # noqa: PLC0415

            parts, seen = divided(tasks_of(spark) * _PLACES_PER_TASK)
            found = backfill(spark, parts, read, progress=self.engine.progress, deadline=deadline)
            with _whole(db), _loading(db), closing(found):
                return take(chain(seen, map(told_by, found)))

        return self.engine.run(self.repo, "the catalog was rebuilt", job, self.warnings.append)


def _cache_parts(root: Path, tasks: int) -> Sequence[Part]:
    from bayou.engine.parts import groups  # noqa: PLC0415
    from bayou.pipeline.sources.files import places  # noqa: PLC0415

    found = places(root, tasks * _PLACES_PER_TASK)
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
