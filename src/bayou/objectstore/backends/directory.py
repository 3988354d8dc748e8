"""A transport for a shared directory, with real compare-and-swap.

An object is a file; a write makes a temporary file and renames it. obstore's local store has no compare-and-swap, so
this transport checks conditions itself, under a file lock that all hosts respect that mount the directory.

The ETag is the file's mtime and size. A write sets an mtime greater than that of the file it replaces, whatever the
clock and the file system's resolution, so no version of an object ever looks like an earlier one.

A symbolic link is neither an object nor a directory: a user who may write here must not make others read or write
elsewhere. So the transport reaches every file below the root through descriptors (`directory_paths`), never by path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bayou.core.atomic_file import fsync_directory
from bayou.core.errors import (
    AlreadyExists,
    BadAnswer,
    DeleteFailed,
    NotFound,
    PreconditionFailed,
    Rejected,
    StoreError,
    TooLarge,
    Unavailable,
)
from bayou.core.ids import ulid
from bayou.objectstore.backends.directory_files import (
    create_file,
    from_os,
    lock_file,
    make_newer,
    no_directory,
    open_file,
    os_reason,
    require_file,
)
from bayou.objectstore.backends.directory_paths import (
    entries,
    file_status,
    is_reserved,
    open_below,
    opened,
    reserved_name,
    walk,
)
from bayou.objectstore.transport import Condition, Create, DirectoryListing, GetResult, ObjectMeta, PutResult

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE = 1000
_TRIES = 1000
"""Attempts to create a directory that other processes keep removing: some milliseconds."""
_LOCKS = reserved_name("locks")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalTransport:
    """A transport over a directory, which must exist or whose parent must; `locks` overrides where lock files are."""

    sorted_listing = True
    delete_batch = 1000

    def __init__(self, root: Path, *, locks: Path | None = None) -> None:
        self._root = root
        self._locks = (locks or root / _LOCKS).relative_to(root).parts
        self._unsynced: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()
        self._syncing = threading.Lock()

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        most: int | None = None,
        timeout: float,
    ) -> GetResult | None:
        with self._errors("GET", key), self._file(key) as file:
            meta = _meta(key, os.fstat(file.fileno()))
            if if_match is not None and if_match != meta.etag:
                raise PreconditionFailed(f"{key} has changed")
            if if_none_match is not None and if_none_match == meta.etag:
                return None
            if most is not None and meta.size > most:
                raise TooLarge.of(key, meta.size, most)
            start, end = span or (0, meta.size)
            if span is not None and start >= min(end, meta.size):
                raise Rejected(f"GET {key}: no bytes {start} to {end} in an object of {meta.size}")
            file.seek(start)
            data = file.read(min(end, meta.size) - start)
            # V2: another program may write to the file in place.
            if len(data) != min(end, meta.size) - start or _meta(key, os.fstat(file.fileno())) != meta:
                raise BadAnswer(f"{key} changed while it was read", hint="try again")
            return GetResult(meta, data, {})

    def get_limited(
        self,
        key: str,
        most: int,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> GetResult | None:
        return self.get(key, if_match=if_match, if_none_match=if_none_match, most=most, timeout=timeout)

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        with self._errors("HEAD", key):
            *directories, name = _names(key)
            with opened(self._root, directories, key) as directory:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            require_file(status, key)
            return _meta(key, status)

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        return self._write(key, (data,), condition, timeout)

    def put_chunks(
        self,
        key: str,
        chunks: Iterable[Buffer],
        *,
        part_size: int,
        parallel: int,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        return self._write(key, chunks, None, timeout)

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        with self._errors("LIST", prefix):
            before = self._identity()
            page: list[ObjectMeta] = []
            for key, status in walk(self._root, _directories(prefix), prefix, after):
                page.append(_meta(key, status))
                if len(page) == PAGE:
                    yield page
                    page = []
            # V4: a directory that was unmounted meanwhile looked like one that had just been removed.
            if self._identity() != before:
                raise Unavailable(f"{self._root} was exchanged while it was listed", hint="try again")
            if page:
                yield page

    def list_directory(self, prefix: str, *, timeout: float) -> DirectoryListing:
        with self._errors("LIST", prefix):
            self._identity()
            directories = _directories(prefix)
            try:
                with opened(self._root, directories, prefix) as directory:
                    found = entries(directory, prefix)
            except (FileNotFoundError, NotADirectoryError):
                found = []
        names = [name for key, name in found if not key.endswith("/")]
        return DirectoryListing(
            [key for key, _ in found if key.endswith("/")], self._objects(prefix, directories, names)
        )

    def _objects(self, prefix: str, directories: Sequence[str], names: Sequence[str]) -> Iterator[ObjectMeta]:
        with self._errors("LIST", prefix):
            if not names:
                return
            try:
                with opened(self._root, directories, prefix) as directory:
                    for name in names:
                        if (status := file_status(directory, name)) is not None:
                            yield _meta(f"{prefix}{name}", status)
            except (FileNotFoundError, NotADirectoryError):
                self._identity()  # V4: only the directory is gone, not the store

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        failed: dict[str, StoreError] = {}
        for key in keys:
            try:
                with self._errors("DELETE", key):
                    *directories, name = _names(key)
                    with opened(self._root, directories, key) as directory:
                        os.unlink(name, dir_fd=directory)
                    self._prune(directories, key)
            except NotFound:
                continue
            except StoreError as error:
                failed[key] = error
        if failed:
            raise DeleteFailed(failed)

    def _write(self, key: str, chunks: Iterable[Buffer], condition: Condition | None, timeout: float) -> PutResult:
        with self._errors("PUT", key):
            *directories, name = _names(key)
            if condition is not None:
                self._require_early(directories, name, condition, key)
            temporary = reserved_name(ulid())
            directory, file = self._create(directories, temporary, key)
            try:
                with file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                    if condition is None:
                        return self._replace(directory, directories, file.fileno(), temporary, name)
                    # V11: the objects that a head names are durable before the head is.
                    self._sync_directories()
                    with self._locked(key, timeout):
                        return self._swap(directory, file.fileno(), temporary, name, condition, key)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                os.close(directory)

    def _replace(self, directory: int, directories: Sequence[str], file: int, temporary: str, name: str) -> PutResult:
        with contextlib.suppress(FileNotFoundError):
            make_newer(file, os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns)
        stored = _stored(os.fstat(file))
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        with self._lock:
            self._unsynced.add(tuple(directories))
        return stored

    def _swap(self, directory: int, file: int, temporary: str, name: str, condition: Condition, key: str) -> PutResult:
        """Rename the new file to its name if the condition holds. The caller holds the object's lock (V1)."""
        make_newer(file, self._require(directory, name, condition, key))
        if isinstance(condition, Create):
            _create_as(directory, temporary, name, key)
        else:
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        try:
            fsync_directory(directory)
            return _stored(os.fstat(file))
        except OSError as error:  # the new object is visible already, so this is no plain failure
            raise Unavailable(f"PUT {key}: {os_reason(error)}", hint="check the file system, and try again") from None

    def _require_early(self, directories: Sequence[str], name: str, condition: Condition, key: str) -> None:
        """Raise before the write if the condition does not hold now."""
        try:
            with opened(self._root, directories, key) as directory:
                self._require(directory, name, condition, key)
        except FileNotFoundError:
            self._require_absent(condition, key)

    def _require(self, directory: int, name: str, condition: Condition, key: str) -> int:
        """Return the mtime that the next version must exceed, or raise if the condition does not hold."""
        try:
            current = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            self._require_absent(condition, key)
            return 0
        if stat.S_ISDIR(current.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a directory", name)
        if isinstance(condition, Create):
            raise AlreadyExists(f"{key} exists already")
        if _etag(current) != condition.etag:
            raise PreconditionFailed(f"{key} has changed")
        return current.st_mtime_ns

    def _require_absent(self, condition: Condition, key: str) -> None:
        """Raise unless the condition is `Create`; the object does not exist."""
        if isinstance(condition, Create):
            return
        if not self._root.is_dir():
            raise no_directory(self._root)
        raise PreconditionFailed(f"{key} is gone")

    @contextlib.contextmanager
    def _locked(self, key: str, timeout: float) -> Iterator[None]:
        """Hold the lock of a key. Keys share 256 lock files, because lock files cannot be removed."""
        directory = open_below(self._root, self._locks, key, make=True)
        try:
            lock = lock_file(directory, f"{zlib.crc32(os.fsencode(key)) & 0xFF:02x}", key, timeout)
        finally:
            os.close(directory)
        try:
            yield
        finally:
            os.close(lock)

    def _file(self, key: str) -> BinaryIO:
        *directories, name = _names(key)
        with opened(self._root, directories, key) as directory:
            return open_file(directory, name, key)

    def _create(self, directories: Sequence[str], temporary: str, key: str) -> tuple[int, BinaryIO]:
        """Open the directory of an object and create a file in it; make the directory, again if a delete removes it."""
        for _ in range(_TRIES):
            try:
                directory = open_below(self._root, directories, key, make=True)
            except FileNotFoundError:
                self._make_root()
                continue
            try:
                return directory, create_file(directory, temporary)
            except FileNotFoundError:
                os.close(directory)
            except BaseException:
                os.close(directory)
                raise
        raise Unavailable(f"the directory of {key} keeps vanishing", hint="try again")

    def _make_root(self) -> None:
        """Make the root if it is missing, but not its parents: the file system may not be mounted."""
        if not self._root.parent.is_dir():
            raise no_directory(self._root)
        with contextlib.suppress(FileExistsError):
            self._root.mkdir()

    def _prune(self, directories: Sequence[str], key: str) -> None:
        """Remove the directories that a delete emptied, up to the root."""
        for depth in range(len(directories) - 1, -1, -1):
            try:
                with opened(self._root, directories[:depth], key) as above:
                    os.rmdir(directories[depth], dir_fd=above)
            except (OSError, Rejected):
                return  # it is not empty, or not a directory any more

    def _sync_directories(self) -> None:
        """Make the names of this process's unconditional writes durable; wait while another thread does it."""
        with self._syncing:
            with self._lock:
                directories, self._unsynced = self._unsynced, set()
            try:
                for directory in directories:
                    self._sync(directory)
            except BaseException:
                with self._lock:
                    self._unsynced |= directories
                raise

    def _sync(self, directories: Sequence[str]) -> None:
        with (
            contextlib.suppress(FileNotFoundError),
            opened(self._root, directories, "/".join(directories)) as directory,
        ):
            fsync_directory(directory)

    def _identity(self) -> tuple[int, int]:
        status = os.stat(self._root)
        if not stat.S_ISDIR(status.st_mode):
            raise no_directory(self._root)
        return status.st_dev, status.st_ino

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise from_os(error, verb, key, self._root) from None


def _create_as(directory: int, temporary: str, name: str, key: str) -> None:
    """Give the new file its name if no file has it, not even one of a program that ignores the lock."""
    try:
        # Follow no link: another user of the directory may have replaced the new file by one.
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        raise AlreadyExists(f"{key} exists already") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: there only the lock excludes other writers.
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def _names(key: str) -> list[str]:
    """Return the directories and the name of a key's file; raise `Rejected` if no file can have it (V9, V21)."""
    names = key.split("/")
    if any(name in ("", ".", "..") or is_reserved(name) for name in names) or "\0" in key or not _encodable(key):
        raise Rejected(f"{key!r} does not name a file of a directory store")
    return names


def _directories(prefix: str) -> list[str]:
    """Return the directories of a prefix, which is empty or ends in a `/`."""
    return _names(f"{prefix}*")[:-1]


def _encodable(key: str) -> bool:
    try:
        os.fsencode(key)
    except UnicodeEncodeError:
        return False
    return True


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def _stored(status: os.stat_result) -> PutResult:
    return PutResult(_etag(status), None)


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, status.st_size, _etag(status), None, status.st_mtime_ns // 1_000_000)
