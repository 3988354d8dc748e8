"""What a pull does to the tree. Not journaled, since it is no change of ours: a pull records intents (V7)."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from bayou import paths
from bayou.tree.draft import OutFile, is_temporary, temporary_name
from bayou.tree.durable import each
from bayou.tree.failure import explained
from bayou.tree.filestat import FileStat
from bayou.tree.ground import Ground
from bayou.tree.spot import Spot
from bayou.tree.trail import Trail

_BUFFER = 1 << 17


class Incoming:
    """Files that arrive: staged, made durable in batches, renamed into place. For many threads of one process.

    `staging` is a directory of this class's own, outside the tree and on its file system.
    """

    def __init__(self, tree_root: Path, staging: Path) -> None:
        self._ground = Ground(tree_root)
        self._staging = staging
        self._trail = Trail(tree_root)
        self._placing = threading.Lock()
        self._touched: set[str] = set()
        self._touching = threading.Lock()

    def stage(self) -> tuple[Path, BinaryIO]:
        """Return a new file to download into. The caller closes it, then places it or unlinks it."""
        path = self._staging / temporary_name()
        with explained("cannot stage a download"):
            try:
                descriptor = _create(path)
            except FileNotFoundError:
                self._staging.mkdir(parents=True, exist_ok=True)
                descriptor = _create(path)
        raw = OutFile(descriptor, "cannot store a download", closefd=True)
        return path, io.BufferedWriter(raw, _BUFFER)

    def sync(self, files: Iterable[Path]) -> None:
        """Make the content of staged files durable, all together; before they are placed."""
        with explained("cannot sync downloads"):
            each(_sync_file, list(files))

    def place(self, staged: Path, path: str) -> FileStat:
        """Rename a staged file to its path, over what is there; return the stat that belongs to these bytes.

        `PathRefused` for a name that is not payload, and when a link, a directory, a file in place of a directory or
        a name in another case is in the way (V21); the staged file stays where it is.
        """
        paths.check(path)
        touched = {path.rpartition("/")[0]}
        with explained(f"cannot write {path}"):
            # The descriptor outlives the rename: whoever replaces the file at once does not lend us his stat.
            descriptor = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                before = os.fstat(descriptor)
                with self._placing:
                    self._ground.make(path, touched, lambda spot: _rename(staged, spot), self._trail)
                self._touch(touched)  # only now: what was refused has left nothing to sync
                # V2: size and mtime of the bytes that arrived, should a program write to the file at this very moment.
                after = os.fstat(descriptor)
                return FileStat(before.st_size, before.st_mtime_ns, after.st_ctime_ns, after.st_ino)
            finally:
                os.close(descriptor)

    def remove(self, path: str) -> None:
        """Delete the file at `path`, if there is one, and the directories that this leaves empty."""
        paths.check(path)
        touched: set[str] = set()
        with explained(f"cannot delete {path}"):
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

    def clear(self) -> None:
        """Remove what earlier runs left in the staging directory. No other run may be under way."""
        with (
            explained("cannot clear old downloads"),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self._staging) as entries,
        ):
            for entry in entries:
                if is_temporary(entry.name) and not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)

    def _touch(self, directories: set[str]) -> None:
        with self._touching:
            self._touched |= directories


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def _rename(staged: Path, spot: Spot) -> None:
    os.replace(staged, spot.name, dst_dir_fd=spot.directory)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
