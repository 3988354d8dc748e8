"""A file on its way to its place: a temporary beside it until it is whole and durable.

Add to the end of a file, all or nothing.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from bayou.core.errors import BayouError, ContentChanged
from bayou.core.file_lock import lock_descriptor
from bayou.core.ids import ulid
from bayou.worktree.durability import translate_oserror
from bayou.worktree.safe_root import DirEntryRef, SafeRoot

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PREFIX, _SUFFIX = ".bayou-", ".tmp"
_MADE = re.compile(r"\.bayou-[0-9A-HJKMNP-TV-Z]{26}\.tmp", re.ASCII)
_BUFFER = 1 << 17


def temporary_name() -> str:
    """Return a name that no payload may have and no other file has."""
    return f"{_PREFIX}{ulid()}{_SUFFIX}"


def is_temporary(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def is_made(name: str) -> bool:
    """Whether a name is one that `temporary_name` gives, and nobody else thinks of."""
    return _MADE.fullmatch(name) is not None


def made_id(name: str) -> str:
    """Return the ULID in such a name: it tells when it was given."""
    return name.removeprefix(_PREFIX).removesuffix(_SUFFIX)


class OutFile(io.FileIO):
    """A file being written, whose failures are explained where they happen, in whatever code writes to it."""

    def __init__(self, descriptor: int, what: str, *, closefd: bool) -> None:
        super().__init__(descriptor, "wb", closefd=closefd)
        self._what = what

    def write(self, data: Buffer, /) -> int:
        with translate_oserror(self._what):
            return os.write(self.fileno(), data)


class AtomicFile:
    """The `with` block of one temporary file. Unless `place` was reached, nothing of it stays behind (V14)."""

    def __init__(self, ground: SafeRoot, path: str, gained: set[str]) -> None:
        self.path = path
        self._ground = ground
        self._gained = gained
        self._temporary = temporary_name()
        self._what = f"cannot write {path}"
        self._descriptor = -1
        self._placed = False
        self.file: BinaryIO

    def __enter__(self) -> AtomicFile:
        try:
            with translate_oserror(self._what):
                self._descriptor = self._ground.make(self.path, self._gained, self._create)
            # The descriptor is ours: it can be synced also when the caller has closed the file.
            raw = OutFile(self._descriptor, self._what, closefd=False)
            self.file = io.BufferedWriter(raw, _BUFFER)
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._placed:
            with contextlib.suppress(BayouError, OSError):
                self.file.close()
            self._discard()

    def seal(self) -> None:
        """End the writing, and make the content durable."""
        self.file.close()
        with translate_oserror(self._what):
            os.fsync(self._descriptor)
            self._close()

    def place(self) -> None:
        """Give the file its name, in one step. It must be sealed: a name never stands for half a file."""
        with translate_oserror(self._what), self._ground.spot(self.path) as spot:
            spot.check_free()
            os.replace(self._temporary, spot.name, src_dir_fd=spot.directory, dst_dir_fd=spot.directory)
        self._placed = True
        self._gained.add(self.path.rpartition("/")[0])

    def _create(self, spot: DirEntryRef) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(self._temporary, flags, spot.file_mode, dir_fd=spot.directory)

    def _discard(self) -> None:
        """Remove what there is; what cannot be removed is a temporary that everybody ignores."""
        with contextlib.suppress(BayouError, OSError):
            self._close()
        with contextlib.suppress(BayouError, OSError), self._ground.spot(self.path) as spot:
            os.unlink(self._temporary, dir_fd=spot.directory)
        self._ground.prune(self.path)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


def append(ground: SafeRoot, path: str, data: bytes, gained: set[str], at: int | None = None) -> None:
    """Append `data` durably, making the file if there is none; if that fails, the file is as it was.

    Processes that append to one file take turns (an audit log of a day has many writers). With `at`, as `Tree.append`
    says.
    """
    if at is not None and ground.status(path) is None:
        raise ContentChanged(f"{path} is gone", hint="bayou datastore sync brings back what was lost here")
    ground.make(path, gained, lambda spot: _append(spot, data, at))
    gained.add(path.rpartition("/")[0])


def _append(spot: DirEntryRef, data: bytes, at: int | None) -> None:
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


def _open(spot: DirEntryRef) -> tuple[int, bool]:
    """Open a file to append to; say whether it was made for that."""
    try:
        return os.open(spot.name, _APPEND, dir_fd=spot.directory), False
    except FileNotFoundError:
        pass
    try:
        return os.open(spot.name, _APPEND | os.O_CREAT | os.O_EXCL, spot.file_mode, dir_fd=spot.directory), True
    except FileExistsError:
        raise FileNotFoundError(errno.ENOENT, "made by somebody else meanwhile", spot.path) from None
