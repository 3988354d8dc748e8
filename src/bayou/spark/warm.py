"""Warm the local Spark server up, stop it, and report its state: the work of `bayou spark`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import JavaMissing, JavaTooOld, SparkUnavailable
from bayou.spark.server.control import START_S, SparkServer, accepts_connections
from bayou.spark.server.identity import find_spark, spark_version
from bayou.spark.server.watch import stop_if_idle
from bayou.spark.session import spark_session, without_secrets

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.connect.session import SparkSession

Mode = Literal["local", "master", "remote"]

_DEFAULT_PORT = 15002
_ROWS = 20_000


class SparkStatus(Struct, frozen=True):
    """Which Spark is configured and whether it runs. `java` and `log` are None for a remote server."""

    mode: Mode
    url: str | None
    version: str
    running: bool
    java: str | None = None
    log: Path | None = None
    problem: str | None = None


class WarmUpResult(Struct, frozen=True):
    """The result of `warm_up`: whether it started a server, and whether there is a class archive now."""

    status: SparkStatus
    started: bool
    archive: bool


def status(config: SparkConfig) -> SparkStatus:
    """Return which Spark is configured and whether it runs, from files and a socket; start and request nothing."""
    config.require_trust()
    if config.remote is not None:
        return _remote_status(config.remote)
    mode: Mode = "local" if config.master is None else "master"
    try:
        server = SparkServer.of(config)
    except (JavaMissing, JavaTooOld) as error:
        return SparkStatus(mode, None, find_spark().version, running=False, problem=f"{error.message}; {error.hint}")
    record = server.running() if server.is_listening() else None
    url = record.url if record else None
    return SparkStatus(mode, url, server.spark.version, record is not None, server.java.version, server.files.log)


def warm_up(config: SparkConfig, *, deadline: Deadline | None = None) -> WarmUpResult:
    """Start the server and run small jobs on it; make the class archive first, if there is none.

    A server dumps the archive when it ends, so this ends the first server and starts another. It does not end a server
    that other sessions use.
    """
    if config.remote is not None:
        _exercise_server(config, None)
        return WarmUpResult(_remote_status(config.remote), started=False, archive=False)
    deadline = deadline or Deadline.after(2 * START_S)
    server = SparkServer.of(config)
    started = not server.running()
    if not server.archive.ready:
        _exercise_server(config, deadline)
        stop_if_idle(server.files, 0.0)
        server.archive.publish(server.files)
        started = started or not server.running()
    _exercise_server(config, deadline)
    return WarmUpResult(status(config), started, server.archive.ready)


def stop(config: SparkConfig) -> bool:
    """Stop the local server; return whether it ran. A remote server is refused: Bayou did not start it."""
    if config.remote is not None:
        raise SparkUnavailable(
            f"{without_secrets(config.remote)} is not a server of Bayou's", hint="it is stopped where it was started"
        )
    return SparkServer.of(config).stop(Deadline.after(START_S))


def _remote_status(url: str) -> SparkStatus:
    address = urlsplit(without_secrets(url))
    running = accepts_connections(address.hostname or "", address.port or _DEFAULT_PORT)
    return SparkStatus("remote", without_secrets(url), spark_version(), running)


def _exercise_server(config: SparkConfig, deadline: Deadline | None) -> None:
    with spark_session(config, deadline=deadline) as spark:
        _exercise(spark)


def _exercise(spark: SparkSession) -> None:
    """Use each feature that jobs use: Arrow to Python and back, shuffles, joins, windows, streamed results.

    The classes that are loaded here get into the class archive, so that the first job on a new server starts fast.
    """
    import pyarrow  # noqa: PLC0415
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    from bayou.spark.arrow import BYTES, INT, TEXT, TIME, batches, read_parts  # noqa: PLC0415

    schema = pyarrow.schema({"path": TEXT, "size": INT, "sha256": BYTES, "modified": TIME})
    table = pyarrow.table(
        {name: pyarrow.array(values).cast(schema.field(name).type) for name, values in _rows().items()}, schema=schema
    )

    def read(_: int) -> Iterator[RecordBatch]:
        yield from table.to_batches()

    def same(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        yield from batches

    grouped = read_parts(spark, schema, range(2), read).repartition("path").groupBy("path")
    merged = grouped.agg(*(f.first(name, ignorenulls=True).alias(name) for name in schema.names[1:]))
    changed = merged.where(~f.coalesce(f.col("size").eqNullSafe(f.col("path").cast("long")), f.lit(True)))
    divided = spark.createDataFrame(table).withColumn("task", f.col("size").cast("int") % 2)
    rows = spark.range(_ROWS).select(f.col("id"), f.sha2(f.col("id").cast("string"), 256).alias("path"))
    grouped_rows = rows.groupBy("path").agg(f.max("id").alias("newest"))
    newest = f.row_number().over(Window.partitionBy("newest").orderBy(f.desc("path")))
    sorted_rows = rows.mapInArrow(same, "id long, path string").repartitionByRange("path").sortWithinPartitions("path")
    for frame in (
        changed.sortWithinPartitions("path").mapInArrow(same, changed.schema),
        divided.repartitionById(2, "task").mapInArrow(same, divided.schema),
        sorted_rows.join(grouped_rows, "path", "full").withColumn("age", newest),
    ):
        for _ in batches(spark, frame):
            pass


def _rows() -> dict[str, list[object]]:
    numbers = range(_ROWS)
    return {
        "path": [str(number) for number in numbers],
        "size": list(numbers),
        "sha256": [number.to_bytes(32, "big") for number in numbers],
        "modified": list(numbers),
    }
