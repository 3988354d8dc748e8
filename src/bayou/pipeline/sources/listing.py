"""A store's listing, and what of it is payload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow

from bayou.engine.parts import Part, groups, objects
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta
from bayou.pipeline.arrow import OBJECTS, objects_to_batch
from bayou.pipeline.kernels.judge import JUDGED, Judge
from bayou.pipeline.sources.source import load
from bayou.pipeline.stores import store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

Encode = Callable[[Sequence[ObjectMeta]], pyarrow.RecordBatch]


def listed(spark: SparkSession, recipe: StoreSpec, parts: Sequence[Part], tasks: int) -> DataFrame:
    """Return the objects of some parts of a store: `key` (bytes), `size`, `etag`, `version`, `modified`."""
    return load(spark, "listing", OBJECTS, groups(parts, tasks), partial(_read, recipe, _plainly))


def judged(spark: SparkSession, recipe: StoreSpec, parts: Sequence[Part], tasks: int) -> DataFrame:
    """Return the same objects, each with the verdict of discovery (`kernels.judge`)."""
    return load(spark, "payload", JUDGED, groups(parts, tasks), partial(_read, recipe, Judge))


def _plainly(_: Store) -> Encode:
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
