"""Warming Spark up, and saying how it is: what `bayou spark` does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import JavaMissing, JavaTooOld, SparkUnavailable
from bayou.spark.server.control import START_S, SparkServer, accepts_connections
from bayou.spark.server.identity import find_spark
from bayou.spark.server.watch import stop_if_idle
from bayou.spark.session import spark_session, without_secrets
from bayou.spark.shared_fs import on_this_machine

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.connect.session import SparkSession

Mode = Literal["local", "master", "remote"]

_DEFAULT_PORT = 15002
_ROWS = 20_000


class SparkStatus(Struct, frozen=True):
    """Which Spark is used and whether it runs. `java` and `log` are None where the server is somebody else's."""

    mode: Mode
    url: str | None
    version: str
    running: bool
    java: str | None = None
    log: Path | None = None
    problem: str | None = None


class Warmed(Struct, frozen=True):
    """What warming up did: started a server, made the class archive, found either there already."""

    status: SparkStatus
    started: bool
    archive: bool


def status(config: SparkConfig) -> SparkStatus:
    """Say which Spark is configured and whether it runs: by files and a socket, without a JVM or a request."""
    config.require_trust()
    if config.remote is not None:
        return _remote_status(config.remote)
    mode: Mode = "local" if config.master is None else "master"
    try:
        warm = SparkServer.of(config)
    except (JavaMissing, JavaTooOld) as error:
        return SparkStatus(mode, None, find_spark().version, running=False, problem=f"{error.message}; {error.hint}")
    record = warm.running() if warm.is_listening() else None
    url = record.url if record else None
    return SparkStatus(mode, url, warm.spark.version, record is not None, warm.java.version, warm.files.log)


def warm_up(config: SparkConfig, *, deadline: Deadline | None = None) -> Warmed:
    """Start the server and let it do a little of everything; make the class archive first, if there is none.

    A server that makes the archive has to end for it. One that others use is left to them.
    """
    if config.remote is not None:
        _exercise_server(config, None)
        return Warmed(_remote_status(config.remote), started=False, archive=False)
    deadline = deadline or Deadline.after(2 * START_S)
    warm = SparkServer.of(config)
    started = not warm.running()
    if not warm.archive.ready:
        _exercise_server(config, deadline)
        stop_if_idle(warm.files, 0.0)
        warm.archive.publish(warm.files)
        started = started or not warm.running()
    _exercise_server(config, deadline)
    return Warmed(status(config), started, warm.archive.ready)


def stop(config: SparkConfig) -> bool:
    """Stop the warm server; return whether there was one. A server of somebody else's is left alone."""
    if config.remote is not None:
        raise SparkUnavailable(
            f"{without_secrets(config.remote)} is not a server of Bayou's", hint="it is stopped where it was started"
        )
    return SparkServer.of(config).stop(Deadline.after(START_S))


def _remote_status(url: str) -> SparkStatus:
    address = urlsplit(without_secrets(url))
    running = accepts_connections(address.hostname or "", address.port or _DEFAULT_PORT)
    return SparkStatus("remote", without_secrets(url), find_spark().version, running)


def _exercise_server(config: SparkConfig, deadline: Deadline | None) -> None:
    with spark_session(config, deadline=deadline) as spark:
        _exercise(spark)


def _exercise(spark: SparkSession) -> None:
    """Use once what jobs use: Arrow to Python and back, sources, shuffles, joins, windows, results as a stream.

    What is used here is in the class archive, so that the first job on a new server finds it there.
    """
    import pyarrow  # noqa: PLC0415
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    from bayou.spark.arrow import BYTES, INT, TEXT, TIME, batches  # noqa: PLC0415
    from bayou.spark.sources.source import load, read_parts  # noqa: PLC0415

    schema = pyarrow.schema({"path": TEXT, "size": INT, "sha256": BYTES, "modified": TIME})
    table = pyarrow.table(
        {name: pyarrow.array(values).cast(schema.field(name).type) for name, values in _rows().items()}, schema=schema
    )

    def read(_: int) -> Iterator[RecordBatch]:
        yield from table.to_batches()

    def same(found: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        yield from found

    mine = read_parts(spark, schema, range(2), read)
    theirs = load(spark, "warm", schema, range(2), read)
    said = mine.unionByName(theirs).repartition("path").groupBy("path")
    told = said.agg(*(f.first(name, ignorenulls=True).alias(name) for name in schema.names[1:]))
    asked = told.where(~f.coalesce(f.col("size").eqNullSafe(f.col("path").cast("long")), f.lit(True)))
    divided = spark.createDataFrame(table).withColumn("task", f.col("size").cast("int") % 2)
    rows = spark.range(_ROWS).select(f.col("id"), f.sha2(f.col("id").cast("string"), 256).alias("path"))
    here = rows.groupBy("path").agg(f.max("id").alias("newest"))
    newest = f.row_number().over(Window.partitionBy("newest").orderBy(f.desc("path")))
    there = rows.mapInArrow(same, "id long, path string").repartitionByRange("path").sortWithinPartitions("path")
    for frame in (
        asked.sortWithinPartitions("path").mapInArrow(same, asked.schema),
        divided.repartitionById(2, "task").mapInArrow(same, divided.schema),
        there.join(here, "path", "full").withColumn("age", newest),
    ):
        for _ in batches(spark, frame):
            pass
    if on_this_machine(spark):
        with tempfile.TemporaryDirectory(prefix="bayou-warm-") as folder:
            _exercise_sync(spark, Path(folder))


def _exercise_sync(spark: SparkSession, folder: Path) -> None:
    """Compare a little tree, once as a first push does and once as a first pull: the same plans as of large ones.

    What the server compiles for a plan it keeps.
    """
    from bayou.index.build import build  # noqa: PLC0415
    from bayou.index.entry import Entry  # noqa: PLC0415
    from bayou.index.node_store import LocalNodes, NodeFiles  # noqa: PLC0415
    from bayou.index.tree import IndexTree  # noqa: PLC0415
    from bayou.objectstore.spec import StoreSpec  # noqa: PLC0415
    from bayou.spark.kernels.plan import LookAt  # noqa: PLC0415
    from bayou.spark.plan import compare  # noqa: PLC0415
    from bayou.spark.sources.sync_inputs import Inputs  # noqa: PLC0415

    cache, root = folder / "nodes", folder / "tree"
    (root / "files").mkdir(parents=True)
    (root / "files/here").write_bytes(b"here")
    nodes = LocalNodes(NodeFiles(cache), "warm")
    nothing = IndexTree(nodes, None)
    there = IndexTree(nodes, build([Entry("files/there", None, 0, None, None, None, 0)], nodes))
    for number, remote in enumerate((nothing, there)):
        kernel = LookAt(root, 1, ("full", ()), True, (), 0, False, remote is nothing)
        inputs = Inputs(root, {}, nothing, None if remote is nothing else remote, cache)
        compare(spark, StoreSpec.of(folder.as_uri(), None, {}), inputs, kernel, folder / f"found-{number}")


def _rows() -> dict[str, list[object]]:
    numbers = range(_ROWS)
    return {
        "path": [str(number) for number in numbers],
        "size": list(numbers),
        "sha256": [number.to_bytes(32, "big") for number in numbers],
        "modified": list(numbers),
    }
