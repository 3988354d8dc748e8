"""Records as structs of msgspec: checked against a document, and with fields that comparison or repr passes over.

`convert` is strict: a field that is missing, or whose value is of another type or out of range, is named by
`Malformed`, and nothing is guessed. The caller turns that into its own error, which names the object or the file.

How documents of the index are written: compact JSON, and times in UTC with milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar

from msgspec import Meta, Struct, ValidationError
from msgspec import convert as _convert

from bayou.core import limits
from bayou.core.documents import Unreadable, read_json

Identifier = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z-]{1,64}\Z")]
"""An id that may become part of a key."""

Label = Annotated[str, Meta(max_length=limits.LABEL_BYTES)]
Time = Annotated[str, Meta(pattern=r"\A[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}\.[0-9]{3}Z\Z")]
"""A moment in UTC with milliseconds; `check_time` says whether the calendar has it."""

Count = Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)]
Seq = Annotated[int, Meta(ge=0, lt=limits.SEQ_MAX)]
"""The number of a commit; there is always a next one."""

Total = Annotated[int, Meta(ge=0, le=limits.SUM_MAX)]
"""A sum of what rows of an index say; a single bad one can make it large."""

S = TypeVar("S", bound=Struct)


class SelectiveStruct(Struct, frozen=True):
    """A frozen struct that passes over some of its fields.

    `==` and `hash` pass over the fields that `uncompared` names: what a record carries beside its meaning. `hash` also
    passes over those that `unhashed` names, such as mappings. `repr` passes over those that `unshown` names, so that a
    secret reaches no log. `msgspec.field` has no such options.
    """

    uncompared: ClassVar[tuple[str, ...]] = ()
    unhashed: ClassVar[tuple[str, ...]] = ()
    unshown: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        names = (name for name in self.__struct_fields__ if name not in self.uncompared)
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        left_out = self.uncompared + self.unhashed
        return hash(tuple(getattr(self, name) for name in self.__struct_fields__ if name not in left_out))

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.unshown)
        return f"{self.__class__.__qualname__}({', '.join(shown)})"


class Malformed(ValueError):
    """A document is not what it should be; the message names the field."""


def parse(data: bytes, most: int) -> dict[str, Any]:
    """Return the fields of a JSON object of at most `most` bytes (V25)."""
    try:
        return check_object(read_json(data, most))
    except Unreadable as error:
        raise Malformed(str(error)) from error


def check_object(value: object, where: str = "the document") -> dict[str, Any]:
    """Return a JSON object, or raise `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed(f"{where} is not an object")
    return value


def get(found: Mapping[str, Any], name: str, where: str = "") -> Any:
    """Return the value of a field that must be there."""
    if name not in found:
        raise Malformed(f"{_path(where, name)} is missing")
    return found[name]


def others(found: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """Return the fields that this version does not know, to be carried along unchanged in `extra`."""
    return {name: value for name, value in found.items() if name not in kind.__struct_fields__ or name == "extra"}


def convert(found: Mapping[str, Any], kind: type[S], where: str = "", optional: Collection[str] = ()) -> S:
    """Make a struct of the fields of a document; it must have all of them but the `optional` ones.

    A default of the struct's class is for callers, and fills no gap in a document. A value that is a struct already
    is taken as it is.
    """
    for name in kind.__struct_fields__:
        if name not in optional:
            get(found, name, where)
    try:
        return _convert(found, kind)
    except (ValidationError, OverflowError) as error:
        raise Malformed(_reason(str(error), where)) from error


def check_time(text: str, name: str) -> None:
    """Refuse a `Time` that no calendar has."""
    try:
        datetime.fromisoformat(text[:19])
    except ValueError as error:
        raise Malformed(f"{name} is not a time") from error


_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


def _reason(text: str, where: str) -> str:
    """Put the name of the field before what msgspec says of it."""
    match = _AT.fullmatch(text)
    said, name = match.groups() if match else (text, "")
    return f"{_path(where, name) or 'the document'}: {said[:1].lower()}{said[1:]}"


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where and name else where or name


def dump_json(value: object) -> bytes:
    """Write a document compactly, in the order of its fields."""
    return json.dumps(value, separators=(",", ":")).encode()
