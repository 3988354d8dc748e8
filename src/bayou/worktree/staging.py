"""What a pull does to the tree. Not journaled, since it is no change of ours: a pull records intents (V7).

Remove temporaries whose writers are gone (V14).
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bayou.core import paths
from bayou.core.atomic_file import fsync_file
from bayou.core.errors import BayouError
from bayou.core.ids import ulid_ms
from bayou.worktree.atomic_write import is_temporary, made_id, temporary_name
from bayou.worktree.durability import parallel_fsync, sync_file_system, translate_oserror
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DirEntryRef, DirFdCache, SafeRoot

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MANY = 32


class Arriving:
    """A staged file that is being written. Not buffered: what a store sends comes in large pieces."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Buffer, /) -> int:
        """Write all of it."""
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

    def __enter__(self) -> Arriving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StagingArea:
    """Files that arrive: staged, made durable in batches, renamed into place. For many threads of one process.

    `staging` is a directory of this class's own, outside the tree and on its file system.
    """

    def __init__(self, tree_root: Path, staging: Path) -> None:
        self._ground = SafeRoot(tree_root)
        self.staging = staging
        self._trail = DirFdCache(tree_root)
        self._placing = threading.Lock()
        self._touched: set[str] = set()
        self._touching = threading.Lock()
        self._name = temporary_name().removesuffix(".tmp")
        self._numbers = count()

    def stage(self) -> tuple[Path, Arriving]:
        """Return a new file to download into. The caller closes it, then places it or unlinks it."""
        # One name made for all, and a number: a name of its own takes as long as the write of a small file.
        path = self.staging / f"{self._name}{next(self._numbers):x}.tmp"
        with translate_oserror("cannot stage a download"):
            try:
                descriptor = _create(path)
            except FileNotFoundError:
                # Not its parent: a task of Spark that outlives its job must not bring back what the job removed.
                self.staging.mkdir(mode=0o700, exist_ok=True)
                descriptor = _create(path)
        return path, Arriving(descriptor)

    def sync(self, files: Iterable[Path]) -> None:
        """Make the content of staged files durable, all together; before they are placed."""
        files = list(files)
        with translate_oserror("cannot sync downloads"):
            # For a batch of small files one call takes a tenth of the time of one for each, and hardly any of ours.
            if len(files) > _MANY and sync_file_system(self.staging):
                return
            parallel_fsync(fsync_file, files)

    def place(self, staged: Path, path: str) -> FileStat:
        """Rename a staged file to its path, over what is there; return the stat that belongs to these bytes.

        `PathRefused` for a name that is not payload, and when a link, a directory, a file in place of a directory or
        a name in another case is in the way (V21); the staged file stays where it is.
        """
        paths.check(path)
        touched = {path.rpartition("/")[0]}
        with translate_oserror(f"cannot write {path}"):
            before = os.lstat(staged)
            with self._placing:
                changed = self._ground.make(path, touched, lambda spot: _rename(staged, spot), self._trail)
            self._touch(touched)  # only now: what was refused has left nothing to sync
            # V2: size, mtime and inode of the bytes that arrived: whoever writes to the file, or replaces it, at this
            # very moment does not lend us his stat. The rename changed the ctime.
            return FileStat(before.st_size, before.st_mtime_ns, changed, before.st_ino)

    def remove(self, path: str) -> None:
        """Delete the file at `path`, if there is one, and the directories that this leaves empty."""
        paths.check(path)
        touched: set[str] = set()
        with translate_oserror(f"cannot delete {path}"):
            self._ground.remove(path, touched)
        self._touch(touched)

    def sync_directories(self) -> None:
        """Make every rename and removal since the last call durable."""
        with self._placing:
            self._trail.close()
        with self._touching:
            touched, self._touched = self._touched, set()
        try:
            self._ground.sync(touched)
        except BaseException:
            self._touch(touched)  # still to be done
            raise

    def forget(self) -> None:
        """Remove what this run has staged and nobody will place: it ends early. Who still writes does so in vain."""
        with contextlib.suppress(OSError), os.scandir(self.staging) as entries:
            for entry in entries:
                if entry.name.startswith(self._name):
                    os.unlink(entry.path)

    def clear(self) -> None:
        """Remove what earlier runs left in the staging directory. No other run may be under way."""
        with (
            translate_oserror("cannot clear old downloads"),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.staging) as entries,
        ):
            for entry in entries:
                if not is_temporary(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    import shutil  # noqa: PLC0415  (10 ms: only where Spark's tasks were killed)

                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def _touch(self, directories: set[str]) -> None:
        with self._touching:
            self._touched |= directories


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _rename(staged: Path, spot: DirEntryRef) -> int:
    """Give a staged file its name; return its ctime since, or 0 if somebody was quick enough to take it away."""
    os.replace(staged, spot.name, dst_dir_fd=spot.directory)
    try:
        return os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False).st_ctime_ns
    except FileNotFoundError:
        return 0


def made_before(temporaries: Iterable[str], moment_ms: int) -> list[str]:
    """Return the temporaries that were begun before a moment, by their names."""
    return [path for path in temporaries if ulid_ms(made_id(path.rpartition("/")[2])) < moment_ms]


def sweep(root: Path, temporaries: Iterable[str], untouched_since_ms: int) -> None:
    """Remove temporaries, files and directories, and the directories that this leaves empty.

    The caller knows that nobody is going to give them their names. One that was written to since then stays all the
    same, as does one that cannot be removed: everybody ignores it.
    """
    ground = SafeRoot(root)
    for path in temporaries:
        with contextlib.suppress(BayouError, OSError), ground.spot(path) as spot:
            _remove(spot, untouched_since_ms)
        ground.prune(path)


def _remove(spot: DirEntryRef, untouched_since_ms: int) -> None:
    if _touched_ms(spot) >= untouched_since_ms:
        return
    if stat.S_ISDIR(spot.look().st_mode):
        import shutil  # noqa: PLC0415

        shutil.rmtree(spot.name, dir_fd=spot.directory)
    else:
        os.unlink(spot.name, dir_fd=spot.directory)


def _touched_ms(spot: DirEntryRef) -> float:
    """Return when it, or anything in it, was last written to."""
    newest = spot.look().st_mtime
    for _, directories, files, descriptor in os.fwalk(spot.name, dir_fd=spot.directory):
        for name in (*directories, *files):
            newest = max(newest, os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime)
    return newest * 1000
