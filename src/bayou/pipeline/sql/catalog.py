"""Rows of the catalog as Arrow, a range of them at a time: what a worker reads, with nothing but the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow
from msgspec import Struct

from bayou.core.errors import StateError
from bayou.pipeline.sql.tables import CatalogTable

RANGE = 25_000
"""Rows of one task: read in a fraction of a second, so that nobody waits for one that is left."""

_ARROW = {"string": pyarrow.string(), "bigint": pyarrow.int64(), "double": pyarrow.float64()}
_BATCH = 4096
_WAIT_S = 60.0


class Rows(Struct, frozen=True):
    """The rows of one table whose rowid lies in a range, both ends included."""

    first: int
    last: int


def ranges(catalog: Path, table: CatalogTable, size: int = RANGE) -> list[Rows]:
    """Divide a table into ranges of about so many rows each; none if it is empty."""
    with _opened(catalog) as db:
        count, first, last = db.execute(f"SELECT count(*), min(rowid), max(rowid) FROM {table.name}").fetchone()
    if not count:
        return []
    step = -(-(last - first + 1) // -(-count // size))
    return [Rows(low, min(low + step - 1, last)) for low in range(first, last + 1, step)]


def read(catalog: Path, table: CatalogTable, rows: Rows, where: str = "TRUE") -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a range for which a condition holds, as of one moment."""
    schema = pyarrow.schema([(name, _ARROW[kind]) for name, kind in table.columns.items()])
    for name in table.derived:
        schema = schema.append(pyarrow.field(name, pyarrow.bool_()))
    statement = f"SELECT {table.select} FROM {table.name} WHERE rowid BETWEEN ? AND ? AND {where}"
    with _opened(catalog) as db:
        found = db.execute(statement, (rows.first, rows.last))
        while batch := found.fetchmany(_BATCH):
            yield pyarrow.RecordBatch.from_arrays(list(_columns(batch, schema)), schema=schema)


def _columns(batch: Sequence[Sequence[Any]], schema: Any) -> Iterator[Any]:
    for values, kind in zip(zip(*batch, strict=True), schema.types, strict=True):
        yield pyarrow.array([bool(one) for one in values] if pyarrow.types.is_boolean(kind) else values, kind)


@contextmanager
def _opened(catalog: Path) -> Iterator[sqlite3.Connection]:
    """Open the catalog to read. It is a file that may be gone, damaged or somewhere else."""
    try:
        address = f"{catalog.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None)) as db:
            yield db
    except sqlite3.Error as error:
        raise StateError(
            f"the catalog cannot be read: {catalog}: {error}",
            hint="workers read it as a file: it must be on a file system that they share with this machine",
        ) from error
