"""Collection: what may go is told first, and exactly that goes (F120). No write ever deletes anything (F117)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.data.changes import consistent_read
from bayou.data.retention.expired import ExpiredSet
from bayou.data.retention.judging import judge_all
from bayou.data.retention.rules import ExpiredVersion, RetentionEvaluator, Runs, remove

if TYPE_CHECKING:
    from bayou.data.records import Records

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
    """Tell what may go at a time. Changes nothing, and sends nothing."""
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
    judged = judge_all(records, court, warnings.append)
    bad = [bad.why for bad in catalog.bad()]
    return GcPlan(judged.doom, judged.doom.bytes, (*warnings, *judged.unclear, *bad))


def _removed(records: Records, doomed: ExpiredSet) -> Iterator[ExpiredVersion]:
    for start in range(0, len(doomed), _AT_ONCE):
        batch = doomed[start : start + _AT_ONCE]
        freed = {one.row.directory: one.bytes for one in remove(records, [one.row for one in batch])}
        yield from (ExpiredVersion(one, freed[one.row.directory]) for one in batch if one.row.directory in freed)
