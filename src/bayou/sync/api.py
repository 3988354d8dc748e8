"""What commands and programs call: one function for each thing that can be done with a datastore.

What a sync does not need is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayou.deadline import Deadline
from bayou.errors import BadAnswer, NotFound, UsageError
from bayou.index.head import iter_log, read_head
from bayou.index.log import LogRow
from bayou.repo import Repo
from bayou.sync.conflict import Conflicts
from bayou.sync.context import open_context
from bayou.sync.presence import open_journal
from bayou.sync.progress import Progress
from bayou.sync.report import KeptCopy, SyncOptions, SyncReport
from bayou.sync.run import run
from bayou.tree.tree import Tree

if TYPE_CHECKING:
    from bayou.sync.collect import collect
    from bayou.sync.hydrate import hydrate
    from bayou.sync.setup import setup
    from bayou.sync.status import status
    from bayou.sync.verify import verify

__all__ = [
    "collect",
    "conflicts",
    "drop_conflict",
    "hydrate",
    "log",
    "setup",
    "status",
    "sync",
    "take_conflict",
    "verify",
]

_LATER = ("collect", "hydrate", "setup", "status", "verify")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(name)
    return getattr(import_module(f"bayou.sync.{name}"), name)


def sync(
    repo: Repo, options: SyncOptions, *, timeout: float | None = None, progress: Progress | None = None
) -> SyncReport:
    """Reconcile the tree with the store. A datastore that is a directory has nothing to reconcile."""
    if repo.config.datastore.url is None or repo.offline:
        report = SyncReport(mode=options.mode, dry_run=options.dry_run)
        if repo.offline:
            report.warnings.append("offline: nothing was pulled or pushed; the journal keeps what is to be pushed")
        return report
    if options.engine == "spark":
        raise UsageError("this version of Bayou has no Spark engine", hint="leave out --engine: bayou datastore sync")
    with open_context(repo, options, timeout=timeout, progress=progress) as context:
        return run(context)


def log(repo: Repo, n: int) -> list[LogRow]:
    """Return the newest rows of the store's log."""
    store = repo.store().within(Deadline.after(repo.config.sync.timeout))
    try:
        seen = read_head(store)
    except NotFound:
        return []
    if seen is None:
        raise BadAnswer(f"{store.url} says that its head is not modified, and nobody asked that")
    return list(islice(iter_log(store, seen.head), n))


def conflicts(repo: Repo) -> list[KeptCopy]:
    """List the copies that conflicts left behind."""
    return Conflicts(repo.conflicts).list()


def take_conflict(repo: Repo, path: str) -> KeptCopy:
    """Give a path the bytes of its kept copy, as a change of ours, and drop the copy."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    with open_journal(repo) as journal, open(kept.copy, "rb") as source:
        Tree(repo.tree_root, journal).write(kept.path, source)
    folder.drop(Path(kept.copy))
    return kept


def drop_conflict(repo: Repo, path: str) -> KeptCopy:
    """Drop a kept copy: the store's side was right."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    folder.drop(Path(kept.copy))
    return kept
