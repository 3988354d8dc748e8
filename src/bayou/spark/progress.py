"""How far a job on Spark has come: finished tasks, told to whoever watches in files and bytes where those are known.

Only what was planned is known beforehand, so files and bytes are what was planned, scaled by tasks. Spark's own bar is
off: it writes to stdout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from bayou.core.progress import NoProgress, Progress, ScaledProgress, Stage

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo


@contextmanager
def watching(
    spark: SparkSession,
    progress: Progress | None,
    what: str,
    *,
    files: int | None = None,
    bytes: int | None = None,  # noqa: A002
) -> Iterator[None]:
    """Show a stage while one operation runs in a session; `files` and `bytes` are what it was planned to go through.

    Told only while answers of the server are read, by the thread that reads them. Without either, only a share is told.
    """
    if progress is None or isinstance(progress, NoProgress):
        yield
        return
    tally = _Tally(ScaledProgress(progress, Stage(what, files, bytes)))
    handler = cast("ProgressHandler", tally.told)
    progress.begin(what, files, bytes)
    spark.registerProgressHandler(handler)
    try:
        yield
        tally.scaled.reach(1.0)
    finally:
        spark.removeProgressHandler(handler)
        progress.end()


class _Tally:
    """Turns what Spark says of the stages of an operation into a share of it."""

    def __init__(self, scaled: ScaledProgress) -> None:
        self.scaled = scaled
        self._tasks: dict[int, tuple[int, int]] = {}

    def told(self, stages: Iterable[StageInfo] | None, **_: object) -> None:
        """Take what Spark says of the stages of an operation."""
        for stage in stages or ():
            self._tasks[stage.stage_id] = (stage.num_completed_tasks, stage.num_tasks)
        done, known = (sum(column) for column in zip(*self._tasks.values(), strict=True)) if self._tasks else (0, 0)
        if known:
            self.scaled.reach(min(1.0, done / known))  # tasks that ran again are done twice
