"""Evaluate the retention of a whole datastore, as one job over the catalog.

Each part of the job is a range of items. A worker opens the catalog read-only, applies the rules of
`RetentionEvaluator` to the items of its part, and returns a row for each version that may be deleted or that cannot be
evaluated. The driver sorts the rows into an `ExpiredSet`.
"""

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
from bayou.data.retention.rules import ExpiredRow, ExpiredVersion, RetentionEvaluator, RetentionOutcome, order
from bayou.engine.job import Needs
from bayou.engine.spool import SortedSpool

if TYPE_CHECKING:
    from bayou.data.records import Records

MOST_UNCLEAR = 1000
"""Versions that warnings name because they cannot be evaluated; of more, a warning has only the number."""

_ATTEMPTS = 3
VERSIONS_PER_PART = 5000
"""A part has at least so many, if there are any more: starting a part costs more than evaluating fewer."""


class RetentionRow(NamedTuple):
    """A row of the job: a version that may be deleted (`row` is JSON), the reason, and the bytes that this frees.

    For a version that cannot be evaluated only `unclear` is set, a sentence that says why. `part` and `at` give the
    row's position in the order of items and version numbers.
    """

    part: int
    at: int
    row: str | None = None
    why: str | None = None
    bytes: int | None = None
    unclear: str | None = None


class ItemRange(Struct, frozen=True):
    """A part of the job: the items from `first` to `last`, both included, each as type, model and name."""

    number: int
    first: tuple[str, str, str]
    last: tuple[str, str, str]


class RetentionResult(Struct, frozen=True):
    """The versions that may be deleted, and a sentence about each that cannot be evaluated."""

    versions: ExpiredSet
    unclear: Sequence[str]

    @classmethod
    def of(cls, outcomes: Iterable[RetentionOutcome]) -> RetentionResult:
        """Collect outcomes, which come in order of item and number."""
        unclear: list[str] = []
        more = 0

        def expired() -> Iterator[ExpiredVersion]:
            nonlocal more
            for outcome in outcomes:
                if isinstance(outcome, ExpiredVersion):
                    yield outcome
                elif len(unclear) < MOST_UNCLEAR:
                    unclear.append(outcome)
                else:
                    more += 1

        versions = ExpiredSet(expired())
        return cls(versions, [*unclear, f"and {more:,} more that cannot be evaluated"] if more else unclear)


class RetentionJob:
    """Evaluates the items of a catalog, which workers read as a file. An `engine.job.Job`.

    All versions of an item are in one part and read by one query: which of them are surplus depends on all of them.
    """

    row = RetentionRow
    stage = Stage("evaluating versions")

    def __init__(self, catalog: Path, evaluator: RetentionEvaluator, needs: Needs) -> None:
        self.needs = needs
        self._catalog = catalog
        self._evaluator = evaluator

    def __reduce__(self) -> tuple[Any, tuple[Path, RetentionEvaluator, Needs]]:
        return type(self), (self._catalog, self._evaluator, Needs())

    def parts(self, wanted: int) -> Sequence[ItemRange]:
        parts: list[ItemRange] = []
        with read_only(self._catalog) as db:
            most = in_part = max(VERSIONS_PER_PART, -(-find.count_rows(db, "version", Where()) // wanted))
            for item, count in find.count_by_item(db):
                if in_part + count > most:
                    parts.append(ItemRange(len(parts), item, item))
                    in_part = 0
                parts[-1] = ItemRange(parts[-1].number, parts[-1].first, item)
                in_part += count
        return parts

    def run(self, part: ItemRange) -> Iterator[RetentionRow]:
        with read_only(self._catalog) as db:
            outcomes = self._evaluator.evaluate(versions_between(db, part.first, part.last))
            yield from (to_row(outcome, part.number, at) for at, outcome in enumerate(outcomes))

    def fold(self, rows: Iterable[RetentionRow]) -> RetentionResult:
        with closing(SortedSpool(keys=2)) as spool:
            spool.add(rows)
            return RetentionResult.of(from_row(RetentionRow(*row)) for row in spool)


def evaluate_all(records: Records, evaluator: RetentionEvaluator, warn: Callable[[str], None]) -> RetentionResult:
    """Evaluate every version of a datastore.

    A job's result counts only if no process wrote the catalog meanwhile: during a rebuild the catalog has some versions
    of an item and not others, and the rules would call the wrong ones surplus (V5). After a few attempts this process
    evaluates the versions by itself.
    """
    catalog = records.catalog
    for _ in range(_ATTEMPTS):
        before = catalog.mark()
        if before is None:  # the catalog is in the memory of this process, where no worker can read it
            break
        warnings: list[str] = []
        result = records.engine.run(
            records.repo,
            RetentionJob(catalog.path, evaluator, needs_of(records.repo)),
            what="what may go was found",
            count=catalog.count_versions(),
            warn=warnings.append,
        )
        if catalog.mark() == before:
            for warning in warnings:
                warn(warning)
            return result
    return RetentionResult.of(evaluator.evaluate(sorted(catalog.select(Where()), key=order)))


def to_row(outcome: RetentionOutcome, part: int, at: int) -> RetentionRow:
    """Encode an outcome as a row that a worker sends to the driver."""
    if isinstance(outcome, str):
        return RetentionRow(part, at, unclear=outcome)
    row = outcome.expired.row
    return RetentionRow(part, at, json.dumps((*values(row)[1], row.latest)), outcome.expired.why, outcome.bytes)


def from_row(line: RetentionRow) -> RetentionOutcome:
    """Decode a row into the outcome; the inverse of `to_row`."""
    if line.unclear is not None:
        return line.unclear
    row = version_of(json.loads(line.row or ""))
    return ExpiredVersion(ExpiredRow(row, "expired" if line.why == "expired" else "surplus"), line.bytes or 0)
