"""The files of a tree, by stat. Its directory must be where the workers see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow

from bayou.engine.parts import groups
from bayou.pipeline.arrow import INT, TEXT, batch
from bayou.pipeline.sources.source import load
from bayou.tree.scan import Found, Skipped, places, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

FILES = pyarrow.schema(
    {
        "path": TEXT,
        "size": INT,
        "mtime_ns": INT,
        "ctime_ns": INT,
        "inode": INT,
        "skipped": TEXT,
        "reason": TEXT,
    }
)
"""A file with its stat; or, where `skipped` says how, something that is no payload, and why."""

TEMPORARY = "temporary"
"""How a write in progress is skipped, or what a killed one left."""

_AT_ONCE = 1000


def files(spark: SparkSession, root: Path, tasks: int) -> DataFrame:
    """Return what lies in a tree (`FILES`)."""
    return load(spark, "files", FILES, groups(places(root, tasks * 4), tasks), partial(read, root))


def read(root: Path, some: Sequence[str | None]) -> Iterator[pyarrow.RecordBatch]:
    """Yield what lies at and below some places."""
    temporaries: list[str] = []
    found = (_row(one) for place in some for one in scan(root, place, temporaries))
    left = ((path, None, None, None, None, TEMPORARY, "") for path in temporaries)  # read when the walk is over
    rows = chain(found, left)
    while batched := list(islice(rows, _AT_ONCE)):
        yield batch(FILES, list(zip(*batched, strict=True)))


def _row(one: Found | Skipped) -> tuple[object, ...]:
    if isinstance(one, Skipped):
        return one.path, None, None, None, None, one.kind, one.reason
    stat = one.stat
    return one.path, stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, None, None
