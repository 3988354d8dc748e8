"""Making a definition."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from bayou.config import write_file
from bayou.core.errors import ModelExists, ModelInvalid
from bayou.model.definition import Definition
from bayou.model.names import FOLDER, SUFFIX, check_name, check_type
from bayou.repo import Repo, leads_out


def create_model(repo: Repo, kind: str, name: str, arguments: Mapping[str, object] | None = None) -> Definition:
    """Write the definition of a new model of type `kind`, whole or not at all; `ModelExists` if there is one."""
    path = f"{FOLDER}/{check_type(kind)}/{check_name(name)}{SUFFIX}"
    made = Definition(str(uuid.uuid4()), name, kind, dict(arguments or {}), {}, {}, path)
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


def _text(made: Definition) -> str:
    import yaml  # noqa: PLC0415

    # In the order in which people read them; a key that has nothing to say is left out.
    document: dict[str, object] = {"id": made.id, "name": made.name, "type": made.type}
    if made.arguments:
        document["arguments"] = dict(made.arguments)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
