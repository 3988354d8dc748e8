"""What the index is tested against: a store and a home of nodes in memory, both of which remember what was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bayou.core.errors import AlreadyExists, NodeMissing, NotFound, PreconditionFailed, StoreError
from bayou.index.node import Node, Ref, name, verify
from bayou.index.node_store import NodeFile, NodeFiles
from bayou.index.tree import IndexTree
from bayou.objectstore.keys import Key
from bayou.objectstore.transport import Condition, Create, DirectoryListing, GetResult, Match, ObjectMeta, PutResult


class MemoryStore:
    """A store with conditional writes. `requests` are those sent; `failing` raises, by verb and key, what is set."""

    url = "memory://test"
    namespace = None
    concurrency = 4

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects: dict[str, GetResult] = {}
        self.requests: list[tuple[str, str]] = []
        self.failing: dict[tuple[str, str], StoreError] = {}
        self.without_last_slash = False
        self.page_size = 3
        self._writes = 0
        for key, data in (objects or {}).items():
            self._write(key, data)
        self.requests.clear()

    def get(self, key: Key, *, if_none_match: str | None = None, **_: Any) -> GetResult | None:
        self._sent("get", key)
        found = self._find(key)
        return None if if_none_match is not None and if_none_match == found.meta.etag else found

    def head(self, key: Key) -> ObjectMeta:
        self._sent("head", key)
        return self._find(key).meta

    def put(self, key: Key, data: Any, *, condition: Condition | None = None, **_: Any) -> PutResult:
        self._sent("put", key)
        there = self.objects.get(key)
        if isinstance(condition, Create) and there is not None:
            raise AlreadyExists(f"{key} is there")
        if isinstance(condition, Match) and (there is None or there.meta.etag != condition.etag):
            raise PreconditionFailed(f"{key} has changed")
        return self._write(key, bytes(data))

    def list(self, under: Key | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages in no useful order; `failing` is looked up by the page's number."""
        metas = self._below(under)
        if self.without_last_slash:
            metas = [
                ObjectMeta(meta.key.rstrip("/"), meta.size, meta.etag, meta.version, meta.modified) for meta in metas
            ]
        for number, start in enumerate(range(0, len(metas), self.page_size)):
            self._sent("list", str(number))
            yield metas[start : start + self.page_size]
        if not metas:
            self._sent("list", "0")

    def list_directory(self, under: Key | None = None) -> DirectoryListing:
        """Return what lies directly in a directory; `failing` is looked up by the directory."""
        self._sent("list_directory", under or "")
        start = 0 if under is None else len(under) + 1
        below = self._below(under)
        directories = {meta.key[: end + 1] for meta in below if (end := meta.key.find("/", start)) >= 0}
        return DirectoryListing(sorted(directories), [meta for meta in below if "/" not in meta.key[start:]])

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], /, *, threads: int | None = None
    ) -> Iterator[Any]:
        return map(function, items)

    def sent(self, verb: str) -> Sequence[str]:
        """Return the keys of all requests of a kind."""
        return [key for sent, key in self.requests if sent == verb]

    def damage(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Change an object's bytes behind everybody's back."""
        found = self.objects[key]
        self.objects[key] = GetResult(found.meta, change(bytes(found.data)), {})

    def _below(self, under: str | None) -> Sequence[ObjectMeta]:
        """Return the objects below a directory; without its own marker, if listings drop the last `/` of a key."""
        return [
            found.meta
            for key, found in self.objects.items()
            if under is None or (key.startswith(f"{under}/") and not (self.without_last_slash and key == f"{under}/"))
        ]

    def _find(self, key: str) -> GetResult:
        if key not in self.objects:
            raise NotFound(f"no {key}")
        return self.objects[key]

    def _write(self, key: str, data: bytes) -> PutResult:
        self._writes += 1
        etag, version = f'"{self._writes}"', f"v{self._writes}"
        meta = ObjectMeta(key, len(data), etag, version, 1_700_000_000_000 + self._writes)
        self.objects[key] = GetResult(meta, data, {})
        return PutResult(etag, version)

    def _sent(self, verb: str, key: str) -> None:
        self.requests.append((verb, key))
        if (verb, key) in self.failing:
            raise self.failing[verb, key]


class MemoryNodes:
    """A source and sink of nodes. A new commit begins with `commit`; `loaded` and `saved` count by level."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.loaded: Counter[int] = Counter()
        self.saved: Counter[int] = Counter()
        self._staged: dict[str, Node] = {}
        self._commit = 0

    def commit(self) -> MemoryNodes:
        """Begin a commit of its own, and count from zero."""
        self._commit += 1
        self.loaded.clear()
        self.saved.clear()
        return self

    def load(self, level: int, ref: Ref) -> Node:
        if ref.node not in self.nodes:
            raise NodeMissing(f"index node {ref.node} is missing")
        self.loaded[level] += 1
        node = self.nodes[ref.node]
        assert node.level == level
        verify(node, ref)
        return node

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]:
        return map(fn, items)

    def save(self, node: Node) -> str:
        named = name(node.digest, f"c{self._commit}")
        assert named not in self._staged, "one commit saves a node once"
        self._staged[named] = node
        self.saved[node.level] += 1
        return named

    def flush(self) -> None:
        self.nodes.update(self._staged)
        self._staged.clear()

    def tree(self, root: Any) -> IndexTree:
        return IndexTree(self, root)


class MemoryFiles(NodeFiles):
    """The files of nodes in memory, with the bytes that would be stored."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def write(self, files: Sequence[NodeFile], *, durable: bool) -> None:
        self.found.update((file.name, file.data) for file in files)
