"""`datastore cat`: the content of one file of the datastore, from the tree or from the store; and where it is stored.

This only reads: it takes no lease, writes nothing to the store (V15) and nothing to the tree, so a lazy tree stays as
it is. The store's index says what the content is; a file of the tree that has the same hash saves the download.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, Literal, cast

from msgspec import Struct

from bayou.core import paths
from bayou.core.deadline import Deadline
from bayou.core.errors import NotFound, Offline, PathRefused, SyncError, TreeError, UsageError
from bayou.core.text import nearest
from bayou.index.entry import STORED, Entry
from bayou.index.head import read_head
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.node_store import LocalNodes, NodeFiles, StoreNodes
from bayou.index.tree import IndexTree, find, scan
from bayou.objectstore.store import Store
from bayou.objectstore.url import parse_url
from bayou.packs.read import read_one
from bayou.repo import Repo
from bayou.state.base import SyncBase
from bayou.state.connection import Connection
from bayou.state.database import remote_url
from bayou.worktree.safe_root import SafeRoot
from bayou.worktree.tree import open_file

_IN_MEMORY = 8 << 20
"""Bytes of a file that are kept in memory; a larger one goes through a temporary file."""

_BUFFER = 1 << 20
_CANDIDATES = 2000
"""Paths among which the nearest name is looked for."""


class FileContent(Struct, frozen=True):
    """The content of a file, whose bytes have been proved by the hash, if the index has one."""

    path: str
    size: int
    sha256: bytes
    source: Literal["tree", "store"]
    file: BinaryIO


class Location(Struct, frozen=True):
    """Where the bytes of a file are: `stored` bytes of an object from `offset` on, as they are or deflated."""

    path: str
    bucket: str
    key: str
    offset: int
    stored: int
    method: int
    size: int
    sha256: bytes | None


class StoreIndex(Struct, frozen=True):
    """A store whose index is only read."""

    store: Store
    cache: NodeFiles

    @classmethod
    def of(cls, repo: Repo, connection: Connection, timeout: float | None) -> StoreIndex:
        deadline = Deadline.after(timeout or repo.config.sync.timeout)
        return cls(connection.store(deadline), NodeFiles(repo.state / "nodes"))

    def tree(self) -> IndexTree:
        """Read the head, and return the tree that it names."""
        try:
            seen = read_head(self.store)
        except NotFound:
            raise NotFound(
                f"{self.store.url} has no index yet", hint="`bayou datastore sync` makes one of what is there"
            ) from None
        return IndexTree(StoreNodes(self.store, self.cache), seen.head.root)


@contextmanager
def open_content(connection: Connection, path: str, *, timeout: float | None = None) -> Iterator[FileContent]:
    """Open the content of a file of the datastore; a path may have any spelling that `paths.relative` accepts.

    `NotFound` if the index has no such path; its hint has the nearest name. `SyncError` if the store does not have the
    content. Offline, and if the datastore is a directory, the tree is read.
    """
    repo = connection.repo
    name = _name(repo, path)
    with SpooledTemporaryFile(_IN_MEMORY) as spooled:
        file = cast("BinaryIO", spooled)
        if repo.config.datastore.url is None:
            found = _read_directory(repo, name, file)
        elif repo.offline:
            found = _read_offline(repo, connection, name, file)
        else:
            found = _read(repo, StoreIndex.of(repo, connection, timeout), name, file)
        file.seek(0)
        yield found


def locate(connection: Connection, path: str, *, timeout: float | None = None) -> Location:
    """Return where the bytes of a file are in the store; errors as in `open_content`."""
    repo = connection.repo
    name = _name(repo, path)
    url = repo.config.datastore.url
    if url is None:
        raise UsageError(
            f"the datastore is a directory, whose files have their names: {repo.tree_root}", hint=f"{name} is there"
        )
    index = StoreIndex.of(repo, connection, timeout)
    entry = _entry(repo, index.tree(), name)
    key = index.store.full_key(entry.key)
    location = (entry.offset, entry.stored, entry.method) if entry.pack is not None else (0, entry.size, STORED)
    offset, stored, method = cast("tuple[int, int, int]", location)
    return Location(name, parse_url(url).bucket, key, offset, stored, method, entry.size, entry.sha256)


def fetch(store: Store, entry: Entry, file: BinaryIO) -> bytes:
    """Download the content of an entry into an open file, and return its hash.

    `NotFound` if the object is gone, `SyncError` if it has other bytes than were pushed.
    """
    if entry.pack is not None:
        data = read_one(store, entry)
        digest = entry.sha256 if data is not None else None
        file.write(data or b"")
    else:
        # V2: a discovered object must still be the one that was listed.
        condition = entry.etag if entry.push is None else None
        digest = store.download(entry.key, file, entry.size, if_match=condition).sha256
    if digest is None or entry.sha256 not in (None, digest):
        raise SyncError(
            f"the object of {entry.path} does not have the bytes that were pushed",
            hint="bayou datastore verify --deep shows what is damaged",
        )
    return digest


def nearest_path(tree: IndexTree, path: str) -> str | None:
    """Return the path of the index whose name is most like `path`: in its directory, or in the nearest one above."""
    directory = path
    while directory:
        directory = directory.rpartition("/")[0]
        span = KeyRange.under(f"{directory}/") if directory else EVERYTHING
        names = [entry.path for entry in islice(scan(tree, span), _CANDIDATES)]
        if names:
            return nearest(path, names)
    return None


def _name(repo: Repo, path: str) -> str:
    """Return the path of a file, or a payload root, about which the index tells that it is a directory."""
    name = paths.relative(repo.tree_root, path)
    return name if name in paths.PAYLOAD_ROOTS else paths.check(name)


def _entry(repo: Repo, tree: IndexTree, path: str) -> Entry:
    """Return the entry of a path, or raise an error that says what there is instead."""
    entry = find(tree, path)
    if entry is None:
        raise _not_found(repo, tree, path)
    why = entry.refusal()
    if why is not None:
        raise PathRefused(f"{path}: {why}", hint="bayou datastore verify names such entries")  # V25
    return entry


def _not_found(repo: Repo, tree: IndexTree, path: str) -> NotFound:
    below = next(scan(tree, KeyRange.under(f"{path}/")), None)
    if below is not None:
        return NotFound(
            f"{path} is a directory, which has {below.path}",
            hint=f"to get all of it: bayou datastore export DIR --prefix {path}",
        )
    if SafeRoot(repo.tree_root).lstat(path) is not None:
        return NotFound(f"{path} is in this tree, and was not pushed yet", hint="bayou datastore sync --push --adopt")
    name = nearest_path(tree, path)
    return NotFound(
        f"there is nothing at {path}",
        hint=f"the nearest name is {name}" if name is not None else "bayou data list shows what there is",
    )


def _read(repo: Repo, index: StoreIndex, path: str, file: BinaryIO) -> FileContent:
    """Read a file of the index: from the tree if it has the same bytes, else from the store.

    If the object is gone, the index is read again: a compaction may have moved the bytes (P7).
    """
    entry = _entry(repo, index.tree(), path)
    while True:
        local = _read_unchanged(repo, entry, file)
        if local is not None:
            return local
        try:
            digest = fetch(index.store, entry, file)
        except NotFound:
            newer = _entry(repo, index.tree(), path)
            if newer == entry:
                raise SyncError(
                    f"the store does not have the object of {path}",
                    hint="bayou datastore verify shows what is damaged",
                ) from None
            entry = newer
            _clear(file)  # of a large object, some spans may have come
            continue
        return FileContent(path, entry.size, digest, "store", file)


def _read_offline(repo: Repo, connection: Connection, path: str, file: BinaryIO) -> FileContent:
    """Read a file of the tree that is as the store had it when they were compared last, without a request."""
    config = repo.config.datastore
    assert config.url is not None
    nodes = LocalNodes(NodeFiles(repo.state / "nodes"), "cat")
    base = SyncBase(connection.database, remote_url(config.url, config.namespace), config.namespace, nodes)
    entry = base.lookup([path]).get(path)
    local = _read_unchanged(repo, entry, file) if entry is not None else None
    if local is None:
        raise Offline(
            f"offline: this tree does not have {path} as the store had it",
            hint="leave out --offline, and unset BAYOU_OFFLINE",
        )
    return local


def _read_unchanged(repo: Repo, entry: Entry, file: BinaryIO) -> FileContent | None:
    """Read the tree's file of a path if it has the entry's bytes; else return None, and leave `file` empty."""
    if entry.sha256 is None:
        return None
    try:
        with open_file(SafeRoot(repo.tree_root), entry.path) as source:
            if os.fstat(source.fileno()).st_size != entry.size:
                return None
            found = _copy(entry.path, source, file)
    except (FileNotFoundError, PathRefused, TreeError):
        return None
    if found.sha256 == entry.sha256:
        return found
    _clear(file)
    return None


def _clear(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _read_directory(repo: Repo, path: str, file: BinaryIO) -> FileContent:
    """Read a file of a datastore that is a directory."""
    try:
        with open_file(SafeRoot(repo.tree_root), path) as source:
            return _copy(path, source, file)
    except FileNotFoundError:
        raise NotFound(f"there is nothing at {path}", hint=f"the datastore is the directory {repo.tree_root}") from None


def _copy(path: str, source: BinaryIO, file: BinaryIO) -> FileContent:
    """Copy a file of the tree, and hash what was copied: a program may write to it meanwhile."""
    digest, size = hashlib.sha256(), 0
    while data := source.read(_BUFFER):
        digest.update(data)
        size += file.write(data)
    return FileContent(path, size, digest.digest(), "tree", file)
