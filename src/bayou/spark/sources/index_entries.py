"""The entries of one version of an index, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow

from bayou.engine.handle import store_of
from bayou.engine.parts import groups
from bayou.index.node import Ref
from bayou.index.node_store import NodeFiles, StoreNodes
from bayou.index.tree import IndexTree, branches, leaves
from bayou.objectstore.spec import StoreSpec
from bayou.spark.arrow import ENTRIES, entries_to_batch
from bayou.spark.sources.source import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


def entries(spark: SparkSession, spec: StoreSpec, tree: IndexTree, tasks: int) -> DataFrame:
    """Return the entries of a tree in a store, with the columns of `ENTRIES`.

    Only branches are read here; tasks read leaves, which lie next to each other, and prove each of them.
    """
    return load(spark, "entries", ENTRIES, groups(leaf_refs(tree), tasks), partial(read, spec, None))


def leaf_refs(tree: IndexTree) -> list[Ref]:
    """Return the references to the leaves of a tree, in order."""
    if tree.root is None:
        return []
    refs: list[Ref] = [tree.root]
    for level in range(tree.root.level, 0, -1):
        refs = [row for node in branches(tree.source, level, refs) for row in node.rows]
    return refs


def read(spec: StoreSpec, cache: Path | None, refs: Sequence[Ref]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the entries of leaves. `cache` is a directory of nodes; nodes that it lacks are fetched and added."""
    source = StoreNodes(store_of(spec), NodeFiles(cache) if cache is not None else None)
    for leaf in leaves(source, refs):
        yield entries_to_batch(leaf.rows)
