"""Keep `.bayou/state` as small as what it describes (F129), and the tree free of what killed writers left (V14)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from bayou.core.clock import now_ms
from bayou.index.node import digest_of
from bayou.index.tree import IndexTree, names
from bayou.state.base import load_root
from bayou.sync.context import SyncContext
from bayou.worktree.staging import begun_before, remove_abandoned

LARGE = "large"
"""Where a large pass keeps what it has found, below the local state; gone when it ends, unless it is killed."""

_SPARE = 512
_ENTRIES_PER_FILE = 64
_DAY_MS = 86_400_000
_NODE_FILE = re.compile(r"[0-9a-f]{64}(-[0-9A-Za-z-]+)?\.parquet|\.bayou-[0-9A-Z]{26}\.tmp")


def prune_cache(context: SyncContext) -> None:
    """Remove cached nodes that no base names, once there are many more of them than the bases need.

    Everything else in the cache can be fetched again. One process at a time syncs a repo, so nobody is reading them.
    What a large pass that was killed has left goes too.
    """
    large = context.repo.state / LARGE
    if large.exists():
        import shutil  # noqa: PLC0415

        shutil.rmtree(large, ignore_errors=True)
    folder = context.repo.state / "nodes"
    if folder.is_symlink():
        return  # none of ours is one, and what it leads to is not ours either
    try:
        files = [name for name in os.listdir(folder) if _NODE_FILE.fullmatch(name)]
    except FileNotFoundError:
        return
    roots = [load_root(str(text)) for (text,) in context.database.rows("SELECT root FROM place WHERE root IS NOT NULL")]
    entries = sum(root.entries for root in roots if root is not None)
    if len(files) <= _SPARE + entries // _ENTRIES_PER_FILE:
        return
    keep = {name for root in roots for name in names(IndexTree(context.nodes, root))}
    keep |= {digest_of(name).hex() for name in keep}
    for file in files:
        if file.removesuffix(".parquet") not in keep:
            with suppress(FileNotFoundError):
                os.unlink(folder / file)


def sweep_tree(context: SyncContext, temporaries: Sequence[str]) -> None:
    """Remove temporaries in the tree whose writers are gone.

    A writer registers (`Journal.register_owner`) before it creates a temporary: a temporary that is older than every
    living owner has no writer any more. The day is for machines that do not see each other's locks, or disagree about
    the time. What a change set names waits for that change to be carried out.
    """
    if not temporaries:
        return
    yesterday = now_ms() - _DAY_MS
    old = begun_before(temporaries, yesterday)
    if not old:
        return
    oldest = context.journal.oldest_owner_ms(yesterday)
    orphans = begun_before(old, yesterday if oldest is None else oldest)
    awaited = _change_sets(context)
    remove_abandoned(context.root, [path for path in orphans if path.rpartition("/")[2] not in awaited], yesterday)


def _change_sets(context: SyncContext) -> str:
    """Return what the change sets of the records say that nobody has carried out yet."""
    said = ""
    for change in (context.repo.state / "changes").glob("*.json"):
        with suppress(FileNotFoundError):  # carried out meanwhile
            said += change.read_text()
    return said
