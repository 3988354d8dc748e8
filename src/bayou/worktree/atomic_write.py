"""Atomic changes of one file: replace it by rename (`AtomicFile`), or append to it all or nothing (`append`).

A replacement is written to a temporary file in the same directory, made durable, and renamed. The names of temporary
files can never be payload; a scan ignores them, and `staging.remove_abandoned` deletes those of writers that are gone.
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
_GENERATED = re.compile(r"\.bayou-[0-9A-HJKMNP-TV-Z]{26}\.tmp", re.ASCII)
_BUFFER = 1 << 17
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


def temporary_name() -> str:
    """Return a unique name that no payload may have."""
    return f"{_PREFIX}{ulid()}{_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Return whether a name begins and ends like that of a temporary file."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def is_generated(name: str) -> bool:
    """Return whether a name is exactly of the form that `temporary_name` returns."""
    return _GENERATED.fullmatch(name) is not None


def temporary_ulid(name: str) -> str:
    """Return the ULID in a name that `temporary_name` returned; it holds the time of that call."""
    return name.removeprefix(_PREFIX).removesuffix(_SUFFIX)


class OutFile(io.FileIO):
    """A file being written, which raises `TreeError` instead of `OSError` in whatever code writes to it."""

    def __init__(self, descriptor: int, what: str, *, closefd: bool) -> None:
        super().__init__(descriptor, "wb", closefd=closefd)
        self._what = what

    def write(self, data: Buffer, /) -> int:
        with translate_oserror(self._what):
            return os.write(self.fileno(), data)


class AtomicFile:
    """A temporary file, for a `with` block. Unless `rename` succeeded, nothing of it stays behind (V14)."""

    def __init__(self, safe_root: SafeRoot, path: str, changed_dirs: set[str]) -> None:
        self.path = path
        self._safe_root = safe_root
        self._changed_dirs = changed_dirs
        self._temporary = temporary_name()
        self._what = f"cannot write {path}"
        self._descriptor = -1
        self._renamed = False
        self.file: BinaryIO

    def __enter__(self) -> AtomicFile:
        try:
            with translate_oserror(self._what):
                self._descriptor = self._safe_root.create(self.path, self._changed_dirs, self._create)
            # This object owns the descriptor, to sync it also after the caller has closed the file.
            raw = OutFile(self._descriptor, self._what, closefd=False)
            self.file = io.BufferedWriter(raw, _BUFFER)
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._renamed:
            with contextlib.suppress(BayouError, OSError):
                self.file.close()
            self._discard()

    def seal(self) -> None:
        """Close the file, and make the content durable."""
        self.file.close()
        with translate_oserror(self._what):
            os.fsync(self._descriptor)
            self._close()

    def rename(self) -> None:
        """Give the file its final name, atomically. It must be sealed: a name never stands for half a file."""
        with translate_oserror(self._what), self._safe_root.locate(self.path) as ref:
            ref.check_free()
            os.replace(self._temporary, ref.name, src_dir_fd=ref.directory, dst_dir_fd=ref.directory)
        self._renamed = True
        self._changed_dirs.add(self.path.rpartition("/")[0])

    def _create(self, ref: DirEntryRef) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(self._temporary, flags, ref.file_mode, dir_fd=ref.directory)

    def _discard(self) -> None:
        """Delete the temporary file; if that fails, it stays as a temporary, which every scan ignores."""
        with contextlib.suppress(BayouError, OSError):
            self._close()
        with contextlib.suppress(BayouError, OSError), self._safe_root.locate(self.path) as ref:
            os.unlink(self._temporary, dir_fd=ref.directory)
        self._safe_root.prune(self.path)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def append(safe_root: SafeRoot, path: str, data: bytes, changed_dirs: set[str], at: int | None = None) -> None:
    """Append `data` durably, creating the file if there is none; if that fails, the file is unchanged.

    Processes that append to one file wait for each other (an audit log of a day has many writers). `Worktree.append`
    documents `at`.
    """
    if at is not None and safe_root.lstat(path) is None:
        raise ContentChanged(f"{path} is gone", hint="bayou datastore sync brings back what was lost here")
    safe_root.create(path, changed_dirs, lambda ref: _append(ref, data, at))
    changed_dirs.add(path.rpartition("/")[0])


def _append(ref: DirEntryRef, data: bytes, at: int | None) -> None:
    """Append under the file's lock; `FileNotFoundError`, to try again, if the file was replaced in the meantime."""
    descriptor, created = _open(ref)
    try:
        # Held for one write and one sync; the kernel releases the lock if this process dies.
        lock_descriptor(descriptor, timeout=None)
        status = os.fstat(descriptor)
        if status.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "deleted or replaced", ref.path)
        end = status.st_size if at is None else _truncate(descriptor, status.st_size, at, ref.path)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, end)
                if created and end == 0:
                    os.unlink(ref.name, dir_fd=ref.directory)
            raise
    finally:
        os.close(descriptor)


def _truncate(descriptor: int, size: int, at: int, path: str) -> int:
    """Cut off the bytes beyond `at`; `ContentChanged` if the file is shorter."""
    if size < at:
        raise ContentChanged(
            f"{path} has {size} bytes, and had {at}", hint="bayou datastore verify says whether it is what was stored"
        )
    if size > at:
        os.ftruncate(descriptor, at)
    return at


def _open(ref: DirEntryRef) -> tuple[int, bool]:
    """Open a file to append to; return its descriptor, and whether it was created."""
    try:
        return os.open(ref.name, _APPEND, dir_fd=ref.directory), False
    except FileNotFoundError:
        pass
    try:
        return os.open(ref.name, _APPEND | os.O_CREAT | os.O_EXCL, ref.file_mode, dir_fd=ref.directory), True
    except FileExistsError:
        raise FileNotFoundError(errno.ENOENT, "created by another process meanwhile", ref.path) from None
