"""What commands and programs call: one function for each thing that can be done with a datastore.

Each is loaded when it is first asked for: whoever opens a datastore has this module, and most of them sync nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayou.sync.collect import collect
    from bayou.sync.conflicts.copies import conflicts, drop_conflict, take_conflict
    from bayou.sync.hydrate import hydrate
    from bayou.sync.replicate import replicate
    from bayou.sync.service import sync
    from bayou.sync.setup import setup
    from bayou.sync.status import log, status
    from bayou.sync.verify import verify

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
    "collect": "bayou.sync.collect",
    "conflicts": "bayou.sync.conflicts.copies",
    "drop_conflict": "bayou.sync.conflicts.copies",
    "hydrate": "bayou.sync.hydrate",
    "log": "bayou.sync.status",
    "replicate": "bayou.sync.replicate",
    "setup": "bayou.sync.setup",
    "status": "bayou.sync.status",
    "sync": "bayou.sync.service",
    "take_conflict": "bayou.sync.conflicts.copies",
    "verify": "bayou.sync.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
