"""A proxy that counts round trips: how many requests of a client wait for the answers to earlier ones.

    with SeaweedServer() as s3, RoundTripProxy(s3.host, s3.port) as proxy:
        ...
        assert proxy.trips <= 3

The proxy holds back every answer until no further request has come for a while, and then lets all of them go: one wave.
Requests of one wave did not wait for each other's answers, so the number of waves is the number of sequential round
trips, however fast the server and the client are. The while is long, so that a busy machine does not split a wave.
"""

from __future__ import annotations

from threading import Condition
from time import monotonic

from bayou_testing.faults import Faults
from bayou_testing.proxy import HttpProxy
from bayou_testing.wire import Request, Response

QUIET_S = 0.6


class RoundTripProxy(HttpProxy):
    """Passes requests on, and answers in waves. `waves` has the requests of each wave, as `METHOD path`."""

    def __init__(
        self, upstream_host: str, upstream_port: int, *, quiet_s: float = QUIET_S, faults: Faults | None = None
    ) -> None:
        self._quiet_s = quiet_s
        self._arrived = Condition()
        self._last = 0.0
        self._done = 0
        self.waves: list[list[str]] = []
        super().__init__(upstream_host, upstream_port, faults=faults)

    @property
    def trips(self) -> int:
        """The number of round trips that were made one after the other."""
        return len(self.waves)

    def restart(self) -> None:
        """Count from zero; no request may be under way."""
        with self._arrived:
            self.waves, self._done = [], 0

    def respond(self, request: Request) -> Response:
        with self._arrived:
            if len(self.waves) == self._done:
                self.waves.append([])
            wave = len(self.waves)
            self.waves[-1].append(f"{request.method} {request.path}")
            self._last = monotonic()
        response = super().respond(request)
        with self._arrived:
            # The first of the wave that has waited long enough ends it for all.
            while self._done < wave and (left := self._last + self._quiet_s - monotonic()) > 0:
                self._arrived.wait(left)
            if self._done < wave:
                self._done = wave
                self._arrived.notify_all()
        return response
