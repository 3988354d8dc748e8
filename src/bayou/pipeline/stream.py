"""A result as it comes: Arrow batches, part after part, and never the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.session import SparkSession


def batches(spark: SparkSession, frame: DataFrame) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches of a data frame in the order of its parts. Rows of Spark's cost far more."""
    plan = cast("ConnectFrame", frame)._plan
    for found in spark.client.to_table_as_iterator(plan.to_proto(spark.client), plan.observations):
        if isinstance(found, pyarrow.Table):  # and not the schema, which comes first
            yield from found.to_batches()


def tasks_of(spark: SparkSession) -> int:
    """Return a number of tasks that keeps the cluster busy: what shuffles are told is made for it."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
