"""Structs of msgspec for records: strict conversion from documents, and fields that `==` or `repr` ignores.

`convert` is strict: `Malformed` names a field that is missing, or whose value has another type or is out of range, and
no default fills a gap. The caller turns `Malformed` into its own error, which names the object or the file. `parse` and
`dump_json` read and write the JSON documents of a store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar

from msgspec import Meta, Struct, ValidationError
from msgspec import convert as _convert

from bayou.core import limits

Identifier = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z-]{1,64}\Z")]
"""An id that may become part of a key."""

Label = Annotated[str, Meta(max_length=limits.LABEL_BYTES)]
Time = Annotated[str, Meta(pattern=r"\A[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}\.[0-9]{3}Z\Z")]
"""A time in UTC with milliseconds; `check_time` checks that it is a valid date."""

Count = Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)]
Seq = Annotated[int, Meta(ge=0, lt=limits.SEQ_MAX)]
"""The number of a commit; below the limit, so that there is always a next one."""

Total = Annotated[int, Meta(ge=0, le=limits.SUM_MAX)]
"""A sum over rows of an index; a single bad row can make it large."""

S = TypeVar("S", bound=Struct)

_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


class SelectiveStruct(Struct, frozen=True):
    """A frozen struct that ignores some of its fields in comparisons and in its repr.

    `==` and `hash` ignore the fields that `uncompared` names, which are not part of a record's identity. `hash` also
    ignores those that `unhashed` names, such as mappings. `repr` omits those that `unshown` names, so that no secret
    reaches a log. `msgspec.field` has no such options.
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
        ignored = self.uncompared + self.unhashed
        return hash(tuple(getattr(self, name) for name in self.__struct_fields__ if name not in ignored))

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.unshown)
        return f"{self.__class__.__qualname__}({', '.join(shown)})"


class Malformed(ValueError):
    """A document does not have the expected fields; the message names the wrong field."""


def parse(data: bytes, most: int) -> dict[str, Any]:
    """Return the fields of a JSON object of at most `most` bytes (V25)."""
    from bayou.core.documents import Unreadable, read_json  # noqa: PLC0415  (every command loads this module)

    try:
        return check_object(read_json(data, most))
    except Unreadable as error:
        raise Malformed(str(error)) from error


def check_object(value: object, where: str = "the document") -> dict[str, Any]:
    """Return a JSON object, or raise `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed(f"{where} is not an object")
    return value


def require_field(found: Mapping[str, Any], name: str, where: str = "") -> Any:
    """Return the value of a field; raise `Malformed` if the document does not have it."""
    if name not in found:
        raise Malformed(f"{_path(where, name)} is missing")
    return found[name]


def unknown_fields(found: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """Return the fields that this version does not know; records keep them unchanged in `extra`."""
    return {name: value for name, value in found.items() if name not in kind.__struct_fields__ or name == "extra"}


def convert(found: Mapping[str, Any], kind: type[S], where: str = "", optional: Collection[str] = ()) -> S:
    """Make a struct from the fields of a document, which must have all of them but the `optional` ones.

    Defaults of the struct's class are for callers and fill no gap in a document. A value that is already a struct stays
    as it is. `where` is the path of `found` in the document, for messages.
    """
    for name in kind.__struct_fields__:
        if name not in optional:
            require_field(found, name, where)
    try:
        return _convert(found, kind)
    except (ValidationError, OverflowError) as error:
        raise Malformed(_reason(str(error), where)) from error


def check_time(text: str, name: str) -> None:
    """Raise `Malformed` for a `Time` that is not a valid date."""
    try:
        datetime.fromisoformat(text[:19])
    except ValueError as error:
        raise Malformed(f"{name} is not a time") from error


def _reason(text: str, where: str) -> str:
    """Put the name of the field before msgspec's message."""
    match = _AT.fullmatch(text)
    message, name = match.groups() if match else (text, "")
    return f"{_path(where, name) or 'the document'}: {message[:1].lower()}{message[1:]}"


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where and name else where or name


def dump_json(value: object) -> bytes:
    """Return a document as compact JSON, in the order of its fields."""
    import json  # noqa: PLC0415  (every command loads this module, few write documents)

    return json.dumps(value, separators=(",", ":")).encode()
