"""What a directory store does with files: names of its own, a walk in order, times that only grow."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from bayou.errors import Rejected

_PREFIX, _SUFFIX = ".bayou-", ".tmp"
_NS_STEPS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def our_name(text: str) -> str:
    """Return a file name that no object can have."""
    return f"{_PREFIX}{text}{_SUFFIX}"


def is_ours(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def walk(directory: Path, prefix: str, after: str | None) -> Iterator[tuple[str, os.stat_result]]:
    """Yield keys and status of the files below `directory`, in bytewise order, beyond `after`; links are not followed.

    A name that is no UTF-8 has its bytes as surrogates in its key, as everywhere in Python.
    """
    beyond = None if after is None else os.fsencode(after)
    levels = [entries(directory, prefix)]
    while levels:
        for key, entry in levels[-1]:
            name = os.fsencode(key)
            if key.endswith("/"):
                if beyond is None or name > beyond or beyond.startswith(name):
                    levels.append(entries(entry.path, key))
                    break
            elif beyond is None or name > beyond:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        yield key, entry.stat(follow_symlinks=False)
        else:
            levels.pop()


def entries(directory: str | Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what a directory holds as keys, those of directories with a `/`; nothing if it is gone."""
    try:
        with os.scandir(directory) as found:
            listed = [
                (f"{prefix}{entry.name}/" if entry.is_dir(follow_symlinks=False) else f"{prefix}{entry.name}", entry)
                for entry in found
                if not is_ours(entry.name)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from sorted(listed, key=lambda pair: os.fsencode(pair[0]))


def make_newer(path: Path, than_ns: int) -> None:
    """Give a file an mtime after `than_ns`, also where the file system keeps only seconds."""
    now = max(time.time_ns(), than_ns)
    for step in _NS_STEPS:
        os.utime(path, ns=(now + step, now + step))
        if os.stat(path).st_mtime_ns > than_ns:
            return
    raise Rejected(f"the file system does not keep the times of files: {path.parent.name}")


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, where the file system knows how."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)
