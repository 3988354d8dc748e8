"""Storage of nodes: in a store (`StoreNodes` reads, `StoreSink` writes) and in a local directory (`LocalNodes`).

The local directory caches nodes of the store, and holds the trees that exist only on this machine (base). A sink names
nodes when it accepts them, and stores them together at `flush`. The module that encodes nodes, and Arrow with it, is
imported with the first node, since most syncs need none.
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
from bayou.objectstore.transport import Condition, GetResult, ObjectMeta, PutResult

if TYPE_CHECKING:
    from typing_extensions import Buffer


T = TypeVar("T")
R = TypeVar("R")

READ_AHEAD = 16
"""Nodes that are loaded at once: enough to hide a store's latency behind the decoding, few enough to hold."""


class ReadableStore(Protocol):
    """The methods of a store that the index reads by; `bayou.objectstore.store.Store` implements them."""

    @property
    def url(self) -> str: ...

    def get(self, key: Key, *, if_none_match: str | None = None, most: int | None = None) -> GetResult | None: ...

    def head(self, key: Key) -> ObjectMeta: ...

    def list(self, under: Key | None = None, /) -> Iterator[Sequence[ObjectMeta]]: ...

    def map(self, function: Callable[[T], R], items: Iterable[T], /, *, threads: int | None = None) -> Iterator[R]: ...


class WritableStore(ReadableStore, Protocol):
    """The methods of a store that the index also writes to."""

    def put(self, key: Key, data: Buffer, *, condition: Condition | None = None) -> PutResult: ...


def encode(node: Node) -> bytes:
    """Return a node as a sealed Parquet file."""
    from bayou.index import parquet  # noqa: PLC0415

    return parquet.encode(node)


def decode(data: Buffer, level: int, ref: Ref, *, ours: bool = False) -> Node:
    """Parse a node and verify it against `ref`; else raise `NodeDamaged`.

    `ours`: the bytes come from the local state, which holds only nodes that this client has written or verified. A
    child process parses all others (V25).
    """
    from bayou.index import parquet  # noqa: PLC0415

    return parquet.decode(data, level, ref, ours=ours)


def prepare() -> None:
    """Start the child process that parses nodes of a store, while a node is fetched."""
    from bayou.index import node_parser  # noqa: PLC0415

    node_parser.prepare()


class NodeFile(Struct, frozen=True):
    """An encoded node."""

    level: int
    name: str
    data: bytes


class StagingSink(ABC):
    """The base class of sinks, for the nodes of one commit. `written` are the names of the nodes that are stored."""

    def __init__(self, commit: str) -> None:
        self.written: list[str] = []
        self.commit = commit
        self._staged: deque[NodeFile] = deque()

    def save(self, node: Node) -> str:
        """Encode a node at once, since its bytes take a tenth of the memory of its rows, and return its name."""
        named = name(node.digest, self.commit)
        self._staged.append(NodeFile(node.level, named, encode(node)))
        return named

    def flush(self) -> None:
        """Store the staged nodes. After a failure, the nodes that are not known to be stored stay staged."""
        for file in self._store_files(tuple(self._staged)):
            self._staged.popleft()
            self.written.append(file.name)

    @abstractmethod
    def _store_files(self, files: Sequence[NodeFile]) -> Iterable[NodeFile]:
        """Store the files; yield each, in order, when it is stored."""


class NodeFiles:
    """The node files of a local directory. A leaf's file is named by its digest alone, a branch's by its whole name.

    Two branches of one digest hold the same entries but may name their children differently, and only the names that
    its own commit wrote are sure to exist: a branch shared by digest could name nodes that were collected.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, level: int, named: str) -> bytes | None:
        """Return a file's bytes, or None if there is no such file; the caller must verify them."""
        try:
            return self._path(level, named).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, files: Sequence[NodeFile], *, durable: bool) -> None:
        """Write nodes, each completely or not at all; if `durable`, they survive a power cut once this returns."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made: list[tuple[Path, Path]] = []
        try:
            for file in files:
                temporary = self._directory / f".bayou-{ulid()}.tmp"
                made.append((temporary, self._path(file.level, file.name)))
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                    opened.write(file.data)
            if durable:
                # After all files are written: then the first sync does most of the work for the others.
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


class LocalNodes(StagingSink):
    """A source and sink of nodes in one directory; the names of saved nodes contain `commit`.

    A local tree is changed only by `merge`, also when it becomes equal to a tree of the store: so every node of it is
    in this directory, and the tree can be read without the store.
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

    def _store_files(self, files: Sequence[NodeFile]) -> Sequence[NodeFile]:
        self._files.write(files, durable=True)
        return files


class StoreNodes:
    """A source of nodes in a store, with a local cache if `cache` is given."""

    def __init__(self, store: ReadableStore, cache: NodeFiles | None = None) -> None:
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
            return None  # only a copy: the store's node decides, and replaces it

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
            raise BadAnswer(f"{self._store.url} says that node {ref.node} is not modified, without a condition")
        data = bytes(fetched.data)
        node = decode(data, level, ref)
        if self._cache is not None:
            self._cache.write([NodeFile(level, ref.node, data)], durable=False)
        return node


class StoreSink(StagingSink):
    """A sink of one commit's nodes in a store, several requests at once.

    It also writes the nodes to a local cache, if `cache` is given; they survive a power cut if `durable`.
    """

    def __init__(
        self, store: WritableStore, commit: str, cache: NodeFiles | None = None, *, durable: bool = False
    ) -> None:
        super().__init__(commit)
        self._store = store
        self._cache = cache
        self._durable = durable

    def _store_files(self, files: Sequence[NodeFile]) -> Iterator[NodeFile]:
        if self._cache is not None:
            self._cache.write(files, durable=self._durable)
        return self._store.map(self._put, files)

    def _put(self, file: NodeFile) -> NodeFile:
        # Unconditionally: no other commit uses this name, and a repeated write writes the same rows (V11).
        self._store.put(keys.node(file.name), file.data)
        return file
