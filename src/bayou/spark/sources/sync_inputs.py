"""All that is said of the paths of a sync: by a walk of the tree, by `sync.db`, by base, and by the store's index.

One source for all of them: Spark asks every source of its own twice, in a process that it starts for that, before it
reads anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow
from msgspec import Struct
from msgspec.structs import asdict
from pyarrow import parquet

from bayou.engine.handle import store_of
from bayou.engine.parts import groups
from bayou.index.node import Ref
from bayou.index.tree import IndexTree
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.transport import Requests
from bayou.spark.arrow import batch
from bayou.spark.kernels.plan import SIDES
from bayou.spark.sources import index_entries, source
from bayou.spark.sources.source import read_parts
from bayou.worktree.scan import subtrees

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_WALKED = {
    "file_size": "size",
    "file_mtime": "mtime_ns",
    "file_ctime": "ctime_ns",
    "file_inode": "inode",
    "skip_kind": "skipped",
    "skip_reason": "reason",
}
"""The columns of a walk: a file with its stat, or something else that lies there, with its kind and the reason."""

SENT = "sent"
"""The kind of a row that is no path: its reason says how many requests the part has sent to the store."""


class Inputs(Struct, frozen=True):
    """The inputs of a comparison: a tree, Parquet files of `sync.db` by side, base, and the store's entries if they are
    others. `cache` has nodes of both."""

    root: Path
    known: Mapping[str, Path]
    base: IndexTree
    remote: IndexTree | None
    cache: Path


class _Walk(Struct, frozen=True):
    """Some directories of the tree."""

    places: Sequence[str | None]


class _Leaves(Struct, frozen=True):
    """Some leaves of base, or of the store's index."""

    side: str
    refs: Sequence[Ref]


class _Table(Struct, frozen=True):
    """Some row groups of a file."""

    side: str
    file: Path
    groups: Sequence[int]


_Part: TypeAlias = _Walk | _Leaves | _Table


def sync_inputs(spark: SparkSession, spec: StoreSpec, inputs: Inputs, tasks: int) -> DataFrame:
    """Return the rows of all sides, each with the columns of every side that has rows; one path may have many rows."""
    sides, parts = divide(inputs, tasks)
    schema = schema_of(sides)
    return read_parts(spark, schema, parts, partial(read, spec, inputs.root, inputs.cache, schema))


def divide(inputs: Inputs, tasks: int) -> tuple[list[str], list[_Part]]:
    """Return the sides that have rows, and the parts to read; each side is divided among this many tasks."""
    sides = ["file", "skip"]
    parts: list[_Part] = [_Walk(some) for some in groups(subtrees(inputs.root, tasks * 4), tasks)]
    for side, file in inputs.known.items():
        sides.append(side)
        count = parquet.read_metadata(file).num_row_groups
        parts += [_Table(side, file, some) for some in groups(range(count), tasks)]
    for side, tree in (("base", inputs.base), ("remote", inputs.remote)):
        if tree is not None and tree.root is not None:
            sides.append(side)
            parts += [_Leaves(side, some) for some in groups(index_entries.leaf_refs(tree), tasks)]
    return sides, parts


def schema_of(sides: Sequence[str]) -> pyarrow.Schema:
    """Return the columns of some sides."""
    columns = {f"{side}_{name}": kind for side in sides for name, kind in SIDES[side].items()}
    return pyarrow.schema({"path": pyarrow.string(), **columns})


def read(
    spec: StoreSpec, root: Path, cache: Path, schema: pyarrow.Schema, part: _Part
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of one part."""
    match part:
        case _Walk(some):
            found, names = source.read(root, some), _WALKED
        case _Leaves(side, refs):
            found, names = index_entries.read(spec, cache, refs), _columns(side)
        case _Table(side, file, numbers):
            found, names = parquet.ParquetFile(file).iter_batches(row_groups=list(numbers)), _columns(side)
    before = store_of(spec).requests if isinstance(part, _Leaves) else None
    for one in found:
        yield _as(schema, names, one)
    if before is not None:
        yield _as(schema, _WALKED, _request_row(part, store_of(spec).requests - before))


def parse_requests(text: str) -> Requests:
    """Return the requests that a part has sent to the store, from the reason of its row of kind `SENT`."""
    return Requests(**json.loads(text))


def _request_row(part: _Part, requests: Requests) -> pyarrow.RecordBatch:
    """Return a row with the requests of a part. Its path is no file's (it begins with `~`) and no other part's."""
    row = {"path": f"~{SENT}/{sha256(repr(part).encode()).hexdigest()}", "skipped": SENT}
    row["reason"] = json.dumps(asdict(requests))
    return batch(source.FILES, [[row.get(name)] for name in source.FILES.names])


def _as(schema: pyarrow.Schema, names: Mapping[str, str], one: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Return a batch of one side with the columns of all sides; those of the others are null."""
    columns = [
        one.column(names.get(field.name, "path"))
        if field.name in names or field.name == "path"
        else pyarrow.nulls(one.num_rows, field.type)
        for field in schema
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _columns(side: str) -> dict[str, str]:
    return {f"{side}_{name}": name for name in SIDES[side]}
