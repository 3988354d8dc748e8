"""Finding definitions: by name, by id, all of them.

Who is meant by MODEL on a command line.
"""

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
    checked_place,
    is_id,
    load_definition,
    place,
    read_definition,
)
from bayou.repo import Repo
from bayou.sync.plan.policy import ModelRef

if TYPE_CHECKING:
    from bayou.data.records import Records
    from bayou.state.connection import Connection

# A key at the edge of a YAML file is one of its top keys; anything less plain is left to the YAML parser.
_ID_LINE = re.compile(rb"""^id:[ \t]+(["']?)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\1[ \t]*\r?$""", re.MULTILINE)


class ModelListing(Struct, frozen=True):
    """Every definition that can be read, and an error for each that cannot."""

    models: tuple[Definition, ...]
    bad: tuple[ModelInvalid, ...]


def list_models(repo: Repo) -> ModelListing:
    """Read every definition, by type and name. One that is damaged hides no other."""
    models, bad = [], []
    for path in _paths(repo):
        try:
            models.append(load_definition(repo, path))
        except ModelInvalid as error:
            bad.append(error)
    return ModelListing(tuple(models), tuple(bad))


def find_model(repo: Repo, text: str) -> Definition:
    """Return the definition of this name or id; `ModelNotFound`, or `ModelAmbiguous` where types share the name."""
    found = _matching(repo, text)
    if not found:
        raise not_found(repo, text)
    only(found, text)
    (path,) = found.values()
    return load_definition(repo, path)


def defined(repo: Repo, text: str) -> ModelRef | None:
    """Return who is meant by a name or id, if a definition says so. Loads no YAML parser for a plain file."""
    found = _matching(repo, text)
    return only(found, text) if found else None


def defined_ids(repo: Repo) -> set[str]:
    """Return the ids of all models that are defined here; `ModelInvalid` if one of them cannot be told."""
    return {_ref(repo, path).id for path in _paths(repo)}


def only(found: Collection[ModelRef], text: str) -> ModelRef:
    """Return the one model that `text` can mean, or raise `ModelAmbiguous`, which lists them all."""
    first, *others = found
    if others:
        listed = ", ".join(f"{ref.type} {ref.id}" for ref in sorted(found, key=lambda ref: (ref.type, ref.id)))
        raise ModelAmbiguous(f"{text} may be any of {len(found)} models: {listed}", hint="name one by its id")
    return first


def not_found(repo: Repo, text: str) -> ModelNotFound:
    """Return the error for a model that nobody knows, with the nearest name that somebody does."""
    hint = "list the models with `bayou model list`; make one with `bayou model create`"
    known = {place(path)[1] for path in _paths(repo)}
    return ModelNotFound(f"there is no model {text}", hint=did_you_mean(text, known, hint))


def _matching(repo: Repo, text: str) -> dict[ModelRef, str]:
    """Return the models that a name or id can mean, each with its path."""
    found = {}
    for path in _paths(repo):
        named = place(path)[1] == text
        if not named and not is_id(text):
            continue
        try:
            ref = _ref(repo, path)
        except ModelInvalid:
            if named:
                raise
            continue  # damaged, and not by its name what is looked for
        if named or ref.id == text:
            found[ref] = path
    return found


def _ref(repo: Repo, path: str) -> ModelRef:
    found = _id(repo, path)
    if found is None:
        return load_definition(repo, path).ref
    kind, name = checked_place(path)
    return ModelRef(kind, found, name)


def _id(repo: Repo, path: str) -> str | None:
    """Return the id that a definition says in so many words; None if it takes a parser to tell."""
    ids = _ID_LINE.findall(read_definition(repo.root, path))
    return ids[0][1].decode() if len(ids) == 1 else None


def _paths(repo: Repo) -> Iterator[str]:
    """Yield the path of each definition, in order. What begins with a dot is an editor's or a file system's."""
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
