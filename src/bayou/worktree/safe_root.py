"""What can be done at a path of the tree, safely (V21).

The place of one path: an open directory, and a name in it.

Reach a payload path below the tree's root, one real directory at a time (V21).

Every step starts from a descriptor of the directory before it and follows no link, so that neither a link that lies
in the tree nor one that is swapped in at the last moment can lead out of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from bayou.core.atomic_file import fsync_directory
from bayou.core.errors import BayouError, PathRefused, TreeError
from bayou.worktree.durability import parallel_fsync, refused, sync_file_system, translate_oserror, tree_error, why

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class DirEntryRef(NamedTuple):
    """Where `path` is or may be. `directory` is a descriptor of a real directory inside the tree."""

    directory: int
    name: str
    path: str
    folds: bool
    """Whether the file system takes names that differ by case only for one."""
    made: bool = False
    """Whether the directory was made on the way here, this very moment."""
    private: bool = False
    """Whether only this user can enter the tree: then nobody else can read what is made in it."""

    @property
    def file_mode(self) -> int:
        """The mode of a new file, before the umask."""
        return 0o600 if self.private else 0o666

    def look(self) -> os.stat_result:
        """Look at what has the name, itself and not what it points to; `FileNotFoundError` if nothing has."""
        found = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        self.check_spelling()
        return found

    def check_free(self) -> None:
        """Raise `PathRefused` unless a regular file, or nothing, has the name."""
        if self.made and not self.folds:
            return  # nobody else knows of it yet, and what is done next follows no link in any case
        with contextlib.suppress(FileNotFoundError):
            mode = self.look().st_mode
            if not stat.S_ISREG(mode):
                raise refused(self.path, f"{what_is(mode)} is in the way")

    def enter(self) -> int:
        """Open the directory that has the name.

        `FileNotFoundError` if nothing has, `NotADirectoryError` if a file has, `PathRefused` if it is a link or spelt
        otherwise (V21).
        """
        try:
            inner = os.open(self.name, DIRECTORY, dir_fd=self.directory)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            if stat.S_ISLNK(self.look().st_mode):
                raise refused(self.path, f"its directory {self.name!r} is a symbolic link") from None
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.name) from None
        try:
            self.check_spelling()
        except BaseException:
            os.close(inner)
            raise
        return inner

    def check_spelling(self) -> None:
        """Raise `PathRefused` if what was found under the name is really called otherwise."""
        if not self.folds:
            return
        folded = self.name.casefold()
        with os.scandir(self.directory) as entries:
            names = [
                name for entry in entries if (name := unicodedata.normalize("NFC", entry.name)).casefold() == folded
            ]
        if names and self.name not in names:
            raise refused(self.path, f"{names[0]!r} is there already, and this file system does not tell them apart")


def folds_case(directory: int, name: str) -> bool:
    """Say whether a directory that may hold `name`, in lower case, would find it in upper case too.

    The name is its own probe, so that looking writes nothing. (A wrong yes costs time; a wrong no needs a directory
    that folds below one that does not.)
    """
    try:
        os.stat(name.upper(), dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def what_is(mode: int) -> str:
    """Name a kind of file, for somebody who wanted another."""
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a file" if stat.S_ISREG(mode) else "a device"


class DirFdCache:
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

    def to(self, path: str, gained: set[str] | None = None) -> DirEntryRef:
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
        return DirEntryRef(self._descriptors[-1], name, path, self._folds, made, self._private)

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
        spot = DirEntryRef(self._descriptors[-1], segment, path, folds=self._folds and not top)
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


_T = TypeVar("_T")
_TRIES = 100
_MANY = 64
_NO_SUCH_NAME = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)


class SafeRoot:
    """The directory that a tree stands on. Paths given to it have passed `paths.check`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def spot(self, path: str, gained: set[str] | None = None, trail: DirFdCache | None = None) -> Iterator[DirEntryRef]:
        """Open the directory that holds `path`, as `Trail.to` says; closed again unless it is part of a `trail`."""
        way = trail or DirFdCache(self.root)
        try:
            yield way.to(path, gained)
        except BaseException:
            way.close()
            raise
        if trail is None:
            way.close()

    def make(
        self, path: str, gained: set[str], step: Callable[[DirEntryRef], _T], trail: DirFdCache | None = None
    ) -> _T:
        """Do `step` where `path` is to be, making directories; refuse what is in the way.

        A delete elsewhere may remove a directory in the moment between; then it is made again.
        """
        try:
            return self._make(path, gained, step, trail)
        except BaseException:
            self.prune(path)
            raise

    def status(self, path: str) -> os.stat_result | None:
        """Look at what stands at `path`, itself and not what it points to; None if there is nothing."""
        try:
            with self.spot(path) as spot:
                return spot.look()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def check_free(self, path: str) -> None:
        """Raise `PathRefused` unless a file may be written at `path`."""
        try:
            self._check(path)
        except NotADirectoryError:
            raise _file_above(path) from None

    def check_gone(self, path: str) -> None:
        """Raise `PathRefused` unless a file or nothing is at `path`, so that `remove` may take it away."""
        with contextlib.suppress(NotADirectoryError):
            self._check(path)

    def remove(self, path: str, lost: set[str]) -> None:
        """Delete the file at `path`, if there is one, and the directories that this leaves empty.

        `lost` collects the directories that lost an entry and are to be synced.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.spot(path) as spot:
            spot.check_free()
            os.unlink(spot.name, dir_fd=spot.directory)
        lost.add(self.prune(path))

    def prune(self, path: str) -> str:
        """Remove empty directories from `path` upwards, never the payload root; return the one that remains."""
        directory = path.rpartition("/")[0]
        while "/" in directory:
            try:
                with self.spot(directory) as spot:
                    os.rmdir(spot.name, dir_fd=spot.directory)
            except (FileNotFoundError, NotADirectoryError):
                pass  # somebody else was faster
            except (OSError, BayouError):
                break  # not empty, or not ours to remove: either way it stays
            directory = directory.rpartition("/")[0]
        return directory

    def sync(self, directories: set[str]) -> None:
        """Make the entries of these directories durable; one that is gone needs nothing."""
        with translate_oserror("cannot sync the tree"):
            # Where every file has a directory of its own, one call for all takes a fiftieth of one call for each.
            if len(directories) > _MANY and sync_file_system(self.root):
                return
            parallel_fsync(self._sync_one, sorted(directories))

    def _make(self, path: str, gained: set[str], step: Callable[[DirEntryRef], _T], trail: DirFdCache | None) -> _T:
        for _ in range(_TRIES):
            try:
                with self.spot(path, gained, trail) as spot:
                    spot.check_free()
                    return step(spot)
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                raise _file_above(path) from None
            except IsADirectoryError:
                raise refused(path, "a directory is in the way") from None
            except OSError as error:
                if error.errno not in _NO_SUCH_NAME:
                    raise
                raise refused(path, f"this file system does not take the name ({why(error)})") from None
        raise TreeError(f"cannot write {path}: its directory keeps vanishing", hint="try again")

    def _check(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self.spot(path) as spot:
            spot.check_free()

    def _sync_one(self, directory: str) -> None:
        # The directory of its own `.`: the empty path is the root.
        inside = f"{directory}/." if directory else "."
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.spot(inside) as spot:
            fsync_directory(spot.directory)


def _file_above(path: str) -> PathRefused:
    return refused(path, "a file stands where a directory is needed")
