"""Run jobs (`engine.job`) as Spark tasks, and transfer the files of a large sync (`sync.bulk_pass`).

Each part of a job is a task: a kernel gets the part's number, runs the part with the store client of its process, and
yields the rows as Arrow batches. The driver folds the rows as they arrive and never collects them.

`SparkEngines` is imported early, by the program's entry points, so it imports the rest of Spark only when it is used.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.progress import Progress
from bayou.engine.job import Job, Needs, Part, Result, Row
from bayou.spark.arrow import BYTES, INT, array, batches, key_bytes, key_text, read_parts, tasks_of
from bayou.spark.progress import watching
from bayou.spark.session import interrupt_at_deadline, interrupt_on_error, log_of, spark_errors

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from bayou.objectstore.spec import StoreSpec
    from bayou.spark.transfer import SparkTransfer
    from bayou.sync.context import SyncContext

_PARTS_PER_TASK = 4
"""More parts than tasks run at once, so that a long part leaves no core idle."""

_BATCH_ROWS = 2000

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark compiles no code for the plans of jobs: their work is in Python, and compiling takes a new server a second.

A task that compiles also asks the driver for classes that do not exist, and on a new server the answer to the first of
these questions is sometimes lost: Spark then waits for two minutes (`RemoteClassLoaderError`) before it tries again."""

_COLUMNS = {str: BYTES, bytes: BYTES, int: INT, float: pyarrow.float64(), bool: pyarrow.bool_()}
"""The Arrow types of fields. A `str` is sent as bytes: a key of a store need not be UTF-8."""


class SparkExecutor:
    """Runs parts as tasks of one session. An `engine.job.Executor`, and a `sync.bulk_pass.BulkExecutor`."""

    engine = "spark"

    def __init__(
        self, session: SparkSession, *, deadline: Deadline | None = None, progress: Progress | None = None
    ) -> None:
        self.session = session
        """The session, for jobs that use DataFrames; the parts of a job do not use it."""
        self._deadline = deadline
        self._progress = progress

    @property
    def slots(self) -> int:
        return tasks_of(self.session)

    def run(self, job: Job[Part, Row, Result]) -> Result:
        spark, stage = self.session, job.stage
        with spark_errors(log_of(spark)), interrupt_at_deadline(spark, self._deadline), interrupt_on_error(spark):
            parts = job.parts(self.slots * _PARTS_PER_TASK)
            frame = read_parts(spark, schema_of(job.row), parts, JobKernel(job))
            with (
                watching(spark, self._progress, stage.what, files=stage.files, bytes=stage.bytes),
                closing(self._rows(job.row, batches(spark, frame))) as rows,
            ):
                return job.fold(rows)

    def transfer_executor(self, spec: StoreSpec, context: SyncContext) -> SparkTransfer:
        from bayou.spark.transfer import SparkTransfer  # noqa: PLC0415

        return SparkTransfer(
            self.session,
            spec,
            context.store,
            context.root,
            context.incoming.staging,
            context.repo.config.sync.pack_size,
            deadline=context.deadline,
        )

    def _rows(self, row: type[Row], found: Iterator[pyarrow.RecordBatch]) -> Generator[Row, None, None]:
        for batch in found:
            if self._deadline is not None:
                self._deadline.remaining()  # V12: also while the driver folds rows that have arrived
            yield from decode(row, batch)


class JobKernel:
    """A kernel: from a part to batches of its rows. Spark may run it twice for a part."""

    def __init__(self, job: Job[Any, Any, Any]) -> None:
        self.job = job

    def __call__(self, part: object) -> Iterator[pyarrow.RecordBatch]:
        schema, rows = schema_of(self.job.row), self.job.run(part)
        while batch := list(islice(rows, _BATCH_ROWS)):
            yield encode(schema, batch)


def schema_of(row: type[tuple[Any, ...]]) -> pyarrow.Schema:
    """Return the schema of a NamedTuple class: a column for each field."""
    return pyarrow.schema({name: _COLUMNS[_plain(hint)] for name, hint in typing.get_type_hints(row).items()})


def encode(schema: pyarrow.Schema, rows: Sequence[tuple[Any, ...]]) -> pyarrow.RecordBatch:
    """Encode rows as a batch."""
    columns = [
        array([key_bytes(value) if isinstance(value, str) else value for value in column], field.type)
        for field, column in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def decode(row: type[Row], found: pyarrow.RecordBatch) -> Iterator[Row]:
    """Decode the rows of a batch; the inverse of `encode`."""
    columns: list[list[Any]] = []
    for (name, hint), column in zip(typing.get_type_hints(row).items(), found.columns, strict=True):
        values = column.to_pylist()
        text = _plain(hint) is str
        columns.append([None if value is None else key_text(value) for value in values] if text else values)
        assert found.schema.field(len(columns) - 1).name == name
    return (row(*values) for values in zip(*columns, strict=True))


def _plain(hint: Any) -> type:
    """Return the type of a field without its `| None`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
    assert isinstance(hint, type)
    return hint


class SparkEngines:
    """Open executors on Spark. The `engine.select.SparkEngine` that the program's entry points install."""

    def is_server_running(self, config: SparkConfig) -> bool:
        """Guess whether a session opens without a cold start; see `is_available`."""
        from bayou.spark.server.files import is_available  # noqa: PLC0415

        return is_available(config)

    @contextmanager
    def open(
        self, config: SparkConfig, needs: Needs, *, deadline: Deadline, progress: Progress | None
    ) -> Iterator[SparkExecutor]:
        """Open a session, check that its workers reach the stores and directories of a job, and close it at the end.

        V26: before it opens the session, this checks that no credential would travel in clear text.
        """
        from bayou.spark.session import require_private_channel, spark_session  # noqa: PLC0415
        from bayou.spark.shared_fs import require_shared, require_store  # noqa: PLC0415

        for store in needs.stores:
            require_private_channel(config, store.spec())
        with spark_session(config, deadline=deadline) as spark:
            for name, value in INTERPRETED.items():
                spark.conf.set(name, value)
            for store in needs.stores:
                require_store(spark, store.url, writes=store in needs.written)
            for path, what in needs.directories:
                require_shared(spark, path, what)
            yield SparkExecutor(spark, deadline=deadline, progress=progress)
