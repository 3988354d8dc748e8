"""The functions behind `bayou datastore …`, in one namespace: tests call them as `api.sync`, `api.verify`, …"""

from __future__ import annotations

from bayou.maintenance.compact import compact
from bayou.maintenance.export import export
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
