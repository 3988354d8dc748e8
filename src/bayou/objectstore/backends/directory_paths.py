"""Reach the directories of a store, one real directory at a time (V21).

The root may be reached through links: it is this user's own path. Below it, each directory is opened in the descriptor
of the one before, and no link is followed. So neither a link that lies in the store, nor one that another user of it
swaps in at the last moment, leads a read or a write elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from bayou.core import limits
from bayou.objectstore.backends.directory_files import a_link

_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW = _ROOT | os.O_NOFOLLOW
_OPEN = 32
"""Descriptors that one listing keeps; deeper down, it opens directories again when it comes back to them."""
_PREFIX, _SUFFIX = ".bayou-", ".tmp"


def our_name(text: str) -> str:
    """Return a file name that no object can have."""
    return f"{_PREFIX}{text}{_SUFFIX}"


def is_ours(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def open_root(root: Path) -> int:
    return os.open(root, _ROOT)


def open_below(root: Path, names: Sequence[str], key: str, *, make: bool = False) -> int:
    """Return a descriptor of a directory below the root, to be closed by the caller.

    `FileNotFoundError` where one is missing, unless they are to be made; `NotADirectoryError` where a file stands in
    the way, and `Rejected` where a link does.
    """
    directory = open_root(root)
    try:
        for name in names:
            inner = _enter(directory, name, key, make=make)
            os.close(directory)
            directory = inner
    except BaseException:
        os.close(directory)
        raise
    return directory


@contextlib.contextmanager
def opened(root: Path, names: Sequence[str], key: str) -> Iterator[int]:
    """Open a directory below the root for a while; errors as of `open_below`."""
    directory = open_below(root, names, key)
    try:
        yield directory
    finally:
        os.close(directory)


def _enter(directory: int, name: str, key: str, *, make: bool) -> int:
    try:
        return _open(directory, name, key)
    except FileNotFoundError:
        if not make:
            raise
    # Both may be said of a directory that is there and gone again; what else is in the way, `_open` says.
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return _open(directory, name, key)


def _open(directory: int, name: str, key: str) -> int:
    try:
        return os.open(name, _BELOW, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        # A directory is here again if the link was swapped in for a moment only. V4: then nothing is absent.
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
            raise a_link(key) from None
        raise


def entries(directory: int, prefix: str) -> list[tuple[str, str]]:
    """Return the keys of what an open directory holds, in bytewise order, and the names; directories end in a `/`."""
    with os.scandir(directory) as found:
        listed = [
            (f"{prefix}{entry.name}/" if entry.is_dir(follow_symlinks=False) else f"{prefix}{entry.name}", entry.name)
            for entry in found
            if not is_ours(entry.name)
        ]
    listed.sort(key=lambda pair: os.fsencode(pair[0]))
    return listed


def file_status(directory: int, name: str) -> os.stat_result | None:
    """Look at a file of an open directory; None if there is none of that name, or a link, or something else."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def walk(root: Path, names: Sequence[str], prefix: str, after: str | None) -> Iterator[tuple[str, os.stat_result]]:
    """Yield keys and status of the files below a directory, in bytewise order, beyond `after`; follow no links.

    A name that is no UTF-8 has its bytes as surrogates in its key, as everywhere in Python. A directory that lies
    deeper than keys go is listed as if it were a file, so that it is refused by its name (V25), and not entered: who
    made it may have made a million more below.
    """
    beyond = None if after is None else os.fsencode(after)
    way = _Way(root, names)
    try:
        if not way.go_on(prefix):
            return
        levels = [iter(entries(way.directory, prefix))]
        while levels:
            for key, name in levels[-1]:
                bytewise = os.fsencode(key)
                if key.endswith("/") and len(bytewise) > limits.KEY_BYTES:
                    if beyond is None or bytewise[:-1] > beyond:
                        with contextlib.suppress(FileNotFoundError):
                            yield key[:-1], os.stat(name, dir_fd=way.directory, follow_symlinks=False)
                elif key.endswith("/"):
                    wanted = beyond is None or bytewise > beyond or beyond.startswith(bytewise)
                    if wanted and way.enter(name, key):
                        levels.append(iter(entries(way.directory, key)))
                        break
                elif beyond is None or bytewise > beyond:
                    status = file_status(way.directory, name)
                    if status is not None:
                        yield key, status
            else:
                levels.pop()
                way.leave()
                if levels and not way.go_on(prefix):
                    levels[-1] = iter(())
    finally:
        way.close()


class _Way:
    """The open directories from where a listing began to where it is."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._root = root
        self._names = list(names)
        self._open: list[int | None] = [None]

    @property
    def directory(self) -> int:
        """The directory where the listing is."""
        directory = self._open[-1]
        assert directory is not None
        return directory

    def go_on(self, key: str) -> bool:
        """Open the directory where the listing is, unless it is open, and those above it; False if it is gone."""
        if self._open[-1] is not None:
            return True
        first = max(0, len(self._open) - _OPEN)
        start = len(self._names) - len(self._open) + 1
        try:
            inner = self._set(first, open_below(self._root, self._names[: start + first], key))
            for depth in range(first + 1, len(self._open)):
                inner = self._set(depth, _open(inner, self._names[start + depth - 1], key))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def enter(self, name: str, key: str) -> bool:
        """Go down into a directory; False if it is gone."""
        try:
            inner = _open(self.directory, name, key)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._names.append(name)
        self._open.append(inner)
        if len(self._open) > _OPEN:
            self._shut(-1 - _OPEN)
        return True

    def leave(self) -> None:
        """Go up again."""
        self._shut(-1)
        self._open.pop()
        if self._open:
            self._names.pop()

    def close(self) -> None:
        for position in range(len(self._open)):
            self._shut(position)

    def _set(self, position: int, directory: int) -> int:
        self._shut(position)
        self._open[position] = directory
        return directory

    def _shut(self, position: int) -> None:
        directory, self._open[position] = self._open[position], None
        if directory is not None:
            os.close(directory)
