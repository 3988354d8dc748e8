"""What can be done at a path of the tree, safely (V21)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bayou.core.atomic_file import fsync_directory
from bayou.core.errors import BayouError, PathRefused, TreeError
from bayou.tree.durable import each, sync_file_system
from bayou.tree.failure import explained, refused, why
from bayou.tree.spot import Spot
from bayou.tree.trail import Trail

_T = TypeVar("_T")
_TRIES = 100
_MANY = 64
_NO_SUCH_NAME = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)


class Ground:
    """The directory that a tree stands on. Paths given to it have passed `paths.check`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def spot(self, path: str, gained: set[str] | None = None, trail: Trail | None = None) -> Iterator[Spot]:
        """Open the directory that holds `path`, as `Trail.to` says; closed again unless it is part of a `trail`."""
        way = trail or Trail(self.root)
        try:
            yield way.to(path, gained)
        except BaseException:
            way.close()
            raise
        if trail is None:
            way.close()

    def make(self, path: str, gained: set[str], step: Callable[[Spot], _T], trail: Trail | None = None) -> _T:
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
        with explained("cannot sync the tree"):
            # Where every file has a directory of its own, one call for all takes a fiftieth of one call for each.
            if len(directories) > _MANY and sync_file_system(self.root):
                return
            each(self._sync_one, sorted(directories))

    def _make(self, path: str, gained: set[str], step: Callable[[Spot], _T], trail: Trail | None) -> _T:
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
