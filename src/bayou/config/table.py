"""One table of `bayou.toml`: no unknown keys, and nothing comes out of it that has not the right type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from bayou.config.place import credential, is_credential
from bayou.config.record import Hydrate
from bayou.core.errors import ConfigInvalid, UsageError
from bayou.core.text import nearest

_KNOWN: Mapping[str, tuple[str, ...]] = {
    "": ("repo_id", "datastore", "sync", "spark"),
    "datastore": ("url", "path", "namespace", "hydrate", "exclude", "options"),
    "sync": ("timeout", "concurrency", "point_limit"),
    "spark": ("remote", "master"),
}
_MAX_SECONDS = 7 * 86400


class Table(Struct, frozen=True):
    """The keys and values under one heading; `source` is what an error calls the file."""

    source: str
    name: str
    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        for key in self.values:
            if key not in _KNOWN[self.name]:
                raise self._unknown(key)

    def where(self, key: str) -> str:
        """Name a value for an error: file, table and key."""
        return f"{self.source}: {self._full(key)}"

    def table(self, key: str) -> Table:
        return Table(self.source, key, self._mapping(key))

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if key in self.values and not (isinstance(value, str) and value):
            raise ConfigInvalid(f"{self.where(key)} must be a text in quotes, and not empty")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise ConfigInvalid(f"{self.where(key)} must be a list of texts", hint='as ["logs/**"]')
        return tuple(value)

    def seconds(self, key: str, default: float) -> float:
        return seconds(self.values.get(key, default), self.where(key))

    def whole(self, key: str, default: int, high: int) -> int:
        return whole(self.values.get(key, default), high, self.where(key))

    def options(self, key: str) -> dict[str, str]:
        """Return a table of free names; `true` and `false` may stand without quotes."""
        found = {}
        for name, value in self._mapping(key).items():
            if not isinstance(value, str | bool):
                raise ConfigInvalid(f"{self.where(key)}.{name} must be a text in quotes, true or false")
            found[name] = str(value).lower() if isinstance(value, bool) else value
        return found

    def _full(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def _mapping(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise ConfigInvalid(f"{self.where(key)} must be a table", hint=f"begin it with [{self._full(key)}]")
        return value

    def _unknown(self, key: str) -> UsageError:
        if is_credential(key):
            return credential(self.where(key))
        known = _KNOWN[self.name]
        elsewhere = [f"{table}.{name}" for table, names in _KNOWN.items() if table for name in names if name == key]
        otherwise = f"did you mean {elsewhere[0]}?" if elsewhere else f"known here: {', '.join(known)}"
        near = nearest(key, known)
        hint = otherwise if near is None else f"did you mean {self._full(near)}?"
        return ConfigInvalid(f"{self.source}: unknown key {self._full(key)}", hint=hint)


def seconds(value: object, where: str) -> float:
    """Return a time to wait, or raise `ConfigInvalid`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigInvalid(f"{where} must be a number of seconds")
    if not 0 < value <= _MAX_SECONDS:
        raise ConfigInvalid(f"{where} must be more than 0 and at most {_MAX_SECONDS} seconds")
    return float(value)


def whole(value: object, high: int, where: str) -> int:
    """Return a count from 1 to `high`, or raise `ConfigInvalid`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise ConfigInvalid(f"{where} must be a whole number from 1 to {high}")
    return value


def hydrate(value: str, where: str) -> Hydrate:
    if value not in ("full", "lazy"):
        raise ConfigInvalid(f"{where} must be full or lazy", hint="lazy fetches raw content only when it is read")
    return cast(Hydrate, value)
