"""Compare the entries of two stores, copy objects from one to the other, and write the leaves of what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow
from msgspec import Struct
from msgspec.structs import replace

from bayou.index import node_store
from bayou.index.build import chunk_partition
from bayou.index.entry import Entry
from bayou.index.node import Child, Digest, Node, leaf, name
from bayou.index.node_store import StoreSink
from bayou.index.tree import NodeSink
from bayou.maintenance.replica.copy import Age, Copied, Pair, copy_all
from bayou.maintenance.replica.point import PendingCopies
from bayou.objectstore.spec import StoreSpec
from bayou.pipeline.arrow import BYTES, ENTRIES, INT, TEXT, TIME, batch, batch_to_entries, rows
from bayou.pipeline.kernels.leaves import EDGE, LEAF, Row, in_batches
from bayou.pipeline.stores import store_of
from bayou.sync.report import Failure

_ENTRY = {"push": TEXT, "size": INT, "sha256": BYTES, "etag": TEXT, "version": TEXT, "modified": TIME}

PAIRS = pyarrow.schema(
    {"path": TEXT, **{f"{side}_{column}": kind for side in ("source", "target") for column, kind in _ENTRY.items()}}
)
"""The entries of one path in both stores; all of a side is null where that has none."""

DECIDED = pyarrow.schema([*PAIRS, pyarrow.field("action", TEXT)])
"""The same, and what makes the target what the source is (`Pair.action`)."""

RESULTS = pyarrow.schema(
    [
        *ENTRIES,
        pyarrow.field("sent", pyarrow.bool_()),
        pyarrow.field("code", TEXT),
        pyarrow.field("message", TEXT),
    ]
)
"""The target's entry of an object that was copied (`sent`: just now); or the path of one that was not, and why."""


def decide(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Rows of `PAIRS` to rows of `DECIDED`."""
    for found in batches:
        actions = [pair.action for pair in _pairs(found)]
        yield pyarrow.RecordBatch.from_arrays(
            [*(found.column(column) for column in PAIRS.names), pyarrow.array(actions, TEXT)], names=DECIDED.names
        )


class Copy(Struct, frozen=True):
    """A kernel: rows of `PAIRS` whose source's object is to be copied, to rows of `RESULTS`.

    Runs twice at times: a copy's key stands for its content, so the second time it is found, or written again the same.
    `seconds`: how long it may take to read or write one, however large.
    """

    source: StoreSpec
    target: StoreSpec
    age: Age
    seconds: float | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        source, target = store_of(self.source, self.seconds), store_of(self.target, self.seconds)
        again = _attempt() > 0
        age = replace(self.age, doubt=True) if again else self.age
        for found in batches:
            entries = [pair.source for pair in _pairs(found) if pair.source is not None]
            done = [_row(entry, result, again) for entry, result in copy_all(source, target, entries, age)]
            if done:
                yield batch(RESULTS, list(zip(*done, strict=True)))


class Sieve(Struct, frozen=True):
    """A kernel: of any rows that have a `path`, those that are held back, or (`inside` is False) those that are not."""

    held: PendingCopies
    inside: bool

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for found in batches:
            chosen = [self.held.back(path) == self.inside for path in found.column("path").to_pylist()]
            yield found.filter(pyarrow.array(chosen, pyarrow.bool_()))


class Written(Struct, frozen=True):
    """A kernel: entries of one sorted part to rows of `leaves.PIECES`; its whole leaves are stored, under the commit.

    `known` are leaves of the head that is being replaced, by digest: they are named again, and not written.
    """

    recipe: StoreSpec
    commit: str
    known: Mapping[Digest, str]

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        sink = _Reusing(StoreSink(store_of(self.recipe), self.commit), self.known)
        yield from in_batches(self.pieces((entry for found in batches for entry in batch_to_entries(found)), sink))

    def pieces(self, entries: Iterable[Entry], sink: NodeSink) -> Iterator[Row]:
        for piece in chunk_partition(entries, sink):
            if isinstance(piece, Child):
                yield Row(LEAF, piece.first, piece.last, piece.node, piece.entries, piece.bytes, None)
            else:
                edge = leaf(piece)
                named, written = name(edge.digest, self.commit), node_store.encode(edge)
                yield Row(EDGE, edge.first, edge.last, named, edge.entries, edge.bytes, written)


class _Reusing:
    """A sink that knows some nodes already."""

    def __init__(self, sink: NodeSink, known: Mapping[Digest, str]) -> None:
        self._sink = sink
        self._known = known

    def save(self, node: Node) -> str:
        return self._known.get(node.digest) or self._sink.save(node)

    def flush(self) -> None:
        self._sink.flush()


def _pairs(found: pyarrow.RecordBatch) -> Iterator[Pair]:
    width = len(_ENTRY)
    for path, *sides in rows(found, PAIRS.names):
        assert isinstance(path, str)
        yield Pair(path, _entry(path, sides[:width]), _entry(path, sides[width:]))


def _entry(path: str, values: list[object]) -> Entry | None:
    # Its time is never null; an entry of discovery has neither push nor hash.
    return None if values[-1] is None else Entry(path, *values)  # type: ignore[arg-type]


def _row(entry: Entry, result: Copied | Failure, again: bool) -> tuple[object, ...]:
    if isinstance(result, Failure):
        return (entry.path, *([None] * len(_ENTRY)), False, result.code, result.message)
    # What an earlier attempt at this very task has sent was sent by us too.
    return (*(getattr(result.entry, column) for column in ENTRIES.names), result.sent or again, None, None)


def _attempt() -> int:
    """Return how often this task was tried before."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0
