"""Directories that the tree does not have yet: what is below one is missing, and one can get its place whole.

A pull stages the files of a new directory in a directory of their own (`NewDirectories`), which takes one rename for
any number of files. Where that cannot be, the files are installed one by one (`StagingArea.install`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bayou.core import paths
from bayou.core.errors import BayouError
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DirEntryRef, DirFdCache

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_AFTER_SLASH = "0"
"""The character after the slash: with it, the name of a directory comes right after all paths below it."""


class MissingDirectories:
    """Says of paths, best in order, whether they are below a directory that does not exist.

    One look at a directory answers for everything below it, so use an object only for as long as that answer may be
    old. It follows links: a missing directory has no file, wherever it would be.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._missing = "\0"
        self._present = ""

    def hold(self, path: str) -> bool:
        """Return whether a directory above `path` is missing."""
        if path.startswith(self._missing):
            return True
        directory = path.rpartition("/")[0]
        if directory == self._present or self._exists(directory):
            self._present = directory
            return False
        while (above := directory.rpartition("/")[0]) and not self._exists(above):
            directory = above
        self._missing = f"{directory}/"
        return True

    def _exists(self, directory: str) -> bool:
        try:
            os.stat(self._root + directory)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            pass  # it may be there: the caller looks for the file itself
        return True


class Placed(NamedTuple):
    """A file that its directory has brought into the tree: its stat, and the time of the rename by the same clock."""

    stat: FileStat
    renamed_ns: int


class NewDirectories:
    """Files staged below `root` under their paths, in the directories that the tree lacks. One thread at a time."""

    def __init__(self, root: Path, tree_root: Path) -> None:
        self.root = root
        self._prefix = f"{root}/"
        self._missing = MissingDirectories(tree_root)
        self._files: dict[str, FileStat] = {}
        self._made: set[str] = set()

    def stage(self, path: str, data: bytes) -> Path | None:
        """Write a file in a new directory; None, and nothing is written, if the directory exists or it cannot be."""
        if not self._missing.hold(paths.check(path)):
            return None
        directory = path.rpartition("/")[0]
        staged = self._prefix + path
        try:
            if directory not in self._made:
                self._make(directory)
            descriptor = os.open(staged, _CREATE, 0o600)
        except OSError:
            return None
        try:
            if os.write(descriptor, data) == len(data):
                # V2: of the bytes that arrived, before another program can see them.
                self._files[path] = FileStat.of(os.fstat(descriptor))
        except OSError:
            pass
        finally:
            os.close(descriptor)
        if path in self._files:
            return Path(staged)
        os.unlink(staged)
        return None

    def staged(self, paths: Iterable[str]) -> list[str]:
        """Return those of these paths that are staged here and not taken yet."""
        return [path for path in paths if path in self._files]

    @property
    def taken(self) -> bool:
        """Whether `install` was called for every file that was staged here."""
        return not self._files

    def install(
        self, wanted: Sequence[str], directories: DirFdCache, changed_dirs: set[str]
    ) -> Iterator[tuple[str, Placed]]:
        """Rename directories all of whose files are `wanted` (sorted, and staged) to their places; yield those files.

        A directory that is there by now stays as it is, and a place that is not safe gets nothing (V21): the caller
        installs the other files one by one, which tells what is in the way.
        """
        staged = sorted(self._files)
        stats = {path: self._files.pop(path) for path in wanted}
        at = 0
        while at < len(wanted):
            path = wanted[at]
            at += 1
            try:
                ref = self._vacancy(path, staged, wanted, directories, changed_dirs)
                if ref is None:
                    continue
                at = bisect_left(wanted, ref.path + _AFTER_SLASH, at)
                os.rename(self._prefix + ref.path, ref.name, dst_dir_fd=ref.directory)
                renamed_ns = FileStat.of(os.fstat(ref.directory)).mtime_ns
            except (OSError, BayouError):
                directories.close()
                continue
            changed_dirs.add(ref.path.rpartition("/")[0])
            for name in wanted[bisect_left(wanted, ref.path + "/") : at]:
                directory = name.rpartition("/")[0]
                while directory not in changed_dirs:
                    changed_dirs.add(directory)
                    self._made.discard(directory)
                    directory = directory.rpartition("/")[0]
                yield name, Placed(stats[name], renamed_ns)

    def remove(self) -> None:
        """Remove the directories that are left, if they are empty."""
        for directory in sorted(self._made, reverse=True):
            with suppress(OSError):
                os.rmdir(self._prefix + directory)
        with suppress(OSError):
            os.rmdir(self.root)

    def _vacancy(
        self, path: str, staged: Sequence[str], wanted: Sequence[str], directories: DirFdCache, changed_dirs: set[str]
    ) -> DirEntryRef | None:
        """Return the free name of the topmost directory above `path` that can get its place whole; None if none can.

        Directories above it, which have other files too, are created.
        """
        while (ref := directories.find_missing(path, changed_dirs)) is not None:
            if ref.folds:
                return None
            if _count(staged, ref.path) == _count(wanted, ref.path):
                return ref
            directories.locate(f"{ref.path}/", changed_dirs)
        return None

    def _make(self, directory: str) -> None:
        above = directory.rpartition("/")[0]
        if above and above not in self._made:
            self._make(above)
        elif not self._made:
            self.root.parent.mkdir(mode=0o700, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
        os.mkdir(self._prefix + directory, 0o700)
        self._made.add(directory)


def _count(ordered: Sequence[str], directory: str) -> int:
    """Return how many of these paths are below a directory."""
    return bisect_left(ordered, directory + _AFTER_SLASH) - bisect_left(ordered, directory + "/")
