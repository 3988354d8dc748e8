"""Write a query's result as Parquet: each task writes a part, and the file or directory appears atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet

from bayou.core.atomic_file import fsync_file
from bayou.core.errors import UsageError
from bayou.core.ids import ulid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_MICROS = (
    "spark.sql.parquet.outputTimestampType",
    "TIMESTAMP_MICROS",
)  # Spark's default, INT96, is deprecated in Parquet


@contextmanager
def staging(target: Path, *, directory: bool) -> Iterator[Path]:
    """Yield a directory beside `target` for the tasks to write to, and remove it at the end; check `target` first."""
    check_target(target, directory=directory)
    parts = target.absolute().parent / f".bayou-{ulid()}.tmp"
    try:
        yield parts
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def write(spark: SparkSession, frame: DataFrame, parts: Path) -> None:
    """Have Spark's tasks write a result, each its own part."""
    spark.conf.set(*_MICROS)
    frame.write.parquet(f"file://{parts}")  # not `as_uri`: Spark would create a name with a literal %20


def publish(parts: Path, target: Path, *, directory: bool) -> int:
    """Rename the parts to `target`, as a directory or joined into one file; return the number of rows."""
    files = sorted(parts.glob("part-*.parquet"))
    count: int = sum(parquet.read_metadata(file).num_rows for file in files)
    if directory:
        os.replace(parts, target)
    else:
        whole = parts / "whole"
        join(files, whole)
        os.replace(whole, target)
    return count


def check_target(target: Path, *, directory: bool) -> None:
    """Raise `UsageError` if the result cannot be written to `target`."""
    if not target.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {target.absolute().parent}", hint="make it first")
    if directory and target.exists():
        raise UsageError(f"{target} is there already", hint="choose another name, or remove it")
    if not directory and target.is_dir():
        raise UsageError(f"{target} is a directory", hint=f"name a file, or {target}/NAME/ for a directory of parts")


def join(files: Sequence[Path], target: Path) -> None:
    """Join the parts into one durable file, in order, a row group at a time."""
    with parquet.ParquetWriter(target, parquet.read_schema(files[0])) as writer:
        for file in files:
            with parquet.ParquetFile(file) as part:
                for group in range(part.num_row_groups):
                    writer.write_table(part.read_row_group(group))
    fsync_file(target)
