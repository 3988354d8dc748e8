"""Counts of what was really sent to a store (V17)."""

from __future__ import annotations

import threading
from typing import Literal

from msgspec import Struct

Verb = Literal["get", "put", "head", "list", "delete"]


class Requests(Struct, frozen=True):
    """How many requests of each kind were sent, retries included, and how many bytes of content moved."""

    get: int = 0
    put: int = 0
    head: int = 0
    list: int = 0
    delete: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def total(self) -> int:
        return self.get + self.put + self.head + self.list + self.delete

    def __sub__(self, earlier: Requests) -> Requests:
        return Requests(*(getattr(self, name) - getattr(earlier, name) for name in Requests.__struct_fields__))


class Meter:
    """A thread-safe tally. One belongs to each store and to all its views."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Requests.__struct_fields__, 0)

    def sent(self, verb: Verb, requests: int = 1, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        with self._lock:
            self._counts[verb] += requests
            self._counts["bytes_in"] += bytes_in
            self._counts["bytes_out"] += bytes_out

    def received(self, bytes_in: int) -> None:
        with self._lock:
            self._counts["bytes_in"] += bytes_in

    def add(self, others: Requests) -> None:
        """Count what somebody else has sent for us."""
        with self._lock:
            for name in Requests.__struct_fields__:
                self._counts[name] += getattr(others, name)

    def read(self) -> Requests:
        with self._lock:
            return Requests(**self._counts)
