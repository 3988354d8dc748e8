"""The configuration as structs, and the checks that a datastore and a Spark configuration must pass.

The rules for URLs, namespaces and options are those of `bayou.objectstore`, which this module imports only for a
datastore that is a store.
"""

from __future__ import annotations

import re
import shlex
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

_REMOTE = re.compile(r"sc://[^/;?#@\s]+(/(;\S*)?)?")
_TOKEN = re.compile(r"[/;](token|x-[\w-]*)=", re.IGNORECASE)
_USER_IN_URL = re.compile(r"://[^/]*@")


class DatastoreConfig(SelectiveStruct, frozen=True):
    """The location of the payload: a store (`url`), a directory (`path`), or, with neither, the repo's own tree."""

    uncompared: ClassVar[tuple[str, ...]] = ("gate",)
    unshown: ClassVar[tuple[str, ...]] = ("gate",)

    url: str | None = None
    path: str | None = None
    namespace: str | None = None
    hydrate: Hydrate = "full"
    exclude: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None
    """The permissions that this configuration needs if it comes from a file; None if the user typed it (V23)."""

    def require_trust(self) -> None:
        """Raise `TrustNeeded` unless this user has allowed the configured servers and directories (V23)."""
        if self.gate is not None:
            self.gate.require()

    def setup_command(self) -> str:
        """Return the command that sets up this very store, for a hint: without its options it would name another."""
        words = ["bayou", "datastore", "setup", self.url or self.path or "."]
        if self.namespace is not None:
            words += ["--namespace", self.namespace]
        for name, value in sorted(self.options.items()):
            words += ["--option", f"{name}={value}"]
        if self.hydrate == "lazy":
            words.append("--lazy")
        return shlex.join(words)


class SyncConfig(Struct, frozen=True):
    """Time limit, concurrent requests and packs of a sync; optionally, up to how many files it runs without Spark."""

    timeout: float | None = None
    """Seconds for a whole command. None: a transfer that makes progress has no limit (V12)."""
    concurrency: int = 64
    point_limit: int | None = None
    """None: `engine.select` decides by measured cost."""
    pack_below: int = 256 << 10
    """Files of less than so many bytes are pushed in packs; 0: every file is an object of its own."""
    pack_size: int = 8 << 20
    """Bytes after which a pack is complete."""
    limit_rate: int | None = None
    """Bytes a second that this process moves to and from a store, both together; None: as fast as the link."""


class SparkConfig(SelectiveStruct, frozen=True):
    """Which Spark: a Connect server (`remote`), a `master`, or, with neither, a warm local server."""

    uncompared: ClassVar[tuple[str, ...]] = ("gate",)
    unshown: ClassVar[tuple[str, ...]] = ("gate",)

    remote: str | None = None
    master: str | None = None
    gate: Gate | None = None

    def require_trust(self) -> None:
        """Raise `TrustNeeded` unless this user has allowed the configured server or cluster (V23)."""
        if self.gate is not None:
            self.gate.require()


class Config(Struct, frozen=True):
    """The whole configuration of a repo."""

    repo_id: str
    datastore: DatastoreConfig = field(default_factory=DatastoreConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)


def check_spark(config: SparkConfig, remote: str, master: str) -> None:
    """Refuse a contradiction or a wrong address; `remote` and `master` are the names of the values in messages."""
    if config.remote is not None and config.master is not None:
        raise ConfigInvalid(f"{remote} and {master.rpartition(': ')[2]} exclude each other", hint="keep one of them")
    if config.remote is not None and not _REMOTE.fullmatch(config.remote):
        raise ConfigInvalid(f"{remote} is not the address of a Spark Connect server", hint="like sc://host:15002")
    if config.master is not None and config.master.startswith("sc:"):
        raise ConfigInvalid(f"{master} is the address of a Spark Connect server", hint="call it remote")


def refuse_token(config: SparkConfig, where: str) -> None:
    """Refuse an address with a secret in a file that would be committed."""
    if config.remote is not None and _TOKEN.search(config.remote):
        raise CredentialInConfig(
            f"{where} has a token, which does not belong into the configuration",
            hint="set SPARK_CONNECT_AUTHENTICATE_TOKEN instead, or the whole address as BAYOU_SPARK_REMOTE",
        )


def check_datastore(datastore: DatastoreConfig, source: str) -> None:
    """Refuse a contradiction, a wrong URL, namespace or option, and a secret; messages name `source`."""
    for name, value in datastore.options.items():
        if is_credential(name) or _USER_IN_URL.search(value):
            raise credential(f"{source}: datastore.options.{name}")
    if datastore.path is not None:
        _check_directory(datastore, datastore.path, source)
    if datastore.namespace is not None:
        from bayou.objectstore.keys import check_namespace  # noqa: PLC0415

        with _prefix_errors(f"{source}: datastore.namespace"):
            check_namespace(datastore.namespace)
    if datastore.url is not None:
        _check_store(datastore, datastore.url, source)


def with_target(datastore: DatastoreConfig, target: str) -> DatastoreConfig:
    """Return the configuration with another URL or directory, without the namespace and options of the old one (V9)."""
    from bayou.objectstore.url import parse_url, refuse_broken_url  # noqa: PLC0415

    if "://" not in target:
        with _prefix_errors("BAYOU_DATASTORE"):
            refuse_broken_url(target)
        directory = str(Path(target).expanduser().absolute())
        return replace(datastore, url=None, path=directory, namespace=None, options={})
    with _prefix_errors("BAYOU_DATASTORE"):
        parsed = parse_url(target)
    if datastore.path is None and (datastore.url is None or parse_url(datastore.url) == parsed):
        return replace(datastore, url=target)
    return replace(datastore, url=target, path=None, namespace=None, options={})


def is_credential(name: str) -> bool:
    """Return whether the name of a setting looks like that of a secret."""
    from bayou.objectstore.url import is_secret  # noqa: PLC0415

    return is_secret(name)


def credential(where: str) -> CredentialInConfig:
    return CredentialInConfig(
        f"{where} is a credential and does not belong into the configuration",
        hint="give it to the provider: its environment variables, profile or login command",
    )


def _check_directory(datastore: DatastoreConfig, path: str, source: str) -> None:
    try:
        if not path.isprintable():
            raise ValueError
        Path(path).expanduser()
    except (ValueError, RuntimeError):
        raise ConfigInvalid(f"{source}: datastore.path is not the name of a directory", hint="check it") from None
    if datastore.url is not None:
        raise ConfigInvalid(f"{source}: datastore.url and datastore.path exclude each other", hint="keep one of them")
    if datastore.path is not None and "://" in datastore.path:
        raise ConfigInvalid(f"{source}: datastore.path is a URL", hint="call it url")
    if datastore.path is not None and "@" in datastore.path:
        from bayou.objectstore.url import refuse_broken_url  # noqa: PLC0415

        with _prefix_errors(f"{source}: datastore.path"):
            refuse_broken_url(datastore.path)
    if datastore.namespace is not None or datastore.options:
        raise ConfigInvalid(
            f"{source}: datastore.path goes with neither namespace nor options",
            hint='leave them out, or use the directory as a store: url = "file:///…"',
        )


def _check_store(datastore: DatastoreConfig, url: str, source: str) -> None:
    from bayou.objectstore.keys import check_prefix  # noqa: PLC0415
    from bayou.objectstore.url import OPTIONS, check_options, parse_url  # noqa: PLC0415

    with _prefix_errors(f"{source}: datastore.url"):
        parsed = parse_url(url)
        check_prefix(parsed.prefix)
    if parsed.scheme in OPTIONS:  # only a plug-in itself knows its options
        with _prefix_errors(f"{source}: datastore.options"):
            check_options(parsed.scheme, datastore.options, OPTIONS[parsed.scheme])


@contextmanager
def _prefix_errors(where: str) -> Iterator[None]:
    """Put `where` in front of the message of a `UsageError` that the block raises."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from None
