"""Add to the end of a file, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os

from bayou.core.errors import ContentChanged
from bayou.core.file_lock import lock_descriptor
from bayou.tree.ground import Ground
from bayou.tree.spot import Spot

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


def append(ground: Ground, path: str, data: bytes, gained: set[str], at: int | None = None) -> None:
    """Append `data` durably, making the file if there is none; if that fails, the file is as it was.

    Processes that append to one file take turns (an audit log of a day has many writers). With `at`, as `Tree.append`
    says.
    """
    if at is not None and ground.status(path) is None:
        raise ContentChanged(f"{path} is gone", hint="bayou datastore sync brings back what was lost here")
    ground.make(path, gained, lambda spot: _append(spot, data, at))
    gained.add(path.rpartition("/")[0])


def _append(spot: Spot, data: bytes, at: int | None) -> None:
    """Append in turn; `FileNotFoundError`, to try again, if the file changed hands while this waited for its turn."""
    descriptor, created = _open(spot)
    try:
        # Held for one write and one sync, and given back by the kernel should this process die.
        lock_descriptor(descriptor, timeout=None)
        status = os.fstat(descriptor)
        if status.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "deleted or replaced", spot.path)
        end = status.st_size if at is None else _cut(descriptor, status.st_size, at, spot.path)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, end)
                if created and end == 0:
                    os.unlink(spot.name, dir_fd=spot.directory)
            raise
    finally:
        os.close(descriptor)


def _cut(descriptor: int, size: int, at: int, path: str) -> int:
    """Cut off what lies beyond `at`."""
    if size < at:
        raise ContentChanged(
            f"{path} has {size} bytes, and had {at}", hint="bayou datastore verify says whether it is what was stored"
        )
    if size > at:
        os.ftruncate(descriptor, at)
    return at


def _open(spot: Spot) -> tuple[int, bool]:
    """Open a file to append to; say whether it was made for that."""
    try:
        return os.open(spot.name, _APPEND, dir_fd=spot.directory), False
    except FileNotFoundError:
        pass
    try:
        return os.open(spot.name, _APPEND | os.O_CREAT | os.O_EXCL, spot.file_mode, dir_fd=spot.directory), True
    except FileExistsError:
        raise FileNotFoundError(errno.ENOENT, "made by somebody else meanwhile", spot.path) from None
