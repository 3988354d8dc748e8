"""Report the progress of a job on Spark as files and bytes.

Spark reports finished tasks only. So files and bytes are the planned totals, scaled by the share of finished tasks.
Spark's own progress bar is off: it writes to stdout.
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
    """Report a stage while one operation runs in a session; `files` and `bytes` are the planned totals.

    The thread that reads the server's answers reports, and only while it reads them. Without totals it reports only the
    share of finished tasks.
    """
    if progress is None or isinstance(progress, NoProgress):
        yield
        return
    tally = _Tally(ScaledProgress(progress, Stage(what, files, bytes)))
    handler = cast("ProgressHandler", tally.update)
    progress.begin(what, files, bytes)
    spark.registerProgressHandler(handler)
    try:
        yield
        tally.scaled.reach(1.0)
    finally:
        spark.removeProgressHandler(handler)
        progress.end()


class _Tally:
    """Turn the task counts of an operation's stages into the share that is done."""

    def __init__(self, scaled: ScaledProgress) -> None:
        self.scaled = scaled
        self._tasks: dict[int, tuple[int, int]] = {}

    def update(self, stages: Iterable[StageInfo] | None, **_: object) -> None:
        """Take the counts of the stages; Spark's client calls this."""
        for stage in stages or ():
            self._tasks[stage.stage_id] = (stage.num_completed_tasks, stage.num_tasks)
        done = sum(completed for completed, _ in self._tasks.values())
        known = sum(total for _, total in self._tasks.values())
        if known:
            self.scaled.reach(min(1.0, done / known))  # a task that ran again counts twice
