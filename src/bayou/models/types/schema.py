"""`ModelType` and `Method`: what a type declares about itself; and the JSON schema of a Python function."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints, runtime_checkable

from msgspec import Struct

from bayou.core.errors import MethodNotFound, TypeInvalid
from bayou.core.text import did_you_mean

if TYPE_CHECKING:
    from bayou.models.method_context import MethodContext

Schema = Mapping[str, Any]
"""A JSON schema."""

WORK = "work"
"""The parameter that is no argument: the object with which a method saves data."""

_PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
    dict: {"type": "object"},
    list: {"type": "array"},
}
_LISTS = (list, tuple, Sequence)
_MAPS = (dict, Mapping)


class OutputSpec(Struct, frozen=True):
    """An item that a method saves, and its options unless the method gives others (None: the defaults of records).

    `streaming` data grows, and can be read, while the method runs.
    """

    name: str
    content_type: str | None = None
    lifetime: str | None = None
    keep: str | None = None
    streaming: bool = False


class Method(Struct, frozen=True):
    """A method: the JSON schema of its arguments, and the items that it saves.

    With `keep_failed`, data that it has saved stays even if it fails; without, all its data becomes visible together
    when it has succeeded.
    """

    name: str
    description: str
    arguments: Schema
    outputs: tuple[OutputSpec, ...] = ()
    keep_failed: bool = False

    def output(self, name: str) -> OutputSpec:
        """Return the declaration of the item with this name; an empty one if there is none."""
        return next((output for output in self.outputs if output.name == name), OutputSpec(name))


@runtime_checkable
class ModelType(Protocol):
    """A type of models. `name` is what definitions call it."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def methods(self) -> Mapping[str, Method]: ...

    def run(self, method: str, arguments: Mapping[str, Any], work: MethodContext) -> None:
        """Run a method, with arguments that match its schema; save its data with `work`.

        Raise `MethodFailed` to say why it failed; any other exception is a failure too. Return, or raise anything, soon
        after `work.cancelled` is set. Bayou calls this in a thread of its own, and may call it several times at once.
        """
        ...


def find_method(kind: ModelType, name: str) -> Method:
    """Return a method of a type; `MethodNotFound` names the nearest name."""
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


def schema_of(function: Callable[..., object], where: str) -> Schema:
    """Return the schema of a function's keyword arguments; `TypeInvalid` for a type that JSON does not have."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise TypeInvalid(f"{where}: {error}", hint="annotate parameters with types that are imported") from None
    properties: dict[str, Schema] = {}
    required: list[str] = []
    more: Schema | bool = False
    for parameter in list(inspect.signature(function).parameters.values()):
        if parameter.name in ("self", WORK):
            continue
        place = f"{where}: parameter {parameter.name}"
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeInvalid(f"{place} cannot be given by name", hint="arguments of a method are named")
        schema = _schema(hints.get(parameter.name, Any), place)
        if parameter.kind is parameter.VAR_KEYWORD:
            more = schema
        elif parameter.default is parameter.empty:
            properties[parameter.name] = schema
            required.append(parameter.name)
        else:
            properties[parameter.name] = {**schema, "default": _default(parameter.default, place)}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": more}


def _schema(kind: Any, place: str) -> Schema:
    if isinstance(kind, type) or kind in (None, Any):
        plain = _PLAIN.get(kind)
        if plain is not None:
            return plain
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inside)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(member, place) for member in inside]}
    if origin in _LISTS and (origin is not tuple or inside[1:] == (...,)):
        return {"type": "array", "items": _schema(inside[0], place)}
    if origin in _MAPS and inside[0] is str:
        return {"type": "object", "additionalProperties": _schema(inside[1], place)}
    raise TypeInvalid(
        f"{place}: {getattr(kind, '__name__', kind)} is not a type that YAML or JSON can give",
        hint="use str, int, float, bool, list, dict, Literal, or a union of these",
    )


def _default(value: object, place: str) -> object:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise TypeInvalid(f"{place}: its default is no JSON value", hint="use None, and put it in inside") from None
