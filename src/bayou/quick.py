"""Dataclasses that are quick to define: a command waits for a hundred of them before it begins.

`dataclass` is that of the standard library, but for what it costs. That one compiles five methods for each class, half
a millisecond in all; here only `__init__` is compiled, and the others are shared; a frozen class that inherits from a
dataclass also gets `__setattr__` and `__delattr__` of its own. What is out of the ordinary is left to the standard
library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    # One and the same for whoever checks types.
    from dataclasses import dataclass as dataclass  # noqa: PLC0414
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Make a dataclass; the arguments of `dataclasses.dataclass`."""
        return _decorator(options) if cls is None else _decorator(options)(cls)


_ORDINARY = {"frozen", "slots"}


def _decorator(options: dict[str, bool]) -> Callable[[type], type]:
    if not (options.get("slots") and options.keys() <= _ORDINARY):
        return cast("Callable[[type], type]", dataclasses.dataclass(**options))
    frozen = options.get("frozen", False)

    def decorate(cls: type) -> type:
        own = frozenset(vars(cls))
        if any(isinstance(value, dataclasses.Field) and _odd(value) for value in vars(cls).values()):
            return dataclasses.dataclass(frozen=frozen, slots=True)(cls)
        # Or the standard library makes a text of the signature, which takes a millisecond.
        cls.__doc__ = cls.__doc__ or cls.__name__
        # Only whoever inherits from a frozen class is asked whether he is frozen himself.
        asked = frozen and any(dataclasses.is_dataclass(one) for one in cls.__bases__)
        made = cast("Any", dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, frozen=asked)(cls))
        made.__dataclass_params__.frozen = frozen
        found = dataclasses.fields(made)
        made.__key__ = _key(field for field in found if field.compare)
        methods: dict[str, object] = {"__repr__": _repr, "__eq__": _eq}
        if "__init__" not in own:
            made.__init__ = _init(made, found, frozen=frozen)
        if frozen:
            if own & {"__setattr__", "__delattr__"}:
                raise TypeError(f"a frozen dataclass has its own __setattr__ and __delattr__: {cls.__name__}")
            made.__setattr__, made.__delattr__ = _refuse_set, _refuse_delete
            made.__hashed__ = _key(one for one in found if (one.compare if one.hash is None else one.hash))
            methods |= {"__hash__": _hash, "__getstate__": _getstate, "__setstate__": _setstate}
        elif "__hash__" not in own or vars(cls)["__hash__"] is None:
            made.__hash__ = None
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return cast("type", made)

    return decorate


def _odd(field: dataclasses.Field[Any]) -> bool:
    """Whether a field asks for what is not done here."""
    return not field.init or field.kw_only is True


def _init(cls: Any, found: tuple[dataclasses.Field[Any], ...], *, frozen: bool) -> object:
    """Compile `__init__`. A frozen class is filled through its slots: `object.__setattr__` takes twice the time."""
    names: dict[str, object] = {"_MISSING": dataclasses.MISSING}
    parameters, body = ["self"], []
    for number, field in enumerate(found):
        name, value = field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_default_{number}"] = field.default_factory
            parameters.append(f"{name}=_MISSING")
            value = f"_default_{number}() if {name} is _MISSING else {name}"
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{number}"] = field.default
            parameters.append(f"{name}=_default_{number}")
        else:
            parameters.append(name)
        if frozen:
            names[f"_set_{number}"] = getattr(cls, name).__set__
            body.append(f"_set_{number}(self, {value})")
        else:
            body.append(f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n ".join(body or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n {lines}", names)
    init = cast("Any", names["__init__"])
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


def _key(found: Iterable[dataclasses.Field[Any]]) -> staticmethod[[Any], tuple[object, ...]]:
    """Return what makes a tuple of fields; also of one, or none: it must not be mistaken for what is in it."""
    names = [field.name for field in found]
    if len(names) > 1:
        return staticmethod(attrgetter(*names))
    if not names:
        return staticmethod(lambda _: ())
    get = attrgetter(names[0])
    return staticmethod(lambda one: (get(one),))


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    key = self.__key__
    return key(self) == key(other)


def _hash(self: Any) -> int:
    return hash(self.__hashed__(self))


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_set(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
