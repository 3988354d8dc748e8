"""The functions behind `bayou datastore …`, in one namespace: tests call them as `api.sync`, `api.verify`, …"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from bayou.maintenance import export as _export
from bayou.maintenance.compact import compact
from bayou.maintenance.gc import collect
from bayou.maintenance.replicate import replicate
from bayou.maintenance.setup import setup
from bayou.maintenance.verify import verify
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.sync import hydrate as _hydrate
from bayou.sync import service as _service
from bayou.sync import status as _status
from bayou.sync.conflicts.copies import conflicts, drop_conflict, take_conflict
from bayou.sync.status import log

P = ParamSpec("P")
R = TypeVar("R")


def _connecting(function: Callable[Concatenate[Connection, P], R]) -> Callable[Concatenate[Repo, P], R]:
    """Let a function that needs an open datastore open that of a repo."""

    @wraps(function)
    def call(repo: Repo, /, *args: P.args, **options: P.kwargs) -> R:
        with Connection(repo) as connection:
            return function(connection, *args, **options)

    return call


export = _connecting(_export.export)
hydrate = _connecting(_hydrate.hydrate)
status = _connecting(_status.status)
sync = _connecting(_service.sync)

__all__ = [
    "collect",
    "compact",
    "conflicts",
    "drop_conflict",
    "export",
    "hydrate",
    "log",
    "replicate",
    "setup",
    "status",
    "sync",
    "take_conflict",
    "verify",
]
