"""`datastore hydrate`: fetch content that a lazy tree has left in the store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from bayou.core import paths
from bayou.core.errors import BadAnswer, NotFound, PathRefused, PreconditionFailed, SyncError
from bayou.core.text import count, first_names
from bayou.index.entry import Entry
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many, scan
from bayou.state.connection import Connection
from bayou.state.journal import JournalSnapshot
from bayou.sync.context import SyncContext, open_context
from bayou.sync.plan.decision_table import LocalState
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import Policy
from bayou.sync.report import Failure, SyncOptions, SyncReport, TransferCounts
from bayou.sync.run import run
from bayou.sync.transfer.executor import BAD_CONTENT
from bayou.sync.transfer.intents import recover_intents
from bayou.sync.transfer.pull import IncomingFile, pull

_CHANGED = "changed"
_DAMAGE = {BAD_CONTENT, _CHANGED, BadAnswer.code, PreconditionFailed.code, PathRefused.code}
"""The codes of failures that concern one file and not the store."""


def hydrate(
    connection: Connection, target: str | os.PathLike[str] | None, *, timeout: float | None = None
) -> TransferCounts:
    """Fetch one path, all below a directory, all of a model, or (None) everything that is absent by the lazy policy.

    A path may have any spelling that `paths.relative` accepts. `SyncError` names a file that could not be fetched.
    """
    repo = connection.repo
    path = None if target is None else paths.relative(repo.tree_root, target) or None
    if repo.config.datastore.url is None:
        return TransferCounts()
    with _open_full(connection, timeout) as context:
        recover_intents(context)
        fetch(context, path)
    return _require_complete(context.report).pulled


def fetch_files(connection: Connection, targets: Sequence[str], *, timeout: float | None = None) -> dict[str, str]:
    """Fetch the files among these that the tree lacks, many with one request; return why some could not be fetched.

    Only damage of a file is such a reason (V25); an error of the store is raised (V4). A path that base does not have
    is not fetched, and not in the result.
    """
    with _open_full(connection, timeout) as context:
        recover_intents(context)
        _fetch_all(context, _lacking(context, targets))
        report = context.report
    damaged = {failure.path: failure.message for failure in report.failed if failure.code in _DAMAGE}
    missing = {path: f"the content of {path} is missing, here and in the store" for path in report.missing}
    report.missing = []
    report.failed = [failure for failure in report.failed if failure.code not in _DAMAGE]
    _require_complete(report)
    return damaged | missing


def complete(connection: Connection, *, timeout: float | None = None) -> SyncReport:
    """Pull the whole store, lazy content included; `SyncError` names a file that could not be fetched."""
    with _open_full(connection, timeout) as context:
        run(context)
    return _require_complete(context.report)


def _open_full(connection: Connection, timeout: float | None) -> AbstractContextManager[SyncContext]:
    repo = connection.repo
    policy = Policy.of("full", repo.config.datastore.exclude)
    return open_context(repo, SyncOptions(mode="pull"), timeout=timeout, policy=policy, connection=connection)


def _require_complete(report: SyncReport) -> SyncReport:
    if report.failed or report.missing:
        causes = [f"{path}, which the store does not have" for path in report.missing]
        causes += [f"{failure.path} ({failure.message})" for failure in report.failed]
        raise SyncError(
            f"{count(len(causes), 'file')} could not be fetched: {first_names(causes, 1)}",
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
    _fetch_all(context, wanted)


def _fetch_all(context: SyncContext, wanted: Sequence[str]) -> None:
    entries = context.base.lookup(wanted)
    moved = pull(context, _incoming(context, entries))
    if moved:
        _fetch_moved(context, {path: entries[path] for path in moved if context.stat(path) is None})
    context.base.fold(context.nodes)


def _lacking(context: SyncContext, targets: Sequence[str]) -> list[str]:
    """Return the paths whose files are missing here without a journaled delete: fetching them is safe (V5)."""
    missing = [path for path in targets if context.stat(path) is None]
    if not missing:
        return []
    journaled = JournalSnapshot.of(context.journal.rows())
    return [path for path in missing if not journaled.deleted(path)]


def _incoming(context: SyncContext, entries: Mapping[str, Entry]) -> list[IncomingFile]:
    through = context.journal.newest()
    return [
        IncomingFile(path, entry, ObservedPath(path, LocalState(absent=True), None, through))
        for path, entry in entries.items()
    ]


def _fetch_moved(context: SyncContext, entries: Mapping[str, Entry]) -> None:
    """Fetch files whose bytes are not where base says: a compaction has moved them since base was read (P7, K16)."""
    seen = read_head(context.store)
    current = find_many(IndexTree(StoreNodes(context.store, context.cache), seen.head.root), entries)
    found = {path: entry for path, entry in current.items() if entry.same_content(entries[path])}
    left = pull(context, _incoming(context, found)) | (entries.keys() - found.keys())
    context.report.failed += [
        Failure(path, _CHANGED, "it was changed or deleted in the store since: bayou datastore sync --pull")
        for path in sorted(left)
    ]


def _is_lost(context: SyncContext, path: str) -> bool:
    """Return whether base has a file that is missing here without a journaled delete: fetching it is safe (V5)."""
    if context.stat(path) is not None or not context.base.lookup([path]):
        return False
    return not JournalSnapshot.of(context.journal.rows()).deleted(path)


def _is_here(context: SyncContext, target: str | None) -> bool:
    """Return whether base or the tree has the target, so that having nothing to fetch means that it is complete."""
    if target is None or context.stat(target) is not None:
        return True
    context.base.fold(context.nodes)
    return any(_is_wanted(entry.path, target) for entry in scan(context.base.tree()))


def _is_wanted(path: str, target: str | None) -> bool:
    if target is None or path == target or path.startswith(f"{target}/"):
        return True
    return "/" not in target and target in path.split("/")[1:-3]
