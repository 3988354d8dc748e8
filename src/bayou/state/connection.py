"""The open datastore of a process: its state (`sync.db`) and its store, each opened once, when it is first used.

The composition root makes one `Connection` and passes it down, so that a lease, a pull, the records and a push of one
command share what is open. A function that is called without one opens its own for the length of the call
(`connected`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.core.deadline import Deadline
    from bayou.objectstore.store import Store
    from bayou.state.database import Database


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

    def close(self) -> None:
        """Close what is open; closing twice does no harm."""
        with self._lock:
            database, self._database, self._store = self._database, None, None
        if database is not None:
            database.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def connected(repo: Repo, connection: Connection | None = None) -> Iterator[Connection]:
    """Yield `connection`, which stays open, or a new connection that is closed at the end of the block (V14)."""
    if connection is not None:
        yield connection
        return
    with Connection(repo) as own:
        yield own
