"""A server on loopback that answers by script, and remembers who came, what they asked and who left."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, Semaphore, Thread

Script = Callable[[str], bytes | None]
"""What to send to a request for a key; nothing at all: close; None: say nothing, ever."""


def ok(body: bytes = b"", *headers: bytes, status: int = 200) -> bytes:
    tags = (b'ETag: "1"',) if status == 200 else ()
    lines = (b"HTTP/1.1 %d Said" % status, *headers, *tags, b"Content-Length: %d" % len(body), b"", body)
    return b"\r\n".join(lines)


@dataclass
class Visit:
    """One connection: the requests that came, whole, and whether its client has closed it."""

    connection: socket.socket
    requests: list[bytes] = field(default_factory=list)
    left: bool = False


class Scripted:
    """`sip`: how much it reads at a time, if that is to take long. `piece`: how much it sends at a time."""

    def __init__(
        self, script: Script, *, tls: ssl.SSLContext | None = None, sip: int | None = None, piece: int = 1 << 20
    ) -> None:
        self.visits: list[Visit] = []
        self.leaving = Semaphore(0)
        self._script, self._tls, self._sip, self._piece = script, tls, sip, piece
        self._lock = Lock()
        self._door = socket.socket()
        if sip is not None:
            self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, sip)
        self._door.bind(("127.0.0.1", 0))
        self._door.listen(128)
        self.port: int = self._door.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        Thread(target=self._accept, daemon=True).start()

    @property
    def requests(self) -> list[bytes]:
        return [request for visit in self.visits for request in visit.requests]

    @property
    def used(self) -> list[Visit]:
        """Connections over which anything was asked: not those by which somebody looked whether we are here."""
        return [visit for visit in self.visits if visit.requests]

    def hang_up(self) -> None:
        """Close every connection, and go on."""
        for visit in self.visits:
            try:
                visit.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # its client was faster

    def close(self) -> None:
        try:
            self._door.shutdown(socket.SHUT_RDWR)  # wakes up whoever accepts
        except OSError:
            pass
        self._door.close()
        self.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            visit = Visit(connection)
            self.visits.append(visit)
            Thread(target=self._converse, args=(visit,), daemon=True).start()

    def _converse(self, visit: Visit) -> None:
        try:
            if self._tls is not None:
                visit.connection = self._tls.wrap_socket(visit.connection, server_side=True)
            with visit.connection:
                self._answer(visit)
        except OSError:
            visit.left = True
        finally:
            if visit.left and visit.requests:
                self.leaving.release()

    def _answer(self, visit: Visit) -> None:
        data = b""
        while True:
            end = _end(data)
            if end is None:
                more = visit.connection.recv(self._sip or 1 << 16)
                if not more:
                    visit.left = True
                    return
                data += more
                continue
            request, data = data[:end], data[end:]
            visit.requests.append(request)
            with self._lock:
                answer = self._script(key_of(request))
            if answer == b"":
                return
            for start in range(0, len(answer or b""), self._piece):
                visit.connection.sendall(answer[start : start + self._piece])


def key_of(request: bytes) -> str:
    return request.split(b" ", 2)[1].removeprefix(b"/").partition(b"?")[0].decode()


def body_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


def _end(data: bytes) -> int | None:
    """Where the request ends that this begins with; None if it is not all there."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    length = int(headers.get(b"content-length", b"0"))
    return len(head) + 4 + length if len(body) >= length else None
