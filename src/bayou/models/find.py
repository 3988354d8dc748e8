"""Finding models: all definitions, a definition by name or id, and the model that a command line names."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import ModelAmbiguous, ModelInvalid, ModelNotFound
from bayou.core.text import did_you_mean
from bayou.models.definition import (
    FOLDER,
    SUFFIX,
    Definition,
    checked_type_and_name,
    is_id,
    load_definition,
    read_definition,
    type_and_name,
)
from bayou.repo import Repo
from bayou.sync.plan.policy import ModelRef

if TYPE_CHECKING:
    from bayou.data.records import Records
    from bayou.state.connection import Connection

# A key at the start of a line is a top-level key; the YAML parser reads definitions that write it in another way.
_ID_LINE = re.compile(rb"""^id:[ \t]+(["']?)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\1[ \t]*\r?$""", re.MULTILINE)


class ModelListing(Struct, frozen=True):
    """Every definition that can be read, and an error for each other file."""

    models: tuple[Definition, ...]
    bad: tuple[ModelInvalid, ...]


def list_models(repo: Repo) -> ModelListing:
    """Read every definition, in order of type and name. A damaged definition hides no other."""
    models, bad = [], []
    for path in _paths(repo):
        try:
            models.append(load_definition(repo, path))
        except ModelInvalid as error:
            bad.append(error)
    return ModelListing(tuple(models), tuple(bad))


def find_model(repo: Repo, text: str) -> Definition:
    """Return the definition with this name or id; `ModelNotFound`, or `ModelAmbiguous` if types share the name."""
    found = _matching(repo, text)
    if not found:
        raise not_found(repo, text)
    only(found, text)
    (path,) = found.values()
    return load_definition(repo, path)


def defined(repo: Repo, text: str) -> ModelRef | None:
    """Return the defined model with this name or id; None if there is none. Needs no YAML parser for a plain file."""
    found = _matching(repo, text)
    return only(found, text) if found else None


def defined_ids(repo: Repo) -> set[str]:
    """Return the ids of all models that this repo defines; `ModelInvalid` if a definition cannot be read."""
    return {_ref(repo, path).id for path in _paths(repo)}


def only(found: Collection[ModelRef], text: str) -> ModelRef:
    """Return the only model that was found, or raise `ModelAmbiguous`, which lists them all."""
    first, *others = found
    if others:
        listed = ", ".join(f"{ref.type} {ref.id}" for ref in sorted(found, key=lambda ref: (ref.type, ref.id)))
        raise ModelAmbiguous(f"{text} may be any of {len(found)} models: {listed}", hint="name one by its id")
    return first


def paths_of_name(repo: Repo, name: str) -> list[str]:
    """Return the paths of the definitions with a name, in order."""
    return [path for path in _paths(repo) if type_and_name(path)[1] == name]


def not_found(repo: Repo, text: str) -> ModelNotFound:
    """Return the error for an unknown model, with the nearest known name."""
    hint = "list the models with `bayou model list`; make one with `bayou model create TYPE NAME`"
    known = {type_and_name(path)[1] for path in _paths(repo)}
    return ModelNotFound(f"there is no model {text}", hint=did_you_mean(text, known, hint))


def _matching(repo: Repo, text: str) -> dict[ModelRef, str]:
    """Return the models with a name or id, each with its path."""
    found = {}
    for path in _paths(repo):
        named = type_and_name(path)[1] == text
        if not named and not is_id(text):
            continue
        try:
            ref = _ref(repo, path)
        except ModelInvalid:
            if named:
                raise
            continue  # damaged, and its name is another one
        if named or ref.id == text:
            found[ref] = path
    return found


def _ref(repo: Repo, path: str) -> ModelRef:
    found = _id(repo, path)
    if found is None:
        return load_definition(repo, path).ref
    kind, name = checked_type_and_name(path)
    return ModelRef(kind, found, name)


def _id(repo: Repo, path: str) -> str | None:
    """Return the id of a definition that writes it plainly; None if it takes a YAML parser."""
    ids = _ID_LINE.findall(read_definition(repo.root, path))
    return ids[0][1].decode() if len(ids) == 1 else None


def _paths(repo: Repo) -> Iterator[str]:
    """Yield the path of each definition, in order. Files that begin with a dot belong to editors or file systems."""
    top = repo.root / FOLDER
    found = []
    for directory, below, files in os.walk(top):
        below[:] = [name for name in below if not name.startswith(".")]
        inside = os.path.relpath(directory, repo.root)
        found += [f"{inside}/{name}" for name in files if name.endswith(SUFFIX) and not name.startswith(".")]
    yield from sorted(found)


def resolve_model(
    repo: Repo, text: str, records: Records | None = None, connection: Connection | None = None
) -> ModelRef:
    """Return the model with this name or id: a model that this repo defines, or else one that has data here.

    So the data of a model that only another clone defines, or that was deleted, can be read and deleted as well.
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
