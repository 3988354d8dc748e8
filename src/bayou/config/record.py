"""The configuration as the rest of the program sees it: whole, checked, and the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from msgspec import Struct, field

from bayou.config.trust import Gate
from bayou.core.structs import SelectiveStruct

Hydrate = Literal["full", "lazy"]


class DatastoreConfig(SelectiveStruct, frozen=True):
    """Where payload lives: a store (`url`), a directory (`path`), or, with neither, the repo's own tree."""

    uncompared: ClassVar[tuple[str, ...]] = ("gate",)
    unshown: ClassVar[tuple[str, ...]] = ("gate",)

    url: str | None = None
    path: str | None = None
    namespace: str | None = None
    hydrate: Hydrate = "full"
    exclude: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None
    """What of this a user must allow first, if a file says it; what a person typed has none (V23)."""

    def require_trust(self) -> None:
        """Raise `TrustNeeded` unless this user has allowed the servers and directories that this names."""
        if self.gate is not None:
            self.gate.require()


class SyncConfig(Struct, frozen=True):
    """How long a sync may take, how many requests run at once, and, where set, how many files need no Spark."""

    timeout: float = 300.0
    concurrency: int = 64
    point_limit: int | None = None
    """None: `engine.select` decides by measured cost."""


class SparkConfig(SelectiveStruct, frozen=True):
    """Which Spark: a Connect server (`remote`), a `master`, or, with neither, a warm local server."""

    uncompared: ClassVar[tuple[str, ...]] = ("gate",)
    unshown: ClassVar[tuple[str, ...]] = ("gate",)

    remote: str | None = None
    master: str | None = None
    gate: Gate | None = None

    def require_trust(self) -> None:
        """Raise `TrustNeeded` unless this user has allowed the server or cluster that this names (V23)."""
        if self.gate is not None:
            self.gate.require()


class Config(Struct, frozen=True):
    repo_id: str
    datastore: DatastoreConfig = field(default_factory=DatastoreConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)
