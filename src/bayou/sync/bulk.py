"""Hand over to Spark what is too large for one process: comparison and transfer of very many files.

`BulkExecutor` is the interface that a sync needs of Spark. `bayou.spark` implements it, and the program's entry points
install that implementation (`engine.select`), so this package does not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from bayou.config import Config, DatastoreConfig, SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import PackageMissing, SparkError, UsageError
from bayou.core.progress import Progress
from bayou.engine import select
from bayou.engine.handle import RemoteHandle, StoreHandle
from bayou.engine.job import Needs
from bayou.engine.select import Request, Selector
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store

if TYPE_CHECKING:
    from bayou.index.tree import IndexTree
    from bayou.sync.context import SyncContext
    from bayou.sync.plan.windows import Comparison
    from bayou.sync.transfer.executor import BulkMover

T = TypeVar("T")


@runtime_checkable
class BulkExecutor(Protocol):
    """An executor that also compares trees of many paths and transfers files, on its workers."""

    def compare(self, spec: StoreSpec, context: SyncContext, remote: IndexTree, folder: Path) -> Comparison:
        """Find the paths that need a decision, with their local state; workers store the result in `folder`."""

    def mover(self, spec: StoreSpec, context: SyncContext) -> BulkMover:
        """Return the mover of files; raise `SparkNotShared` if workers cannot see the tree or the staging directory."""


class Bulk(Struct, frozen=True):
    """How a command uses Spark: for more than `limit` files.

    If Spark fails, `warn` gets a warning and this process does the work, unless the user asked for Spark (`required`).
    """

    datastore: DatastoreConfig
    spark: SparkConfig
    limit: int
    concurrency: int
    deadline: Deadline
    warn: Callable[[str], None]
    required: bool = False
    progress: Progress | None = None

    @classmethod
    def of(
        cls, config: Config, engine: Request, deadline: Deadline, warn: Callable[[str], None], progress: Progress | None
    ) -> Bulk | None:
        """Return how a command with this `engine` option uses Spark; None if it does not."""
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
            selector.spark_required,
            progress,
        )

    def run(self, what: str, job: Callable[[BulkExecutor, StoreSpec], T]) -> T | None:
        """Run a job in a Spark session on this store; None if Spark cannot: then the caller does it by itself.

        `what` begins the warning that ends in "by this process alone", as in "tree and store were compared".
        """
        datastore = self.datastore
        if datastore.url is None or datastore.url.startswith("memory:"):
            if self.required:
                raise UsageError(
                    "Spark's workers do not see this datastore: it is in the memory of this process, or a directory",
                    hint="leave out --engine: bayou datastore sync",
                )
            return None
        datastore.require_trust()  # V23
        spec = StoreSpec.of(datastore.url, datastore.namespace, datastore.options, self.concurrency)
        needs = Needs((RemoteHandle(spec),))
        try:
            with select.spark_engine().open(
                self.spark, needs, deadline=self.deadline, progress=self.progress
            ) as executor:
                assert isinstance(executor, BulkExecutor)
                return job(executor, spec)
        except (SparkError, PackageMissing) as error:
            if self.required:
                raise
            self.warn(f"{what} by this process alone, since Spark could not: {error.message}")
            return None


def store_handle(config: Config, store: Store, deadline: Deadline) -> StoreHandle:
    """Return the store of a repo for use in a job; workers open a client only if the user trusts the repo (V23)."""

    def spec() -> StoreSpec:
        datastore = config.datastore
        datastore.require_trust()  # V23
        assert datastore.url is not None  # a directory has no store
        return StoreSpec.of(datastore.url, datastore.namespace, datastore.options, config.sync.concurrency)

    return StoreHandle(store, spec, deadline)
