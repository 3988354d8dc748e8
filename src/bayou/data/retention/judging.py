"""Which versions of all items may go: one job judges and weighs them, a range of items of the catalog in each part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from bayou.core.progress import Stage
from bayou.data.catalog import catalog as find
from bayou.data.catalog.catalog import Where, versions_between
from bayou.data.catalog.database import read_only
from bayou.data.catalog.schema import values, version_of
from bayou.data.engine import needs_of
from bayou.data.retention.expired import ExpiredSet
from bayou.data.retention.rules import Doomed, ExpiredVersion, RetentionEvaluator, Ruling, order
from bayou.engine.job import Needs
from bayou.engine.spool import SortedSpool

if TYPE_CHECKING:
    from bayou.data.records import Records

MOST_UNCLEAR = 1000
"""Versions that are named since they cannot be judged; of more, only the number is told."""

_ATTEMPTS = 3
_VERSIONS_PER_PART = 5000
"""Fewer are not worth a part."""


class Line(NamedTuple):
    """A row: a version that may go (`row` is JSON), why, and what that frees; or why one cannot be judged.

    `part` and `at` say where it stands in the order of items and numbers.
    """

    part: int
    at: int
    row: str | None = None
    why: str | None = None
    bytes: int | None = None
    unclear: str | None = None


class Items(Struct, frozen=True):
    """A part: the items from `first` to `last`, both included, each as type, model and name."""

    number: int
    first: tuple[str, str, str]
    last: tuple[str, str, str]


class Judged(Struct, frozen=True):
    """The versions that may go, and sentences about those that cannot be judged."""

    doom: ExpiredSet
    unclear: Sequence[str]

    @classmethod
    def of(cls, rulings: Iterable[Ruling]) -> Judged:
        """Keep what was ruled as it comes, in order of item and number."""
        unclear: list[str] = []
        more = 0

        def sentenced() -> Iterator[ExpiredVersion]:
            nonlocal more
            for one in rulings:
                if isinstance(one, ExpiredVersion):
                    yield one
                elif len(unclear) < MOST_UNCLEAR:
                    unclear.append(one)
                else:
                    more += 1

        doom = ExpiredSet(sentenced())
        return cls(doom, [*unclear, f"and {more:,} more that nobody can judge"] if more else unclear)


class RetentionJob:
    """Judges the items of a catalog, which workers read as a file. An `engine.job.Job`.

    An item is judged in one part and by one reading of its rows: all of its versions decide on each.
    """

    row = Line
    stage = Stage("judging versions")

    def __init__(self, catalog: Path, court: RetentionEvaluator, needs: Needs) -> None:
        self.needs = needs
        self._catalog = catalog
        self._court = court

    def __reduce__(self) -> tuple[Any, tuple[Path, RetentionEvaluator, Needs]]:
        return type(self), (self._catalog, self._court, Needs())

    def parts(self, wanted: int) -> Sequence[Items]:
        parts: list[Items] = []
        with read_only(self._catalog) as db:
            most = held = max(_VERSIONS_PER_PART, -(-find.count_rows(db, "version", Where()) // wanted))
            for item, count in find.count_by_item(db):
                if held + count > most:
                    parts.append(Items(len(parts), item, item))
                    held = 0
                parts[-1] = Items(parts[-1].number, parts[-1].first, item)
                held += count
        return parts

    def run(self, part: Items) -> Iterator[Line]:
        with read_only(self._catalog) as db:
            rulings = self._court.judge(versions_between(db, part.first, part.last))
            yield from (line_of(ruling, part.number, at) for at, ruling in enumerate(rulings))

    def fold(self, rows: Iterable[Line]) -> Judged:
        with closing(SortedSpool(keys=2)) as spool:
            spool.add(rows)
            return Judged.of(ruling_of(Line(*row)) for row in spool)


def judge_all(records: Records, court: RetentionEvaluator, warn: Callable[[str], None]) -> Judged:
    """Judge every version of a datastore.

    What a job has judged counts only if the catalog was not written meanwhile: of a part of its rows, as a catalog has
    that is being made anew, an item is judged wrongly (V5).
    """
    catalog = records.catalog
    for _ in range(_ATTEMPTS):
        before = catalog.mark()
        if before is None:  # in the memory of this process, where no worker reads it
            break
        warnings: list[str] = []
        judged = records.engine.run(
            records.repo,
            RetentionJob(catalog.path, court, needs_of(records.repo)),
            what="what may go was found",
            count=catalog.count_versions(),
            warn=warnings.append,
        )
        if catalog.mark() == before:
            for warning in warnings:
                warn(warning)
            return judged
    return Judged.of(court.judge(sorted(catalog.select(Where()), key=order)))


def line_of(ruling: Ruling, part: int, at: int) -> Line:
    """Return a ruling as it crosses."""
    if isinstance(ruling, str):
        return Line(part, at, unclear=ruling)
    row = ruling.doomed.row
    return Line(part, at, json.dumps((*values(row)[1], row.latest)), ruling.doomed.why, ruling.bytes)


def ruling_of(line: Line) -> Ruling:
    """Return the ruling that crossed."""
    if line.unclear is not None:
        return line.unclear
    row = version_of(json.loads(line.row or ""))
    return ExpiredVersion(Doomed(row, "expired" if line.why == "expired" else "surplus"), line.bytes or 0)
