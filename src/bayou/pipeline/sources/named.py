"""What trees of an index name, leaf by leaf, as far as the leaves can be read; those that cannot are told of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow

from bayou.errors import NodeDamaged, NodeMissing
from bayou.index.check import try_load
from bayou.index.node import Leaf, Ref
from bayou.index.nodes import StoreNodes
from bayou.index.trash import trash_refusal
from bayou.pipeline.arrow import TEXT, batch, key_bytes
from bayou.pipeline.kernels.compare import CASES, DAMAGED, ENTRY, NAMELESS, REFUSED, TRASH_REFUSED, WASTED
from bayou.pipeline.parts import groups
from bayou.pipeline.sources.source import load
from bayou.pipeline.stores import store_of
from bayou.store.recipe import Recipe
from bayou.store.store import Store
from bayou.sync.compare import is_nameless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

NAMED = pyarrow.schema([*CASES, pyarrow.field("reason", TEXT)])
"""A case of a given kind; or a row of the index or the trash (its path as `key`) that nothing is done by, or a node
(its name as `key`) that cannot be read, and the reason."""


def named(spark: SparkSession, recipe: Recipe, trees: Mapping[str, Sequence[Ref]], tasks: int) -> DataFrame:
    """Return what some leaves name (`NAMED`), each as of the kind that it is given under.

    Of kinds other than `ENTRY` and `WASTED` only the keys are told.
    """
    parts = [(kind, refs) for kind, leaves in trees.items() for refs in groups(leaves, tasks)]
    return load(spark, "named", NAMED, parts, partial(_read, recipe))


def _read(recipe: Recipe, part: tuple[str, Sequence[Ref]] | tuple[()]) -> Iterator[pyarrow.RecordBatch]:
    if part:
        yield from read(store_of(recipe), *part)


def read(store: Store, kind: str, refs: Sequence[Ref]) -> Iterator[pyarrow.RecordBatch]:
    """Yield what the leaves name. Failures of the store itself are raised (V4)."""
    source = StoreNodes(store)
    for ref, node in zip(refs, source.map(partial(try_load, source, 0), refs), strict=True):
        if isinstance(node, NodeMissing | NodeDamaged):
            yield _batch([(ref.node.encode(), DAMAGED, *[None] * 5, node.message)])
        elif isinstance(node, Leaf):
            yield _batch(list(_rows(kind, node)))


def _rows(kind: str, leaf: Leaf) -> Iterator[tuple[object, ...]]:
    for entry in leaf.rows:
        why = trash_refusal(entry) if kind == WASTED else entry.refusal() if kind == ENTRY else None
        if why is None:
            known = (entry.size, entry.sha256, entry.etag, entry.version, entry.modified)
            told = known if kind in (ENTRY, WASTED) else [None] * 5
            yield key_bytes(entry.key), kind, *told, None
        else:
            bad = TRASH_REFUSED if kind == WASTED else NAMELESS if is_nameless(entry) else REFUSED
            yield key_bytes(entry.path), bad, *[None] * 5, why


def _batch(found: Sequence[tuple[object, ...]]) -> pyarrow.RecordBatch:
    return batch(NAMED, list(zip(*found, strict=True)))
