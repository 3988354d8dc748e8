"""The open datastore of a process: its state (`sync.db`) and its store, each opened once, when it is first used.

The composition root makes one `Connection` and passes it down, so that a lease, a pull, the records and a push of one
command share what is open. A function that is called without one opens its own for the length of the call
(`connected`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

from bayou.core.errors import BayouError
from bayou.repo import Repo

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bayou.core.deadline import Deadline
    from bayou.index.head import HeadSeen
    from bayou.objectstore.store import Store
    from bayou.objectstore.transport import Match, Requests
    from bayou.state.database import Database


_FRESH_S = 10.0
"""Seconds for which a head that was read is worth a commit on top of it; after that, other commits are likely."""


class PrefetchedHead(NamedTuple):
    """A head that was read before it was needed, and the requests of that read if no operation has counted them."""

    seen: HeadSeen
    requests: Requests | None


class Connection:
    """One repo's database and store, for all threads of this process. Close it, or use it as a context manager.

    The constructor opens nothing. A closed connection opens again when it is used. The objects that work with a
    connection refer to it, so the garbage collector never closes the database of an object that a caller still holds.
    A forked child opens a database and a store of its own.
    """

    def __init__(self, repo: Repo) -> None:
        self.repo = repo
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._store: Store | None = None
        self._process = os.getpid()
        self._head: HeadSeen | None = None
        self._head_read: Future[HeadSeen] | None = None
        self._head_store: Store | None = None
        self._head_at = 0.0

    @property
    def database(self) -> Database:
        """The open `sync.db`."""
        from bayou.state.database import Database  # noqa: PLC0415  (sqlite3: a command may end before it needs that)

        with self._lock:
            if self._database is None:
                self._database = Database(self.repo.state / "sync.db")
            return self._database

    def store(self, deadline: Deadline | None = None) -> Store:
        """Return a view of the open store for one operation, which counts its own requests (V17); `Offline` offline."""
        with self._lock:
            if self._store is None or self._process != os.getpid():
                self._store, self._process = self.repo.store(), os.getpid()
            return self._store.for_operation(deadline)

    def prefetch_head(self, deadline: Deadline | None = None) -> None:
        """Start to read the head on another thread, for the next `take_head`; the caller goes on meanwhile."""
        from bayou.index.head import read_head  # noqa: PLC0415
        from bayou.objectstore.threads import ThreadPool  # noqa: PLC0415

        store = self.store(deadline)
        pool = ThreadPool(1)
        self._head_store, self._head_at = store, time.monotonic()
        self._head, self._head_read = None, pool.submit(lambda: read_head(store))
        pool.close()

    def keep_head(self, seen: HeadSeen) -> None:
        """Keep a head that was just read, for the next `take_head`."""
        self._head, self._head_read, self._head_store, self._head_at = seen, None, None, time.monotonic()

    def take_head(self) -> PrefetchedHead | None:
        """Return, once, the head that was prefetched or kept a moment ago; None if there is none, or it has failed.

        It may be outdated by now: a commit on top of it is refused then, and reads the head again (V1).
        """
        found, reading, store = self._head, self._head_read, self._head_store
        self._head = self._head_read = self._head_store = None
        if time.monotonic() - self._head_at > _FRESH_S:
            return None
        if reading is not None:
            from bayou.objectstore.threads import wait_for_result  # noqa: PLC0415

            try:
                found = wait_for_result(reading)
            except BayouError:
                return None  # the caller's own read reports what is wrong
        if found is None:
            return None
        return PrefetchedHead(found, store.requests if store is not None else None)

    def recall_lease(self, key: str) -> Match | None:
        """Return the version in which this machine freed a lease; see `LeaseMemory`."""
        from bayou.objectstore.transport import Match  # noqa: PLC0415

        found = self.database.rows("SELECT etag, version FROM lease WHERE place = ? AND key = ?", (self._remote(), key))
        return Match(*cast("tuple[str | None, str | None]", found[0])) if found else None

    def remember_lease(self, key: str, freed: Match) -> None:
        """Remember the version of a lease that this machine has just freed; see `LeaseMemory`."""
        with self.database.note() as db:
            db.execute(
                "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?)", (self._remote(), key, freed.etag, freed.version)
            )

    def _remote(self) -> int:
        from bayou.state.database import remote_of  # noqa: PLC0415

        return remote_of(self.database, self.repo)

    def close(self) -> None:
        """Close what is open; closing twice does no harm."""
        with self._lock:
            database, self._database, self._store = self._database, None, None
        if database is not None:
            database.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def connected(repo: Repo, connection: Connection | None = None) -> Iterator[Connection]:
    """Yield `connection`, which stays open, or a new connection that is closed at the end of the block (V14)."""
    if connection is not None:
        yield connection
        return
    with Connection(repo) as own:
        yield own
