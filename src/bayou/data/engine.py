"""Run a job over all records of a datastore: in this process or on Spark.

Rebuilding the catalog and evaluating retention are such jobs. `engine.select` chooses the engine by the number of
records; Spark is imported only once it is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bayou.core.deadline import Deadline
from bayou.core.progress import NoProgress, Progress
from bayou.engine.select import RECORDS, Engines, Request, Selector
from bayou.repo import LOCAL, Repo

if TYPE_CHECKING:
    from bayou.engine.job import Job, Needs, Part, Result, Row

Choice = Request

_LONGEST_S = 3600.0
"""The deadline of a job (V12). A job takes time by the size of the tree, so the timeout of a sync may be too short."""

_THREADS = 1
"""Parts that run at once in this process. They are CPU-bound Python: more threads would wait for the GIL."""


class CatalogEngine(Struct, frozen=True):
    """The engine that the user asked for (with `auto`, `engine.select` chooses), and the progress bar of a job."""

    choice: Choice = "auto"
    progress: Progress = field(default_factory=NoProgress)

    def limit(self, repo: Repo) -> int | None:
        """Return the number of records up to which this process works alone; None if it always does."""
        return Selector.of(repo.config, self.choice).limit(RECORDS)

    def run(
        self, repo: Repo, job: Job[Part, Row, Result], *, what: str, count: int, warn: Callable[[str], None]
    ) -> Result:
        """Run a job over `count` records with the engine that suits the number.

        If `auto` chose Spark and Spark fails, this process runs the job, and the warning is `what` followed by "by this
        process alone"; if the user asked for Spark, the failure is raised. With no records, Spark is not started.
        """
        timeout = max(repo.config.sync.timeout or 0.0, _LONGEST_S)
        engines = Engines.of(repo.config, self.choice, Deadline.after(timeout), warn, self.progress)
        if not count:
            return engines.local(_THREADS).run(job)
        return engines.run(
            job.needs, lambda executor: executor.run(job), what=what, cost=RECORDS, files=count, threads=_THREADS
        )


def needs_of(repo: Repo) -> Needs:
    """Return the directories of a repo that workers must see: the one of its catalog, and its tree."""
    from bayou.engine.job import Needs  # noqa: PLC0415  (most commands run no job)

    own = repo.root / LOCAL
    tree = () if repo.tree_root.is_relative_to(own) else ((repo.tree_root, "the tree"),)
    return Needs(directories=((own, "the catalog"), *tree))
