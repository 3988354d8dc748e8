"""Kept copies of conflicts, and `datastore conflicts`, which lists, takes and drops them.

In a conflict both sides changed one path. By default the store's side gets the path, and the local file is kept under
`.bayou/conflicts/<time>/<path>`, durably, before anything replaces it. `--on-conflict ours`, `theirs` and `fail` decide
otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bayou.core import paths
from bayou.core.atomic_file import fsync_directory, fsync_file
from bayou.core.clock import to_ms
from bayou.core.errors import PathRefused, UsageError
from bayou.repo import Repo
from bayou.state.journal import open_journal
from bayou.sync.report import KeptCopy
from bayou.worktree.tree import Worktree


class Conflicts:
    """The directory of kept copies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")

    def keep(self, source: Path, path: str) -> Path:
        """Copy a file durably and return the copy's path. Copies of one sync share a directory."""
        target = self._directory / self._stamp / path
        for directory in reversed((target.parent, *target.parent.parents)):
            if self._directory in (directory, *directory.parents):
                directory.mkdir(mode=0o700, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        target.chmod(0o600)
        fsync_file(target)
        made = [parent for parent in target.parents if self._directory in (parent, *parent.parents)]
        for directory in (*made, self._directory.parent):
            fsync_directory(directory)
        return target

    def list(self) -> list[KeptCopy]:
        """Return the kept copies, newest first."""
        return sorted(self._copies(), key=lambda kept: (-kept.at, kept.path))

    def find(self, path: str) -> KeptCopy:
        """Return the newest copy of a path."""
        for kept in self.list():
            if path in (kept.path, kept.copy):
                return kept
        raise UsageError(f"no conflict copy of {path}", hint="bayou datastore conflicts lists them")

    def drop(self, copy: Path) -> None:
        """Remove a copy, and the directories that this empties."""
        copy.unlink(missing_ok=True)
        for parent in copy.parents:
            if parent == self._directory or self._directory not in parent.parents:
                return
            try:
                parent.rmdir()
            except OSError:
                return

    def _copies(self) -> Iterator[KeptCopy]:
        for stamp in self._directory.iterdir() if self._directory.is_dir() else ():
            if stamp.is_symlink():
                continue  # a cloned repo can have links; Bayou makes none here (V23)
            for file in stamp.rglob("*"):
                path = file.relative_to(stamp).as_posix()
                if file.is_symlink() or not file.is_file():
                    continue
                try:
                    paths.check(path)
                except PathRefused:
                    continue
                status = file.stat()
                yield KeptCopy(path, str(file), _kept_at(stamp.name, status.st_mtime), status.st_size)


def _kept_at(stamp: str, fallback: float) -> int:
    try:
        return to_ms(datetime.strptime(stamp, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC))
    except ValueError:
        return round(fallback * 1000)


def conflicts(repo: Repo) -> list[KeptCopy]:
    """Return the kept copies of a repo, newest first."""
    return Conflicts(repo.conflicts).list()


def take_conflict(repo: Repo, path: str) -> KeptCopy:
    """Write the kept copy to its path, as a journaled local change, and drop the copy."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    with open_journal(repo) as journal, open(kept.copy, "rb") as source:
        Worktree(repo.tree_root, journal).write(kept.path, source)
    folder.drop(Path(kept.copy))
    return kept


def drop_conflict(repo: Repo, path: str) -> KeptCopy:
    """Drop a kept copy, so that the store's side stays."""
    folder = Conflicts(repo.conflicts)
    kept = folder.find(path)
    folder.drop(Path(kept.copy))
    return kept
