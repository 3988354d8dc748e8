"""A store as a job holds it: an open client in this process, and a `StoreSpec` when it is pickled for a worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache

from bayou.config import Config
from bayou.core.deadline import Deadline
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store


class StoreHandle:
    """A store that a job reads and writes, wherever its parts run.

    In the process that made the handle, `open` returns the client that it was made with. When an executor pickles the
    job, the handle becomes a spec, and in the worker `open` returns the process's one client for that spec. The spec,
    which resolves credentials, is made only when the job is pickled; its text shows no credentials (V26).
    """

    def __init__(self, store: Store, spec: Callable[[], StoreSpec], deadline: Deadline | None = None) -> None:
        """`deadline` bounds each call of a worker as it bounds those of `store` here (V12)."""
        self._store = store
        self._spec = spec
        self._deadline = deadline

    @staticmethod
    def of(config: Config, store: Store, deadline: Deadline) -> StoreHandle:
        """Return the handle of a repo's store; workers open a client only if the user trusts the repo (V23)."""

        def spec() -> StoreSpec:
            datastore = config.datastore
            datastore.require_trust()  # V23
            assert datastore.url is not None  # a directory has no store
            return StoreSpec.of(datastore.url, datastore.namespace, datastore.options, config.sync.concurrency)

        return StoreHandle(store, spec, deadline)

    @property
    def url(self) -> str:
        return self._store.url

    def open(self) -> Store:
        return self._store

    def spec(self) -> StoreSpec:
        """Return the spec with which another process opens this store; raise errors of the credentials' provider."""
        return self._spec()

    def __reduce__(self) -> tuple[Callable[..., object], tuple[StoreSpec, float | None]]:
        seconds = None if self._deadline is None else self._deadline.remaining()
        return RemoteHandle, (self._spec(), seconds)


class RemoteHandle(StoreHandle):
    """A store that is known by its specification alone: what a `StoreHandle` is in a worker."""

    def __init__(self, spec: StoreSpec, seconds: float | None = None) -> None:
        self._known = spec
        self._seconds = seconds

    @property
    def url(self) -> str:
        return self._known.url

    def open(self) -> Store:
        return store_of(self._known, self._seconds)

    def spec(self) -> StoreSpec:
        return self._known

    def __reduce__(self) -> tuple[Callable[..., object], tuple[StoreSpec, float | None]]:
        return RemoteHandle, (self._known, self._seconds)


def store_of(spec: StoreSpec, seconds: float | None = None) -> Store:
    """Return this process's client of a store; `seconds` replaces the usual time limit of each call."""
    store = _opened(pickle.dumps(spec))
    return store if seconds is None else store.within_seconds(seconds)


@lru_cache(maxsize=8)
def _opened(spec: bytes) -> Store:
    found: StoreSpec = pickle.loads(spec)
    return found.open()
