"""The place of one path: an open directory, and a name in it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import unicodedata
from typing import NamedTuple

from bayou.tree.failure import refused

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Spot(NamedTuple):
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
