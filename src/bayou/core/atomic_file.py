"""Write a file so that readers see the old content or the new one, and make files and their names durable.

A file gets its name in three steps: the writer fills and fsyncs a temporary beside the target, the rename replaces the
target, and an fsync of the directory makes the new name durable. Code that works with directory descriptors (the tree,
the directory store) takes these steps itself, with `fsync_file` and `fsync_directory` from here.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bayou.core.ids import ulid

_NO_DIRECTORY_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def atomic_file(
    target: Path, *, mode: int = 0o666, overwrite: bool = True, temporary: Path | None = None
) -> Iterator[BinaryIO]:
    """Yield a file that becomes `target` when the block ends; if the block raises, `target` stays as it was.

    The content is durable before the file has its name; the name itself is durable after
    `fsync_directory(target.parent)`. Without `overwrite`, an existing target raises `FileExistsError`. `mode` is
    reduced by the umask. Each call uses a new name for its temporary file. A caller that never sweeps the directory
    passes `temporary`, so that the next write replaces the file that a killed process left (V14).
    """
    if temporary is None:
        temporary = target.with_name(f".bayou-{ulid()}.tmp")
    else:
        temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, _CREATE, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(target)
        else:
            _link(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(
    target: Path, data: bytes, *, mode: int = 0o666, overwrite: bool = True, temporary: Path | None = None
) -> None:
    """Write a small file whole or not at all; content and name are durable when this returns."""
    with atomic_file(target, mode=mode, overwrite=overwrite, temporary=temporary) as file:
        file.write(data)
    fsync_directory(target.parent)


def _link(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)  # unlike a rename, a link never replaces
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if target.exists():
            raise FileExistsError(target) from None
        temporary.replace(target)


def fsync_file(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Make the content of a file durable that another program, or a closed descriptor, wrote."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(directory: int | Path) -> None:
    """Make the names in a directory durable, given by its path or by an open descriptor.

    Some network file systems have no fsync of directories; there the server decides when names are durable.
    """
    if not isinstance(directory, int):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fsync_directory(descriptor)
        finally:
            os.close(descriptor)
        return
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_FSYNC:
            raise
