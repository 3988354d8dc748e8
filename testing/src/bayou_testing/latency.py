"""A proxy in a process of its own that adds a delay to each HTTP request, as a distant server would.

    with SeaweedServer() as s3, LatencyProxy(s3.host, s3.port, seconds=0.02) as proxy:
        ...  # clients use proxy.url

For benchmarks: it does as little as it can for a request, so that many connections at once measure the client and not
the proxy. It does not parse messages. A connection of HTTP/1.1 without pipelining alternates between requests and
responses, so the first bytes that a client sends, and the first ones after bytes of the server, begin a request: they
wait, and all that follows them passes at once. The delay is for the request as a whole, however many packets it has.
Opening a connection costs nothing extra. `HttpProxy` is the proxy for faults and for a log.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

from bayou_testing.processes import ServerFailed

_BACKLOG = 1024
_INTERIM = b"HTTP/1.1 100"
"""An interim response: the rest of the same request follows it."""


class Usage(Struct, frozen=True):
    """What the proxy has done so far: requests and connections, and the seconds of processor time that they took."""

    requests: int
    connections: int
    cpu: float


class LatencyProxy:
    """Pass everything on to one server, each request later by `seconds`, from construction until `close`."""

    def __init__(self, upstream_host: str, upstream_port: int, *, seconds: float) -> None:
        self.host = "127.0.0.1"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bayou_testing.latency", upstream_host, str(upstream_port), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.port = int(self._line() or 0)
        if not self.port:
            self.close()
            raise ServerFailed("the proxy did not start")
        self.url = f"http://{self.host}:{self.port}"

    def usage(self) -> Usage:
        """Return what the proxy has done so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._line(), type=Usage)

    def close(self) -> None:
        """End the proxy and every connection through it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()  # it ends when its input does, so it never outlives its parent
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class _Counters:
    def __init__(self) -> None:
        self.requests = 0
        self.connections = 0

    def usage(self) -> Usage:
        return Usage(self.requests, self.connections, time.process_time())


class _Side(asyncio.Protocol):
    """One end of a pair of connections. A peer that cannot take more bytes stops the other end from reading."""

    peer: _Side | None = None
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


class _ClientSide(_Side):
    """The connection of a client. Bytes that begin a request, and what follows them meanwhile, wait in `_held`."""

    def __init__(self, address: tuple[str, int], seconds: float, counters: _Counters) -> None:
        self._address = address
        self._seconds = seconds
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.between_requests = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._counters.connections += 1
        assert self.transport is not None
        self.transport.pause_reading()  # until there is a connection to the server
        self._connecting = self._loop.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
        elif self.between_requests:
            self.between_requests = False
            self._counters.requests += 1
            self._held = [data]
            self._loop.call_later(self._seconds, self._release)
        elif self.peer is not None:
            self.peer.send(data)

    async def _connect(self) -> None:
        assert self.transport is not None
        try:
            _, self.peer = await self._loop.create_connection(lambda: _ServerSide(self), *self._address)
        except OSError:
            self.transport.close()
            return
        if self.transport.is_closing():  # the client left meanwhile
            self.connection_lost(None)
        else:
            self.transport.resume_reading()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held and self.peer is not None:
            self.peer.send(held[0] if len(held) == 1 else b"".join(held))


class _ServerSide(_Side):
    """The connection to the server that belongs to one client."""

    def __init__(self, client: _ClientSide) -> None:
        self.peer = self._client = client

    def data_received(self, data: bytes) -> None:
        if not data.startswith(_INTERIM):
            self._client.between_requests = True
        self._client.send(data)


async def _serve(address: tuple[str, int], seconds: float) -> None:
    """Serve until standard input ends; answer each line of it with the counters."""
    loop = asyncio.get_running_loop()
    counters = _Counters()
    server = await loop.create_server(lambda: _ClientSide(address, seconds, counters), "127.0.0.1", 0, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()

    def asked() -> None:
        lines = os.read(0, 4096)
        if not lines:
            loop.remove_reader(0)
            ended.set_result(None)
        for _ in range(lines.count(b"\n")):
            print(msgspec.json.encode(counters.usage()).decode(), flush=True)

    loop.add_reader(0, asked)
    await ended


if __name__ == "__main__":
    host, port, delay = sys.argv[1:]
    asyncio.run(_serve((host, int(port)), float(delay)))
