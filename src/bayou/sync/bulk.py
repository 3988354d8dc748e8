"""What a large sync needs of an executor besides running jobs, and the store as a job holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bayou.config import Config
from bayou.core.deadline import Deadline
from bayou.engine.handle import StoreHandle
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store

if TYPE_CHECKING:
    from bayou.sync.context import SyncContext
    from bayou.sync.transfer.executor import BulkTransferExecutor


@runtime_checkable
class BulkExecutor(Protocol):
    """An executor whose workers also transfer files."""

    def transfer_executor(self, spec: StoreSpec, context: SyncContext) -> BulkTransferExecutor:
        """Return what transfers the files of a sync.

        `SparkNotShared` if workers cannot see the tree or the staging directory.
        """


def store_handle(config: Config, store: Store, deadline: Deadline) -> StoreHandle:
    """Return the store of a repo for use in a job; workers open a client only if the user trusts the repo (V23)."""

    def spec() -> StoreSpec:
        datastore = config.datastore
        datastore.require_trust()  # V23
        assert datastore.url is not None  # a directory has no store
        return StoreSpec.of(datastore.url, datastore.namespace, datastore.options, config.sync.concurrency)

    return StoreHandle(store, spec, deadline)
