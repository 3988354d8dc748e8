"""When a lease is stale: nobody's clock is asked but our own (V13).

A holder that lives changes its lease every third of the TTL. Who has watched one version for a whole TTL has proof
that its holder is gone, whatever any clock says of the time of day.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from bayou.lease.objects import Seen
from bayou.lease.record import Held
from bayou.objectstore.transport import Match

Clock = Callable[[], float]
"""Seconds that only grow, of this machine alone."""

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)
CLOCK: Clock = time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
"""The clock that also counts while this machine sleeps, where there is one: a holder that slept through must know."""


class Watch:
    """One observer's view of one lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version: Match | None = None
        self._since = 0.0

    def stale_in(self, seen: Seen, held: Held, asked: float) -> float:
        """Return the seconds until this version is proved stale; none left: it is.

        `asked` is when the request was sent that showed it. The version counts from the end of the first answer to
        the begin of the last question: certainly not longer than it really stood.
        """
        if seen.match != self._version:
            self._version, self._since = seen.match, self._clock()
        return held.ttl_s - (asked - self._since)
