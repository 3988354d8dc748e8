"""The configuration as the rest of the program sees it: whole, checked, and the same for everybody.

Which Spark: what may be said of it.

Where the datastore is: what may be said of it, and what the environment may change.

The rules for URLs, namespaces and options are the store's own; `store` is loaded only where one is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.config.trust import Gate
from bayou.core.errors import ConfigInvalid, CredentialInConfig, UsageError
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


_REMOTE = re.compile(r"sc://[^/;?#@\s]+(/(;\S*)?)?")
_TOKEN = re.compile(r"[/;](token|x-[\w-]*)=", re.IGNORECASE)


def check_spark(config: SparkConfig, remote: str, master: str) -> None:
    """Refuse what contradicts itself or names no Spark; `remote` and `master` are what an error calls them."""
    if config.remote is not None and config.master is not None:
        raise ConfigInvalid(f"{remote} and {master.rpartition(': ')[2]} exclude each other", hint="keep one of them")
    if config.remote is not None and not _REMOTE.fullmatch(config.remote):
        raise ConfigInvalid(f"{remote} is not the address of a Spark Connect server", hint="like sc://host:15002")
    if config.master is not None and config.master.startswith("sc:"):
        raise ConfigInvalid(f"{master} is the address of a Spark Connect server", hint="call it remote")


def refuse_token(config: SparkConfig, where: str) -> None:
    """Refuse an address with a secret in it, where it would be committed."""
    if config.remote is not None and _TOKEN.search(config.remote):
        raise CredentialInConfig(
            f"{where} has a token, which does not belong into the configuration",
            hint="set SPARK_CONNECT_AUTHENTICATE_TOKEN instead, or the whole address as BAYOU_SPARK_REMOTE",
        )


_USER_IN_URL = re.compile(r"://[^/]*@")


def check_place(place: DatastoreConfig, source: str) -> None:
    """Refuse what contradicts itself, is no URL or no namespace, or holds a secret."""
    for name, value in place.options.items():
        if is_credential(name) or _USER_IN_URL.search(value):
            raise credential(f"{source}: datastore.options.{name}")
    if place.path is not None:
        _check_directory(place, place.path, source)
    if place.namespace is not None:
        from bayou.objectstore.keys import check_namespace  # noqa: PLC0415

        with _naming(f"{source}: datastore.namespace"):
            check_namespace(place.namespace)
    if place.url is not None:
        _check_store(place, place.url, source)


def moved(place: DatastoreConfig, target: str) -> DatastoreConfig:
    """Return `place` elsewhere. Namespace and options were meant for its own store, and stay behind with it (V9)."""
    from bayou.objectstore.url import parse_url, refuse_broken_url  # noqa: PLC0415

    if "://" not in target:
        with _naming("BAYOU_DATASTORE"):
            refuse_broken_url(target)
        directory = str(Path(target).expanduser().absolute())
        return replace(place, url=None, path=directory, namespace=None, options={})
    with _naming("BAYOU_DATASTORE"):
        there = parse_url(target)
    if place.path is None and (place.url is None or parse_url(place.url) == there):
        return replace(place, url=target)
    return replace(place, url=target, path=None, namespace=None, options={})


def is_credential(name: str) -> bool:
    """Say whether the name of a setting sounds like a secret."""
    from bayou.objectstore.url import is_secret  # noqa: PLC0415

    return is_secret(name)


def credential(where: str) -> CredentialInConfig:
    return CredentialInConfig(
        f"{where} is a credential and does not belong into the configuration",
        hint="give it to the provider: its environment variables, profile or login command",
    )


def _check_directory(place: DatastoreConfig, path: str, source: str) -> None:
    try:
        if not path.isprintable():
            raise ValueError
        Path(path).expanduser()
    except (ValueError, RuntimeError):
        raise ConfigInvalid(f"{source}: datastore.path is not the name of a directory", hint="check it") from None
    if place.url is not None:
        raise ConfigInvalid(f"{source}: datastore.url and datastore.path exclude each other", hint="keep one of them")
    if place.path is not None and "://" in place.path:
        raise ConfigInvalid(f"{source}: datastore.path is a URL", hint="call it url")
    if place.path is not None and "@" in place.path:
        from bayou.objectstore.url import refuse_broken_url  # noqa: PLC0415

        with _naming(f"{source}: datastore.path"):
            refuse_broken_url(place.path)
    if place.namespace is not None or place.options:
        raise ConfigInvalid(
            f"{source}: datastore.path goes with neither namespace nor options",
            hint='leave them out, or use the directory as a store: url = "file:///…"',
        )


def _check_store(place: DatastoreConfig, url: str, source: str) -> None:
    from bayou.objectstore.keys import check_prefix  # noqa: PLC0415
    from bayou.objectstore.url import OPTIONS, check_options, parse_url  # noqa: PLC0415

    with _naming(f"{source}: datastore.url"):
        there = parse_url(url)
        check_prefix(there.prefix)
    if there.scheme in OPTIONS:  # what a plugged-in store takes, it alone knows
        with _naming(f"{source}: datastore.options"):
            check_options(there.scheme, place.options, OPTIONS[there.scheme])


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the place of a wrong value in front of what is wrong with it."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from None
