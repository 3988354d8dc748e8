"""Strict reading of JSON objects: what is missing or of another type is named, never guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from bayou import limits
from bayou.core.clock import parse_utc
from bayou.documents import Unreadable, read_json

_IDENTIFIER = re.compile(r"[0-9A-Za-z-]{1,64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


class Malformed(ValueError):
    """A document is not what it should be; the message says where."""


def parse(data: bytes, most: int) -> Fields:
    """Read a JSON object of at most so many bytes (V25)."""
    try:
        return Fields(read_json(data, most))
    except Unreadable as error:
        raise Malformed(str(error)) from error


def dump(value: object) -> bytes:
    """Write a document compactly, in the order of its fields."""
    return json.dumps(value, separators=(",", ":")).encode()


class Fields:
    """The fields of one JSON object; every reader raises `Malformed` unless the value is of its kind."""

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, dict):
            raise Malformed(f"{where or 'the document'} is not an object")
        self._value: dict[str, Any] = value
        self._where = where

    def integer(self, name: str) -> int:
        value = self._get(name)
        if type(value) is not int:  # a bool is none
            raise self.wrong(name, "an integer")
        return value

    def count(self, name: str) -> int:
        value = self.integer(name)
        if not 0 <= value <= limits.COUNT_MAX:
            raise self.wrong(name, "a count")
        return value

    def seq(self, name: str) -> int:
        """Return the number of a commit; there is always a next one."""
        value = self.count(name)
        if value >= limits.SEQ_MAX:
            raise self.wrong(name, "the number of a commit")
        return value

    def total(self, name: str) -> int:
        """Return a sum of what rows of an index say; a single bad one can make it large."""
        value = self.integer(name)
        if not 0 <= value <= limits.SUM_MAX:
            raise self.wrong(name, "a sum")
        return value

    def seconds(self, name: str, most: float) -> float:
        """Return a time above zero, whole or not; of a longer one, `most`."""
        value = self._get(name)
        if type(value) not in (int, float) or not value > 0:
            raise self.wrong(name, "a number of seconds above 0")
        return float(min(value, most))

    def flag(self, name: str) -> bool:
        """Return a boolean that is only written when it is true."""
        value = self._value.get(name, False)
        if type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, most: int = limits.LABEL_BYTES) -> str:
        value = self._get(name)
        if type(value) is not str or len(value) > most:
            raise self.wrong(name, f"a string of at most {most} characters")
        return value

    def identifier(self, name: str) -> str:
        """Return an id that may become part of a key."""
        value = self.text(name)
        if not _IDENTIFIER.fullmatch(value):
            raise self.wrong(name, "an id")
        return value

    def time(self, name: str) -> str:
        value = self.text(name)
        if not _TIME.fullmatch(value):
            raise self.wrong(name, "a time")
        try:
            parse_utc(value)
        except ValueError as error:
            raise self.wrong(name, "a time") from error
        return value

    def has(self, name: str) -> bool:
        """Say whether a field that is only written when there is something to say is there."""
        return name in self._value

    def is_null(self, name: str) -> bool:
        return self._get(name) is None

    def object(self, name: str) -> Fields:
        return Fields(self._get(name), self._name(name))

    def objects(self, name: str) -> list[Fields]:
        value = self._get(name)
        if type(value) is not list:
            raise self.wrong(name, "a list")
        return [Fields(item, f"{self._name(name)}[{at}]") for at, item in enumerate(value)]

    def others(self, known: Iterable[str]) -> dict[str, Any]:
        """Return the fields that this version does not know, to be carried along unchanged."""
        return {name: value for name, value in self._value.items() if name not in known}

    def _get(self, name: str) -> Any:
        try:
            return self._value[name]
        except KeyError:
            raise Malformed(f"{self._name(name)} is missing") from None

    def _name(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def wrong(self, name: str, wanted: str) -> Malformed:
        """Return the error to raise for a field."""
        return Malformed(f"{self._name(name)} is not {wanted}")
