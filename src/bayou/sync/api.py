"""What commands and programs call: one function for each thing that can be done with a datastore.

Each is loaded when it is first asked for: whoever opens a datastore has this module, and most of them sync nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.sync.collect import collect
    from bayou.sync.connection import Connection
    from bayou.sync.copies import conflicts, drop_conflict, take_conflict
    from bayou.sync.hydrate import hydrate
    from bayou.sync.log import log
    from bayou.sync.progress import Progress
    from bayou.sync.replicate import replicate
    from bayou.sync.report import SyncOptions, SyncReport
    from bayou.sync.setup import setup
    from bayou.sync.status import status
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
    "collect": "collect",
    "conflicts": "copies",
    "drop_conflict": "copies",
    "hydrate": "hydrate",
    "log": "log",
    "replicate": "replicate",
    "setup": "setup",
    "status": "status",
    "take_conflict": "copies",
    "verify": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bayou.sync.{_HOMES[name]}"), name)


def sync(
    repo: Repo,
    options: SyncOptions,
    *,
    timeout: float | None = None,
    progress: Progress | None = None,
    connection: Connection | None = None,
) -> SyncReport:
    """Reconcile the tree with the store. A datastore that is a directory has nothing to reconcile."""
    if repo.config.datastore.url is None or repo.offline:
        from bayou.sync.report import SyncReport  # noqa: PLC0415

        report = SyncReport(mode=options.mode, dry_run=options.dry_run)
        if repo.offline:
            report.warnings.append("offline: nothing was pulled or pushed; the journal keeps what is to be pushed")
        return report
    from bayou.sync.context import open_context  # noqa: PLC0415
    from bayou.sync.run import run  # noqa: PLC0415

    with open_context(repo, options, timeout=timeout, progress=progress, connection=connection) as context:
        return run(context)
