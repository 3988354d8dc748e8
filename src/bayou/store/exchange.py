"""One request and its answer over one connection that never blocks: HTTP/1.1, as strict as can be.

What is not plainly an answer (other framing, another length than announced, bytes after its end) is `Broken`, and the
connection with it. Nobody guesses: whoever asked sends the request again by the ordinary way, which knows every case.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_HEAD = 32 << 10
_ERROR = 64 << 10
"""Bytes that an answer's head, and the body of one that is no success, may have."""

_DIGITS, _HEXADECIMAL = re.compile(rb"[0-9]{1,15}"), re.compile(rb"[0-9A-Fa-f]{1,15}")
_PIECE = 256 << 10
SUCCESS = 200
_PARTLY = frozenset({100, 101, 204, 205, 206, 304})
"""Nobody asked for these, and their bodies have rules of their own."""


class Broken(Exception):
    """No answer that makes sense; `sent` if the store may have seen the request."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class Answer(NamedTuple):
    """What came back, whole. Names of headers are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def text(self, name: bytes) -> str | None:
        """Return a header, or None."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value is not None else None


class Connection:
    """A connection to one server. `wants` says what to wait for; then `go_on` does what can be done without waiting."""

    __slots__ = (
        "_incoming",
        "_outgoing",
        "_secure",
        "_sent",
        "_shaken",
        "_socket",
        "_wanted",
        "begun",
        "wants",
        "watched",
    )

    def __init__(self, family: int, address: tuple[object, ...], tls: ssl.SSLContext | None, host: str) -> None:
        """Begin to connect; `Broken` if that fails at once."""
        with ExitStack() as failed:
            try:
                made = failed.enter_context(socket.socket(family, socket.SOCK_STREAM))
                made.setblocking(False)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wrap = partial(tls.wrap_socket, server_hostname=host, do_handshake_on_connect=False) if tls else None
                self._secure = wrap(made) if wrap else None
                self._socket = failed.enter_context(self._secure) if self._secure else made
                self._socket.connect_ex(address)
            except OSError as error:
                raise Broken(str(error), sent=False) from None
            failed.pop_all()
        self._shaken = False
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()
        self._sent = False
        self._wanted: int | None = None
        self.begun = 0.0
        self.wants = WRITE
        self.watched = 0

    @property
    def sent(self) -> bool:
        """Whether the server may have seen the request."""
        return self._sent

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def begin(self, request: bytes, wanted: int | None) -> Answer | None:
        """Send a request. `wanted` is how long the body of a success must be; None: it does not matter."""
        self._outgoing = memoryview(request)
        self._incoming = bytearray()
        self._sent = False
        self._wanted = wanted
        self.begun = time.monotonic()
        # A new connection is not there yet; one that is idle takes a small request at once.
        return self.go_on() if self.wants == READ else None

    def go_on(self) -> Answer | None:
        """Do what can be done; return the answer once it is whole. `Broken`: close it, nothing more will come."""
        try:
            if self._secure is not None and not self._shaken:
                self._secure.do_handshake()
                self._shaken = True
            if self._outgoing:
                self._send()
                return None
            return self._receive()
        except OSError as error:
            self._later(error)
            return None

    def _send(self) -> None:
        count = self._socket.send(self._outgoing)
        self._sent = True
        self._outgoing = self._outgoing[count:]
        self.wants = WRITE if self._outgoing else READ

    def _receive(self) -> Answer | None:
        while True:
            piece = self._socket.recv(_PIECE)
            if not piece:
                raise Broken("the connection was closed", sent=self._sent)
            if not self._sent:
                raise Broken("an answer that nobody asked for", sent=False)
            self._incoming += piece
            answer = read_answer(self._incoming, self._wanted)
            if answer is not None:
                return answer

    def _later(self, error: OSError) -> None:
        """Wait for what an error says is not there yet; raise any other."""
        if isinstance(error, BlockingIOError):
            self.wants = WRITE if self._outgoing else READ
            return
        name = type(error).__name__  # of `ssl`, which need not be loaded
        if name == "SSLWantReadError":
            self.wants = READ
        elif name == "SSLWantWriteError":
            self.wants = WRITE
        else:
            raise Broken(str(error), sent=self._sent) from None


def read_answer(data: bytearray, wanted: int | None) -> Answer | None:
    """Return the answer if it is all there, None if there is more to come; `Broken` for anything else."""
    end = data.find(b"\r\n\r\n")
    if (end if end >= 0 else len(data)) > _HEAD:
        raise Broken("no end of the answer's head")
    if end < 0:
        return None
    lines = bytes(data[:end]).split(b"\r\n")
    status = _status(lines[0])
    headers: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise Broken("a header that is none")
        name = name.lower()
        if name in headers and name in (b"content-length", b"transfer-encoding", b"etag"):
            raise Broken("a header that is there twice")
        headers[name] = value.strip()
    body = _body(data, end + 4, headers, wanted if status == SUCCESS else None)
    return Answer(status, headers, body) if body is not None else None


def _status(line: bytes) -> int:
    if not line.startswith(b"HTTP/1.1 ") or not line[9:12].isdigit() or line[12:13] not in (b"", b" "):
        raise Broken("not an answer")
    status = int(line[9:12])
    if status in _PARTLY or status < SUCCESS:
        raise Broken(f"an answer that nobody asked for: {status}")
    return status


def _body(data: bytearray, start: int, headers: dict[bytes, bytes], wanted: int | None) -> bytes | None:
    """Return the body once all of it is there."""
    length = headers.get(b"content-length")
    if b"transfer-encoding" in headers:
        if headers[b"transfer-encoding"].lower() != b"chunked" or length is not None or wanted is not None:
            raise Broken("an answer of unknown length")
        return _chunks(data, start)
    if length is None or not _DIGITS.fullmatch(length):
        raise Broken("an answer of unknown length")
    size = int(length)
    if size != wanted and (wanted is not None or size > _ERROR):
        raise Broken(f"an answer of {size} bytes")
    if len(data) < start + size:
        return None
    if len(data) > start + size:
        raise Broken("bytes after the end of an answer")
    return bytes(memoryview(data)[start:])


def _chunks(data: bytearray, start: int) -> bytes | None:
    """Return a body that came in pieces, each with its length before it; only errors do."""
    body = b""
    while True:
        end = data.find(b"\r\n", start)
        if len(data) > start + _ERROR or len(body) > _ERROR:
            raise Broken("an answer without an end")
        if end < 0:
            return None
        told = bytes(data[start:end]).partition(b";")[0]
        if not _HEXADECIMAL.fullmatch(told):
            raise Broken("an answer of unknown length")
        size = int(told, 16)
        if size > _ERROR:
            raise Broken(f"an answer of {size} bytes")
        if len(data) < end + 2 + size + 2:
            return None
        body += data[end + 2 : end + 2 + size]
        start = end + 2 + size + 2
        if data[start - 2 : start] != b"\r\n":
            raise Broken("an answer of unknown length")
        if size == 0:
            if len(data) != start:
                raise Broken("bytes after the end of an answer")
            return body
