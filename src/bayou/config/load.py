"""From `bayou.toml` and the environment to a `Config`.

One table of `bayou.toml`: no unknown keys, and nothing comes out of it that has not the right type.
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
    check_place,
    check_spark,
    credential,
    is_credential,
    moved,
    refuse_token,
)
from bayou.config.trust import Ask, Gate, datastore_needs, is_set, spark_needs
from bayou.core import limits
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


_UUID = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_CONCURRENCY = 1024
_MAX_POINTS = 1_000_000

Number = TypeVar("Number", int, float)


def load_config(file: Path, environ: Mapping[str, str] | None = None, ask: Ask | None = None) -> Config:
    """Read a file and put the environment over it. What can be wrong without a request is raised here.

    V23: what the file says and this user must allow has a gate, which `ask`s a person if there is one; what the
    environment says is this user's own word.
    """
    environ = os.environ if environ is None else environ
    said = parse_config(read_text(file), str(file))
    config = _with_environment(said, environ)
    root = file.parent
    # A store that a person names still gets the file's options, and its scheme says whose credentials they direct.
    needs = datastore_needs(root, config.datastore)
    if environ.get("BAYOU_DATASTORE"):
        needs = tuple(need for need in needs if need.what == "endpoint")
    if needs:
        config = replace(config, datastore=replace(config.datastore, gate=Gate(root, needs, ask)))
    if config.spark is said.spark and (needs := spark_needs(config.spark)):
        config = replace(config, spark=replace(config.spark, gate=Gate(root, needs, ask)))
    return config


def parse_config(text: str, source: str, environ: Mapping[str, str] | None = None) -> Config:
    """Read the text of a `bayou.toml`, which an error calls `source`, and put an environment over it."""
    try:
        top = Table(source, "", tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # a number of very many digits, tables in tables in tables
        raise ConfigInvalid(f"{source} is not valid TOML: {error}", hint="mend the line that it names") from None
    repo_id = top.text("repo_id")
    if repo_id is None or not _UUID.fullmatch(repo_id):
        raise ConfigInvalid(f"{source}: repo_id must be a UUID", hint="bring the line back as it was first committed")
    config = Config(repo_id, _datastore(top.table("datastore")), _sync(top.table("sync")), _spark(top.table("spark")))
    return _with_environment(config, environ or {})


def told_offline(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether BAYOU_OFFLINE asks to leave the store alone."""
    return is_set("BAYOU_OFFLINE", environ)


def read_text(file: Path) -> str:
    """Return a configuration file's text, or raise `ConfigInvalid`."""
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
        raise ConfigInvalid(f"{file} is not UTF-8 (at line {line})", hint="mend the line that it names") from None


def _datastore(place: Table) -> DatastoreConfig:
    config = DatastoreConfig(
        url=place.text("url"),
        path=place.text("path"),
        namespace=place.text("namespace"),
        hydrate=hydrate(place.text("hydrate") or "full", place.where("hydrate")),
        exclude=place.texts("exclude"),
        options=place.options("options"),
    )
    check_place(config, place.source)
    return config


def _sync(sync: Table) -> SyncConfig:
    return SyncConfig(
        timeout=sync.seconds("timeout", SyncConfig().timeout),
        concurrency=sync.whole("concurrency", SyncConfig().concurrency, _MAX_CONCURRENCY),
        point_limit=sync.whole("point_limit", 1, _MAX_POINTS) if "point_limit" in sync.values else None,
    )


def spark_config(environ: Mapping[str, str] | None = None) -> SparkConfig:
    """Return which Spark to use where there is no repo: the default, or what the environment says."""
    return _spark_with_environment(SparkConfig(), os.environ if environ is None else environ)


def _spark(spark: Table) -> SparkConfig:
    config = SparkConfig(spark.text("remote"), spark.text("master"))
    check_spark(config, spark.where("remote"), spark.where("master"))
    refuse_token(config, spark.where("remote"))
    return config


def _spark_with_environment(config: SparkConfig, environ: Mapping[str, str]) -> SparkConfig:
    told = SparkConfig(environ.get("BAYOU_SPARK_REMOTE") or None, environ.get("BAYOU_SPARK_MASTER") or None)
    check_spark(told, "BAYOU_SPARK_REMOTE", "BAYOU_SPARK_MASTER")
    return config if told == SparkConfig() else told


def _with_environment(config: Config, environ: Mapping[str, str]) -> Config:
    place, sync = config.datastore, config.sync
    if target := environ.get("BAYOU_DATASTORE"):
        place = moved(place, target)
    if namespace := environ.get("BAYOU_NAMESPACE"):
        place = replace(place, namespace=namespace)
    if wanted := environ.get("BAYOU_HYDRATE"):
        place = replace(place, hydrate=hydrate(wanted, "BAYOU_HYDRATE"))
    if place != config.datastore:
        check_place(place, "environment (BAYOU_…)")
    if timeout := environ.get("BAYOU_SYNC_TIMEOUT"):
        sync = replace(sync, timeout=seconds(_number(float, timeout), "BAYOU_SYNC_TIMEOUT"))
    if threads := environ.get("BAYOU_CONCURRENCY"):
        most = _MAX_CONCURRENCY
        sync = replace(sync, concurrency=whole(_number(int, threads), most, "BAYOU_CONCURRENCY"))
    if limit := environ.get("BAYOU_POINT_LIMIT"):
        sync = replace(sync, point_limit=whole(_number(int, limit), _MAX_POINTS, "BAYOU_POINT_LIMIT"))
    return replace(config, datastore=place, sync=sync, spark=_spark_with_environment(config.spark, environ))


def _number(kind: type[Number], text: str) -> Number | None:
    try:
        return kind(text)
    except ValueError:
        return None
