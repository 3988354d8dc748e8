"""`datastore conflicts`: the copies that conflicts left behind, to be taken or dropped."""

from __future__ import annotations

from pathlib import Path

from bayou.repo import Repo
from bayou.state.journal import open_journal
from bayou.sync.conflict import Conflicts
from bayou.sync.reports import KeptCopy
from bayou.worktree.tree import Worktree


def conflicts(repo: Repo) -> list[KeptCopy]:
    """List the copies that conflicts left behind."""
    return Conflicts(repo.conflicts).list()


def take_conflict(repo: Repo, path: str) -> KeptCopy:
    """Give a path the bytes of its kept copy, as a change of ours, and drop the copy."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    with open_journal(repo) as journal, open(kept.copy, "rb") as source:
        Worktree(repo.tree_root, journal).write(kept.path, source)
    folder.drop(Path(kept.copy))
    return kept


def drop_conflict(repo: Repo, path: str) -> KeptCopy:
    """Drop a kept copy: the store's side was right."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    folder.drop(Path(kept.copy))
    return kept
