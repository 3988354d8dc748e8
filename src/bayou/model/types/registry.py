"""Which types there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from bayou.config.trust import EXTENSIONS
from bayou.core.errors import BayouError, TrustNeeded, TypeInvalid, TypeNotFound
from bayou.core.text import did_you_mean
from bayou.model.types.call import PythonCall
from bayou.model.types.shell import Shell
from bayou.model.types.spec import ModelType
from bayou.model.types.sql import SparkSql

if TYPE_CHECKING:
    from bayou.repo import Repo

BUILT_IN: Mapping[str, ModelType] = {kind.name: kind for kind in (Shell(), PythonCall(), SparkSql())}


class Types(Mapping[str, ModelType]):
    """The types of a repo, by name; `bad` has an error for each file or entry point that offers none it should."""

    def __init__(self, found: Mapping[str, ModelType], bad: tuple[TypeInvalid, ...]) -> None:
        self._found = found
        self.bad = bad

    def __getitem__(self, name: str) -> ModelType:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def load_types(repo: Repo) -> Types:
    """Return every type, by name. One that is broken hides no other."""
    from bayou.model.types.extensions import from_entry_points, from_extensions  # noqa: PLC0415

    found: dict[str, ModelType] = dict(BUILT_IN)
    bad: list[TypeInvalid] = []
    try:
        repo.require_extensions()
        own = from_extensions(repo.root)
    except TrustNeeded as error:
        own = iter([TypeInvalid(f"types of {EXTENSIONS}/ are not shown: {error.message}", hint=error.hint)])
    for offered in (own, from_entry_points()):
        for one in offered:
            if isinstance(one, TypeInvalid):
                bad.append(one)
            elif one.kind.name in found:
                bad.append(TypeInvalid(f"{one.source}: there is a type {one.kind.name} already", hint="rename one"))
            else:
                found[one.kind.name] = one.kind
    return Types(dict(sorted(found.items())), tuple(bad))


def find_type(repo: Repo, name: str) -> ModelType:
    """Return a type; `TypeNotFound` if there is none. Looks no further than to where it is found.

    `TrustNeeded` where code would be loaded that this user neither asked to run nor allows (V23).
    """
    from bayou.model.types.extensions import Offered, from_extensions  # noqa: PLC0415

    if name in BUILT_IN:
        return BUILT_IN[name]
    repo.require_extensions()
    for one in from_extensions(repo.root):
        if isinstance(one, Offered) and one.kind.name == name:
            return one.kind
    types = load_types(repo)
    if name in types:
        return types[name]
    raise not_found(types, name)


def not_found(types: Types, name: str) -> BayouError:
    """Return the error for a type that nobody offers; it may be one that could not be loaded."""
    if types.bad:
        broken = "; ".join(error.message for error in types.bad)
        return TypeNotFound(f"there is no type {name}, but some could not be loaded: {broken}", hint=types.bad[0].hint)
    hint = did_you_mean(name, types, "list the types with `bayou model types`")
    return TypeNotFound(f"there is no type {name}, so it has no methods", hint=hint)
