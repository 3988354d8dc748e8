"""What a type says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec import Struct

from bayou.core.errors import MethodNotFound
from bayou.core.text import did_you_mean

if TYPE_CHECKING:
    from bayou.model.work import Work

Schema = Mapping[str, Any]
"""A JSON schema."""


class OutputSpec(Struct, frozen=True):
    """Data that a method makes, and how it is kept unless the method says otherwise (None: as records do).

    `streaming`: it grows, and can be read, while the method runs.
    """

    name: str
    content_type: str | None = None
    lifetime: str | None = None
    keep: str | None = None
    streaming: bool = False


class Method(Struct, frozen=True):
    """A method: its arguments as a JSON schema of an object, and what it makes.

    `keep_failed`: what it has saved stays also if it fails; otherwise data becomes visible only when it has succeeded,
    all of it together.
    """

    name: str
    description: str
    arguments: Schema
    outputs: tuple[OutputSpec, ...] = ()
    keep_failed: bool = False

    def output(self, name: str) -> OutputSpec:
        """Return what is declared about data of this name; nothing, if nothing is."""
        return next((one for one in self.outputs if one.name == name), OutputSpec(name))


@runtime_checkable
class ModelType(Protocol):
    """A type. `name` is what definitions call it."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def methods(self) -> Mapping[str, Method]: ...

    def run(self, method: str, arguments: Mapping[str, Any], work: Work) -> None:
        """Run a method, with arguments that fit its schema; save what it makes with `work`.

        Raise `MethodFailed` to say why it failed; any other exception is a failure too. Return, or raise anything, soon
        after `work.cancelled` is set. Called in a thread of its own, also several times at once.
        """
        ...


def find_method(kind: ModelType, name: str) -> Method:
    """Return a method of a type; `MethodNotFound` names the nearest."""
    found = kind.methods.get(name)
    if found is None:
        raise method_not_found(kind, name)
    return found


def method_not_found(kind: ModelType, name: str) -> MethodNotFound:
    """Return the error for a method that a type does not have."""
    return MethodNotFound(
        f"{kind.name} has no method {name}",
        hint=did_you_mean(name, kind.methods, f"see `bayou model describe {kind.name}`"),
    )
