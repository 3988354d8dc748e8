"""Nodes in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from bayou.core import limits
from bayou.core.errors import BadAnswer, NodeDamaged, NodeMissing, NotFound, TooLarge
from bayou.index import codec
from bayou.index.local import NodeFiles
from bayou.index.node import REPAIR, Node, Ref, damaged
from bayou.index.ports import Reads, Writes
from bayou.index.staging import NodeFile, Staging
from bayou.objectstore import keys

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
            return codec.decode(data, level, ref, ours=True)
        except NodeDamaged:
            return None  # only a copy: the store's own decides, and replaces it

    def _fetch(self, level: int, ref: Ref) -> Node:
        codec.prepare()
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
        node = codec.decode(data, level, ref)
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
