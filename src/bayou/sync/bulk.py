"""Where a sync hands over to Spark what is too much for one process. Nothing of Spark is loaded before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from bayou.config import Config, DatastoreConfig, SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import SparkError, UsageError
from bayou.core.progress import Progress
from bayou.engine.handle import StoreHandle
from bayou.engine.select import Request, Selector
from bayou.index.discovery import Discovered
from bayou.index.node_store import StagingSink
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store

if TYPE_CHECKING:
    from bayou.spark.session import Session

T = TypeVar("T")


class Bulk(Struct, frozen=True):
    """How one command uses Spark: for more than `limit` objects or files.

    What could not be done there is told to `warn` and done here, unless somebody asked for Spark (`must`).
    """

    datastore: DatastoreConfig
    spark: SparkConfig
    limit: int
    concurrency: int
    deadline: Deadline
    warn: Callable[[str], None]
    must: bool = False
    progress: Progress | None = None

    @classmethod
    def of(
        cls, config: Config, engine: Request, deadline: Deadline, warn: Callable[[str], None], progress: Progress | None
    ) -> Bulk | None:
        """Return how a command uses Spark that was asked for this engine; None if it does everything by itself."""
        selector = Selector.of(config, engine)
        limit = selector.limit()
        if limit is None:
            return None
        return cls(
            config.datastore,
            config.spark,
            limit,
            config.sync.concurrency,
            deadline,
            warn,
            selector.must,
            progress,
        )

    def run(self, what: str, job: Callable[[Session, StoreSpec], T]) -> T | None:
        """Do a job in a session of Spark, on this store; None where that cannot be: then do it here.

        `what` completes "… by this process alone", as in "the store was listed".
        """
        place = self.datastore
        if place.url is None or place.url.startswith("memory:"):
            if self.must:
                raise UsageError(
                    "Spark's workers do not see this datastore: it is in the memory of this process, or a directory",
                    hint="leave out --engine: bayou datastore sync",
                )
            return None
        from bayou.spark.session import require_private_channel, spark_session  # noqa: PLC0415
        from bayou.spark.shared_fs import require_store  # noqa: PLC0415

        place.require_trust()
        recipe = StoreSpec.of(place.url, place.namespace, place.options, self.concurrency)
        try:
            require_private_channel(self.spark, recipe)
            with spark_session(self.spark, deadline=self.deadline) as spark:
                require_store(spark, place.url)
                return job(spark, recipe)
        except SparkError as error:
            if self.must:
                raise
            self.warn(f"{what} by this process alone, since Spark could not: {error.message}")
            return None

    def discover(self, store: Store, sink: StagingSink, *, carry: bool) -> Discovered | None:
        """Discover a store on Spark, as `spark.discover` does; None if that cannot be: then do it here."""

        def job(spark: Session, recipe: StoreSpec) -> Discovered:
            from bayou.spark.discover import discover  # noqa: PLC0415

            return discover(spark, store, recipe, sink, carry=carry, deadline=self.deadline, progress=self.progress)

        found = self.run("the store was listed", job)
        if found is not None and found.refusals > len(found.refused):
            self.warn(f"{found.refusals} keys were refused; the first {len(found.refused)} are named")
        return found


def store_handle(config: Config, store: Store, deadline: Deadline) -> StoreHandle:
    """Return the store of a repo as a job holds it; a worker's client is made only where this user trusts the repo."""

    def recipe() -> StoreSpec:
        place = config.datastore
        place.require_trust()  # V23
        assert place.url is not None  # a directory has no store
        return StoreSpec.of(place.url, place.namespace, place.options, config.sync.concurrency)

    return StoreHandle(store, recipe, deadline)
