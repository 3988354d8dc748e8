"""The configuration as the rest of the program sees it: whole, checked, and the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from bayou.quick import dataclass

Hydrate = Literal["full", "lazy"]


@dataclass(frozen=True, slots=True)
class DatastoreConfig:
    """Where payload lives: a store (`url`), a directory (`path`), or, with neither, the repo's own tree."""

    url: str | None = None
    path: str | None = None
    namespace: str | None = None
    hydrate: Hydrate = "full"
    exclude: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncConfig:
    """How long a sync may take, how many requests run at once, and how many paths are done without Spark."""

    timeout: float = 300.0
    concurrency: int = 64
    point_limit: int = 1000


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """Which Spark: a Connect server (`remote`), a `master`, or, with neither, a warm local server."""

    remote: str | None = None
    master: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    repo_id: str
    datastore: DatastoreConfig = field(default_factory=DatastoreConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)
