"""Which Spark: what may be said of it."""

from __future__ import annotations

import re

from bayou.config.record import SparkConfig
from bayou.core.errors import ConfigInvalid, CredentialInConfig

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
