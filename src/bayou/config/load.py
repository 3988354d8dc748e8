"""Load the configuration: `bayou.toml`, then the environment over it.

A `Table` reads one table of `bayou.toml`: it refuses unknown keys and values of a wrong type.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.config.settings import (
    Config,
    DatastoreConfig,
    Hydrate,
    SparkConfig,
    SyncConfig,
    check_datastore,
    check_spark,
    credential,
    is_credential,
    refuse_token,
    with_target,
)
from bayou.config.trust import Ask, Gate, datastore_needs, is_set, spark_needs
from bayou.core import limits
from bayou.core.errors import ConfigInvalid, UsageError
from bayou.core.text import nearest

_KNOWN: Mapping[str, tuple[str, ...]] = {
    "": ("repo_id", "datastore", "sync", "spark"),
    "datastore": ("url", "path", "namespace", "hydrate", "exclude", "options"),
    "sync": ("timeout", "concurrency", "point_limit", "pack_below", "pack_size", "limit_rate"),
    "spark": ("remote", "master"),
}
_MAX_SECONDS = 7 * 86400
_UUID = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_CONCURRENCY = 1024
_MAX_POINTS = 1_000_000
_RATES = 1 << 10, 1 << 40
_LEAST_PACK, _MAX_PACK = 64 << 10, 64 << 20
_SIZE = re.compile(r"(\d{1,15})\s*([KMG]i?)?B?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}

Number = TypeVar("Number", int, float)


def load_config(file: Path, environ: Mapping[str, str] | None = None, ask: Ask | None = None) -> Config:
    """Load a file and apply the environment; raise every error that needs no request.

    V23: a value of the file that needs this user's permission gets a gate, which calls `ask` if given. Values of the
    environment are this user's own and need none.
    """
    environ = os.environ if environ is None else environ
    from_file = parse_config(read_text(file), str(file))
    config = _with_environment(from_file, environ)
    root = file.parent
    # The file's options also apply to a store in BAYOU_DATASTORE, and may send its credentials to another server.
    needs = datastore_needs(root, config.datastore)
    if environ.get("BAYOU_DATASTORE"):
        needs = tuple(need for need in needs if need.what == "endpoint")
    if needs:
        config = replace(config, datastore=replace(config.datastore, gate=Gate(root, needs, ask)))
    if config.spark is from_file.spark and (needs := spark_needs(config.spark)):
        config = replace(config, spark=replace(config.spark, gate=Gate(root, needs, ask)))
    return config


def parse_config(text: str, source: str, environ: Mapping[str, str] | None = None) -> Config:
    """Parse the text of a `bayou.toml`, which messages call `source`, and apply an environment."""
    try:
        top = _Table(source, "", tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # also for huge numbers and deep nesting
        raise ConfigInvalid(f"{source} is not valid TOML: {error}", hint="correct the line that it names") from None
    repo_id = top.text("repo_id")
    if repo_id is None or not _UUID.fullmatch(repo_id):
        raise ConfigInvalid(f"{source}: repo_id must be a UUID", hint="bring the line back as it was first committed")
    config = Config(repo_id, _datastore(top.table("datastore")), _sync(top.table("sync")), _spark(top.table("spark")))
    return _with_environment(config, environ or {})


def offline_requested(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether BAYOU_OFFLINE is set: then no command contacts the store."""
    return is_set("BAYOU_OFFLINE", environ)


def read_text(file: Path) -> str:
    """Return the text of a configuration file; raise `ConfigInvalid` if it cannot be read."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            data = opened.read(limits.CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigInvalid(f"cannot read {file}: {error.strerror}", hint="check its permissions") from None
    if len(data) > limits.CONFIG_BYTES:
        raise ConfigInvalid(f"{file} has more than {limits.CONFIG_BYTES} bytes", hint="it is no configuration")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigInvalid(f"{file} is not UTF-8 (at line {line})", hint="correct the line that it names") from None


def _datastore(table: _Table) -> DatastoreConfig:
    config = DatastoreConfig(
        url=table.text("url"),
        path=table.text("path"),
        namespace=table.text("namespace"),
        hydrate=_hydrate(table.text("hydrate") or "full", table.where("hydrate")),
        exclude=table.texts("exclude"),
        options=table.options("options"),
    )
    check_datastore(config, table.source)
    return config


def _sync(table: _Table) -> SyncConfig:
    return SyncConfig(
        timeout=table.seconds("timeout") if "timeout" in table.values else None,
        concurrency=table.whole("concurrency", SyncConfig().concurrency, _MAX_CONCURRENCY),
        point_limit=table.whole("point_limit", 1, _MAX_POINTS) if "point_limit" in table.values else None,
        pack_below=_pack_below(table.values.get("pack_below", SyncConfig().pack_below), table.where("pack_below")),
        pack_size=_pack_size(table.values.get("pack_size", SyncConfig().pack_size), table.where("pack_size")),
        limit_rate=limit_rate(table.values["limit_rate"], table.where("limit_rate"))
        if "limit_rate" in table.values
        else None,
    )


def spark_config(environ: Mapping[str, str] | None = None) -> SparkConfig:
    """Return the Spark configuration outside of a repo: the default with the environment applied."""
    return _spark_with_environment(SparkConfig(), os.environ if environ is None else environ)


def _spark(table: _Table) -> SparkConfig:
    config = SparkConfig(table.text("remote"), table.text("master"))
    check_spark(config, table.where("remote"), table.where("master"))
    refuse_token(config, table.where("remote"))
    return config


def _spark_with_environment(config: SparkConfig, environ: Mapping[str, str]) -> SparkConfig:
    from_environment = SparkConfig(environ.get("BAYOU_SPARK_REMOTE") or None, environ.get("BAYOU_SPARK_MASTER") or None)
    check_spark(from_environment, "BAYOU_SPARK_REMOTE", "BAYOU_SPARK_MASTER")
    return config if from_environment == SparkConfig() else from_environment


def _with_environment(config: Config, environ: Mapping[str, str]) -> Config:
    datastore, sync = config.datastore, config.sync
    if target := environ.get("BAYOU_DATASTORE"):
        datastore = with_target(datastore, target)
    if namespace := environ.get("BAYOU_NAMESPACE"):
        datastore = replace(datastore, namespace=namespace)
    if hydrate := environ.get("BAYOU_HYDRATE"):
        datastore = replace(datastore, hydrate=_hydrate(hydrate, "BAYOU_HYDRATE"))
    if datastore != config.datastore:
        check_datastore(datastore, "environment (BAYOU_…)")
    if timeout := environ.get("BAYOU_SYNC_TIMEOUT"):
        sync = replace(sync, timeout=_seconds(_number(float, timeout), "BAYOU_SYNC_TIMEOUT"))
    if threads := environ.get("BAYOU_CONCURRENCY"):
        concurrency = _whole(_number(int, threads), _MAX_CONCURRENCY, "BAYOU_CONCURRENCY")
        sync = replace(sync, concurrency=concurrency)
    if limit := environ.get("BAYOU_POINT_LIMIT"):
        sync = replace(sync, point_limit=_whole(_number(int, limit), _MAX_POINTS, "BAYOU_POINT_LIMIT"))
    if below := environ.get("BAYOU_PACK_BELOW"):
        sync = replace(sync, pack_below=_pack_below(below, "BAYOU_PACK_BELOW"))
    if size := environ.get("BAYOU_PACK_SIZE"):
        sync = replace(sync, pack_size=_pack_size(size, "BAYOU_PACK_SIZE"))
    if rate := environ.get("BAYOU_SYNC_LIMIT_RATE"):
        sync = replace(sync, limit_rate=limit_rate(rate, "BAYOU_SYNC_LIMIT_RATE"))
    return replace(config, datastore=datastore, sync=sync, spark=_spark_with_environment(config.spark, environ))


def _number(kind: type[Number], text: str) -> Number | None:
    try:
        return kind(text)
    except ValueError:
        return None


class _Table(Struct, frozen=True):
    """One table of the file; `source` is the name of the file in messages."""

    source: str
    name: str
    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        for key in self.values:
            if key not in _KNOWN[self.name]:
                raise self._unknown(key)

    def where(self, key: str) -> str:
        """Return file, table and key of a value, for messages."""
        return f"{self.source}: {self._full(key)}"

    def table(self, key: str) -> _Table:
        return _Table(self.source, key, self._mapping(key))

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

    def seconds(self, key: str) -> float:
        return _seconds(self.values.get(key), self.where(key))

    def whole(self, key: str, default: int, high: int) -> int:
        return _whole(self.values.get(key, default), high, self.where(key))

    def options(self, key: str) -> dict[str, str]:
        """Return a table with any keys; `true` and `false` need no quotes."""
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
        similar = nearest(key, known)
        hint = otherwise if similar is None else f"did you mean {self._full(similar)}?"
        return ConfigInvalid(f"{self.source}: unknown key {self._full(key)}", hint=hint)


def _seconds(value: object, where: str) -> float:
    """Return a positive number of seconds, or raise `ConfigInvalid`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigInvalid(f"{where} must be a number of seconds")
    if not 0 < value <= _MAX_SECONDS:
        raise ConfigInvalid(f"{where} must be more than 0 and at most {_MAX_SECONDS} seconds")
    return float(value)


def _whole(value: object, high: int, where: str) -> int:
    """Return a count from 1 to `high`, or raise `ConfigInvalid`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise ConfigInvalid(f"{where} must be a whole number from 1 to {high}")
    return value


def _pack_below(value: object, where: str) -> int:
    return _size(value, 0, limits.PACKED_BYTES, where)


def _pack_size(value: object, where: str) -> int:
    return _size(value, _LEAST_PACK, _MAX_PACK, where)


def limit_rate(value: object, where: str) -> int:
    """Return a rate in bytes a second, from a number or a text with a unit, or raise `ConfigInvalid`."""
    return _size(value, *_RATES, where)


def _size(value: object, low: int, high: int, where: str) -> int:
    """Return a number of bytes, from a number or a text with a unit, or raise `ConfigInvalid`."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        value = int(found[1]) * _UNITS[(found[2] or "").lower()]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigInvalid(f"{where} must be a number of bytes", hint="as 256KiB, 2M or 262144")
    if not low <= value <= high:
        raise ConfigInvalid(f"{where} must be from {low} to {high} bytes")
    return value


def _hydrate(value: str, where: str) -> Hydrate:
    if value not in ("full", "lazy"):
        raise ConfigInvalid(f"{where} must be full or lazy", hint="lazy fetches raw content only when it is read")
    return cast(Hydrate, value)
