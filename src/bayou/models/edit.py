"""Creating and deleting models: `create_model` writes a definition, `delete_model` removes it, and data if asked."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.config import write_file
from bayou.core.errors import ArgumentsInvalid, ModelExists, ModelHasData, ModelInvalid
from bayou.models.definition import FOLDER, SUFFIX, Definition, check_name, check_type
from bayou.models.find import paths_of_name
from bayou.repo import Repo, leads_out

if TYPE_CHECKING:
    from bayou.data.records import Records
    from bayou.models.types import ModelType


def create_model(
    repo: Repo,
    kind: str,
    name: str,
    arguments: Mapping[str, object] | None = None,
    *,
    type_of: ModelType | None = None,
) -> Definition:
    """Write the definition of a new model of type `kind`, atomically; `ModelExists` if a model has that name.

    With the type itself, the arguments are checked first: `ArgumentsInvalid` names all that is wrong with them.
    """
    path = f"{FOLDER}/{check_type(kind)}/{check_name(name)}{SUFFIX}"
    made = Definition(str(uuid.uuid4()), name, kind, dict(arguments or {}), {}, {}, path)
    for other in paths_of_name(repo, name):
        if other != path:
            raise ModelExists(f"the name {name} is taken by another model: {other}", hint="choose another name")
    if type_of is not None:
        _check_arguments(made, type_of)
    file = repo.root / path
    if leads_out(repo.root, path):
        raise ModelInvalid(f"{path} leads out of the repo, through a link", hint="remove the link")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_file(file, _text(made), create=True)
    except FileExistsError:
        raise ModelExists(
            f"there is a model {name} of type {kind} already: {path}", hint=f"see it with `bayou model get {name}`"
        ) from None
    return made


def _check_arguments(made: Definition, kind: ModelType) -> None:
    from bayou.models.prepare import definition_problems  # noqa: PLC0415

    found = definition_problems(made, kind)
    if found:
        raise ArgumentsInvalid(
            "; ".join(problem.message for problem in found),
            hint=found[0].hint or f"see what it takes with `bayou model describe {kind.name}`",
        )


def _text(made: Definition) -> str:
    import yaml  # noqa: PLC0415

    # In the order in which people read them; empty keys are left out.
    document: dict[str, object] = {"id": made.id, "name": made.name, "type": made.type}
    if made.arguments:
        document["arguments"] = dict(made.arguments)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


class DeletedModel(Struct, frozen=True):
    """The report of a deletion: the model's id, and how many versions of its data went."""

    id: str
    data_deleted: int


def delete_model(records: Records, model: Definition, *, with_data: bool) -> DeletedModel:
    """Delete a definition, and record that it was deleted; `ModelHasData` while it has data, unless `with_data`.

    V19: the definition goes last, so that a call that was killed can be repeated. `prune` needs the record: a missing
    definition may exist in another clone (F118).
    """
    names = {row.name for row in records.data.find(model=model.ref)}
    if names and not with_data:
        many = f"{len(names)} items" if len(names) > 1 else f"data ({min(names)})"
        raise ModelHasData(
            f"{model.name} has {many}, which no model would own any more",
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
    with contextlib.suppress(OSError):  # a directory that is not empty stays, with all its parents
        while directory != repo.root / FOLDER:
            os.rmdir(directory)
            directory = directory.parent
