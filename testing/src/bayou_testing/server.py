"""A threaded HTTP server on a loopback port, with faults and a request log; what it answers is up to the subclass."""

from __future__ import annotations

import socket
import socketserver
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import Condition, Event, Thread
from typing import BinaryIO, Self

from bayou_testing.faults import (
    Action,
    Delay,
    Fail,
    Faults,
    Garbage,
    Hold,
    Late,
    LoseResponse,
    Reset,
    Silent,
    Truncate,
    takes_effect,
)
from bayou_testing.log import LoggedRequest, RequestLog
from bayou_testing.wire import BadMessage, Request, Response, answer, parse_headers, read_head, read_request

_CLOSE_WITHIN = 5.0
_LINGER_ZERO = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN
_LOGGED = frozenset({"content-length", "content-type", "expect", "host", "if-match", "if-none-match", "range"})
_LOGGED_PREFIXES = ("x-goog-", "x-amz-", "x-ms-")


class LoopbackServer(ABC):
    """Serve HTTP/1.1 with keep-alive, a thread per connection, from construction until `close`."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults if faults is not None else Faults()
        self.log = RequestLog()
        self._closing = Event()
        self._open: set[socket.socket] = set()
        self._changed = Condition()
        self._listener = _Listener(self)
        self.host = "127.0.0.1"
        self.port = int(self._listener.server_address[1])
        self.url = f"http://{self.host}:{self.port}"
        # The poll interval is how long `close` may take to be noticed.
        Thread(target=self._listener.serve_forever, args=(0.02,), name=type(self).__name__, daemon=True).start()

    @abstractmethod
    def respond(self, request: Request) -> Response:
        """Do what the request asks, and return the answer. An `OSError` closes the connection without one."""

    def close(self) -> None:
        """Stop serving: end every connection, held and silent ones included, and wait for their threads."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._listener.shutdown()
        self._listener.server_close()
        with self._changed:
            for connection in self._open:
                _shut(connection)
            self._changed.wait_for(lambda: not self._open, timeout=_CLOSE_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def converse(self, connection: socket.socket) -> None:
        """Answer the requests of one connection until either side closes it."""
        with self._changed:
            self._open.add(connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection.makefile("rb") as stream:
                while not self._closing.is_set() and self._exchange(connection, stream):
                    pass
        except OSError:
            pass  # The client went away, or `close` or a fault ended the connection.
        finally:
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

    def _exchange(self, connection: socket.socket, stream: BinaryIO) -> bool:
        """Serve one request; return whether the connection lives on."""
        try:
            got = read_head(stream)
            if got is None:
                return False
            headers = parse_headers(got[1])
            if headers.get("expect", "").lower() == "100-continue":
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            request = read_request(*got, headers, stream)
        except BadMessage as error:
            connection.sendall(answer(400, str(error).encode(), {"Connection": "close"}).head)
            return False
        return self._serve(connection, request)

    def _serve(self, connection: socket.socket, request: Request) -> bool:
        fault = self._pause(self.faults.take(request.method, request.path, request.query_string))
        if self._closing.is_set():
            return False
        response: Response | None = None
        if takes_effect(fault):
            try:
                response = self.respond(request)
            except OSError:
                fault = Reset()
        match fault:
            case Fail(status, body, headers):
                response = answer(status, body, headers)
            case Garbage(body, headers):
                response = answer(200, body, headers)
            case LoseResponse():
                response = None
            case Late(seconds):
                self._closing.wait(seconds)
        if response is None:
            self._note(request, None, fault)
            if isinstance(fault, Silent):
                self._closing.wait()
            elif isinstance(fault, Reset):
                _reset(connection)
            return False
        keep = fault.keep if isinstance(fault, Truncate) else len(response.body)
        body = b"" if request.method == "HEAD" else response.body[:keep]
        # The row comes first: a client that has the answer finds it in the log.
        self._note(request, response.status, fault, len(body))
        _send(connection, response.head, body)
        return not isinstance(fault, Truncate) and request.keep_alive and response.keep_alive

    def _pause(self, actions: Sequence[Action]) -> Action | None:
        """Go through the pauses; return the action that decides the answer, if there is one."""
        decisive: Action | None = None
        for action in actions:
            match action:
                case Delay(seconds):
                    self._closing.wait(seconds)
                case Hold(release, arrived):
                    arrived.set()
                    while not release.wait(0.1) and not self._closing.is_set():
                        pass
                case _:
                    decisive = action
        return decisive

    def _note(self, request: Request, status: int | None, fault: Action | None, sent: int = 0) -> None:
        kept = {k: v for k, v in request.headers.items() if k in _LOGGED or k.startswith(_LOGGED_PREFIXES)}
        self.log.add(
            LoggedRequest(
                method=request.method,
                path=request.path,
                query=request.query,
                status=status,
                received=len(request.body),
                sent=sent,
                headers=kept,
                fault=type(fault).__name__ if fault else None,
            )
        )


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, owner: LoopbackServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Connection)


class _Connection(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        self.server.owner.converse(self.request)


def _send(connection: socket.socket, head: bytes, body: bytes) -> None:
    """Send small answers in one piece; do not copy large ones for that."""
    if len(body) < 1 << 16:
        connection.sendall(head + body)
    else:
        connection.sendall(head)
        connection.sendall(body)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    connection.close()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # Closed by its own thread, or by the client, a moment ago.
