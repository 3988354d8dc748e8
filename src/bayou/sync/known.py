"""What base says lies below a directory, whether or not it is here."""

from __future__ import annotations

from contextlib import suppress

from bayou.ids import ulid
from bayou.index.local import NodeFiles
from bayou.index.read import scan
from bayou.index.span import Span
from bayou.index.tree import Tree
from bayou.repo import Repo
from bayou.sync.base import load_root
from bayou.sync.database import Database
from bayou.sync.nodes import BaseLost, BaseNodes


def known(repo: Repo, database: Database, place: int, prefix: str) -> set[str]:
    """Return the paths of base that begin with `prefix`, as of now. Nothing is asked of the store."""
    span = Span.under(prefix)
    # One statement, so that no fold falls between the two.
    rows = database.rows(
        "SELECT NULL, NULL, root FROM place WHERE id = ? UNION ALL"
        " SELECT path, entry, NULL FROM overlay WHERE place = ? AND path >= ? AND (? IS NULL OR path < ?)",
        (place, place, span.start, span.end, span.end),
    )
    (_, _, root), *overlay = rows
    found: set[str] = set()
    if root is not None:
        tree = Tree(BaseNodes(NodeFiles(repo.state / "nodes"), ulid()), load_root(str(root)))
        # A base that is lost is found out anew by the next sync, which then takes nothing here for a change of it.
        with suppress(BaseLost):
            found = {entry.path for entry in scan(tree, span)}
    for path, entry, _ in overlay:
        (found.discard if entry is None else found.add)(str(path))
    return found
