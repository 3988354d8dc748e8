"""Safe access to a path below the tree's root, one real directory at a time (V21).

`SafeRoot.locate` opens the directory of a path and returns a `DirEntryRef`: the directory's descriptor and the name in
it. Each step starts from the descriptor of the directory before it and follows no link, so that neither a link in the
tree nor a link that is swapped in at the last moment can lead out of the tree. `DirFdCache` keeps the directories of
the last path open for the next one.
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
from bayou.worktree.durability import (
    os_reason,
    parallel_fsync,
    path_refused,
    sync_file_system,
    translate_oserror,
    tree_error,
)

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
"""Flags that open a directory, and fail on a link."""

_T = TypeVar("_T")
_TRIES = 100
_MANY = 64
"""Directories from which on one sync of the file system is faster than one sync for each."""
_NO_SUCH_NAME = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)


class DirEntryRef(NamedTuple):
    """A reference to the name of `path` in its directory, whether or not a file has that name.

    `directory` is a descriptor of a real directory inside the tree.
    """

    directory: int
    name: str
    path: str
    folds: bool
    """Whether the file system treats names that differ only by case as the same name."""
    made: bool = False
    """Whether `locate` has just created the directory."""
    private: bool = False
    """Whether only this user can enter the tree: then no other user can read new files in it."""

    @property
    def file_mode(self) -> int:
        """The mode of a new file, before the umask."""
        return 0o600 if self.private else 0o666

    def lstat(self) -> os.stat_result:
        """Return the status of the name itself, without following a link; `FileNotFoundError` if there is none."""
        found = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        self.check_spelling()
        return found

    def check_free(self) -> None:
        """Raise `PathRefused` unless a regular file, or nothing, has the name."""
        if self.made and not self.folds:
            return  # the directory is new and empty, and the next system call follows no link in any case
        with contextlib.suppress(FileNotFoundError):
            mode = self.lstat().st_mode
            if not stat.S_ISREG(mode):
                raise path_refused(self.path, f"{file_kind(mode)} is in the way")

    def enter(self) -> int:
        """Open the directory of this name.

        `FileNotFoundError` if there is none, `NotADirectoryError` if the name is a file, `PathRefused` if it is a link
        or its real spelling differs (V21).
        """
        try:
            inner = os.open(self.name, DIRECTORY, dir_fd=self.directory)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            if stat.S_ISLNK(self.lstat().st_mode):
                raise path_refused(self.path, f"its directory {self.name!r} is a symbolic link") from None
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.name) from None
        try:
            self.check_spelling()
        except BaseException:
            os.close(inner)
            raise
        return inner

    def check_spelling(self) -> None:
        """Raise `PathRefused` if the directory spells the name differently."""
        if not self.folds:
            return
        folded = self.name.casefold()
        with os.scandir(self.directory) as entries:
            names = [
                name for entry in entries if (name := unicodedata.normalize("NFC", entry.name)).casefold() == folded
            ]
        if names and self.name not in names:
            raise path_refused(
                self.path, f"{names[0]!r} is there already, and this file system does not tell them apart"
            )


def folds_case(directory: int, name: str) -> bool:
    """Return whether a directory that may hold `name`, in lower case, would find it in upper case too.

    The check uses the name itself, so that it writes nothing. A wrong yes costs time; a wrong no needs a directory that
    folds case below a directory that does not.
    """
    try:
        os.stat(name.upper(), dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def file_kind(mode: int) -> str:
    """Name the kind of a file, for an error message."""
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
    """The open directories from the root to the last path: a caller that goes through a tree in order reopens few.

    For one thread. Close it after any error, and soon in any case: it does not notice when directories are moved.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: list[str] = []
        self._descriptors: list[int] = []
        self._made: list[bool] = []
        """For each open directory, whether this object created it: then it held nothing before."""
        self._folds = False
        self._private = False

    def locate(self, path: str, changed_dirs: set[str] | None = None) -> DirEntryRef:
        """Open the directory that holds `path`; the result is valid until the next call.

        Without `changed_dirs`, a missing directory raises `FileNotFoundError`; with it, missing directories are
        created, and it collects the directories that got a new entry and must be synced. `NotADirectoryError` if a
        file is where a directory should be, `PathRefused` if a link is, or a directory of another spelling.
        """
        *directories, name = path.split("/")
        if not self._descriptors:
            self._descriptors.append(_open_root(self._root, make=changed_dirs is not None))
            self._made.append(False)
            self._private = is_private(os.fstat(self._descriptors[0]).st_mode)
        kept = 0
        for opened, wanted in zip(self._names, directories, strict=False):
            if opened != wanted:
                break
            kept += 1
        self._close_from(kept)
        made = False
        for segment in directories[kept:]:
            made = self._enter(segment, path, changed_dirs)
        if not directories:
            self._folds = folds_case(self._descriptors[0], name)
        return DirEntryRef(self._descriptors[-1], name, path, self._folds, made, self._private)

    def find_missing(self, path: str, changed_dirs: set[str]) -> DirEntryRef | None:
        """Return a reference to the first directory of `path` that is missing, None if none is; as `locate`.

        The payload root is created: its name shows whether the file system folds case.
        """
        directories = path.split("/")[:-1]
        if not self._names or self._names[0] != directories[0]:
            self.locate(f"{directories[0]}/", changed_dirs)
        try:
            self.locate(path)
        except FileNotFoundError:
            depth = len(self._names)
            name, above = directories[depth], "/".join(directories[: depth + 1])
            return DirEntryRef(self._descriptors[-1], name, above, self._folds, private=self._private)
        return None

    def close(self) -> None:
        self._close_from(0)
        if self._descriptors:
            self._made.pop()
            os.close(self._descriptors.pop())

    def _close_from(self, depth: int) -> None:
        while len(self._names) > depth:
            self._names.pop()
            self._made.pop()
            os.close(self._descriptors.pop())

    def _enter(self, segment: str, path: str, changed_dirs: set[str] | None) -> bool:
        """Open the next directory, or create it; return whether it was created.

        In a directory that this object created, try to create first: the next directory is most likely missing.
        """
        top = not self._names
        ref = DirEntryRef(self._descriptors[-1], segment, path, folds=self._folds and not top)
        made = changed_dirs is not None and self._made[-1] and self._make(segment, changed_dirs)
        try:
            inner = ref.enter()
        except FileNotFoundError:
            if changed_dirs is None:
                raise
            made = self._make(segment, changed_dirs)
            inner = ref.enter()
        self._names.append(segment)
        self._descriptors.append(inner)
        self._made.append(made)
        if top:
            # Now that the payload root exists, its own name shows whether the file system folds case.
            self._folds = folds_case(ref.directory, segment)
            ref._replace(folds=self._folds).check_spelling()
        return made

    def _make(self, segment: str, changed_dirs: set[str]) -> bool:
        """Create a directory in the last open one; False if it exists already."""
        changed_dirs.add("/".join(self._names))
        try:
            os.mkdir(segment, 0o700 if self._private else 0o777, dir_fd=self._descriptors[-1])
        except FileExistsError:
            return False
        return True


def is_private(mode: int) -> bool:
    """Return whether a directory of this mode is closed to other users, as `.bayou/` is."""
    return not mode & 0o077


def check_not_symlink(root: Path) -> None:
    """Raise `PathRefused` if the tree itself is a link, which could point anywhere."""
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
        # Only the root, not its parents: if a file system is not mounted, nothing must be written to its mount point.
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
    check_not_symlink(root)
    if isinstance(error, FileNotFoundError):
        return TreeError(f"there is no directory {root.parent}", hint="check the path, or mount or create it")
    return tree_error(error, f"cannot open the tree {root}")


class SafeRoot:
    """The root directory of a tree. Callers pass only paths that have passed `paths.check`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def locate(
        self, path: str, changed_dirs: set[str] | None = None, cache: DirFdCache | None = None
    ) -> Iterator[DirEntryRef]:
        """Open the directory that holds `path`, as `DirFdCache.locate` does; it stays open only in a given `cache`."""
        directories = cache or DirFdCache(self.root)
        try:
            yield directories.locate(path, changed_dirs)
        except BaseException:
            directories.close()
            raise
        if cache is None:
            directories.close()

    def create(
        self, path: str, changed_dirs: set[str], step: Callable[[DirEntryRef], _T], cache: DirFdCache | None = None
    ) -> _T:
        """Create the directories of `path`, and call `step` to create `path` itself; `PathRefused` if it is occupied.

        Another process that deletes may remove a directory in between; then it is created again.
        """
        try:
            return self._create(path, changed_dirs, step, cache)
        except BaseException:
            self.prune(path)
            raise

    def lstat(self, path: str) -> os.stat_result | None:
        """Return the status of `path` itself, without following a link; None if there is nothing."""
        try:
            with self.locate(path) as ref:
                return ref.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def check_free(self, path: str) -> None:
        """Raise `PathRefused` unless a file may be written at `path`."""
        try:
            self._check(path)
        except NotADirectoryError:
            raise _file_above(path) from None

    def check_gone(self, path: str) -> None:
        """Raise `PathRefused` unless a file or nothing is at `path`, so that `remove` may delete it."""
        with contextlib.suppress(NotADirectoryError):
            self._check(path)

    def remove(self, path: str, changed_dirs: set[str]) -> None:
        """Delete the file at `path`, if there is one, and the directories that this leaves empty.

        `changed_dirs` collects the directories that lost an entry and must be synced.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.locate(path) as ref:
            ref.check_free()
            os.unlink(ref.name, dir_fd=ref.directory)
        changed_dirs.add(self.prune(path))

    def prune(self, path: str) -> str:
        """Remove empty directories from `path` upwards, never the payload root; return the first that remains."""
        directory = path.rpartition("/")[0]
        while "/" in directory:
            try:
                with self.locate(directory) as ref:
                    os.rmdir(ref.name, dir_fd=ref.directory)
            except (FileNotFoundError, NotADirectoryError):
                pass  # another process was faster
            except (OSError, BayouError):
                break  # not empty, or this user may not remove it: either way it stays
            directory = directory.rpartition("/")[0]
        return directory

    def sync(self, directories: set[str]) -> None:
        """Make the entries of these directories durable; a directory that is gone needs no sync."""
        with translate_oserror("cannot sync the tree"):
            # Where every file has a directory of its own, one call for all takes a fiftieth of the time.
            if len(directories) > _MANY and sync_file_system(self.root):
                return
            parallel_fsync(self._sync_directory, sorted(directories))

    def _create(
        self, path: str, changed_dirs: set[str], step: Callable[[DirEntryRef], _T], cache: DirFdCache | None
    ) -> _T:
        for _ in range(_TRIES):
            try:
                with self.locate(path, changed_dirs, cache) as ref:
                    ref.check_free()
                    return step(ref)
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                raise _file_above(path) from None
            except IsADirectoryError:
                raise path_refused(path, "a directory is in the way") from None
            except OSError as error:
                if error.errno not in _NO_SUCH_NAME:
                    raise
                raise path_refused(path, f"this file system does not take the name ({os_reason(error)})") from None
        raise TreeError(f"cannot write {path}: its directory keeps vanishing", hint="try again")

    def _check(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self.locate(path) as ref:
            ref.check_free()

    def _sync_directory(self, directory: str) -> None:
        # `locate` opens the directory above a name, so the name is `.`; the empty path is the root.
        inside = f"{directory}/." if directory else "."
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.locate(inside) as ref:
            fsync_directory(ref.directory)


def _file_above(path: str) -> PathRefused:
    return path_refused(path, "a file stands where a directory is needed")
