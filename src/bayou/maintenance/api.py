"""The functions behind `bayou datastore …`, in one namespace.

Each function is imported from its module on first use, because most programs that open a datastore use none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayou.maintenance.gc import collect
    from bayou.maintenance.replicate import replicate
    from bayou.maintenance.setup import setup
    from bayou.maintenance.verify import verify
    from bayou.sync.conflicts.copies import conflicts, drop_conflict, take_conflict
    from bayou.sync.hydrate import hydrate
    from bayou.sync.service import sync
    from bayou.sync.status import log, status

__all__ = [
    "collect",
    "conflicts",
    "drop_conflict",
    "hydrate",
    "log",
    "replicate",
    "setup",
    "status",
    "sync",
    "take_conflict",
    "verify",
]

_HOMES = {
    "collect": "bayou.maintenance.gc",
    "conflicts": "bayou.sync.conflicts.copies",
    "drop_conflict": "bayou.sync.conflicts.copies",
    "hydrate": "bayou.sync.hydrate",
    "log": "bayou.sync.status",
    "replicate": "bayou.maintenance.replicate",
    "setup": "bayou.maintenance.setup",
    "status": "bayou.sync.status",
    "sync": "bayou.sync.service",
    "take_conflict": "bayou.sync.conflicts.copies",
    "verify": "bayou.maintenance.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
