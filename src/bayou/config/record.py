"""The configuration as the rest of the program sees it: whole, checked, and the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from bayou.config.trust import Gate
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
    gate: Gate | None = field(default=None, compare=False, repr=False)
    """What of this a user must allow first, if a file says it; what a person typed has none (V23)."""

    def require_trust(self) -> None:
        """Raise `TrustNeeded` unless this user has allowed the servers and directories that this names."""
        if self.gate is not None:
            self.gate.require()


@dataclass(frozen=True, slots=True)
class SyncConfig:
    """How long a sync may take, how many requests run at once, and, where set, how many files need no Spark."""

    timeout: float = 300.0
    concurrency: int = 64
    point_limit: int | None = None
    """None: `engine.select` decides by measured cost."""


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """Which Spark: a Connect server (`remote`), a `master`, or, with neither, a warm local server."""

    remote: str | None = None
    master: str | None = None
    gate: Gate | None = field(default=None, compare=False, repr=False)

    def require_trust(self) -> None:
        """Raise `TrustNeeded` unless this user has allowed the server or cluster that this names (V23)."""
        if self.gate is not None:
            self.gate.require()


@dataclass(frozen=True, slots=True)
class Config:
    repo_id: str
    datastore: DatastoreConfig = field(default_factory=DatastoreConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)
