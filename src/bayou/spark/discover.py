"""Discovery on Spark: list a store that has no index, and build the index tree of its payload.

1. Tasks list parts of the store and classify each object by the rules of `index.discovery` (`Judge`): payload, refused,
   ignored and so on.
2. Spark sorts the payload by path. A task gets a range of paths, writes the leaves that lie wholly inside the range
   (`Leaves`), and returns a row for each leaf and the entries at both edges of its range.
3. The driver joins edges and leaves and builds the upper levels of the tree.

The result is the tree of `index.discovery` and `index.build`, node for node, however the work was divided. The driver
never has all entries: it gets the leaves' descriptions, the edges, counts, and some of the refused keys. A task may run
twice: a node's name has the commit's id and the digest of its rows, so both runs write the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow

from bayou.core.deadline import Deadline
from bayou.core.progress import Progress
from bayou.engine.handle import store_of
from bayou.engine.parts import Part, divide, groups, objects
from bayou.index import node_store
from bayou.index.build import FLUSH_EVERY, SHAPE, ChunkParams, Piece, chunk_partition, join_partitions
from bayou.index.discovery import (
    IN_THE_WAY,
    OF_ANOTHER_SYSTEM,
    Discovered,
    Refused,
    directories,
    folder_markers,
    head_lost,
    in_payload,
    nested_store,
    parents,
    refusal,
)
from bayou.index.entry import Entry
from bayou.index.node import Child, Leaf, Node, Pointer, Root, digest_of, leaf, name
from bayou.index.node_store import NodeFile, ReadableStore, StagingSink, StoreSink
from bayou.index.tree import NodeSink
from bayou.objectstore import keys
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta
from bayou.spark.arrow import (
    BYTES,
    INT,
    OBJECTS,
    TEXT,
    TIME,
    batch,
    batches_of_rows,
    ddl,
    key_bytes,
    key_text,
    objects_to_batch,
    rows,
)
from bayou.spark.progress import watching
from bayou.spark.session import interrupt_at_deadline
from bayou.spark.sources.source import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

LEAF, EDGE, END = "leaf", "edge", "end"

FOUND = ("path", "size", "etag", "version", "modified")
"""The columns of an entry that a listing provides."""

PIECES = pyarrow.schema(
    {"piece": TEXT, "first": TEXT, "last": TEXT, "node": TEXT, "entries": INT, "bytes": INT, "data": BYTES}
)
"""The rows that tasks return, by the kind in `piece`.

- `LEAF`: a leaf that the task stored, or, if the driver shall store it, its bytes in `data`.
- `EDGE`: the entries at an edge of a range, encoded as a node in `data`.
- `END`: after the other rows, each path that may be a parent directory of paths in the next range. `entries` is 1 if a
  path of this range is the parent directory of another.
"""

_BATCH_ROWS = 32


class LeafRow(NamedTuple):
    """A row of `PIECES`."""

    piece: str
    first: str
    last: str | None
    node: str | None
    entries: int
    size: int | None
    data: bytes | None


class Leaves:
    """A kernel: from batches of `FOUND`, sorted by path and then by descending size, to rows of `PIECES`.

    Without a `recipe` the rows carry the leaves to the driver, and the task stores nothing.
    """

    def __init__(self, commit: str, recipe: StoreSpec | None = None, shape: ChunkParams = SHAPE) -> None:
        self.commit = commit
        self.recipe = recipe
        self.shape = shape

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        sink = _Carried(self.commit) if self.recipe is None else StoreSink(store_of(self.recipe), self.commit)
        data = sink.files if isinstance(sink, _Carried) else {}
        yield from in_batches(self.pieces(_entries(batches), sink, data))

    def pieces(self, entries: Iterable[Entry], sink: NodeSink, data: dict[str, bytes]) -> Iterator[LeafRow]:
        """Yield the rows of one range; `data` has the bytes of the leaves that rows carry."""
        nesting = Nesting()
        for piece in chunk_partition(nesting.watch(entries), sink, self.shape):
            if isinstance(piece, Child):
                carried = data.pop(piece.node, None)
                yield LeafRow(LEAF, piece.first, piece.last, piece.node, piece.entries, piece.bytes, carried)
            else:
                edge = leaf(piece)
                named, written = name(edge.digest, self.commit), node_store.encode(edge)
                yield LeafRow(EDGE, edge.first, edge.last, named, edge.entries, edge.bytes, written)
        for path in nesting.open:
            yield LeafRow(END, path, None, None, int(nesting.met), None, None)


class Nesting:
    """Checks sorted paths for a path that is the parent directory of another: a file tree cannot have both.

    `open` are the paths that may still be a parent of later paths; `met`: a path was the parent of another.
    """

    def __init__(self) -> None:
        self.open: list[str] = []
        self.met = False

    def watch(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries unchanged. All paths that begin with a path directly follow it, so `open` is a stack."""
        pending = self.open
        for entry in entries:
            path = entry.path
            while pending and not path.startswith(pending[-1]):
                pending.pop()
            if pending and path[len(pending[-1])] == "/":
                self.met = True
            pending.append(path)
            yield entry


class _Carried(StagingSink):
    """A sink that keeps the nodes, so that the rows that describe them carry them to the driver."""

    def __init__(self, commit: str) -> None:
        super().__init__(commit)
        self.files: dict[str, bytes] = {}

    def _store_files(self, files: Sequence[NodeFile]) -> Sequence[NodeFile]:
        self.files.update((file.name, file.data) for file in files)
        return files


def in_batches(found: Iterable[LeafRow]) -> Iterator[pyarrow.RecordBatch]:
    """Encode rows as small batches: a row may have a whole node."""
    return batches_of_rows(PIECES, found, _BATCH_ROWS)


def joined(found: Iterable[LeafRow], keep: Callable[[NodeFile], None], *, apart: bool = False) -> Iterator[Piece]:
    """Decode the rows of all ranges into pieces, in order; pass the leaves that rows carry to `keep`.

    Raises `Nested` if a path may be the parent directory of another: then the caller removes such paths from the
    entries, and calls again with `apart`, which skips the check across ranges.
    """
    open_paths: list[str] = []
    for kind, first, last, node, entries, size, data in found:
        if kind == END:
            if entries:
                raise Nested(first)
            if not apart:
                open_paths.append(first)
            continue
        if any(first.startswith(path) and first[len(path)] <= "/" for path in open_paths):
            raise Nested(first)
        open_paths.clear()
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
    """A path of a discovery may be the parent directory of another."""


def parent_directories(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the directories that contain the paths of each batch, in the column `path`."""
    for found in batches:
        names = directories(found.column("path").to_pylist())
        yield pyarrow.RecordBatch.from_pydict({"path": pyarrow.array(list(names), TEXT)})


def _edge(node: str, data: bytes) -> Leaf:
    found: Node = node_store.decode(data, 0, Pointer(0, node), ours=True)
    assert isinstance(found, Leaf)
    return found


def _entries(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[Entry]:
    """Yield one entry for each path: a listing may have an object and a folder marker with the same key."""
    last: object = None
    for found in batches:
        for path, size, etag, version, modified in rows(found, FOUND):
            if path != last:
                yield Entry(path, None, size, None, etag, version, modified)  # type: ignore[arg-type]
            last = path


PAYLOAD, PUSHED, REFUSED, IGNORED, FOLDER, STORE = "payload", "pushed", "refused", "ignored", "folder", "store"

JUDGED = pyarrow.schema(
    {
        "verdict": TEXT,
        "path": TEXT,
        "key": BYTES,
        "reason": TEXT,
        "size": INT,
        "etag": TEXT,
        "version": TEXT,
        "modified": TIME,
    }
)
"""`path` is set for payload only; `key` is set for the other verdicts whose keys the driver reads."""


class Verdict(NamedTuple):
    """A row of `JUDGED`. A tuple, since a listing makes very many and tuples are fast."""

    verdict: str
    path: str | None = None
    key: bytes | None = None
    reason: str | None = None
    size: int | None = None
    etag: str | None = None
    version: str | None = None
    modified: int | None = None


class Judge:
    """Classifies the pages of one task's listing. Each nested store gets one `STORE` row besides the verdicts."""

    def __init__(self, store: ReadableStore) -> None:
        self._store = store
        self._nested: set[str] = set()

    def __call__(self, page: Sequence[ObjectMeta]) -> pyarrow.RecordBatch:
        return _batch(self.judge(page))

    def judge(self, page: Sequence[ObjectMeta]) -> Iterator[Verdict]:
        """Yield a verdict for each object, except for Bayou's own objects."""
        found: list[ObjectMeta] = []
        for meta in page:
            ours = in_payload(meta.key)
            if ours:
                found.append(meta)
            elif ours is not None:
                yield Verdict(IGNORED)
        folders = folder_markers(self._store, found)
        for meta in found:
            nested = nested_store(meta.key)
            if nested is not None and nested not in self._nested:
                self._nested.add(nested)
                yield Verdict(STORE, key=key_bytes(nested))
            yield _verdict(meta, folder=meta.key in folders)


def without_others(others: frozenset[str], batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Ignore the objects inside nested stores (`others`), which are known only after the whole listing."""
    for found in batches:
        verdicts = (Verdict(*row) for row in rows(found, JUDGED.names))  # type: ignore[arg-type]
        yield _batch(Verdict(IGNORED) if _inside(verdict, others) else verdict for verdict in verdicts)


def _verdict(meta: ObjectMeta, *, folder: bool) -> Verdict:
    if folder:
        return Verdict(FOLDER, key=key_bytes(meta.key))
    why = refusal(meta.key)
    if why == OF_ANOTHER_SYSTEM:
        return Verdict(IGNORED)
    if why is not None:
        return Verdict(REFUSED, key=key_bytes(meta.key), reason=why)
    path, push = keys.parse_payload(meta.key)
    if push is not None:
        return Verdict(PUSHED, None, key_bytes(meta.key), None, meta.size, meta.etag, meta.version, meta.modified)
    return Verdict(PAYLOAD, path, None, None, meta.size, meta.etag, meta.version, meta.modified)


def _inside(row: Verdict, others: frozenset[str]) -> bool:
    if row.verdict == STORE or (row.path is None and row.key is None):
        return False
    key = row.path if row.path is not None else key_text(row.key or b"")
    return not others.isdisjoint(parents(key))


def _batch(verdicts: Iterable[Verdict]) -> pyarrow.RecordBatch:
    columns: Iterable[Sequence[object]] = zip(*verdicts, strict=True)
    return batch(JUDGED, list(columns) or [()] * len(JUDGED))


Encode = Callable[[Sequence[ObjectMeta]], pyarrow.RecordBatch]


def listed(spark: SparkSession, recipe: StoreSpec, parts: Sequence[Part], tasks: int) -> DataFrame:
    """Return the objects of parts of a store: `key` (bytes), `size`, `etag`, `version`, `modified`."""
    return load(spark, "listing", OBJECTS, groups(parts, tasks), partial(_read, recipe, _plain_encoder))


def judged(spark: SparkSession, recipe: StoreSpec, parts: Sequence[Part], tasks: int) -> DataFrame:
    """Return the objects of parts of a store, each with its verdict (`Judge`); the columns are `JUDGED`."""
    return load(spark, "payload", JUDGED, groups(parts, tasks), partial(_read, recipe, Judge))


def _plain_encoder(_: Store) -> Encode:
    return objects_to_batch


def _read(
    recipe: StoreSpec, encoder: Callable[[Store], Encode], parts: Sequence[Part]
) -> Iterator[pyarrow.RecordBatch]:
    store = store_of(recipe)
    encode = encoder(store)
    for part in parts:
        for page in objects(store, part):
            if page:
                yield encode(page)


MOST_REFUSED = 1000
"""Refused keys that the result lists; of more, it has only the number."""

_ROWS = 25_000
"""Entries of one range: some fifty leaves for the task, and two edges for the driver."""

_PARTS_PER_TASK = 4
_MOST_TASKS = 1000


def discover(
    spark: SparkSession,
    store: Store,
    recipe: StoreSpec,
    sink: StagingSink,
    *,
    carry: bool = False,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> Discovered:
    """List a store without a head, and build the tree of its payload in `sink`.

    Tasks write the leaves to the store, under the commit of `sink`; with `carry` the leaves go to `sink` like all other
    nodes, and tasks write nothing to the store (V15). Errors are those of `index.discovery.discover`.
    """
    tasks = _tasks(spark)
    found = judged(spark, recipe, divide(store, tasks * _PARTS_PER_TASK), tasks).persist()
    try:
        with interrupt_at_deadline(spark, deadline):
            with watching(spark, progress, "listing"):
                counts = _counts(found)
            with watching(spark, progress, "indexing", files=counts.get(PAYLOAD, 0)):
                return _build(store, found, counts, Leaves(sink.commit, None if carry else recipe), sink)
    finally:
        found.unpersist()


def _build(store: Store, found: DataFrame, counts: Mapping[str, int], kernel: Leaves, sink: StagingSink) -> Discovered:
    if counts.get(STORE):
        others = frozenset(key_text(row["key"]) for row in _with(found, STORE).select("key").distinct().collect())
        found = found.mapInArrow(partial(without_others, others), ddl(JUDGED))
        counts = _counts(found)
    if counts.get(PUSHED):
        (first,) = _with(found, PUSHED).select("key").orderBy("key").limit(1).collect()
        raise head_lost(store, key_text(first["key"]))
    payload, entries = _with(found, PAYLOAD).select(*FOUND), counts.get(PAYLOAD, 0)
    refusals = counts.get(REFUSED, 0)
    refused = _refused(found) if refusals else []
    try:
        root = _tree(payload, entries, kernel, sink)
    except Nested:
        parent_paths = payload.select("path").mapInArrow(parent_directories, "path string").distinct()
        in_the_way = payload.join(parent_paths, "path", "left_semi").select("path").distinct()
        first_rows = in_the_way.orderBy("path").limit(MOST_REFUSED).collect()
        refused = sorted((*refused, *(Refused(row["path"], IN_THE_WAY) for row in first_rows)), key=attrgetter("key"))
        refusals += in_the_way.count()
        root = _tree(payload.join(parent_paths, "path", "left_anti"), entries, kernel, sink, apart=True)
    return Discovered(root, refused[:MOST_REFUSED], refusals, counts.get(IGNORED, 0))


def _tree(payload: DataFrame, entries: int, kernel: Leaves, sink: StagingSink, *, apart: bool = False) -> Root | None:
    """Sort the entries into ranges, let a task write the leaves of each, and join them to a tree."""
    if entries == 0:
        return None
    parts = min(_MOST_TASKS, -(-entries // _ROWS))
    ordered = payload.repartitionByRange(parts, "path").sortWithinPartitions(payload["path"], payload["size"].desc())
    rows = ordered.mapInArrow(kernel, ddl(PIECES))
    return join_partitions(joined(_stream(rows), _keeping(sink), apart=apart), sink)


def _keeping(sink: StagingSink) -> Callable[[NodeFile], None]:
    """Return a function that stages the leaves that rows carry, and flushes the sink now and then."""
    taken = count(1)

    def keep(file: NodeFile) -> None:
        sink.take(file)
        if next(taken) % FLUSH_EVERY == 0:
            sink.flush()

    return keep


def _refused(found: DataFrame) -> list[Refused]:
    first = _with(found, REFUSED).orderBy("key").limit(MOST_REFUSED).collect()
    return [Refused(key_text(row["key"]), row["reason"]) for row in first]


def _stream(rows: DataFrame) -> Iterator[LeafRow]:
    """Yield rows in the order of ranges; the driver has few of them at a time."""
    return (LeafRow(*row) for row in rows.toLocalIterator(prefetchPartitions=True))


def _counts(found: DataFrame) -> dict[str, int]:
    return {row["verdict"]: row["count"] for row in found.groupBy("verdict").count().collect()}


def _with(found: DataFrame, verdict: str) -> DataFrame:
    return found.where(found["verdict"] == verdict)


def _tasks(spark: SparkSession) -> int:
    """Return a number of tasks that keeps the cluster busy: the configured number of shuffle partitions."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
