"""A plain Python class as a type of models: its public methods are the methods, their annotations the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from bayou.core.errors import BayouError, TypeInvalid
from bayou.data.layout import check_name
from bayou.data.metadata import parse_keep, parse_lifetime
from bayou.model.names import check_type
from bayou.model.types.python import PythonJob, run_python
from bayou.model.types.schema import schema_of
from bayou.model.types.spec import Method, OutputSpec
from bayou.model.work import Work

RESULT = "result"
_OUTPUT_FIELDS = frozenset(OutputSpec.__struct_fields__)


class Origin(Struct, frozen=True):
    """Where the class is to be had from by the process that runs its methods."""

    kind: Literal["file", "module"]
    place: str
    name: str


class PlainType:
    """A class that says `type = "…"`. Each method runs in a process of its own, on a new object of the class.

    What a method returns is saved as `result`; more with its parameter `work`, if it has one. `outputs` may say how
    data is kept, `keep_failed` that it stays when a method fails.
    """

    def __init__(self, found: type, origin: Origin, source: str) -> None:
        """Look at a class; `TypeInvalid`, naming `source`, if it is no type of models."""
        where = f"{source}: {found.__name__}"
        name = getattr(found, "type", None)
        try:
            self.name = check_type(name if isinstance(name, str) else "")
        except BayouError as error:
            raise TypeInvalid(f"{where}: {error.message}", hint=error.hint) from None
        self.description = _summary(found)
        self.methods: Mapping[str, Method] = {
            name: _method(found, name, function, f"{where}.{name}") for name, function in _functions(found)
        }
        if not self.methods:
            raise TypeInvalid(f"{where} has no methods", hint="write one whose name has no _ in front")
        for name in _declared(found, where):
            if name not in self.methods:
                raise TypeInvalid(f"{where}: outputs names {name}, which is no method", hint="rename one of them")
        self._origin = origin

    def run(self, method: str, arguments: Mapping[str, Any], work: Work) -> None:
        origin = self._origin
        job = PythonJob(origin.kind, origin.place, f"{origin.name}.{method}", arguments, construct=True)
        run_python(job, work, save_none=False)


def _functions(found: type) -> Iterable[tuple[str, Callable[..., object]]]:
    for name, member in inspect.getmembers(found, callable):
        if not name.startswith("_") and inspect.isroutine(member):
            yield name, member


def _method(found: type, name: str, function: Callable[..., object], where: str) -> Method:
    declared = _declared(found, where).get(name, (OutputSpec(RESULT),))
    keep_failed = getattr(found, "keep_failed", False) is True
    return Method(name, _summary(function), schema_of(function, where), declared, keep_failed)


def _declared(found: type, where: str) -> dict[str, tuple[OutputSpec, ...]]:
    """Return what `outputs` says: for each method, the fields of an `OutputSpec` for each item."""
    said = getattr(found, "outputs", {})
    try:
        return {name: tuple(_output(one) for one in items) for name, items in said.items()}
    except BayouError as error:
        raise TypeInvalid(f"{where}: outputs: {error.message}", hint=error.hint) from None
    except (AttributeError, TypeError) as error:
        raise TypeInvalid(
            f"{where}: outputs: {error}", hint='write it as {"method": [{"name": "report", "lifetime": "7d"}]}'
        ) from None


def _output(said: Mapping[str, Any]) -> OutputSpec:
    unknown = set(said) - _OUTPUT_FIELDS
    if unknown:
        raise TypeInvalid(f"unknown key {min(unknown)}", hint=f"known keys: {', '.join(sorted(_OUTPUT_FIELDS))}")
    made = OutputSpec(**said)
    check_name(made.name)
    if made.lifetime is not None:
        parse_lifetime(made.lifetime)
    if made.keep is not None:
        parse_keep(made.keep)
    return made


def _summary(of: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    text = inspect.cleandoc(getattr(of, "__doc__", None) or "")
    return " ".join(text.partition("\n\n")[0].split())
