"""A shared directory as an object store, with real compare-and-swap.

An object is a file; writing is a temporary file and a rename. obstore's own local store cannot swap, so conditions are
checked here, under a lock file that `filelock` takes on every host that mounts the directory.

The ETag is the file's mtime and size. A swap sets an mtime that is greater than the one it replaces, whatever the
clock and the file system's resolution, so that no version of an object ever looks like an earlier one.

A symbolic link is no object and no directory: whoever may write here must not make others read or write elsewhere.
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

from filelock import FileLock, Timeout

from bayou.errors import (
    AlreadyExists,
    BadAnswer,
    DeleteFailed,
    NotFound,
    PreconditionFailed,
    Rejected,
    StoreError,
    TimedOut,
    TooLarge,
    Unavailable,
)
from bayou.ids import ulid
from bayou.store.local_errors import a_link, from_os, no_directory, why
from bayou.store.local_files import entries, is_ours, make_newer, our_name, sync_directory, walk
from bayou.store.transport import Condition, Create, Fetched, Level, ObjectMeta, Stored

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PAGE = 1000
_TRIES = 1000
"""To make a directory that others keep removing: some milliseconds."""
_LOCKS = our_name("locks")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalTransport:
    """A transport over a directory that must exist, or whose parent must; `locks` is where lock files go instead."""

    sorted_listing = True
    delete_batch = 1000

    def __init__(self, root: Path, *, locks: Path | None = None) -> None:
        self._root = root
        self._locks = locks or root / _LOCKS
        self._unsynced: set[Path] = set()
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
        timeout: float,
    ) -> Fetched | None:
        return self._get(key, span, if_match, if_none_match, None)

    def get_limited(
        self,
        key: str,
        most: int,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> Fetched | None:
        return self._get(key, None, if_match, if_none_match, most)

    def _get(
        self,
        key: str,
        span: tuple[int, int] | None,
        if_match: str | None,
        if_none_match: str | None,
        most: int | None,
    ) -> Fetched | None:
        with self._errors("GET", key), self._open(key) as file:
            meta = _meta(key, os.fstat(file.fileno()))
            if if_match is not None and if_match != meta.etag:
                raise PreconditionFailed(f"{key} has changed")
            if if_none_match is not None and if_none_match == meta.etag:
                return None
            if most is not None and meta.size > most:
                raise TooLarge(key, meta.size, most)
            start, end = span or (0, meta.size)
            if span is not None and start >= min(end, meta.size):
                raise Rejected(f"GET {key}: no bytes {start} to {end} in an object of {meta.size}")
            file.seek(start)
            data = file.read(min(end, meta.size) - start)
            # V2: another program may write to the file itself.
            if len(data) != min(end, meta.size) - start or _meta(key, os.fstat(file.fileno())) != meta:
                raise BadAnswer(f"{key} changed while it was read", hint="try again")
            return Fetched(meta, data, {})

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        with self._errors("HEAD", key):
            status = os.lstat(self._path(key))
            _require_file(status, key)
            return _meta(key, status)

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Stored:
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
    ) -> Stored:
        return self._write(key, chunks, None, timeout)

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        with self._errors("LIST", prefix):
            before = self._identity()
            start = self._path(f"{prefix}*").parent if prefix else self._root
            page: list[ObjectMeta] = []
            for key, status in walk(start, prefix, after):
                page.append(_meta(key, status))
                if len(page) == _PAGE:
                    yield page
                    page = []
            # V4: what was unmounted meanwhile looked like directories that had just been removed.
            if self._identity() != before:
                raise Unavailable(f"{self._root} was exchanged while it was listed", hint="try again")
            if page:
                yield page

    def level(self, prefix: str, *, timeout: float) -> Level:
        with self._errors("LIST", prefix):
            self._identity()
            found = list(entries(self._path(f"{prefix}*").parent if prefix else self._root, prefix))
        files = (entry for key, entry in found if not key.endswith("/"))
        return Level([key for key, _ in found if key.endswith("/")], self._objects(prefix, files))

    def _objects(self, prefix: str, files: Iterable[os.DirEntry[str]]) -> Iterator[ObjectMeta]:
        with self._errors("LIST", prefix):
            for entry in files:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        yield _meta(f"{prefix}{entry.name}", entry.stat(follow_symlinks=False))

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        failed: dict[str, StoreError] = {}
        for key in keys:
            try:
                with self._errors("DELETE", key):
                    path = self._path(key)
                    path.unlink()
                    self._prune(path.parent)
            except NotFound:
                continue
            except StoreError as error:
                failed[key] = error
        if failed:
            raise DeleteFailed(failed)

    def _write(self, key: str, chunks: Iterable[Buffer], condition: Condition | None, timeout: float) -> Stored:
        with self._errors("PUT", key):
            target = self._path(key)
            if condition is not None:
                self._require(target, condition, key)  # who has lost already need not write
            temporary = target.with_name(our_name(ulid()))
            try:
                with self._create(temporary) as file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                if condition is None:
                    return self._replace(temporary, target)
                # V11: what a head names is on the disk before the head is.
                self._sync_directories()
                with self._locked(key, timeout):
                    return self._swap(temporary, target, condition, key)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def _replace(self, temporary: Path, target: Path) -> Stored:
        with contextlib.suppress(FileNotFoundError):
            make_newer(temporary, os.lstat(target).st_mtime_ns)
        stored = _stored(os.stat(temporary))
        os.replace(temporary, target)
        with self._lock:
            self._unsynced.add(target.parent)
        return stored

    def _swap(self, temporary: Path, target: Path, condition: Condition, key: str) -> Stored:
        """Put the new file in place if the condition holds. Called under the object's lock (V1)."""
        make_newer(temporary, self._require(target, condition, key))
        if isinstance(condition, Create):
            _create_as(temporary, target, key)
        else:
            os.replace(temporary, target)
        try:
            sync_directory(target.parent)
            return _stored(os.lstat(target))
        except OSError as error:  # too late for a plain no: everybody sees the new object
            raise Unavailable(f"PUT {key}: {why(error)}", hint="check the file system, and try again") from None

    def _require(self, target: Path, condition: Condition, key: str) -> int:
        """Return the mtime that the next version must exceed, or raise if the condition does not hold."""
        try:
            current = os.lstat(target)
        except FileNotFoundError:
            if isinstance(condition, Create):
                return 0
            if not self._root.is_dir():
                raise no_directory(self._root) from None
            raise PreconditionFailed(f"{key} is gone") from None
        if stat.S_ISDIR(current.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a directory", str(target))
        if isinstance(condition, Create):
            raise AlreadyExists(f"{key} exists already")
        if _etag(current) != condition.etag:
            raise PreconditionFailed(f"{key} has changed")
        return current.st_mtime_ns

    @contextlib.contextmanager
    def _locked(self, key: str, timeout: float) -> Iterator[None]:
        """Hold the lock of a key. Some keys share one: locks cannot be removed, so there are not as many as keys."""
        self._locks.mkdir(exist_ok=True)
        # A lock object of its own each time: two threads of one process exclude each other too.
        lock = FileLock(
            str(self._locks / f"{zlib.crc32(os.fsencode(key)) & 0xFF:02x}"),
            timeout=timeout,
            poll_interval=0.002,
            thread_local=False,
            fallback_to_soft=False,  # a lock that outlives its process would block everybody
            preserve_lock_file=True,  # removing it would let two holders in
        )
        try:
            lock.acquire()
        except Timeout:
            raise TimedOut(f"{key} stayed locked", hint="another process is writing; try again") from None
        try:
            yield
        finally:
            lock.release()

    def _open(self, key: str) -> BinaryIO:
        # Not blocking: a pipe that somebody left here must not hold us up.
        descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _require_file(os.fstat(descriptor), key)
            return open(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def _create(self, temporary: Path) -> BinaryIO:
        """Open a new file, making its directory; a delete may remove an empty one at the same moment."""
        for _ in range(_TRIES):
            try:
                return open(temporary, "xb")
            except FileNotFoundError:
                self._require_parent()
                # Both may be said of a directory that is there and gone again; if something else is in the way, `open`
                # says so.
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    temporary.parent.mkdir(parents=True, exist_ok=True)
        raise Unavailable(f"{temporary.parent.name} keeps vanishing", hint="try again")

    def _path(self, key: str) -> Path:
        """Return the file of a key; `Rejected` where there can be none, or a link leads elsewhere (V9, V21)."""
        names = key.split("/")
        if any(name in ("", ".", "..") or is_ours(name) for name in names) or "\0" in key or not _encodable(key):
            raise Rejected(f"{key!r} does not name a file of a directory store")
        path = self._root
        for name in names[:-1]:
            path /= name
            if os.path.islink(path):
                raise a_link(key)
        return path / names[-1]

    def _prune(self, directory: Path) -> None:
        """Remove directories that a delete has emptied, up to the root."""
        while directory != self._root and self._root in directory.parents:
            try:
                directory.rmdir()
            except OSError:
                return
            directory = directory.parent

    def _sync_directories(self) -> None:
        """Make the plain writes of this process durable. Who comes while another does it waits until it is done."""
        with self._syncing:
            with self._lock:
                directories, self._unsynced = self._unsynced, set()
            try:
                for directory in directories:
                    with contextlib.suppress(FileNotFoundError):
                        sync_directory(directory)
            except BaseException:
                with self._lock:
                    self._unsynced |= directories
                raise

    def _identity(self) -> tuple[int, int]:
        status = os.stat(self._root)
        if not stat.S_ISDIR(status.st_mode):
            raise no_directory(self._root)
        return status.st_dev, status.st_ino

    def _require_parent(self) -> None:
        if not self._root.parent.is_dir():
            raise no_directory(self._root)

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise from_os(error, verb, key, self._root) from None


def _create_as(temporary: Path, target: Path, key: str) -> None:
    """Give the new file its name, if nobody has it; also not one who writes here without our lock."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise AlreadyExists(f"{key} exists already") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(temporary, target)  # a file system without links: there the lock alone keeps others out


def _require_file(status: os.stat_result, key: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise a_link(key)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a file", key)


def _encodable(key: str) -> bool:
    try:
        os.fsencode(key)
    except UnicodeEncodeError:
        return False
    return True


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def _stored(status: os.stat_result) -> Stored:
    return Stored(_etag(status), None)


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, status.st_size, _etag(status), None, status.st_mtime_ns // 1_000_000)
