"""Which workflow runs are known to be gone. Absence here is no evidence: the record may be in the store (F119)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from bayou.core.ids import ulid
from bayou.index.key_range import KeyRange
from bayou.index.node_store import NodeFiles
from bayou.index.tree import scan
from bayou.records.catalog.rows import VersionRow
from bayou.repo import Repo
from bayou.state.base import BaseLost, BaseNodes, SyncBase
from bayou.state.database import Database, remote_url
from bayou.state.journal import NoJournal
from bayou.worktree.tree import Worktree

_ROOT = "workflow-runs"
_SUFFIX = ".yaml"


class GoneRuns(Struct, frozen=True):
    """Runs that are known to have no record any more. It can be pickled.

    In a datastore that is a directory (`directory`), which may be somebody else's disk that is not there just now, a
    version that can be seen shows that the rest can be seen too.
    """

    ids: frozenset[str] = frozenset()
    directory: Path | None = None

    def __call__(self, row: VersionRow) -> bool:
        """Say whether the run of a version is known to be gone; no, if nobody can tell (V5)."""
        if row.run not in self.ids:
            return False
        return self.directory is None or Worktree(self.directory, NoJournal()).exists(row.metadata_path)


class Runs:
    """The runs that have a record, here or in the store."""

    def __init__(self, repo: Repo, tree: Worktree) -> None:
        self._repo = repo
        self._tree = tree

    def gone(self, named: Collection[str]) -> GoneRuns:
        """Return those of some runs that are known to be gone: none, if this machine cannot tell."""
        known = self._look() if named else None
        if known is None:
            return GoneRuns()
        directory = None if self._repo.config.datastore.url is not None else self._tree.root
        return GoneRuns(frozenset(named) - known, directory)

    def _look(self) -> set[str] | None:
        """Return the ids of all runs; None if this machine does not know of all that the store has."""
        here = {
            path.rpartition("/")[2]
            for workflow in self._tree.names(_ROOT)
            for path in self._tree.names(f"{_ROOT}/{workflow}")
        }
        there = self._in_store() if self._repo.config.datastore.url is not None else set()
        return None if there is None else {name.removesuffix(_SUFFIX) for name in here | there}

    def _in_store(self) -> set[str] | None:
        place = self._repo.config.datastore
        assert place.url is not None
        with Database(self._repo.state / "sync.db") as database:
            nodes = BaseNodes(NodeFiles(self._repo.state / "nodes"), ulid())
            base = SyncBase(database, remote_url(place.url, place.namespace), place.namespace, nodes)
            # V3: base has an ETag only while it is all that a head of the store says; a pull of one model leaves none.
            if base.place.etag is None or base.dirty():
                return None
            try:
                return {entry.path.rpartition("/")[2] for entry in scan(base.tree(), KeyRange.under(f"{_ROOT}/"))}
            except BaseLost:
                return None
