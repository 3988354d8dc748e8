"""The proxy, in front of a server that answers by script: what passes, and that it passes unchanged."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from bayou_testing.faults import Fail, Rule
from bayou_testing.proxy import HttpProxy
from tests.testing.server_clients import Http, race

Script = Callable[[bytes], bytes]


class ScriptedServer:
    """Takes whole requests, keeps them, and sends back what the script says; empty means: close."""

    def __init__(self, script: Script) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._script = script
        self._door = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._door.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            self.connections += 1
            Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while request := _whole_request(connection):
                self.requests.append(request)
                answer = self._script(request)
                if not answer:
                    return
                connection.sendall(answer)


def _whole_request(connection: socket.socket) -> bytes:
    data = b""
    while True:
        head, blank, body = data.partition(b"\r\n\r\n")
        if blank:
            lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            if b"transfer-encoding" in lines:
                if body.endswith(b"0\r\n\r\n"):
                    return data
            elif len(body) >= int(lines.get(b"content-length", b"0")):
                return data
        more = connection.recv(1 << 16)
        if not more:
            return b""
        data += more


@contextmanager
def behind_a_proxy(script: Script) -> Iterator[tuple[ScriptedServer, HttpProxy]]:
    server = ScriptedServer(script)
    try:
        with HttpProxy("127.0.0.1", server.port) as proxy:
            yield server, proxy
    finally:
        server.close()


@contextmanager
def raw(proxy: HttpProxy) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as connection:
        yield connection


def ok(body: bytes = b"", head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_requests_and_answers_pass_byte_for_byte() -> None:
    request = (
        b"PUT /b/%7Ea%2Fb//c?x=%20&y HTTP/1.1\r\nHOST: elsewhere:1\r\nx-Amz-Date: now\r\nX-Twice: 1\r\nX-Twice: 2\r\n"
        b"content-length: 4\r\n\r\nbody"
    )
    answer = (
        b"HTTP/1.1 201 Quite\r\nx-Odd:  spaced \r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 3\r\n\r\n\0\xff\n"
    )
    with behind_a_proxy(lambda _: answer) as (server, proxy), raw(proxy) as client:
        client.sendall(request)
        assert client.recv(1 << 16) == answer
        assert server.requests == [request]
        (row,) = proxy.log.rows()
    assert (row.method, row.path, row.query, row.status) == ("PUT", "/b/~a/b//c", {"x": " ", "y": ""}, 201)
    assert (row.received, row.sent, row.headers["host"], row.headers["x-amz-date"]) == (4, 3, "elsewhere:1", "now")


def test_chunked_bodies_pass_in_both_directions_with_their_framing() -> None:
    request = b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n0\r\nX-Trailer: 1\r\n\r\n"
    with behind_a_proxy(lambda _: answer) as (server, proxy), raw(proxy) as client:
        for _ in range(2):
            client.sendall(request)
            assert client.recv(1 << 16) == answer
        assert server.requests == [request, request]
        assert proxy.log.rows()[0].received == 5


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\n"),
        ("GET", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 10\r\n\r\n'),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ],
)
def test_answers_without_a_body_leave_the_connection_usable(method: str, answer: bytes) -> None:
    with behind_a_proxy(lambda request: ok(b"next") if b"/next" in request else answer) as (server, proxy):
        client = Http(proxy.port)
        first = client(method, "/k")
        assert (first.status, first.body) == (int(answer.split()[1]), b"")
        assert client("GET", "/next").body == b"next"
        client.close()
        assert server.connections == 1


def test_a_client_that_expects_continue_gets_it_and_its_answer() -> None:
    def script(request: bytes) -> bytes:
        return b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"stored")

    with behind_a_proxy(script) as (server, proxy), raw(proxy) as client:
        client.sendall(b"PUT /k HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert client.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert client.recv(1 << 16) == ok(b"stored")
        assert server.requests[0].endswith(b"\r\n\r\nbody")


def test_a_body_that_ends_with_the_connection_passes_whole() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer_and_close() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")

    Thread(target=answer_and_close, daemon=True).start()
    with server, HttpProxy("127.0.0.1", server.getsockname()[1]) as proxy, raw(proxy) as client:
        client.sendall(b"GET /k HTTP/1.1\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert received == b"HTTP/1.1 200 OK\r\n\r\nuntil the end"


def test_connections_are_kept_on_both_sides_and_64_go_at_once() -> None:
    with behind_a_proxy(lambda request: ok(request.split()[1])) as (server, proxy):

        def fifty(client_number: int) -> bool:
            client = Http(proxy.port)
            paths = [f"/{client_number}/{number}" for number in range(50)]
            good = all(client("GET", path).body == path.encode() for path in paths)
            client.close()
            return good

        assert race(64, fifty) == [True] * 64
        assert proxy.log.count(method="GET", status=200) == 64 * 50
        assert server.connections <= 64


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again() -> None:
    first = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n1"
    with behind_a_proxy(lambda _: first) as (server, proxy):
        for _ in range(3):
            client = Http(proxy.port)
            assert client("GET", "/k").body == b"1"
            client.close()
        assert server.connections == 3


def test_a_server_that_goes_away_is_a_lost_connection_and_the_request_is_not_repeated() -> None:
    with behind_a_proxy(lambda _: b"") as (server, proxy):
        client = Http(proxy.port)
        with pytest.raises(ConnectionError):
            client("PUT", "/k", b"1")
        assert len(server.requests) == 1
        server.close()
        with pytest.raises(ConnectionError):
            Http(proxy.port)("GET", "/k")
        assert [row.status for row in proxy.log.rows()] == [None, None]


def test_what_a_fault_stops_never_reaches_the_server() -> None:
    with behind_a_proxy(lambda _: ok(b"real")) as (server, proxy):
        proxy.faults.add(Rule(Fail(503, b"busy"), nth=1), Rule(Fail(500, b"late", applied=True), nth=2))
        client = Http(proxy.port)
        answers = [client("GET", "/k")[:2] for _ in range(3)]
        client.close()
        assert answers == [(503, b"busy"), (500, b"late"), (200, b"real")]
        assert len(server.requests) == 2
        assert [row.fault for row in proxy.log.rows()] == ["Fail", "Fail", None]


@pytest.mark.parametrize(
    "nonsense",
    [b"hello\r\n\r\n", b"GET /k HTTP/1.1\r\nno colon\r\n\r\n", b"PUT /k HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
)
def test_what_is_not_http_is_refused(nonsense: bytes) -> None:
    with behind_a_proxy(lambda _: ok()) as (server, proxy), raw(proxy) as client:
        client.sendall(nonsense)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
        assert server.requests == []
