"""Who is meant by MODEL on a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayou.model.find import defined, not_found, only
from bayou.repo import Repo
from bayou.sync.plan.policy import ModelRef

if TYPE_CHECKING:
    from bayou.data.records import Records
    from bayou.state.connection import Connection


def resolve_model(
    repo: Repo, text: str, records: Records | None = None, connection: Connection | None = None
) -> ModelRef:
    """Return the model of this name or id: one that is defined here, else one that has data here.

    Data of a model that only another clone defines, or that is gone, can be read and deleted like any other.
    """
    found = defined(repo, text)
    if found is not None:
        return found
    if records is None:
        from bayou.data.records import Records  # noqa: PLC0415  (most models are defined)

        with Records(repo, connection=connection) as opened:
            return _with_data(opened, text)
    return _with_data(records, text)


def _with_data(records: Records, text: str) -> ModelRef:
    rows = records.data.find(model=text, all_versions=True)
    found = {ModelRef(row.type, row.model_id, row.model) for row in rows}
    if not found:
        raise not_found(records.repo, text)
    return only(found, text)
