"""The proxy that delays: every byte passes, a request waits once, and it counts what it passed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

import obstore
import pytest

from bayou_testing.latency import LatencyProxy
from bayou_testing.processes import free_ports
from tests.testing.server_clients import race, s3_store
from tests.testing.test_http_proxy import ScriptedServer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer(lambda request: OK)
    try:
        yield server
    finally:
        server.close()


def get(connection: HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


@pytest.mark.s3
def test_objects_pass_unchanged_by_many_connections_at_once(seaweed, bucket):
    contents = [os.urandom(5_000) for _ in range(63)] + [os.urandom(6 << 20)]
    with LatencyProxy(seaweed.host, seaweed.port, seconds=0.001) as proxy:
        store = s3_store(seaweed, bucket, url=proxy.url)

        def there_and_back(number: int) -> bytes:
            obstore.put(store, f"o{number}", contents[number])
            return bytes(obstore.get(store, f"o{number}").bytes())

        assert race(len(contents), there_and_back) == contents
        assert proxy.usage().requests >= 2 * len(contents)


def test_each_request_of_a_kept_connection_is_counted_and_waits():
    with scripted() as server, LatencyProxy("127.0.0.1", server.port, seconds=0.001) as proxy:
        connection = HTTPConnection("127.0.0.1", proxy.port, timeout=30)
        for _ in range(3):
            assert get(connection, "/") == b"ok"
        connection.close()

        assert (proxy.usage().requests, proxy.usage().connections, server.connections) == (3, 1, 1)


def test_a_request_in_pieces_is_one_request():
    with scripted() as server, LatencyProxy("127.0.0.1", server.port, seconds=0.001) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:
            for piece in (b"PUT / HTTP/1.1\r\nContent-", b"Length: 4\r\n", b"\r\nab", b"cd"):
                connection.sendall(piece)
            assert connection.recv(1000) == OK

        assert server.requests == [b"PUT / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd"]
        assert proxy.usage().requests == 1


def test_an_interim_response_does_not_begin_a_new_request():
    go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    door = socket.create_server(("127.0.0.1", 0))
    with door, LatencyProxy("127.0.0.1", door.getsockname()[1], seconds=0.001) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
            server, _ = door.accept()
            with server:
                for sender, receiver, data in (
                    (client, server, b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"),
                    (server, client, go_on),
                    (client, server, b"abcd"),
                    (server, client, OK),
                ):
                    sender.sendall(data)
                    assert receiver.recv(1000) == data

        assert proxy.usage().requests == 1


def test_a_request_does_not_reach_the_server_before_its_time():
    with scripted() as server, LatencyProxy("127.0.0.1", server.port, seconds=3600) as slow:
        with LatencyProxy("127.0.0.1", server.port, seconds=0) as fast:
            waiting = HTTPConnection("127.0.0.1", slow.port, timeout=30)
            waiting.request("GET", "/slow")
            while not slow.usage().requests:
                pass
            connection = HTTPConnection("127.0.0.1", fast.port, timeout=30)
            assert get(connection, "/fast") == b"ok"
            connection.close()
            waiting.close()

        assert [request.split()[1] for request in server.requests] == [b"/fast"]


def test_a_server_that_is_away_closes_the_connection():
    (port,) = free_ports(1)
    with LatencyProxy("127.0.0.1", port, seconds=0) as proxy:
        connection = HTTPConnection("127.0.0.1", proxy.port, timeout=30)
        with pytest.raises(OSError, match=r"(?i)closed|reset|pipe"):
            get(connection, "/")
        connection.close()


def exchange(proxy: LatencyProxy, body: bytes, answer: int) -> int:
    """Send a request with a body through the proxy; return how many bytes of the response came."""
    connection = HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    try:
        connection.request("PUT", f"/{answer}", body)
        return len(connection.getresponse().read())
    finally:
        connection.close()


@contextmanager
def generous() -> Iterator[ScriptedServer]:
    """A server whose responses have as many bytes as the path says."""

    def answer(request: bytes) -> bytes:
        size = int(request.split()[1][1:])
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (size, bytes(size))

    server = ScriptedServer(answer)
    try:
        yield server
    finally:
        server.close()


def test_a_rate_holds_for_all_connections_together_and_every_byte_passes():
    rate = 4_000_000
    with generous() as server, LatencyProxy("127.0.0.1", server.port, seconds=0.001, rate=rate) as proxy:
        begin = time.monotonic()
        assert race(4, lambda _: exchange(proxy, bytes(300_000), 200_000)) == [200_000] * 4
        seconds = time.monotonic() - begin
        used = proxy.usage()

    assert used.bytes_up >= 1_200_000
    assert used.bytes_down >= 800_000
    assert seconds >= 1_200_000 / rate, "never faster than the link, however loaded the machine is"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the server meets it too
def test_a_reset_comes_after_so_many_bytes_and_the_link_goes_on():
    with generous() as server, LatencyProxy("127.0.0.1", server.port, seconds=0, reset_every=100_000) as proxy:
        with pytest.raises(OSError, match=r"(?i)reset|broken pipe|closed"):
            exchange(proxy, bytes(150_000), 1)
        assert exchange(proxy, bytes(10), 10) == 10
        assert proxy.usage().resets == 1


def test_a_stall_holds_up_a_connection_and_loses_nothing():
    with (
        generous() as server,
        LatencyProxy("127.0.0.1", server.port, seconds=0, stall_every=50_000, stall_seconds=0.01) as proxy,
    ):
        assert exchange(proxy, bytes(120_000), 120_000) == 120_000
        assert proxy.usage().stalls >= 1
