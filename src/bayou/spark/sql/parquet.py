"""A result as Parquet: every task writes its part; what people asked for appears at once and whole."""

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

_MICROS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # else a form that only Spark reads well


@contextmanager
def staging(target: Path, *, directory: bool) -> Iterator[Path]:
    """Give a place beside `target` for tasks to write to; nothing of it is left in the end. Refuse what cannot be."""
    check_target(target, directory=directory)
    parts = target.absolute().parent / f".bayou-{ulid()}.tmp"
    try:
        yield parts
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def write(spark: SparkSession, frame: DataFrame, parts: Path) -> None:
    """Let tasks write a result, each its own part."""
    spark.conf.set(*_MICROS)
    frame.write.parquet(f"file://{parts}")  # as it is: Spark takes %20 for a name, not for a space


def publish(parts: Path, target: Path, *, directory: bool) -> int:
    """Make the parts `target`, at once: as they are, or joined. Return how many rows there are."""
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
    """Refuse a place that cannot take the result, before anything runs."""
    if not target.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {target.absolute().parent}", hint="make it first")
    if directory and target.exists():
        raise UsageError(f"{target} is there already", hint="choose another name, or remove it")
    if not directory and target.is_dir():
        raise UsageError(f"{target} is a directory", hint=f"name a file, or {target}/NAME/ for a directory of parts")


def join(files: Sequence[Path], target: Path) -> None:
    """Make one file of the parts, in order, a row group at a time."""
    with parquet.ParquetWriter(target, parquet.read_schema(files[0])) as writer:
        for file in files:
            with parquet.ParquetFile(file) as part:
                for group in range(part.num_row_groups):
                    writer.write_table(part.read_row_group(group))
    fsync_file(target)
