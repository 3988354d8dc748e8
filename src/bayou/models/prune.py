"""Pruning: deleting the data of deleted models.

A missing definition is no evidence: another clone, branch or repo on the store may define the model (F118). What counts
is the record that `model delete` leaves in the datastore, or a user who names the model.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import ModelNotFound, UsageError
from bayou.data.catalog.rows import VersionRow
from bayou.data.retention.rules import FreedVersion, bytes_freed, remove
from bayou.models.find import defined_ids
from bayou.sync.plan.policy import ModelRef

if TYPE_CHECKING:
    from bayou.data.records import Records


class PrunePlan(Struct, frozen=True):
    """The versions that go (or went), and the bytes that this frees.

    `undefined` has the models that are neither defined here nor deleted, with their number of versions, which stay.
    """

    versions: tuple[VersionRow, ...]
    bytes: int
    undefined: tuple[tuple[ModelRef, int], ...] = ()

    @property
    def models(self) -> frozenset[str]:
        """The ids of the models whose data is deleted."""
        return frozenset(row.model_id for row in self.versions)

    def within(self, shown: PrunePlan) -> PrunePlan:
        """Return the part of this plan that another plan has too; its bytes are known once it has run."""
        seen = {row.directory for row in shown.versions}
        return PrunePlan(tuple(row for row in self.versions if row.directory in seen), 0, self.undefined)


def plan_prune(records: Records, named: Collection[str] = ()) -> PrunePlan:
    """Return which data may go: that of deleted models, and of models whose ids the caller names. Changes nothing.

    `UsageError` if a named model is defined here, `ModelNotFound` if it has no data.
    """
    defined = defined_ids(records.repo)
    by_model: dict[tuple[str, str], list[VersionRow]] = {}
    for row in records.data.find(all_versions=True):
        if row.model_id not in defined and not row.deleted:
            by_model.setdefault((row.type, row.model_id), []).append(row)
    _check_named(named, defined, {model_id for _, model_id in by_model})
    orphaned: list[VersionRow] = []
    undefined = []
    for (kind, model_id), versions in by_model.items():
        if model_id in named or records.evaluated.was_deleted(kind, model_id):
            orphaned += versions
        else:
            undefined.append((ModelRef(kind, model_id, versions[-1].model), len(versions)))
    return _plan(bytes_freed(records, orphaned), tuple(undefined))


def run_prune(records: Records, plan: PrunePlan) -> PrunePlan:
    """Delete what a plan names, and nothing else; return what went: less, if another process deleted some before."""
    return _plan(remove(records, plan.versions), plan.undefined)


def _plan(freed: list[FreedVersion], undefined: tuple[tuple[ModelRef, int], ...]) -> PrunePlan:
    return PrunePlan(tuple(version.row for version in freed), sum(version.bytes for version in freed), undefined)


def _check_named(named: Collection[str], defined: Collection[str], orphans: Collection[str]) -> None:
    for model_id in named:
        if model_id in defined:
            raise UsageError(
                f"the model {model_id} is defined here: its data is not orphaned",
                hint=f"delete both with `bayou model delete {model_id} --data`",
            )
        if model_id not in orphans:
            raise ModelNotFound(
                f"there is no data of a model with the id {model_id}", hint="see whose there is with `bayou data list`"
            )
