"""Write the leaves that lie whole inside one sorted part of a store's entries, and tell of its edges.

Runs twice at times: a node has the commit's id in its name and the same rows, whoever writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow
from msgspec import Struct

from bayou.index import node_store
from bayou.index.build import SHAPE, ChunkParams, Piece, chunk_partition
from bayou.index.discovery import directories
from bayou.index.entry import Entry
from bayou.index.node import Child, Leaf, Node, Pointer, digest_of, leaf, name
from bayou.index.node_store import NodeFile, Staging, StoreSink
from bayou.index.tree import NodeSink
from bayou.objectstore.spec import StoreSpec
from bayou.pipeline.arrow import BYTES, INT, TEXT, batches_of_rows, rows
from bayou.pipeline.stores import store_of

LEAF, EDGE, END = "leaf", "edge", "end"

FOUND = ("path", "size", "etag", "version", "modified")
"""The columns that discovery knows of an entry."""

PIECES = pyarrow.schema(
    {"piece": TEXT, "first": TEXT, "last": TEXT, "node": TEXT, "entries": INT, "bytes": INT, "data": BYTES}
)
"""A leaf that is stored (`data`: or that shall be, where it was asked for); an edge, its entries written as a node; and
at the end of a part, each path that a path of the next may lie below (`entries` is 1 if one of this part did)."""

_AT_ONCE = 32


class Row(NamedTuple):
    """A row of `PIECES`."""

    piece: str
    first: str
    last: str | None
    node: str | None
    entries: int
    size: int | None
    data: bytes | None


class Leaves(Struct, frozen=True):
    """A kernel: batches of `FOUND`, by path and then size, largest first, to rows of `PIECES`.

    Without a `recipe`, leaves are carried, not stored.
    """

    commit: str
    recipe: StoreSpec | None = None
    shape: ChunkParams = SHAPE

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        sink = _Carried(self.commit) if self.recipe is None else StoreSink(store_of(self.recipe), self.commit)
        data = sink.files if isinstance(sink, _Carried) else {}
        yield from in_batches(self.pieces(_entries(batches), sink, data))

    def pieces(self, entries: Iterable[Entry], sink: NodeSink, data: dict[str, bytes]) -> Iterator[Row]:
        """Yield the rows of one part; `data` has what leaves carry."""
        nesting = Nesting()
        for piece in chunk_partition(nesting.watch(entries), sink, self.shape):
            if isinstance(piece, Child):
                carried = data.pop(piece.node, None)
                yield Row(LEAF, piece.first, piece.last, piece.node, piece.entries, piece.bytes, carried)
            else:
                edge = leaf(piece)
                named, written = name(edge.digest, self.commit), node_store.encode(edge)
                yield Row(EDGE, edge.first, edge.last, named, edge.entries, edge.bytes, written)
        for path in nesting.open:
            yield Row(END, path, None, None, int(nesting.met), None, None)


class Nesting:
    """Watches sorted paths for one that is the directory of another: no tree can hold both.

    `open` are paths that later ones may still lie below; `met`: some path of this part has others below it.
    """

    def __init__(self) -> None:
        self.open: list[str] = []
        self.met = False

    def watch(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Pass entries on. What begins with a path follows it without a gap, so the open ones are a stack."""
        pending = self.open
        for entry in entries:
            path = entry.path
            while pending and not path.startswith(pending[-1]):
                pending.pop()
            if pending and path[len(pending[-1])] == "/":
                self.met = True
            pending.append(path)
            yield entry


class _Carried(Staging):
    """A sink whose nodes go to the caller with the rows that tell of them."""

    def __init__(self, commit: str) -> None:
        super().__init__(commit)
        self.files: dict[str, bytes] = {}

    def _keep(self, files: Sequence[NodeFile]) -> Sequence[NodeFile]:
        self.files.update((file.name, file.data) for file in files)
        return files


def in_batches(found: Iterable[Row]) -> Iterator[pyarrow.RecordBatch]:
    """Put rows into batches of a few: some hold a node."""
    return batches_of_rows(PIECES, found, _AT_ONCE)


def joined(found: Iterable[Row], keep: Callable[[NodeFile], None], *, apart: bool = False) -> Iterator[Piece]:
    """Yield the pieces that rows of all parts tell of, in order; leaves that they carry go to `keep`.

    `Nested` if a path may be the directory of another: then somebody has to look closer. `apart`: somebody did.
    """
    awaited: list[str] = []
    for kind, first, last, node, entries, size, data in found:
        if kind == END:
            if entries:
                raise Nested(first)
            if not apart:
                awaited.append(first)
            continue
        if any(first.startswith(path) and first[len(path)] <= "/" for path in awaited):
            raise Nested(first)
        awaited.clear()
        assert last is not None
        assert node is not None
        assert size is not None
        if kind == LEAF:
            if data is not None:
                keep(NodeFile(0, node, data))
            yield Child(first, last, node, digest_of(node), entries, size)
        else:
            yield _edge(node, data or b"").rows


class Nested(Exception):
    """Some path of a discovery may be the directory of another."""


def parent_directories(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the directories that the paths of each batch lie in, as `path`."""
    for found in batches:
        names = directories(found.column("path").to_pylist())
        yield pyarrow.RecordBatch.from_pydict({"path": pyarrow.array(list(names), TEXT)})


def _edge(node: str, data: bytes) -> Leaf:
    found: Node = node_store.decode(data, 0, Pointer(0, node), ours=True)
    assert isinstance(found, Leaf)
    return found


def _entries(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[Entry]:
    """Yield entries, one for each path: a listing may call an object and a "folder" beside it by one key."""
    last: object = None
    for found in batches:
        for path, size, etag, version, modified in rows(found, FOUND):
            if path != last:
                yield Entry(path, None, size, None, etag, version, modified)  # type: ignore[arg-type]
            last = path
