"""Garbage collection of versions: plan what may be deleted, then delete exactly that.

`plan_gc` changes nothing, so a command can show the plan and ask; `run_gc` deletes only what the plan names (F120).
No write deletes a version (F117).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.data.changes import consistent_read
from bayou.data.retention.expired import ExpiredSet
from bayou.data.retention.retention_job import evaluate_all
from bayou.data.retention.rules import ExpiredVersion, RetentionEvaluator, Runs, remove

if TYPE_CHECKING:
    from bayou.data.records import Records

_BATCH = 5000
"""Versions whose rows are in memory at once while they are deleted."""


class GcPlan(Struct, frozen=True):
    """The versions to delete (or that were deleted), and the bytes that this frees.

    `warnings` name the versions that stay because their retention cannot be evaluated (V5).
    """

    versions: ExpiredSet
    bytes: int
    warnings: tuple[str, ...] = ()

    @property
    def expired(self) -> int:
        """The number of versions whose lifetime is over; the others are surplus."""
        return self.versions.expired

    def within(self, shown: GcPlan) -> GcPlan:
        """Return the part of this plan that `shown` has too; its `bytes` are 0 until it is run."""
        return GcPlan(self.versions.within(shown.versions), 0, self.warnings)


def plan_gc(records: Records, now: datetime) -> GcPlan:
    """Return the versions that may be deleted at the time `now`. Changes nothing, and sends nothing."""
    return consistent_read(records.context, lambda: _plan(records, now))


def run_gc(records: Records, plan: GcPlan) -> GcPlan:
    """Delete the versions that a plan names, and no others; return what was deleted.

    That is less than planned where another process has deleted some of them since. A run that is killed has deleted a
    part of the plan, each version of it whole; the next run deletes the rest.
    """
    deleted = ExpiredSet(_delete(records, plan.versions))
    return GcPlan(deleted, deleted.bytes, plan.warnings)


def _plan(records: Records, now: datetime) -> GcPlan:
    catalog = records.catalog
    catalog.refresh()
    gone_runs = Runs(records.connection, records.tree).gone(catalog.runs_of_lifetimes())
    evaluator = RetentionEvaluator(now, gone_runs, records.tree.root, records.repo.config.repo_id)
    warnings: list[str] = []
    result = evaluate_all(records, evaluator, warnings.append)
    bad = [bad.why for bad in catalog.bad()]
    return GcPlan(result.versions, result.versions.bytes, (*warnings, *result.unclear, *bad))


def _delete(records: Records, versions: ExpiredSet) -> Iterator[ExpiredVersion]:
    for start in range(0, len(versions), _BATCH):
        batch = versions[start : start + _BATCH]
        freed = {
            version.row.directory: version.bytes for version in remove(records, [expired.row for expired in batch])
        }
        for expired in batch:
            if expired.row.directory in freed:
                yield ExpiredVersion(expired, freed[expired.row.directory])
