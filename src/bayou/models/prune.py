"""Pruning: data whose model is gone.

That a model is not defined here is no evidence: another clone, branch or repo on the store may define it (F118). What
counts is the note that `model delete` leaves in the datastore, or the word of whoever names the model.
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
    """The versions that go (or went), of which models, the bytes that this frees, and whose data is left alone.

    `undefined` has the models that are not defined here and that nobody has deleted, with their number of versions.
    """

    doomed: tuple[VersionRow, ...]
    bytes: int
    undefined: tuple[tuple[ModelRef, int], ...] = ()

    @property
    def models(self) -> frozenset[str]:
        """The ids of the models whose data goes."""
        return frozenset(row.model_id for row in self.doomed)

    def within(self, shown: PrunePlan) -> PrunePlan:
        """Return the part of this plan that somebody was shown before; its bytes are told once it is run."""
        seen = {row.directory for row in shown.doomed}
        return PrunePlan(tuple(row for row in self.doomed if row.directory in seen), 0, self.undefined)


def plan_prune(records: Records, named: Collection[str] = ()) -> PrunePlan:
    """Tell whose data may go: of deleted models, and of those whose ids the caller names. Changes nothing.

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
    """Delete what a plan names, and nothing else; return what went: less than planned where somebody was faster."""
    return _plan(remove(records, plan.doomed), plan.undefined)


def _plan(weighed: list[FreedVersion], undefined: tuple[tuple[ModelRef, int], ...]) -> PrunePlan:
    return PrunePlan(tuple(one.row for one in weighed), sum(one.bytes for one in weighed), undefined)


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
