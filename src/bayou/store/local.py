"""A shared directory as an object store, with real compare-and-swap.

An object is a file; writing is a temporary file and a rename. obstore's own local store cannot swap, so conditions are
checked here, under a lock file beside the object that `filelock` takes on every host that mounts the directory.

The ETag is the file's mtime and size. A swap sets an mtime that is greater than the one it replaces, whatever the
clock and the file system's resolution, so that no version of an object ever looks like an earlier one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from filelock import FileLock, Timeout

from bayou.errors import (
    AccessDenied,
    AlreadyExists,
    BadAnswer,
    NoSuchBucket,
    NotFound,
    PreconditionFailed,
    Rejected,
    StoreError,
    TimedOut,
    Unavailable,
)
from bayou.ids import ulid
from bayou.store.transport import Condition, Create, Fetched, ObjectMeta, Stored

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PAGE = 1000
_OURS_PREFIX, _OURS_SUFFIX = ".bayou-", ".tmp"
_NS_STEPS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)


class LocalTransport:
    """A transport over a directory that must exist, or whose parent must."""

    sorted_listing = True
    delete_batch = 1000

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unsynced: set[Path] = set()
        self._lock = threading.Lock()

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
        with self._errors("GET", key), open(self._path(key), "rb") as file:
            meta = _meta(key, os.fstat(file.fileno()))
            if if_match is not None and if_match != meta.etag:
                raise PreconditionFailed(f"{key} has changed")
            if if_none_match is not None and if_none_match == meta.etag:
                return None
            start, end = span or (0, meta.size)
            if span is not None and start >= min(end, meta.size):
                raise Rejected(f"GET {key}: no bytes {start} to {end} in an object of {meta.size}")
            file.seek(start)
            data = file.read(min(end, meta.size) - start)
            if len(data) != min(end, meta.size) - start:
                raise BadAnswer(f"{key} changed while it was read", hint="try again")
            return Fetched(meta, data, {})

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        with self._errors("HEAD", key):
            path = self._path(key)
            status = os.lstat(path)
            if not os.path.isfile(path):
                raise IsADirectoryError(errno.EISDIR, "not a file", str(path))
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
            self._require_root()
            page: list[ObjectMeta] = []
            for key, status in self._walk(self._path(prefix.rstrip("/")) if prefix else self._root, prefix, after):
                page.append(_meta(key, status))
                if len(page) == _PAGE:
                    yield page
                    page = []
            if page:
                yield page

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        for key in keys:
            with self._errors("DELETE", key), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path = self._path(key)
                path.unlink()
                self._prune(path.parent)

    def _write(self, key: str, chunks: Iterable[Buffer], condition: Condition | None, timeout: float) -> Stored:
        with self._errors("PUT", key):
            target = self._path(key)
            temporary = self._temporary(target)
            try:
                with self._create(temporary) as file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                if condition is None:
                    with contextlib.suppress(FileNotFoundError):
                        _make_newer(temporary, os.stat(target).st_mtime_ns)
                    stored = _stored(os.stat(temporary))
                    os.replace(temporary, target)
                    with self._lock:
                        self._unsynced.add(target.parent)
                    return stored
                # V11: what a head names is on the disk before the head is.
                self._sync_directories()
                with self._locked(target, timeout):
                    return self._swap(temporary, target, condition, key)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def _swap(self, temporary: Path, target: Path, condition: Condition, key: str) -> Stored:
        """Put the new file in place if the condition holds. Called under the object's lock (V1)."""
        if isinstance(condition, Create):
            try:
                os.link(temporary, target)
            except FileExistsError:
                raise AlreadyExists(f"{key} exists already") from None
        else:
            try:
                current = os.stat(target)
            except FileNotFoundError:
                raise PreconditionFailed(f"{key} is gone") from None
            if _etag(current) != condition.etag:
                raise PreconditionFailed(f"{key} has changed")
            _make_newer(temporary, current.st_mtime_ns)
            os.replace(temporary, target)
        _sync_directory(target.parent)
        return _stored(os.stat(target))

    @contextlib.contextmanager
    def _locked(self, target: Path, timeout: float) -> Iterator[None]:
        # A lock object of its own each time: two threads of one process exclude each other too.
        path = target.with_name(f"{_OURS_PREFIX}{target.name}.lock{_OURS_SUFFIX}")
        lock = FileLock(
            str(path),
            timeout=timeout,
            poll_interval=0.002,
            thread_local=False,
            fallback_to_soft=False,  # a lock that outlives its process would block everybody
            preserve_lock_file=True,  # removing it would let two holders in
        )
        try:
            lock.acquire()
        except Timeout:
            raise TimedOut(f"{target.name} stayed locked", hint="another process is writing; try again") from None
        try:
            yield
        finally:
            lock.release()

    def _create(self, temporary: Path) -> BinaryIO:
        """Open a new file, making its directory; somebody may remove an empty one at the same moment."""
        for _ in range(100):
            try:
                return open(temporary, "xb")
            except FileNotFoundError:
                self._require_parent()
                temporary.parent.mkdir(parents=True, exist_ok=True)
        raise Unavailable(f"{temporary.parent.name} keeps vanishing", hint="try again")

    def _temporary(self, target: Path) -> Path:
        return target.with_name(f"{_OURS_PREFIX}{ulid()}{_OURS_SUFFIX}")

    def _path(self, key: str) -> Path:
        if not key or key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            raise Rejected(f"{key!r} does not name a file of a directory store")
        return self._root / key

    def _walk(self, directory: Path, prefix: str, after: str | None) -> Iterator[tuple[str, os.stat_result]]:
        """Yield files below `directory` in bytewise order of their keys, without following links."""
        try:
            with os.scandir(directory) as found:
                entries = [
                    (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry) for entry in found
                ]
        except (FileNotFoundError, NotADirectoryError):
            return
        entries.sort(key=lambda pair: os.fsencode(pair[0]))
        for name, entry in entries:
            key = prefix + name
            if name.endswith("/"):
                if after is None or not key <= after or after.startswith(key):
                    yield from self._walk(Path(entry.path), key, after)
            elif (after is None or key > after) and not _is_ours(name):
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        yield key, entry.stat(follow_symlinks=False)

    def _prune(self, directory: Path) -> None:
        """Remove directories that a delete has emptied, up to the root."""
        while directory != self._root and self._root in directory.parents:
            try:
                directory.rmdir()
            except OSError:
                return
            directory = directory.parent

    def _sync_directories(self) -> None:
        with self._lock:
            directories, self._unsynced = self._unsynced, set()
        for directory in directories:
            with contextlib.suppress(FileNotFoundError):
                _sync_directory(directory)

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise self._no_root()

    def _require_parent(self) -> None:
        if not self._root.parent.is_dir():
            raise self._no_root()

    def _no_root(self) -> NoSuchBucket:
        return NoSuchBucket(f"there is no directory {self._root}", hint="check the path, or mount or create it")

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            # V4: a directory that is not mounted is not an empty store.
            if not self._root.is_dir():
                raise self._no_root() from None
            raise NotFound(f"no such key: {key}") from None
        except PermissionError:
            raise AccessDenied(
                f"{verb} {key} in {self._root}: permission denied", hint="give this user access to the directory"
            ) from None
        except OSError as error:
            raise _os_error(error, verb, key) from None


def _os_error(error: OSError, verb: str, key: str) -> StoreError:
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EHOSTDOWN):
        return Unavailable(f"{verb} {key}: {why}", hint="check the file system, and try again")
    return Rejected(f"{verb} {key}: {why}", hint="free some space" if error.errno == errno.ENOSPC else None)


def _make_newer(path: Path, than_ns: int) -> None:
    """Give a file an mtime after `than_ns`, also where the file system keeps only seconds."""
    now = max(time.time_ns(), than_ns)
    for step in _NS_STEPS:
        os.utime(path, ns=(now + step, now + step))
        if os.stat(path).st_mtime_ns > than_ns:
            return
    raise Rejected(f"the file system does not keep the times of files: {path.parent.name}")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_ours(name: str) -> bool:
    return name.startswith(_OURS_PREFIX) and name.endswith(_OURS_SUFFIX)


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def _stored(status: os.stat_result) -> Stored:
    return Stored(_etag(status), None)


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, status.st_size, _etag(status), None, status.st_mtime_ns // 1_000_000)
