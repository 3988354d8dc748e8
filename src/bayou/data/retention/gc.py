"""Garbage collection of data: `plan_gc` says what may go, and `run_gc` deletes exactly that (F120).

No write ever deletes another version (F117): data goes only when a user runs a collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.data.catalog.catalog import Where
from bayou.data.changes import consistent_read
from bayou.data.retention.expired import ExpiredSet, judge_on_spark
from bayou.data.retention.rules import ExpiredVersion, RetentionEvaluator, Ruling, Runs, remove

if TYPE_CHECKING:
    from bayou.data.records import Records

MAX_UNCLEAR = 1000
"""Versions that a plan names because their retention is unclear; of more, it has only the number."""

_BATCH = 5000
"""Versions whose rows are in memory at once while they are deleted."""


class GcPlan(Struct, frozen=True):
    """The versions that go (or went), the bytes that this frees, and warnings about versions that stay."""

    doomed: ExpiredSet
    bytes: int
    warnings: tuple[str, ...] = ()

    @property
    def expired(self) -> int:
        """How many versions go because their lifetime is over; the others are surplus."""
        return self.doomed.expired

    def within(self, shown: GcPlan) -> GcPlan:
        """Return the part of this plan that another plan has too; its bytes are known once it has run."""
        return GcPlan(self.doomed.within(shown.doomed), 0, self.warnings)


def plan_gc(records: Records, now: datetime) -> GcPlan:
    """Return what may go at a time. This changes nothing, and sends no request.

    If there are more versions than one process should read, Spark applies the same `RetentionEvaluator` to each item.
    """
    return consistent_read(records.context, lambda: _plan(records, now))


def run_gc(records: Records, plan: GcPlan) -> GcPlan:
    """Delete what a plan names, and nothing else; return what went: less, if another process deleted some before.

    A run that is killed has deleted a part of the plan, each version as a whole; the next run continues.
    """
    gone = ExpiredSet(_delete(records, plan.doomed))
    return GcPlan(gone, gone.bytes, plan.warnings)


def _plan(records: Records, now: datetime) -> GcPlan:
    catalog = records.catalog
    catalog.refresh()
    gone = Runs(records.repo, records.tree).gone(catalog.runs_of_lifetimes())
    evaluator = RetentionEvaluator(now, gone, records.tree.root, records.repo.config.repo_id)
    warnings: list[str] = []
    found = None
    if records.engine.takes(records.repo, catalog.count_versions()):
        found = judge_on_spark(records, evaluator, _collect, warnings.append)
    expired, unclear = found or _collect(evaluator.judge(catalog.select(Where())))
    bad = [bad.why for bad in catalog.bad()]
    return GcPlan(expired, expired.bytes, (*warnings, *unclear, *bad))


def _collect(rulings: Iterable[Ruling]) -> tuple[ExpiredSet, list[str]]:
    """Divide rulings, as they come, into expired versions and sentences about unclear ones."""
    unclear: list[str] = []
    more = 0

    def versions() -> Iterator[ExpiredVersion]:
        nonlocal more
        for ruling in rulings:
            if isinstance(ruling, ExpiredVersion):
                yield ruling
            elif len(unclear) < MAX_UNCLEAR:
                unclear.append(ruling)
            else:
                more += 1

    expired = ExpiredSet(versions())
    return expired, [*unclear, f"and {more:,} more that cannot be judged"] if more else unclear


def _delete(records: Records, doomed: ExpiredSet) -> Iterator[ExpiredVersion]:
    for start in range(0, len(doomed), _BATCH):
        batch = doomed[start : start + _BATCH]
        freed = {gone.row.directory: gone.bytes for gone in remove(records, [version.row for version in batch])}
        yield from (
            ExpiredVersion(version, freed[version.row.directory]) for version in batch if version.row.directory in freed
        )
