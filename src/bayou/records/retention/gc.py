"""Collection: what may go is told first, and exactly that goes (F120). No write ever deletes anything (F117)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from bayou.records.retention.removal import Weighed, remove, weigh
from bayou.records.retention.rules import Doomed, judge
from bayou.records.retention.runs import Runs

if TYPE_CHECKING:
    from bayou.records.records import Records


@dataclass(frozen=True, slots=True)
class GcPlan:
    """The versions that go (or went), the bytes that this frees, and what stays because nobody can tell."""

    doomed: tuple[Doomed, ...]
    bytes: int
    warnings: tuple[str, ...] = ()

    @property
    def expired(self) -> int:
        """How many go because their lifetime is over; the others are surplus."""
        return sum(1 for one in self.doomed if one.why == "expired")

    def within(self, shown: GcPlan) -> GcPlan:
        """Return the part of this plan that somebody was shown before; its bytes are told once it is run."""
        seen = {one.row.directory for one in shown.doomed}
        return GcPlan(tuple(one for one in self.doomed if one.row.directory in seen), 0, self.warnings)


def plan_gc(records: Records, now: datetime) -> GcPlan:
    """Tell what may go at a time. Changes nothing, and sends nothing."""
    verdict = judge(records.data.find(all_versions=True), now, Runs(records.repo, records.tree).is_gone)
    bad = [bad.why for bad in records.catalog.bad()]
    plan = GcPlan(verdict.doomed, 0, (*verdict.unclear, *bad))
    return _only(plan, weigh(records, [one.row for one in plan.doomed]))


def run_gc(records: Records, plan: GcPlan) -> GcPlan:
    """Delete what a plan names, and nothing else; return what went: less than planned where somebody was faster.

    What is killed half-way has deleted a part of the plan, each version of it whole; the next run goes on.
    """
    return _only(plan, remove(records, [one.row for one in plan.doomed]))


def _only(plan: GcPlan, weighed: list[Weighed]) -> GcPlan:
    there = {one.row.directory for one in weighed}
    doomed = tuple(one for one in plan.doomed if one.row.directory in there)
    return GcPlan(doomed, sum(one.bytes for one in weighed), plan.warnings)
