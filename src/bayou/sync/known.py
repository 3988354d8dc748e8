"""What base says of paths, whether or not they are here. Nothing is asked of the store."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress

from bayou.core.ids import ulid
from bayou.index.key_range import KeyRange
from bayou.index.node_store import NodeFiles
from bayou.index.tree import IndexTree, diff, scan
from bayou.repo import Repo
from bayou.sync.base import Base, load_root
from bayou.sync.database import Database
from bayou.sync.nodes import BaseLost, BaseNodes
from bayou.sync.place import place_url


def known(repo: Repo, database: Database, place: int, prefix: str) -> set[str]:
    """Return the paths of base that begin with `prefix`, as of now."""
    span = KeyRange.under(prefix)
    # One statement, so that no fold falls between the two.
    rows = database.rows(
        "SELECT NULL, NULL, root FROM place WHERE id = ? UNION ALL"
        " SELECT path, entry, NULL FROM overlay WHERE place = ? AND path >= ? AND (? IS NULL OR path < ?)",
        (place, place, span.start, span.end, span.end),
    )
    (_, _, root), *overlay = rows
    found: set[str] = set()
    if root is not None:
        # A base that is lost is found out anew by the next sync, which then takes nothing here for a change of it.
        with suppress(BaseLost):
            found = {entry.path for entry in scan(IndexTree(_nodes(repo), load_root(str(root))), span)}
    for path, entry, _ in overlay:
        (found.discard if entry is None else found.add)(str(path))
    return found


def unknown(repo: Repo, database: Database, paths: Set[str]) -> set[str]:
    """Return which of these paths base has no entry of; none of them if part of it is lost."""
    config = repo.config.datastore
    assert config.url is not None
    base = Base(database, place_url(config.url, config.namespace), config.namespace, _nodes(repo))
    try:
        return set(paths - base.lookup(paths).keys())
    except BaseLost:
        return set()


def differing(repo: Repo, old: str | None, new: str | None) -> set[str] | None:
    """Return the paths whose entries differ between two roots of base; None if part of one is lost."""
    source = _nodes(repo)
    try:
        return {change.path for change in diff(IndexTree(source, load_root(old)), IndexTree(source, load_root(new)))}
    except BaseLost:
        return None


def _nodes(repo: Repo) -> BaseNodes:
    return BaseNodes(NodeFiles(repo.state / "nodes"), ulid())
