"""17.9, V25: no object and no answer fills the memory of its reader, whatever the server announces and sends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from bayou.core.errors import BadAnswer, StoreError, TooLarge
from bayou.objectstore import Store, open_store
from bayou.objectstore.multipart import NullSink
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.contract import payload

ONCE = RetryPolicy(attempts=1, request_timeout_s=20, call_deadline_s=30)
KEY = payload("data/a")
MIB = 1 << 20
PROMISED = 4 << 30
IN_FLIGHT = 64 * MIB
"""More than the sockets of both sides, and obstore between them, hold of what nobody reads."""


class Endless:
    """A server that announces what a test says, and sends bytes until its client leaves."""

    def __init__(self, head: bytes) -> None:
        self.sent: list[int] = []
        self._head = head
        self._door = socket.socket()
        self._door.bind(("127.0.0.1", 0))
        self._door.listen()
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()

    def _serve(self) -> None:
        piece = bytes(MIB)
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            with client:
                client.settimeout(5)
                self.sent.append(0)
                try:
                    client.recv(1 << 16)
                    client.sendall(self._head)
                    while self.sent[-1] < PROMISED:
                        client.sendall(piece)
                        self.sent[-1] += len(piece)
                except OSError:
                    continue


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[Store, Endless]]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dummy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    servers: list[Endless] = []

    def make(head: str) -> tuple[Store, Endless]:
        lines = f'{head}\nETag: "1"\nLast-Modified: Wed, 12 Oct 2022 10:00:00 GMT\n\n'
        server = Endless(lines.replace("\n", "\r\n").encode())
        servers.append(server)
        return open_store("s3://bucket/p", options={"endpoint": server.url}, policy=ONCE), server

    yield make
    for server in servers:
        server.close()


def test_17_9_an_object_that_announces_gigabytes_is_not_read(
    endless: Callable[[str], tuple[Store, Endless]],
) -> None:
    store, server = endless(f"HTTP/1.1 200 OK\nContent-Length: {PROMISED}")
    with pytest.raises(TooLarge, match=f"{PROMISED} bytes"):
        store.get(KEY, most=4 * MIB)
    assert sum(server.sent) < IN_FLIGHT


def test_17_9_an_answer_without_a_length_is_none(endless: Callable[[str], tuple[Store, Endless]]) -> None:
    store, server = endless("HTTP/1.1 200 OK\nTransfer-Encoding: chunked")
    with pytest.raises(StoreError):
        store.get(KEY, most=4 * MIB)
    assert sum(server.sent) < IN_FLIGHT


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get(KEY, span=(0, 10)),
        lambda store: store.read(KEY, 9, bytes(32)),
        lambda store: store.download(KEY, NullSink(), 10),
    ],
    ids=["get", "read", "download"],
)
def test_17_9_an_answer_to_a_span_that_does_not_end_is_left(
    endless: Callable[[str], tuple[Store, Endless]], read: Callable[[Store], object]
) -> None:
    """The size of the object is that of `Content-Range`; how much comes is another matter."""
    store, server = endless(f"HTTP/1.1 206 Some\nContent-Range: bytes 0-9/10\nContent-Length: {PROMISED}")
    with pytest.raises(BadAnswer):
        read(store)
    assert sum(server.sent) < IN_FLIGHT


def test_17_9_an_object_that_should_be_empty_and_announces_gigabytes_is_not_read(
    endless: Callable[[str], tuple[Store, Endless]],
) -> None:
    store, server = endless(f"HTTP/1.1 200 OK\nContent-Length: {100 * MIB}")
    with pytest.raises(BadAnswer, match="0 bytes expected"):
        store.download(KEY, NullSink(), 0)
    assert sum(server.sent) < IN_FLIGHT


def test_17_9_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with open(tmp_path / "data/a", "wb") as file:
        file.truncate(PROMISED)
    with pytest.raises(TooLarge, match=f"{PROMISED} bytes"):
        open_store(tmp_path.as_uri()).get(KEY, most=4 * MIB)
