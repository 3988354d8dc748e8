"""Reach a payload path below the tree's root, one real directory at a time (V21).

Every step starts from a descriptor of the directory before it and follows no link, so that neither a link that lies
in the tree nor one that is swapped in at the last moment can lead out of it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bayou.core.atomic_file import fsync_directory
from bayou.core.errors import BayouError, PathRefused, TreeError
from bayou.tree.failure import tree_error
from bayou.tree.spot import DIRECTORY, Spot, folds_case


class Trail:
    """The open directories from the root to the last path. Whoever goes through a tree in order reopens few.

    For one thread. Close it when anything goes wrong, and soon in any case: it does not notice what others move.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: list[str] = []
        self._descriptors: list[int] = []
        self._made: list[bool] = []
        """Of each open directory, whether we have made it: then nothing is in it but what came since."""
        self._folds = False
        self._private = False

    def to(self, path: str, gained: set[str] | None = None) -> Spot:
        """Open the directory that holds `path`, valid until the next call.

        Without `gained`, what is missing is a `FileNotFoundError`; with it, directories are made, and it collects
        those that got a new entry and are to be synced. `NotADirectoryError` when a file stands where a directory
        should, `PathRefused` when a link does, or a directory that is spelt otherwise.
        """
        *directories, name = path.split("/")
        if not self._descriptors:
            self._descriptors.append(_open_root(self._root, make=gained is not None))
            self._made.append(False)
            self._private = is_private(os.fstat(self._descriptors[0]).st_mode)
        kept = 0
        for ours, theirs in zip(self._names, directories, strict=False):
            if ours != theirs:
                break
            kept += 1
        self._cut(kept)
        made = False
        for segment in directories[kept:]:
            made = self._enter(segment, path, gained)
        if not directories:
            self._folds = folds_case(self._descriptors[0], name)
        return Spot(self._descriptors[-1], name, path, self._folds, made, self._private)

    def close(self) -> None:
        self._cut(0)
        if self._descriptors:
            self._made.pop()
            os.close(self._descriptors.pop())

    def _cut(self, kept: int) -> None:
        while len(self._names) > kept:
            self._names.pop()
            self._made.pop()
            os.close(self._descriptors.pop())

    def _enter(self, segment: str, path: str, gained: set[str] | None) -> bool:
        """Open the next directory, or make it (in one that we have made: the other way round); return whether it was
        made."""
        top = not self._names
        spot = Spot(self._descriptors[-1], segment, path, folds=self._folds and not top)
        made = gained is not None and self._made[-1] and self._make(segment, gained)
        try:
            inner = spot.enter()
        except FileNotFoundError:
            if gained is None:
                raise
            made = self._make(segment, gained)
            inner = spot.enter()
        self._names.append(segment)
        self._descriptors.append(inner)
        self._made.append(made)
        if top:
            # Now that it is there, the payload root can say whether its other spelling would be found as well.
            self._folds = folds_case(spot.directory, segment)
            spot._replace(folds=self._folds).check_spelling()
        return made

    def _make(self, segment: str, gained: set[str]) -> bool:
        """Make a directory in the last one; False if there is one already."""
        gained.add("/".join(self._names))
        try:
            os.mkdir(segment, 0o700 if self._private else 0o777, dir_fd=self._descriptors[-1])
        except FileExistsError:
            return False
        return True


def is_private(mode: int) -> bool:
    """Say whether a directory of this mode is closed to other users: `.bayou/` is, a shared datastore need not be."""
    return not mode & 0o077


def no_link(root: Path) -> None:
    """Raise `PathRefused` if the tree itself is a link: then nobody knows where it is."""
    if root.is_symlink():
        raise PathRefused(f"the tree {root} is a symbolic link", hint="name the directory that it points to")


def _open_root(root: Path, *, make: bool) -> int:
    try:
        return os.open(root, DIRECTORY)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        raise _no_root(root, error) from error
    try:
        # Not its parents: a file system that is not mounted is not to be written beside.
        with contextlib.suppress(FileExistsError):
            os.mkdir(root, 0o700 if is_private(os.stat(root.parent).st_mode) else 0o777)
        above = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fsync_directory(above)
        finally:
            os.close(above)
        return os.open(root, DIRECTORY)
    except OSError as error:
        raise _no_root(root, error) from error


def _no_root(root: Path, error: OSError) -> BayouError:
    no_link(root)
    if isinstance(error, FileNotFoundError):
        return TreeError(f"there is no directory {root.parent}", hint="check the path, or mount or create it")
    return tree_error(error, f"cannot open the tree {root}")
