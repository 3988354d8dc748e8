"""The directories of a directory store: open and walk them without following symbolic links (V21).

The path to the root may contain links: it is this user's own path. Below the root, this module opens each directory
relative to the descriptor of its parent and follows no link. So no link in the store, not even one that another user
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
from bayou.objectstore.backends.directory_files import link_refused

_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW = _ROOT | os.O_NOFOLLOW
_MAX_OPEN = 32
"""Descriptors that one walk keeps open; it reopens directories above when it returns to them."""
_PREFIX, _SUFFIX = ".bayou-", ".tmp"


def reserved_name(text: str) -> str:
    """Return a file name that no object can have, for temporary files and locks."""
    return f"{_PREFIX}{text}{_SUFFIX}"


def is_reserved(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def open_below(root: Path, names: Sequence[str], key: str, *, make: bool = False) -> int:
    """Return a descriptor of a directory below the root, which the caller closes.

    Raise `FileNotFoundError` if a directory is missing (unless `make`), `NotADirectoryError` if a path component is a
    file, and `Rejected` if it is a link.
    """
    directory = os.open(root, _ROOT)
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
    """Open a directory below the root for the block; raise what `open_below` raises."""
    directory = open_below(root, names, key)
    try:
        yield directory
    finally:
        os.close(directory)


def entries(directory: int, prefix: str) -> list[tuple[str, str]]:
    """Return key and name of each entry of an open directory, in bytewise order; a directory's key ends in `/`."""
    with os.scandir(directory) as found:
        listed = [
            (f"{prefix}{entry.name}/" if entry.is_dir(follow_symlinks=False) else f"{prefix}{entry.name}", entry.name)
            for entry in found
            if not is_reserved(entry.name)
        ]
    listed.sort(key=lambda pair: os.fsencode(pair[0]))
    return listed


def file_status(directory: int, name: str) -> os.stat_result | None:
    """Return the status of a file in an open directory; None if there is no plain file of that name."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def walk(root: Path, names: Sequence[str], prefix: str, after: str | None) -> Iterator[tuple[str, os.stat_result]]:
    """Yield key and status of the files below a directory, in bytewise order, beyond `after`; follow no links.

    In the key of a name that is not UTF-8, surrogates stand for its bytes, as everywhere in Python. A directory that is
    deeper than keys may be is yielded like a file, so that the reader refuses it by name (V25), and not entered: there
    may be a million more below it.
    """
    beyond = None if after is None else os.fsencode(after)
    current = _OpenPath(root, names)
    try:
        if not current.reopen(prefix):
            return
        levels = [iter(entries(current.directory, prefix))]
        while levels:
            for key, name in levels[-1]:
                bytewise = os.fsencode(key)
                if key.endswith("/") and len(bytewise) > limits.KEY_BYTES:
                    if beyond is None or bytewise[:-1] > beyond:
                        with contextlib.suppress(FileNotFoundError):
                            yield key[:-1], os.stat(name, dir_fd=current.directory, follow_symlinks=False)
                elif key.endswith("/"):
                    wanted = beyond is None or bytewise > beyond or beyond.startswith(bytewise)
                    if wanted and current.enter(name, key):
                        levels.append(iter(entries(current.directory, key)))
                        break
                elif beyond is None or bytewise > beyond:
                    status = file_status(current.directory, name)
                    if status is not None:
                        yield key, status
            else:
                levels.pop()
                current.leave()
                if levels and not current.reopen(prefix):
                    levels[-1] = iter(())
    finally:
        current.close()


def _enter(directory: int, name: str, key: str, *, make: bool) -> int:
    try:
        return _open(directory, name, key)
    except FileNotFoundError:
        if not make:
            raise
    # Other processes may create and remove the directory meanwhile; `_open` reports anything else in its place.
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return _open(directory, name, key)


def _open(directory: int, name: str, key: str) -> int:
    try:
        return os.open(name, _BELOW, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        # A directory is here again if a link replaced it only for a moment. V4: then nothing is absent.
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
            raise link_refused(key) from None
        raise


class _OpenPath:
    """The open directories from the start of a walk to its current directory."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._root = root
        self._names = list(names)
        self._open: list[int | None] = [None]

    @property
    def directory(self) -> int:
        """A descriptor of the current directory."""
        directory = self._open[-1]
        assert directory is not None
        return directory

    def reopen(self, key: str) -> bool:
        """Open the current directory and those above it, unless they are open; return False if it is gone."""
        if self._open[-1] is not None:
            return True
        first = max(0, len(self._open) - _MAX_OPEN)
        start = len(self._names) - len(self._open) + 1
        try:
            inner = self._set(first, open_below(self._root, self._names[: start + first], key))
            for depth in range(first + 1, len(self._open)):
                inner = self._set(depth, _open(inner, self._names[start + depth - 1], key))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def enter(self, name: str, key: str) -> bool:
        """Enter a subdirectory; return False if it is gone."""
        try:
            inner = _open(self.directory, name, key)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._names.append(name)
        self._open.append(inner)
        if len(self._open) > _MAX_OPEN:
            self._close_at(-1 - _MAX_OPEN)
        return True

    def leave(self) -> None:
        """Return to the parent directory."""
        self._close_at(-1)
        self._open.pop()
        if self._open:
            self._names.pop()

    def close(self) -> None:
        for position in range(len(self._open)):
            self._close_at(position)

    def _set(self, position: int, directory: int) -> int:
        self._close_at(position)
        self._open[position] = directory
        return directory

    def _close_at(self, position: int) -> None:
        directory, self._open[position] = self._open[position], None
        if directory is not None:
            os.close(directory)
