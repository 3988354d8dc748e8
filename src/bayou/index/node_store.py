"""Nodes in a store.

Nodes as bytes. What writes and reads them, and Arrow with it, is loaded with the first: most syncs need none.

What all sinks of nodes have in common: take and name now, store together later.

Nodes in a directory of this machine: a cache of a store's, and the home of trees that exist only here.

What the index needs of a store; `bayou.objectstore.store.Store` has it all.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from bayou.core import limits
from bayou.core.atomic_file import fsync_directory, fsync_file
from bayou.core.errors import BadAnswer, NodeDamaged, NodeMissing, NotFound, TooLarge
from bayou.core.ids import ulid
from bayou.index.node import REPAIR, Node, Ref, damaged, digest_of, name
from bayou.objectstore import keys
from bayou.objectstore.keys import Key
from bayou.objectstore.transport import Condition, Fetched, ObjectMeta, Stored

if TYPE_CHECKING:
    from typing_extensions import Buffer


def encode(node: Node) -> bytes:
    """Write a node as a sealed Parquet file."""
    from bayou.index import parquet  # noqa: PLC0415

    return parquet.encode(node)


def decode(data: Buffer, level: int, ref: Ref, *, ours: bool = False) -> Node:
    """Read a node and prove that it is what `ref` says; else raise `NodeDamaged` that names it.

    `ours`: the bytes come from this machine's own state, where only nodes get that this client wrote or proved. Others
    are parsed by a process of its own (V25).
    """
    from bayou.index import parquet  # noqa: PLC0415

    return parquet.decode(data, level, ref, ours=ours)


def prepare() -> None:
    """Start the process that parses nodes of a store, while one is fetched."""
    from bayou.index import node_parser  # noqa: PLC0415

    node_parser.prepare()


class NodeFile(Struct, frozen=True):
    """A node as it is stored."""

    level: int
    name: str
    data: bytes


class Staging(ABC):
    """A sink of one commit's nodes. `written` are the names of those that are stored."""

    def __init__(self, commit: str) -> None:
        self.written: list[str] = []
        self.commit = commit
        self._staged: deque[NodeFile] = deque()

    def save(self, node: Node) -> str:
        """Encode a node at once, since bytes are a tenth of what its rows take in memory, and return its name."""
        named = name(node.digest, self.commit)
        self.take(NodeFile(node.level, named, encode(node)))
        return named

    def take(self, file: NodeFile) -> None:
        """Take a node that was encoded elsewhere, for the same commit."""
        self._staged.append(file)

    def flush(self) -> None:
        """Store what is staged. After a failure, what is not known to be stored is staged still."""
        for file in self._keep(tuple(self._staged)):
            self._staged.popleft()
            self.written.append(file.name)

    @abstractmethod
    def _keep(self, files: Sequence[NodeFile]) -> Iterable[NodeFile]:
        """Store the files and give back, in order, each that is."""


class NodeFiles:
    """The files of nodes. A leaf's is named by its digest alone, a branch's by its whole name.

    Two branches of one digest hold the same entries but may name their children differently, and only the names that
    its own commit wrote are sure to exist: sharing a branch by digest would lead to nodes that were collected.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, level: int, named: str) -> bytes | None:
        """Return a file's bytes, or None if there is no such file; whether they are good is for the caller to prove."""
        try:
            return self._path(level, named).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, files: Sequence[NodeFile], *, durable: bool) -> None:
        """Write nodes, each whole or not at all; if `durable`, they survive a power cut once this returns."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made: list[tuple[Path, Path]] = []
        try:
            for file in files:
                temporary = self._directory / f".bayou-{ulid()}.tmp"
                made.append((temporary, self._path(file.level, file.name)))
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                    opened.write(file.data)
            if durable:
                # After all of them are written: then the first call does most of the work for the others.
                for temporary, _ in made:
                    fsync_file(temporary)
            for temporary, final in made:
                temporary.replace(final)
        finally:
            for temporary, _ in made:
                temporary.unlink(missing_ok=True)  # V14
        if durable:
            fsync_directory(self._directory)

    def _path(self, level: int, named: str) -> Path:
        return self._directory / f"{named if level else digest_of(named).hex()}.parquet"


class LocalNodes(Staging):
    """A source and sink of nodes in one directory; what it saves is named after `commit`.

    A tree that lives here is changed by `merge`, also when it becomes equal to a tree of the store: then every node of
    it has been written here, and it can be read without the store.
    """

    def __init__(self, files: NodeFiles, commit: str) -> None:
        super().__init__(commit)
        self._files = files

    def load(self, level: int, ref: Ref) -> Node:
        data = self._files.read(level, ref.node)
        if data is None:
            raise NodeMissing(
                f"index node {ref.node} is missing in the local state",
                hint="`bayou datastore sync` compares this directory with the store anew",
            )
        return decode(data, level, ref, ours=True)

    def map(self, fn: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        return map(fn, items)

    def _keep(self, files: Sequence[NodeFile]) -> Sequence[NodeFile]:
        self._files.write(files, durable=True)
        return files


class Reads(Protocol):
    """A store that can be read."""

    @property
    def url(self) -> str: ...

    def get(self, key: Key, *, if_none_match: str | None = None, most: int | None = None) -> Fetched | None: ...

    def head(self, key: Key) -> ObjectMeta: ...

    def list(self) -> Iterator[Sequence[ObjectMeta]]: ...

    def map(self, function: Callable[[T], R], items: Iterable[T], /, *, threads: int | None = None) -> Iterator[R]: ...


class Writes(Reads, Protocol):
    """A store that can be read and written."""

    def put(self, key: Key, data: Buffer, *, condition: Condition | None = None) -> Stored: ...


T = TypeVar("T")
R = TypeVar("R")

READ_AHEAD = 16
"""Nodes: enough to hide a store's latency behind the decoding, few enough to hold."""


class StoreNodes:
    """A source of nodes in a store, with a cache on this machine if there is one."""

    def __init__(self, store: Reads, cache: NodeFiles | None = None) -> None:
        self._store = store
        self._cache = cache

    def load(self, level: int, ref: Ref) -> Node:
        return self._cached(level, ref) or self._fetch(level, ref)

    def map(self, fn: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        return self._store.map(fn, items, threads=READ_AHEAD)

    def _cached(self, level: int, ref: Ref) -> Node | None:
        data = self._cache.read(level, ref.node) if self._cache is not None else None
        if data is None:
            return None
        try:
            return decode(data, level, ref, ours=True)
        except NodeDamaged:
            return None  # only a copy: the store's own decides, and replaces it

    def _fetch(self, level: int, ref: Ref) -> Node:
        prepare()
        try:
            fetched = self._store.get(keys.node(ref.node), most=limits.NODE_BYTES)
        except NotFound as error:
            raise NodeMissing(
                f"index node {ref.node} is missing in {self._store.url}",
                hint=f"if it is missing again in a minute, rebuild the index with `{REPAIR}`",
            ) from error
        except TooLarge as error:
            raise damaged(ref.node, error.message) from error
        if fetched is None:
            raise BadAnswer(f"{self._store.url} says that node {ref.node} is not modified, and nobody asked that")
        data = bytes(fetched.data)
        node = decode(data, level, ref)
        if self._cache is not None:
            self._cache.write([NodeFile(level, ref.node, data)], durable=False)
        return node


class StoreSink(Staging):
    """A sink of one commit's nodes in a store, several requests at once.

    What it keeps in a cache on this machine survives a power cut if that is `durable`.
    """

    def __init__(self, store: Writes, commit: str, cache: NodeFiles | None = None, *, durable: bool = False) -> None:
        super().__init__(commit)
        self._store = store
        self._cache = cache
        self._durable = durable

    def _keep(self, files: Sequence[NodeFile]) -> Iterator[NodeFile]:
        if self._cache is not None:
            self._cache.write(files, durable=self._durable)
        return self._store.map(self._put, files)

    def _put(self, file: NodeFile) -> NodeFile:
        # Plainly: no other commit uses this name, and writing it again writes the same rows (V11).
        self._store.put(keys.node(file.name), file.data)
        return file
