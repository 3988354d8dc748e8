"""What a file system says becomes an error of ours, once, here."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from bayou.core.errors import AccessDenied, NoSuchBucket, NotFound, Rejected, StoreError, Unavailable

_PASSING = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EHOSTDOWN)
_NEXT = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "mount it so that it can be written",
    errno.ENOLCK: "use a file system that has locks",
    errno.ENOSYS: "use a file system that has locks",
}


def from_os(error: OSError, verb: str, key: str, root: Path) -> StoreError:
    """Turn a failure of a request to the directory `root` into one error of ours."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | FileExistsError):
        return _absent(error, verb, key, root)
    if isinstance(error, PermissionError):
        return AccessDenied(f"{verb} {key} in {root}: permission denied", hint="give this user access to the directory")
    if error.errno == errno.ELOOP:
        return a_link(key)
    if error.errno in _PASSING:
        return Unavailable(f"{verb} {key}: {why(error)}", hint="check the file system, and try again")
    return Rejected(f"{verb} {key}: {why(error)}", hint=_NEXT.get(error.errno or 0))


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


def a_link(key: str) -> Rejected:
    return Rejected(
        f"{key} is, or lies behind, a symbolic link, and a store follows none",
        hint="put the files themselves there, or mount their directory",
    )


def why(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
