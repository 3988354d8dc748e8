"""Who does what looks at all records: threads of this process, or Spark, of which nothing is loaded before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bayou.core.deadline import Deadline
from bayou.core.progress import NoProgress, Progress
from bayou.engine.select import Engines, Request, Selector
from bayou.repo import LOCAL, Repo

if TYPE_CHECKING:
    from bayou.engine.job import Job, Needs, Part, Result, Row

Choice = Request

_LONGEST_S = 3600.0
"""What a job may take (V12). It grows with the tree and not with a change, so it is not bound by what a sync may."""

_THREADS = 1
"""Parts that run at once in this process. They parse and judge: several threads would wait for the interpreter."""


class CatalogEngine(Struct, frozen=True):
    """The engine that was asked for (`engine.select` chooses where it is `auto`), and the progress bar of a job."""

    choice: Choice = "auto"
    progress: Progress = field(default_factory=NoProgress)

    def limit(self, repo: Repo) -> int | None:
        """Return how many records this process deals with by itself; None: with all there are."""
        return Selector.of(repo.config, self.choice).limit()

    def run(
        self, repo: Repo, job: Job[Part, Row, Result], *, what: str, count: int, warn: Callable[[str], None]
    ) -> Result:
        """Run a job over so many records with the engine that pays.

        `what` completes "… by this process alone", which is the warning where Spark was chosen and fails; where the
        user asked for Spark, its failure is the command's. A job that finds no records starts no Spark.
        """
        timeout = max(repo.config.sync.timeout, _LONGEST_S)
        engines = Engines.of(repo.config, self.choice, Deadline.after(timeout), warn, self.progress)
        if not count:
            return engines.local(_THREADS).run(job)
        return engines.run(job.needs, lambda executor: executor.run(job), what=what, files=count, threads=_THREADS)


def needs_of(repo: Repo) -> Needs:
    """Return what workers must see of a repo: its catalog, and its tree."""
    from bayou.engine.job import Needs  # noqa: PLC0415  (most commands run no job)

    own = repo.root / LOCAL
    tree = () if repo.tree_root.is_relative_to(own) else ((repo.tree_root, "the tree"),)
    return Needs(directories=((own, "the catalog"), *tree))
