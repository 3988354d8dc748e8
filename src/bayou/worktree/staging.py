"""Staging of downloads: files are written outside the tree, made durable in batches, and renamed into the tree.

Nothing here is journaled: a pull is no local change, and records intents instead (V7). `remove_abandoned` deletes
temporary files of the tree whose writers are gone (V14).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core import paths
from bayou.core.atomic_file import fsync_file
from bayou.core.errors import BayouError
from bayou.core.ids import ulid_ms
from bayou.worktree.atomic_write import is_temporary, temporary_name, temporary_ulid
from bayou.worktree.durability import parallel_fsync, sync_file_system, translate_oserror
from bayou.worktree.hashing import FileStat
from bayou.worktree.new_directories import NewDirectories, Placed
from bayou.worktree.safe_root import DirEntryRef, DirFdCache, SafeRoot, is_private

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PARTIAL = ".partial"
"""Suffix of a large download, which a later sync may complete."""

_KEPT_S = 7 * 86400.0
"""Seconds after which a download that no sync has completed is deleted."""

_READ_BYTES = 1 << 20
_MANY = 32
"""Files from which on one sync of the file system is faster than one sync for each."""


class StagedFile:
    """A staged file that is being written. Not buffered, since a store sends large chunks."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Buffer, /) -> int:
        """Write all bytes of `data`."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        with translate_oserror("cannot store a download"):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with translate_oserror("cannot store a download"):
                os.close(descriptor)

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PartialFile(Struct, frozen=True):
    """A staged file that may have the beginning of its content already: its size, and its hash so far."""

    path: Path
    file: StagedFile
    size: int
    digest: hashlib._Hash


class StagingArea:
    """The staged files of one sync. Safe to use from many threads of one process.

    `staging` is a directory that only this class uses, outside the tree and on the tree's file system. With
    `keeps_partial`, a later sync goes on with the files of `resume`. With `whole`, `new_directories` stages directories
    as a whole, for this process to install.
    """

    def __init__(self, tree_root: Path, staging: Path, *, keeps_partial: bool = True, whole: bool = False) -> None:
        self.keeps_partial = keeps_partial
        # Only where no other user can enter the tree: a directory takes group and access from the place it is made in.
        self._whole = whole and is_private(os.stat(tree_root).st_mode)
        self._places: list[NewDirectories] = []
        self._taken: list[NewDirectories] = []
        self._safe_root = SafeRoot(tree_root)
        self.staging = staging
        self._directories = DirFdCache(tree_root)
        self._installing = threading.Lock()
        self._changed_dirs: set[str] = set()
        self._changed_dirs_lock = threading.Lock()
        self._name = temporary_name().removesuffix(".tmp")
        self._numbers = count()

    def stage(self) -> tuple[Path, StagedFile]:
        """Return a new file to download into. The caller closes it, then installs or unlinks it."""
        # A common name and a number: generating a new name takes as long as writing a small file.
        path = self.staging / f"{self._name}{next(self._numbers):x}.tmp"
        with translate_oserror("cannot stage a download"):
            try:
                descriptor = _create(path)
            except FileNotFoundError:
                # Not its parent: a task of Spark that outlives its job must not bring back what the job removed.
                self.staging.mkdir(mode=0o700, exist_ok=True)
                descriptor = _create(path)
        return path, StagedFile(descriptor)

    def new_directories(self) -> NewDirectories | None:
        """Return a place to stage files of directories that the tree lacks; None if each is to be staged by itself."""
        if not self._whole:
            return None
        place = NewDirectories(self.staging / f"{self._name}{next(self._numbers):x}.tmp", self._safe_root.root)
        self._places.append(place)
        return place

    def install_directories(self, wanted: Sequence[str]) -> dict[str, Placed]:
        """Install new directories whose staged files are all `wanted` (sorted); return these files.

        `install` takes the others. Call both after `sync`.
        """
        changed_dirs: set[str] = set()
        placed: dict[str, Placed] = {}
        with self._installing:
            for place in list(self._places):
                if mine := place.staged(wanted):
                    placed |= place.install(mine, self._directories, changed_dirs)
                    if place.taken:  # most calls of a large pull are for later places
                        self._places.remove(place)
                        self._taken.append(place)
        self._add_changed(changed_dirs)
        return placed

    def remove_directories(self) -> None:
        """Remove what `new_directories` has left, if it is empty."""
        for places in (self._taken, self._places):
            for place in places:
                place.remove()
            places.clear()

    def resume(self, name: str, size: int) -> PartialFile:
        """Return the file of this name for `size` bytes, with those that an earlier sync has downloaded into it.

        The file stays if the download fails. The caller proves the whole by its hash, and installs or unlinks it.
        """
        path = self.staging / f"{name}{_PARTIAL}"
        with translate_oserror("cannot stage a download"):
            self.staging.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                digest, found = hashlib.sha256(), 0
                while data := os.read(descriptor, _READ_BYTES):
                    digest.update(data)
                    found += len(data)
                if found >= size:
                    os.ftruncate(descriptor, 0)
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    digest, found = hashlib.sha256(), 0
            except BaseException:
                os.close(descriptor)
                raise
        return PartialFile(path, StagedFile(descriptor), found, digest)

    def sync(self, files: Iterable[Path]) -> None:
        """Make the content of staged files durable, all together; call it before `install`."""
        files = list(files)
        with translate_oserror("cannot sync downloads"):
            # For a batch of small files one call takes a tenth of the time, and hardly any CPU time.
            if len(files) > _MANY and sync_file_system(self.staging):
                return
            parallel_fsync(fsync_file, files)

    def install(self, staged: Path, path: str) -> FileStat:
        """Rename a staged file to `path`, replacing a file there; return the stat that belongs to these bytes.

        `PathRefused` for a path that is not payload, or if a link, a directory, a file in place of a directory or a
        name of another case is in the way (V21); the staged file stays where it is.
        """
        paths.check(path)
        changed_dirs = {path.rpartition("/")[0]}
        with translate_oserror(f"cannot write {path}"):
            before = os.lstat(staged)
            with self._installing:
                ctime = self._safe_root.create(path, changed_dirs, lambda ref: _rename(staged, ref), self._directories)
            self._add_changed(changed_dirs)  # only now: a refused path has left nothing to sync
            # V2: size, mtime and inode are of the bytes that arrived, even if another process writes to the file, or
            # replaces it, right now. The rename changed the ctime.
            return FileStat.of(before)._replace(ctime_ns=ctime)

    def remove(self, path: str) -> None:
        """Delete the file at `path`, if there is one, and the directories that this leaves empty."""
        paths.check(path)
        changed_dirs: set[str] = set()
        with translate_oserror(f"cannot delete {path}"):
            self._safe_root.remove(path, changed_dirs)
        self._add_changed(changed_dirs)

    def sync_directories(self) -> None:
        """Make every rename and removal since the last call durable."""
        with self._installing:
            self._directories.close()
        with self._changed_dirs_lock:
            changed_dirs, self._changed_dirs = self._changed_dirs, set()
        try:
            self._safe_root.sync(changed_dirs)
        except BaseException:
            self._add_changed(changed_dirs)  # still to be done
            raise

    def discard(self) -> None:
        """Delete the files that this sync has staged and not installed, because it ends early.

        The files of `resume` stay if a later sync completes them.
        """
        self._places.clear()
        self._taken.clear()
        with contextlib.suppress(OSError), os.scandir(self.staging) as entries:
            for entry in entries:
                if not entry.name.startswith(self._name) and (self.keeps_partial or not entry.name.endswith(_PARTIAL)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    import shutil  # noqa: PLC0415

                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def clear(self) -> None:
        """Delete the files that earlier syncs left in the staging directory. No other sync may be running."""
        with (
            translate_oserror("cannot clear old downloads"),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.staging) as entries,
        ):
            for entry in entries:
                if entry.name.endswith(_PARTIAL) and entry.stat(follow_symlinks=False).st_mtime < time.time() - _KEPT_S:
                    os.unlink(entry.path)
                if not is_temporary(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    import shutil  # noqa: PLC0415  (10 ms: only where Spark's tasks were killed)

                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def _add_changed(self, directories: set[str]) -> None:
        with self._changed_dirs_lock:
            self._changed_dirs |= directories


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _rename(staged: Path, ref: DirEntryRef) -> int:
    """Give a staged file its final name; return its new ctime, or 0 if another process has deleted it already."""
    os.replace(staged, ref.name, dst_dir_fd=ref.directory)
    try:
        return os.stat(ref.name, dir_fd=ref.directory, follow_symlinks=False).st_ctime_ns
    except FileNotFoundError:
        return 0


def begun_before(temporaries: Iterable[str], moment_ms: int) -> list[str]:
    """Return the temporaries that were begun before a moment, according to their names."""
    return [path for path in temporaries if ulid_ms(temporary_ulid(path.rpartition("/")[2])) < moment_ms]


def remove_abandoned(root: Path, temporaries: Iterable[str], untouched_since_ms: int) -> None:
    """Delete temporary files and directories, and the directories that this leaves empty.

    The caller knows that no living process is going to rename them. A temporary that was written to since
    `untouched_since_ms` stays all the same, and so does a temporary that cannot be deleted; scans ignore both.
    """
    safe_root = SafeRoot(root)
    for path in temporaries:
        with contextlib.suppress(BayouError, OSError), safe_root.locate(path) as ref:
            _remove(ref, untouched_since_ms)
        safe_root.prune(path)


def _remove(ref: DirEntryRef, untouched_since_ms: int) -> None:
    if _modified_ms(ref) >= untouched_since_ms:
        return
    if stat.S_ISDIR(ref.lstat().st_mode):
        import shutil  # noqa: PLC0415

        shutil.rmtree(ref.name, dir_fd=ref.directory)
    else:
        os.unlink(ref.name, dir_fd=ref.directory)


def _modified_ms(ref: DirEntryRef) -> float:
    """Return when a file, or anything in a directory, was last written to."""
    newest = ref.lstat().st_mtime
    for _, directories, files, descriptor in os.fwalk(ref.name, dir_fd=ref.directory):
        for name in (*directories, *files):
            newest = max(newest, os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime)
    return newest * 1000
