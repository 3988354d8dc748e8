"""Keep `.bayou/state` as small as what it describes (F129)."""

from __future__ import annotations

import os
from contextlib import suppress

from bayou.index.node import digest_of
from bayou.index.read import names
from bayou.index.tree import Tree
from bayou.sync.base import load_root
from bayou.sync.context import Context

_SPARE = 512
_ENTRIES_PER_FILE = 64


def tidy(context: Context) -> None:
    """Remove cached nodes that no base names, once there are many more of them than the bases need.

    Everything else in the cache can be fetched again. One process at a time syncs a repo, so nobody is reading them.
    """
    folder = context.repo.state / "nodes"
    try:
        files = os.listdir(folder)
    except FileNotFoundError:
        return
    roots = [load_root(str(text)) for (text,) in context.database.rows("SELECT root FROM place WHERE root IS NOT NULL")]
    entries = sum(root.entries for root in roots if root is not None)
    if len(files) <= _SPARE + entries // _ENTRIES_PER_FILE:
        return
    keep = {name for root in roots for name in names(Tree(context.nodes, root))}
    keep |= {digest_of(name).hex() for name in keep}
    for file in files:
        if file.removesuffix(".parquet") not in keep:
            with suppress(FileNotFoundError):
                os.unlink(folder / file)
