"""`datastore hydrate`: fetch content that a lazy tree has left in the store."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from bayou.core import paths
from bayou.core.errors import NotFound, SyncError
from bayou.index.tree import scan
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.state.journal import JournalSnapshot
from bayou.sync.context import SyncContext, open_context
from bayou.sync.plan.decision_table import LocalState
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.plan.policy import Policy
from bayou.sync.report import Moved, SyncOptions, SyncReport
from bayou.sync.run import run
from bayou.sync.transfer.intents import recover_intents
from bayou.sync.transfer.pull import IncomingFile, pull


def hydrate(
    repo: Repo,
    target: str | os.PathLike[str] | None,
    *,
    timeout: float | None = None,
    connection: Connection | None = None,
) -> Moved:
    """Fetch one path, all below a directory, all of a model, or (None) everything that is absent by the lazy policy.

    A path may have any spelling that `paths.relative` accepts. `SyncError` names a file that could not be fetched.
    """
    path = None if target is None else paths.relative(repo.tree_root, target) or None
    if repo.config.datastore.url is None:
        return Moved()
    with _open_full(repo, timeout, connection) as context:
        recover_intents(context)
        fetch(context, path)
    return _require_complete(context.report).pulled


def complete(repo: Repo, *, timeout: float | None = None) -> SyncReport:
    """Pull the whole store, lazy content included; `SyncError` names a file that could not be fetched."""
    with _open_full(repo, timeout) as context:
        run(context)
    return _require_complete(context.report)


def _open_full(
    repo: Repo, timeout: float | None, connection: Connection | None = None
) -> AbstractContextManager[SyncContext]:
    policy = Policy.of("full", repo.config.datastore.exclude)
    return open_context(repo, SyncOptions(mode="pull"), timeout=timeout, policy=policy, connection=connection)


def _require_complete(report: SyncReport) -> SyncReport:
    if report.failed or report.missing:
        causes = [f"{path}, which the store does not have" for path in report.missing]
        causes += [f"{failure.path} ({failure.message})" for failure in report.failed]
        raise SyncError(
            f"{len(causes)} files could not be fetched, as {causes[0]}",
            hint="bayou datastore verify shows what is damaged",
        )
    return report


def fetch(context: SyncContext, target: str | None) -> None:
    """Fetch absent entries of base into the tree; base does not change."""
    wanted = [path for path, why in context.base.absent().items() if why == "lazy" and _is_wanted(path, target)]
    if not wanted and target is not None and _is_lost(context, target):
        wanted = [target]
    if not wanted and not _is_here(context, target):
        raise NotFound(f"there is nothing at {target}", hint="bayou datastore sync --pull brings what is new")
    entries = context.base.lookup(wanted)
    through = context.journal.newest()
    pull(
        context,
        [IncomingFile(path, entries[path], Observed(path, LocalState(absent=True), None, through)) for path in entries],
    )
    context.base.fold(context.nodes)


def _is_lost(context: SyncContext, path: str) -> bool:
    """Whether base has a file that is missing here without a journaled delete: fetching it is safe (V5)."""
    if context.stat(path) is not None or not context.base.lookup([path]):
        return False
    return not JournalSnapshot.of(context.journal.rows()).deleted(path)


def _is_here(context: SyncContext, target: str | None) -> bool:
    """Whether base or the tree has the target, so that having nothing to fetch means that it is complete."""
    if target is None or context.stat(target) is not None:
        return True
    context.base.fold(context.nodes)
    return any(_is_wanted(entry.path, target) for entry in scan(context.base.tree()))


def _is_wanted(path: str, target: str | None) -> bool:
    if target is None or path == target or path.startswith(f"{target}/"):
        return True
    return "/" not in target and target in path.split("/")[1:-3]
