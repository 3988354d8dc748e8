"""How far a job on Spark has come: finished tasks, told to whoever watches in files and bytes where those are known.

Only what was planned is known beforehand, so files and bytes are what was planned, scaled by tasks. Spark's own bar is
off: it writes to stdout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from bayou.sync.progress import Progress, Silent

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
    if progress is None or isinstance(progress, Silent):
        yield
        return
    tally = _Tally(progress, files, bytes)
    handler = cast("ProgressHandler", tally.told)
    progress.begin(what, files, bytes)
    spark.registerProgressHandler(handler)
    try:
        yield
        tally.reach(1.0)
    finally:
        spark.removeProgressHandler(handler)
        progress.end()


class _Tally:
    """What has been told of a stage. It never goes back: Spark learns of more tasks while others are done."""

    def __init__(self, progress: Progress, files: int | None, size: int | None) -> None:
        self._progress = progress
        self._planned = (files, size)
        self._told = (0, 0)
        self._share = 0.0
        self._tasks: dict[int, tuple[int, int]] = {}

    def told(self, stages: Iterable[StageInfo] | None, **_: object) -> None:
        """Take what Spark says of the stages of an operation."""
        for stage in stages or ():
            self._tasks[stage.stage_id] = (stage.num_completed_tasks, stage.num_tasks)
        done, known = (sum(column) for column in zip(*self._tasks.values(), strict=True)) if self._tasks else (0, 0)
        if known:
            self.reach(min(1.0, done / known))  # tasks that ran again are done twice

    def reach(self, share: float) -> None:
        """Tell that a share of the whole is done."""
        if share <= self._share:
            return
        self._share = share
        if self._planned == (None, None):
            self._progress.share(share)
            return
        files, size = (round((planned or 0) * share) for planned in self._planned)
        before, self._told = self._told, (files, size)
        self._progress.advance(files=files - before[0], bytes=size - before[1])
