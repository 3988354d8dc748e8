"""Collection: what may go is told first, and exactly that goes (F120). No write ever deletes anything (F117)."""

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

MOST_UNCLEAR = 1000
"""Versions that are named since nobody can judge them; of more, only the number is told."""

_AT_ONCE = 5000
"""Versions whose rows are held at once while they are deleted."""


class GcPlan(Struct, frozen=True):
    """The versions that go (or went), the bytes that this frees, and what stays because nobody can tell."""

    doomed: ExpiredSet
    bytes: int
    warnings: tuple[str, ...] = ()

    @property
    def expired(self) -> int:
        """How many go because their lifetime is over; the others are surplus."""
        return self.doomed.expired

    def within(self, shown: GcPlan) -> GcPlan:
        """Return the part of this plan that somebody was shown before; its bytes are told once it is run."""
        return GcPlan(self.doomed.within(shown.doomed), 0, self.warnings)


def plan_gc(records: Records, now: datetime) -> GcPlan:
    """Tell what may go at a time. Changes nothing, and sends nothing.

    Of more versions than one process should look at, Spark judges and weighs each item, by the same `Court`.
    """
    return consistent_read(records.context, lambda: _plan(records, now))


def run_gc(records: Records, plan: GcPlan) -> GcPlan:
    """Delete what a plan names, and nothing else; return what went: less than planned where somebody was faster.

    What is killed half-way has deleted a part of the plan, each version of it whole; the next run goes on.
    """
    gone = ExpiredSet(_removed(records, plan.doomed))
    return GcPlan(gone, gone.bytes, plan.warnings)


def _plan(records: Records, now: datetime) -> GcPlan:
    catalog = records.catalog
    catalog.refresh()
    gone = Runs(records.repo, records.tree).gone(catalog.runs_of_lifetimes())
    court = RetentionEvaluator(now, gone, records.tree.root, records.repo.config.repo_id)
    warnings: list[str] = []
    found = None
    if records.engine.takes(records.repo, catalog.count_versions()):
        found = judge_on_spark(records, court, _told, warnings.append)
    doom, unclear = found or _told(court.judge(catalog.select(Where())))
    bad = [bad.why for bad in catalog.bad()]
    return GcPlan(doom, doom.bytes, (*warnings, *unclear, *bad))


def _told(rulings: Iterable[Ruling]) -> tuple[ExpiredSet, list[str]]:
    """Keep what was ruled as it comes."""
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
    return doom, [*unclear, f"and {more:,} more that nobody can judge"] if more else unclear


def _removed(records: Records, doomed: ExpiredSet) -> Iterator[ExpiredVersion]:
    for start in range(0, len(doomed), _AT_ONCE):
        batch = doomed[start : start + _AT_ONCE]
        freed = {one.row.directory: one.bytes for one in remove(records, [one.row for one in batch])}
        yield from (ExpiredVersion(one, freed[one.row.directory]) for one in batch if one.row.directory in freed)
