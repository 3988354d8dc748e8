"""Deleting a model."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import ModelHasData
from bayou.model.definition import Definition
from bayou.model.names import FOLDER
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.data.records import Records


class DeletedModel(Struct, frozen=True):
    """What went with a model: versions of its data."""

    id: str
    data_deleted: int


def delete_model(records: Records, model: Definition, *, with_data: bool) -> DeletedModel:
    """Delete a definition, and note that it was deleted; `ModelHasData` while there is data, unless `with_data`.

    V19: the definition goes last, so that a call which was killed can be repeated. The note is what `prune` goes by: a
    definition that is merely not here may be somewhere else (F118).
    """
    names = {row.name for row in records.data.find(model=model.ref)}
    if names and not with_data:
        many = f"{len(names)} items" if len(names) > 1 else f"data ({min(names)})"
        raise ModelHasData(
            f"{model.name} has {many}, which nobody would own any more",
            hint=f"delete both with `bayou model delete {model.name} --data`",
        )
    deleted = sum(records.data.delete(model.ref, name) for name in sorted(names))
    records.evaluated.record_deleted(model.ref)
    _remove(records.repo, model)
    return DeletedModel(model.id, deleted)


def _remove(repo: Repo, model: Definition) -> None:
    """Delete the file, and the directories that this leaves empty."""
    file = repo.root / model.path
    file.unlink(missing_ok=True)
    directory = file.parent
    with contextlib.suppress(OSError):  # one that is not empty stays, with all above it
        while directory != repo.root / FOLDER:
            os.rmdir(directory)
            directory = directory.parent
