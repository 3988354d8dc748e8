"""A reverse proxy in front of an S3 (or any HTTP) server, to count requests and to break them.

    with SeaweedServer() as s3, HttpProxy(s3.host, s3.port) as proxy:
        proxy.faults.add(Rule(LoseResponse(), method="PUT", path=r"head\\.json$", nth=1))

Requests are passed on byte for byte, the client's own Host header included, since SigV4 signs it. Bodies are read
whole before they are passed on, in both directions, so that a fault is about whole messages: what a fault does not
let through, the server behind never sees. A request is never repeated.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from typing import BinaryIO

from bayou_testing.faults import Faults
from bayou_testing.server import LoopbackServer
from bayou_testing.wire import BadMessage, Request, Response, read_response

_CONNECT_WITHIN = 5.0
_ANSWER_WITHIN = 120.0


class HttpProxy(LoopbackServer):
    """Pass requests on to one server. If that one is away or closes, so does the connection to the client."""

    def __init__(self, upstream_host: str, upstream_port: int, *, faults: Faults | None = None) -> None:
        self._address = (upstream_host, upstream_port)
        self._idle: deque[_Upstream] = deque()
        super().__init__(faults)

    def respond(self, request: Request) -> Response:
        upstream = self._take()
        try:
            response = upstream.ask(request)
        except BadMessage as error:
            upstream.close()
            raise ConnectionError(f"the server behind the proxy does not speak HTTP/1.1: {error}") from error
        except BaseException:
            upstream.close()
            raise
        if request.keep_alive and response.keep_alive:
            self._idle.append(upstream)
        else:
            upstream.close()
        return response

    def close(self) -> None:
        super().close()
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Upstream:
        """Return a connection that is open as far as can be seen; an idle one that was closed meanwhile is dropped."""
        while self._idle:
            try:
                upstream = self._idle.pop()
            except IndexError:
                break  # Another thread took the last one.
            if upstream.usable():
                return upstream
            upstream.close()
        return _Upstream(socket.create_connection(self._address, timeout=_CONNECT_WITHIN))


class _Upstream:
    """One connection to the server behind."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._stream: BinaryIO = connection.makefile("rb")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_ANSWER_WITHIN)

    def ask(self, request: Request) -> Response:
        self._socket.sendall(request.head + request.wire_body)
        return read_response(self._stream, request.method)

    def usable(self) -> bool:
        """Whether nothing has come since the last answer: an idle connection has something to read when it ends."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()
