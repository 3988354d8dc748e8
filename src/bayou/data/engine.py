"""Who does what looks at all records: this process, or Spark, of which nothing is loaded before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from bayou.core.deadline import Deadline
from bayou.core.errors import SparkError
from bayou.core.progress import NoProgress, Progress
from bayou.engine.select import Request, Selector
from bayou.repo import LOCAL, Repo

if TYPE_CHECKING:
    from bayou.spark.session import Session

Choice = Request
T = TypeVar("T")

_LONGEST_S = 3600.0
"""What a job may take (V12). It grows with the tree and not with a change, so it is not bound by what a sync may."""


class CatalogEngine(Struct, frozen=True):
    """The engine that was asked for (`engine.select` chooses where it is `auto`), and the progress bar of a job."""

    choice: Choice = "auto"
    progress: Progress = field(default_factory=NoProgress)

    def limit(self, repo: Repo) -> int | None:
        """Return how many records this process deals with by itself; None: with all there are."""
        return Selector.of(repo.config, self.choice).limit()

    def takes(self, repo: Repo, count: int) -> bool:
        """Say whether so many records are more than this process deals with by itself."""
        return Selector.of(repo.config, self.choice).choose(count).spark

    def run(
        self, repo: Repo, what: str, job: Callable[[Session, Deadline], T], warn: Callable[[str], None]
    ) -> T | None:
        """Do a job in a session of Spark whose workers see the repo; None where that cannot be: then do it here.

        `what` completes "… by this process alone". Where somebody asked for Spark, its failure is the command's.
        """
        from bayou.spark.session import spark_session  # noqa: PLC0415
        from bayou.spark.shared_fs import require_shared  # noqa: PLC0415

        timeout = repo.config.sync.timeout
        try:
            with spark_session(repo.config.spark, deadline=Deadline.after(timeout)) as spark:
                require_shared(spark, repo.root / LOCAL, "the catalog")
                if not repo.tree_root.is_relative_to(repo.root / LOCAL):
                    require_shared(spark, repo.tree_root, "the tree")
                return job(spark, Deadline.after(max(timeout, _LONGEST_S)))
        except SparkError as error:
            if self.choice == "spark":
                raise
            warn(f"{what} by this process alone, since Spark could not: {error.message}")
            return None
