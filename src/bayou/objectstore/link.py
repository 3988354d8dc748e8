"""The link to a store: how fast it is, how much a client sends at once, and how fast the user lets it be.

The libraries below limit a request as a whole and do not show its bytes. So Bayou keeps every request short instead
(V12): it measures the rate of the link, moves large content in requests of some seconds each, and has only as many
bytes under way as the link moves in some more. On a fast link neither matters. The limit of a request then follows from
what is under way, and a stall is noticed after little more than a minute, however long the whole transfer takes.

Both directions are measured apart. All views of a store share one `Link`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bayou.core.deadline import Deadline

COUNTS_FROM = 32 << 10
"""Requests of fewer bytes take their time for other reasons than the rate; they neither wait nor measure."""

_REQUEST_S = 5.0
"""Seconds that one request for a piece of large content should take."""

_WINDOW_S = 10.0
"""Seconds that all bytes under way should take."""

_FIRST_WINDOW = 8 << 20
"""Bytes under way until the first request has shown how fast the link is: one part of a large file, or one pack.

Requests that share a slow link end together, so the more begin together, the later the first one is acknowledged.
"""

_SHARE = 0.3
"""How much of the newest measurement goes into the rate."""

_POLL_S = 0.05

_PATIENCE = 4.0
"""How much slower than measured the bytes under way may be before a request counts as stalled."""

_HALVINGS = 4
"""How often a link without any success is taken for half as fast: then it is not slow, it stands still."""


class Flow:
    """One direction of a link: the bytes under way, and the rate at which they are acknowledged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._under_way = 0
        self._done = 0
        self._stalls = 0
        self._rate: float | None = None

    @property
    def stalls(self) -> int:
        """How many rounds of requests have run out of time since one succeeded."""
        return self._stalls

    @property
    def rate(self) -> float | None:
        """Bytes a second, all requests together; None before the first measurement."""
        return self._rate

    @contextmanager
    def moving(self, size: int, deadline: Deadline) -> Iterator[int]:
        """Wait until there is room for a request of so many bytes, and measure it; a failed request measures nothing.

        A single request always has room. Requests get room in the order in which they came: callers take results in
        that order, and a late one would hold back the others. The wait ends with the deadline. Yield the round, for
        `stalled`.
        """
        if size < COUNTS_FROM:
            yield self._stalls
            return
        with self._changed:
            self._wait_for_room(size, deadline)
            self._under_way += size
            begin, before, begun = self._clock(), self._done, self._stalls
        moved = 0
        try:
            yield begun
            moved = size
        finally:
            with self._changed:
                self._under_way -= size
                self._done += moved
                if moved:
                    self._stalls = 0
                    # Requests that end at the same time share the link: half of what the others still have is on its
                    # way too.
                    self._measure(self._done - before + self._under_way / 2, self._clock() - begin)
                self._changed.notify_all()

    def _wait_for_room(self, size: int, deadline: Deadline) -> None:
        turn = object()
        self._waiting.append(turn)
        try:
            while self._waiting[0] is not turn or (self._under_way and self._under_way + size > self._window()):
                deadline.remaining()
                self._changed.wait(_POLL_S)
        finally:
            self._waiting.remove(turn)
            self._changed.notify_all()

    def stalled(self, begun: int) -> int:
        """Take the link for slower than measured, because a request of the round `begun` ran out of time.

        Requests that were under way together ran into one stall, so they count once: if each halved the rate, the limit
        of the next request would be hours (V12). Return `stalls`.
        """
        with self._changed:
            if begun == self._stalls:
                self._stalls += 1
                if self._rate is not None and self._stalls <= _HALVINGS:
                    self._rate /= 2
            return self._stalls

    def works(self) -> None:
        """Note that a request has succeeded that `moving` did not measure."""
        with self._changed:
            self._stalls = 0

    def piece(self, least: int, most: int) -> int:
        """Return how many bytes one request should move, within these bounds; `most` while the rate is unknown."""
        rate = self._rate
        return most if rate is None else min(most, max(least, int(rate * _REQUEST_S)))

    def parallel(self, piece: int, most: int) -> int:
        """Return how many requests of such a piece fit under way at once, from 1 to `most`; while unknown, 2."""
        return min(most, 2 if self._rate is None else max(1, self._window() // piece))

    def seconds(self, size: int, least_rate: float) -> float:
        """Return how long a request of so many bytes may take beside all that is under way now.

        While the rate is unknown, `least_rate` stands for it.
        """
        with self._changed:
            under_way = max(size, self._under_way)
            rate = least_rate if self._rate is None else self._rate / _PATIENCE
        return under_way / rate

    def _window(self) -> int:
        return _FIRST_WINDOW if self._rate is None else int(self._rate * _WINDOW_S)

    def _measure(self, size: float, seconds: float) -> None:
        rate = size / max(seconds, 1e-6)
        self._rate = rate if self._rate is None else (1 - _SHARE) * self._rate + _SHARE * rate


class Link:
    """Both directions of the link to one store, and the rate to which the user limits them together."""

    def __init__(self, limit_rate: float | None = None) -> None:
        self.up = Flow()
        self.down = Flow()
        self.limit_rate = limit_rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pace(self, size: int, deadline: Deadline) -> None:
        """Wait until a request of so many bytes may begin under the user's limit (`--limit-rate`).

        Each request reserves its time on the link, repeated ones too: the rate holds on average, over some requests.
        """
        if self.limit_rate is None or not size:
            return
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + size / self.limit_rate
        while (wait := begin - time.monotonic()) > 0:
            deadline.sleep(wait)

    def piece(self, flow: Flow, least: int, most: int) -> int:
        """Return how many bytes one request should move in this direction, also under the user's limit."""
        if self.limit_rate is not None:
            most = min(most, max(least, int(self.limit_rate * _REQUEST_S)))
        return flow.piece(least, most)
