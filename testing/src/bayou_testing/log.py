"""What a test server was asked: one row a request, in the order in which they were answered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from threading import Lock

from msgspec import Struct

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class LoggedRequest(Struct, frozen=True):
    """One request. `status` is None when it got no answer; `fault` names the action that was applied to it.

    `received` and `sent` count the bytes of the bodies.
    """

    method: str
    path: str
    query: Mapping[str, str]
    status: int | None
    received: int
    sent: int
    headers: Mapping[str, str]
    fault: str | None


class RequestLog:
    """Rows that any thread may add and read. A row is there before its client can see the answer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rows: list[LoggedRequest] = []

    def add(self, row: LoggedRequest) -> None:
        with self._lock:
            self._rows.append(row)

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()

    def rows(
        self,
        *,
        method: str | None = None,
        path: str | None = None,
        query: str | None = None,
        status: int | None = None,
    ) -> Sequence[LoggedRequest]:
        """Return the rows that fit: `path` is a regular expression for the decoded path, `query` names a parameter."""
        with self._lock:
            rows = list(self._rows)
        return [
            row
            for row in rows
            if (method is None or row.method == method)
            and (path is None or re.search(path, row.path))
            and (query is None or query in row.query)
            and (status is None or row.status == status)
        ]

    def count(
        self,
        *,
        method: str | None = None,
        path: str | None = None,
        query: str | None = None,
        status: int | None = None,
    ) -> int:
        """Count the rows that fit, as `rows` chooses them."""
        return len(self.rows(method=method, path=path, query=query, status=status))

    def writes(self) -> Sequence[LoggedRequest]:
        """Return the rows that could change something, whether they did or not."""
        return [row for row in self.rows() if row.method not in _READS]
