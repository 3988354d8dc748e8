"""Which workflow runs are known to be gone. Absence here is no evidence: the record may be in the store (F119)."""

from __future__ import annotations

from bayou.ids import ulid
from bayou.index.local import NodeFiles
from bayou.index.read import scan
from bayou.index.span import Span
from bayou.records.catalog.rows import VersionRow
from bayou.repo import Repo
from bayou.sync.base import Base, place_url
from bayou.sync.database import Database
from bayou.sync.nodes import BaseLost, BaseNodes
from bayou.tree.tree import Tree

_ROOT = "workflow-runs"
_SUFFIX = ".yaml"


class Runs:
    """The runs that have a record, here or in the store; looked for when first asked, once."""

    def __init__(self, repo: Repo, tree: Tree) -> None:
        self._repo = repo
        self._tree = tree
        self._looked = False
        self._known: set[str] | None = None

    def is_gone(self, row: VersionRow) -> bool:
        """Say whether the run of a version is known to have no record any more; no, if nobody can tell (V5)."""
        if not self._looked:
            self._known, self._looked = self._look(), True
        if self._known is None or row.run in self._known:
            return False
        # In a datastore that is a directory, which may be somebody else's disk that is not there just now, a version
        # that can be seen shows that the rest can be seen too.
        return self._repo.config.datastore.url is not None or self._tree.exists(row.metadata_path)

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
            base = Base(database, place_url(place.url, place.namespace), place.namespace, nodes)
            # V3: base has an ETag only while it is all that a head of the store says; a pull of one model leaves none.
            if base.place.etag is None or base.dirty():
                return None
            try:
                return {entry.path.rpartition("/")[2] for entry in scan(base.tree(), Span.under(f"{_ROOT}/"))}
            except BaseLost:
                return None
