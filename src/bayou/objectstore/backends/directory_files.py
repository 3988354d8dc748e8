"""The files of a directory store: open, create, lock, and set an mtime that only grows.

`from_os` translates the errors of the file system to Bayou's; no other module does.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import BinaryIO

from bayou.core.errors import AccessDenied, NoSuchBucket, NotFound, Rejected, StoreError, TimedOut, Unavailable
from bayou.core.file_lock import lock_descriptor

_TRANSIENT = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EHOSTDOWN)
_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "mount it so that it can be written",
    errno.ENOLCK: "use a file system that has locks",
    errno.ENOSYS: "use a file system that has locks",
}
_NS_STEPS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
_POLL_S = 0.002
# Not blocking: a named pipe in the store must not make a reader wait.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODE = 0o666
"""Reduced by the umask: the file system's rules decide who shares a directory."""


def open_file(directory: int, name: str, key: str) -> BinaryIO:
    """Open a file of an open directory for reading; raise `FileNotFoundError` if it is not a plain file."""
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        require_file(os.fstat(descriptor), key)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def create_file(directory: int, name: str) -> BinaryIO:
    """Create a file in an open directory."""
    descriptor = os.open(name, _CREATE, _MODE, dir_fd=directory)
    try:
        return open(descriptor, "wb")
    except BaseException:
        os.close(descriptor)
        os.unlink(name, dir_fd=directory)
        raise


def require_file(status: os.stat_result, key: str) -> None:
    """Raise unless the status is that of a plain file."""
    if stat.S_ISLNK(status.st_mode):
        raise link_refused(key)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a file", key)


def lock_file(directory: int, name: str, key: str, timeout: float) -> int:
    """Lock the file of that name, for all hosts that mount the directory; return a descriptor that the holder closes.

    The lock file stays: removing it would let two holders in. Each call opens the file, so two threads of one process
    exclude each other too. Raise `TimedOut` if the lock stays held for `timeout` seconds.
    """
    ends = time.monotonic() + timeout
    while True:
        descriptor = os.open(name, _LOCK, _MODE, dir_fd=directory)
        try:
            if not lock_descriptor(descriptor, ends - time.monotonic(), poll_s=_POLL_S):
                raise _still_locked(key)
            linked = os.fstat(descriptor).st_nlink > 0
        except BaseException:
            os.close(descriptor)
            raise
        if linked:
            return descriptor
        os.close(descriptor)  # another program removed the file, so this lock excludes no other holder
        if time.monotonic() > ends:
            raise _still_locked(key)


def _still_locked(key: str) -> TimedOut:
    return TimedOut(f"{key} stayed locked", hint="another process is writing; try again")


def make_newer(file: int, than_ns: int) -> None:
    """Give an open file an mtime after `than_ns`, also where the file system keeps only seconds."""
    now = max(time.time_ns(), than_ns)
    for step in _NS_STEPS:
        os.utime(file, ns=(now + step, now + step))
        if os.fstat(file).st_mtime_ns > than_ns:
            return
    raise Rejected("the file system of the store does not keep the times of files")


def from_os(error: OSError, verb: str, key: str, root: Path) -> StoreError:
    """Translate a failed request to the directory `root` to an error of Bayou."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | FileExistsError):
        return _absent(error, verb, key, root)
    if isinstance(error, PermissionError):
        return AccessDenied(f"{verb} {key} in {root}: permission denied", hint="give this user access to the directory")
    if error.errno == errno.ELOOP:
        return link_refused(key)
    if error.errno in _TRANSIENT:
        return Unavailable(f"{verb} {key}: {os_reason(error)}", hint="check the file system, and try again")
    return Rejected(f"{verb} {key}: {os_reason(error)}", hint=_HINTS.get(error.errno or 0))


def _absent(error: OSError, verb: str, key: str, root: Path) -> StoreError:
    # V4: a directory that is not mounted is not an empty store.
    if not root.is_dir():
        return no_directory(root)
    if verb != "PUT":
        return NotFound(f"no such key: {key}")
    if isinstance(error, FileNotFoundError):
        return Unavailable(f"PUT {key}: its directory vanished", hint="try again")
    return Rejected(f"PUT {key}: in a directory, no name can be both an object and a prefix of one")


def no_directory(root: Path) -> NoSuchBucket:
    return NoSuchBucket(f"there is no directory {root}", hint="check the path, or mount or create it")


def link_refused(key: str) -> Rejected:
    return Rejected(
        f"{key} is, or lies behind, a symbolic link, and a store follows none",
        hint="put the files themselves there, or mount their directory",
    )


def os_reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
