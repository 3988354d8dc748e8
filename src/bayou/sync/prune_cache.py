"""Remove what earlier syncs left behind: cached index nodes (F129), and temporary files of killed writers (V14)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bayou.core.clock import now_ms
from bayou.index.node import digest_of
from bayou.index.node_store import LocalNodes
from bayou.index.tree import IndexTree, names
from bayou.state.base import load_root
from bayou.state.database import Database
from bayou.state.journal import Journal
from bayou.worktree.staging import begun_before, remove_abandoned

LARGE = "large"
"""The directory, below the local state, where a large pass keeps its findings; only a killed pass leaves it."""

SPARE_FILES = 512
_ENTRIES_PER_FILE = 64
_DAY_MS = 86_400_000
_NODE_FILE = re.compile(r"[0-9a-f]{64}(-[0-9A-Za-z-]+)?\.parquet|\.bayou-[0-9A-Z]{26}\.tmp")


def prune_cache(state: Path, database: Database, nodes: LocalNodes) -> None:
    """Remove cached nodes that no base refers to, once there are many more of them than the bases need.

    The client can fetch every other cached node again. The caller holds the sync lock, so no other process reads the
    cache. The function also removes what a killed large pass left.
    """
    large = state / LARGE
    if large.exists():
        import shutil  # noqa: PLC0415  (rarely needed, and slow to import)

        shutil.rmtree(large, ignore_errors=True)
    folder = state / "nodes"
    if folder.is_symlink():
        return  # Bayou makes no link here, and the files behind it are not Bayou's
    try:
        files = [name for name in os.listdir(folder) if _NODE_FILE.fullmatch(name)]
    except FileNotFoundError:
        return
    roots = [load_root(str(text)) for (text,) in database.rows("SELECT root FROM place WHERE root IS NOT NULL")]
    entries = sum(root.entries for root in roots if root is not None)
    if len(files) <= SPARE_FILES + entries // _ENTRIES_PER_FILE:
        return
    keep = {name for root in roots for name in names(IndexTree(nodes, root))}
    keep |= {digest_of(name).hex() for name in keep}
    for file in files:
        if file.removesuffix(".parquet") not in keep:
            with suppress(FileNotFoundError):
                os.unlink(folder / file)


def sweep_tree(root: Path, state: Path, journal: Journal, temporaries: Sequence[str]) -> None:
    """Remove temporary files in the tree whose writers are gone.

    A writer announces itself in the journal (`Journal.appear`) before it makes a temporary file, so a temporary file
    that is older than every announced writer belongs to none of them. It must also be a day old, for machines that do
    not see each other's locks or whose clocks differ. A temporary file that a change set names is kept until that
    change is carried out.
    """
    if not temporaries:
        return
    yesterday = now_ms() - _DAY_MS
    old = begun_before(temporaries, yesterday)
    if not old:
        return
    oldest = journal.oldest_owner_ms(yesterday)
    orphans = begun_before(old, yesterday if oldest is None else oldest)
    awaited = _change_sets(state)
    remove_abandoned(root, [path for path in orphans if path.rpartition("/")[2] not in awaited], yesterday)


def _change_sets(state: Path) -> str:
    """Return the text of all pending change sets."""
    text = ""
    for change in (state / "changes").glob("*.json"):
        with suppress(FileNotFoundError):  # carried out meanwhile
            text += change.read_text()
    return text
