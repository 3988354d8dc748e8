"""The sync service, as the rest of the program uses it, and the open `Datastore` of a repo.

Programs write through `Datastore.tree`, which journals each change; `mark_dirty` and `mark_deleted` are for programs
that write into the tree by themselves. A datastore that is a directory has the same interface; its operations have
nothing to transfer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from bayou.core import paths
from bayou.repo import Repo
from bayou.state.connection import Connection, connected
from bayou.state.journal import EVERYTHING, Guard, Journal, Mark, NoJournal, open_journal
from bayou.sync.plan.policy import ModelRef, ModelScope
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from bayou.core.progress import Progress
    from bayou.sync.report import Mode, Renumber, Status, SyncOptions, SyncReport, TransferCounts

StrPath = str | os.PathLike[str]
"""A path of the tree, relative to its root or absolute, in any spelling."""


class OpenMark(Protocol):
    """An open mark in the journal: a program writes below a path until it calls `done()`."""

    def done(self) -> None: ...


class SyncService(Protocol):
    """Sync of one repo, for commands and for programs."""

    def pull_changed(self, models: Sequence[ModelRef] | None = None) -> SyncReport: ...

    def push_changed(self) -> SyncReport: ...

    def mark_dirty(self, path: StrPath | None = None) -> OpenMark: ...

    def mark_deleted(self, path: StrPath) -> None: ...

    def hydrate(self, path: StrPath | None = None) -> TransferCounts: ...

    def fetch(self, paths: Sequence[str]) -> Mapping[str, str]: ...

    def known(self, prefix: str) -> set[str]: ...

    def status(self) -> Status: ...


def sync(
    connection: Connection,
    options: SyncOptions,
    *,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> SyncReport:
    """Reconcile the tree with the store. A datastore that is a directory has nothing to reconcile."""
    repo = connection.repo
    if repo.config.datastore.url is None or repo.offline:
        from bayou.sync.report import SyncReport  # noqa: PLC0415

        report = SyncReport(mode=options.mode, dry_run=options.dry_run, asked=False)
        if repo.offline:
            report.warnings.append("offline: nothing was pulled or pushed; the journal keeps what is to be pushed")
        return report
    from bayou.sync.context import open_context  # noqa: PLC0415
    from bayou.sync.run import run  # noqa: PLC0415

    with open_context(repo, options, timeout=timeout, progress=progress, connection=connection) as context:
        return run(context)


class StoreSync:
    """Sync of a tree that is the cache of a store."""

    def __init__(self, connection: Connection, journal: Journal, renumber: Renumber | None = None) -> None:
        self._connection = connection
        self._repo = connection.repo
        self._journal = journal
        self._renumber = renumber

    def pull_changed(self, models: Sequence[ModelRef] | None = None) -> SyncReport:
        """Pull the store's changes into the tree, or only those of some models; write nothing to the store (V15)."""
        scope = ModelScope.of(models) if models is not None else None
        return sync(self._connection, self._options("pull", scope))

    def push_changed(self) -> SyncReport:
        """Push the changes that the journal names."""
        return sync(self._connection, self._options("push"))

    def mark_dirty(self, path: StrPath | None = None) -> Mark:
        """Journal that the caller is about to write a file, a directory, or (None, or the tree's root) anything.

        `PathRefused` if the path lies outside the tree, or cannot be payload.
        """
        return self._journal.mark(_payload_path(self._repo, path) if path is not None else EVERYTHING)

    def mark_deleted(self, path: StrPath) -> None:
        """Journal that the caller deletes, or has deleted, a file or all files below a directory by itself.

        The path is a directory if it ends with a slash, or if base has no such file: then the journal gets a row for
        each file that base has below it (V7). `PathRefused` as for `mark_dirty`.
        """
        target = _payload_path(self._repo, path)
        known = self.known(target)
        below = sorted(path for path in known if not target or path.startswith(f"{target}/"))
        is_file = target in known and not os.fspath(path).endswith("/")
        deleted = [target] if target and (is_file or not below) else below
        self._journal.close(self._journal.open("delete", deleted))

    def hydrate(self, path: StrPath | None = None) -> TransferCounts:
        """Fetch content that a lazy tree leaves in the store: one file, all below a directory, or everything."""
        from bayou.sync.hydrate import hydrate  # noqa: PLC0415

        return hydrate(self._connection, path)

    def fetch(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Fetch the files among these that the tree lacks, all at once; return why some could not be fetched."""
        from bayou.sync.hydrate import fetch_files  # noqa: PLC0415

        return fetch_files(self._connection, paths)

    def known(self, prefix: str) -> set[str]:
        """Return the paths of base that begin with `prefix`, whether or not the tree has the files."""
        from bayou.state.base import paths_under  # noqa: PLC0415

        return paths_under(self._repo, self._journal.database, self._journal.remote_id, prefix)

    def status(self) -> Status:
        from bayou.sync.status import status  # noqa: PLC0415

        return status(self._connection)

    def _options(self, mode: Mode, scope: ModelScope | None = None) -> SyncOptions:
        from bayou.sync.report import SyncOptions  # noqa: PLC0415

        return SyncOptions(mode=mode, walk=False, scope=scope, renumber=self._renumber)


class DirectorySync:
    """Sync of a datastore that is a directory: there is nothing to transfer."""

    def __init__(self, connection: Connection, journal: NoJournal) -> None:
        self._connection = connection
        self._repo = connection.repo
        self._journal = journal

    def pull_changed(self, models: Sequence[ModelRef] | None = None) -> SyncReport:
        return self._report("pull")

    def push_changed(self) -> SyncReport:
        return self._report("push")

    def mark_dirty(self, path: StrPath | None = None) -> OpenMark:
        _payload_path(self._repo, path or ".")
        self._journal.open("write", ())
        return self._journal

    def mark_deleted(self, path: StrPath) -> None:
        self._journal.open("delete", (_payload_path(self._repo, path),))

    def hydrate(self, path: StrPath | None = None) -> TransferCounts:
        paths.relative(self._repo.tree_root, path or ".")
        return self._report("pull").pulled

    def fetch(self, paths: Sequence[str]) -> Mapping[str, str]:
        return {}

    def known(self, prefix: str) -> set[str]:
        return set()

    def status(self) -> Status:
        from bayou.sync.status import status  # noqa: PLC0415

        return status(self._connection)

    @staticmethod
    def _report(mode: Mode) -> SyncReport:
        from bayou.sync.report import SyncReport  # noqa: PLC0415

        return SyncReport(mode=mode, asked=False)


def _payload_path(repo: Repo, spelling: StrPath) -> str:
    """Return the tree path of any spelling; a payload root, and the empty path for the whole tree, are allowed."""
    path = paths.relative(repo.tree_root, spelling)
    return path if not path or path in paths.PAYLOAD_ROOTS else paths.check(path)


class Datastore:
    """A repo's open datastore: its tree and its sync service. Use it as a context manager.

    `renumber` gives a local version another number if another client has used its number (`bayou.data.allocate`);
    `guard` checks every change of the tree. A `connection` that the caller passes stays open after `close`.
    """

    def __init__(
        self,
        repo: Repo,
        *,
        renumber: Renumber | None = None,
        guard: Guard | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.repo = repo
        self._open = ExitStack()
        self.connection = self._open.enter_context(connected(repo, connection))
        journal = self._open.enter_context(open_journal(repo, guard, self.connection))
        self.tree = Worktree(repo.tree_root, journal)
        self.sync: SyncService = (
            StoreSync(self.connection, journal, renumber)
            if isinstance(journal, Journal)
            else DirectorySync(self.connection, journal)
        )

    def close(self) -> None:
        """Remove this process from the journal's list of writers, and close the local state."""
        self._open.close()

    def __enter__(self) -> Datastore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
