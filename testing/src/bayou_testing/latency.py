"""A proxy in a process of its own that is a link: it delays requests, limits the rate, stalls and resets.

    with SeaweedServer() as s3, LatencyProxy(s3.host, s3.port, seconds=0.02) as proxy:
        ...  # clients use proxy.url

    with LatencyProxy(s3.host, s3.port, seconds=0.05, rate=1_000_000, reset_every=20 << 20) as proxy:
        ...  # 50 ms, 1 MB/s in each direction for all connections together, a reset after each 20 MiB

For benchmarks: it does as little as it can for a request, so that many connections at once measure the client and not
the proxy. It does not parse messages. A connection of HTTP/1.1 without pipelining alternates between requests and
responses, so the first bytes that a client sends, and the first ones after bytes of the server, begin a request: they
wait, and all that follows them passes at once. The delay is for the request as a whole, however many packets it has.
Opening a connection costs nothing extra. `HttpProxy` is the proxy for faults and for a log.

All connections share the rate of a direction, as they share a link. What a lost packet does to a connection is a stall:
after each `stall_every` bytes, the connection that passes them stands still for `stall_seconds`. Stalls and resets come
by the number of bytes and not by chance, so that a test meets the same ones each time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from typing import Self

import msgspec
from msgspec import Struct

from bayou_testing.processes import ServerFailed

_BACKLOG = 1024
_BUFFER = 64 << 10
_INTERIM = b"HTTP/1.1 100"
"""An interim response: the rest of the same request follows it."""


class Usage(Struct, frozen=True):
    """What the proxy has done so far: requests, connections, their processor time in seconds, bytes, resets, stalls."""

    requests: int
    connections: int
    cpu: float
    bytes_up: int = 0
    bytes_down: int = 0
    resets: int = 0
    stalls: int = 0


class Shape(Struct, frozen=True):
    """How the link is: `rate` in bytes a second for each direction; None: as fast as this machine."""

    seconds: float = 0.0
    rate: float | None = None
    reset_every: int | None = None
    stall_every: int | None = None
    stall_seconds: float = 0.2

    @property
    def plain(self) -> bool:
        """Whether the link only delays requests: then their bytes pass without further ado."""
        return self.rate is None and self.reset_every is None and self.stall_every is None


class LatencyProxy:
    """Pass everything on to one server, each request later by `seconds`, from construction until `close`.

    The other arguments are those of `Shape`.
    """

    def __init__(
        self,
        upstream_host: str,
        upstream_port: int,
        *,
        seconds: float,
        rate: float | None = None,
        reset_every: int | None = None,
        stall_every: int | None = None,
        stall_seconds: float = 0.2,
    ) -> None:
        self.host = "127.0.0.1"
        shape = msgspec.json.encode(Shape(seconds, rate, reset_every, stall_every, stall_seconds)).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bayou_testing.latency", upstream_host, str(upstream_port), shape],
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class _Link:
    """The state of the link: what has passed, and when each direction is free again."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.requests = 0
        self.connections = 0
        self.bytes = {"up": 0, "down": 0}
        self.resets = 0
        self.stalls = 0
        self._free_at = {"up": 0.0, "down": 0.0}

    def usage(self) -> Usage:
        return Usage(
            self.requests,
            self.connections,
            time.process_time(),
            self.bytes["up"],
            self.bytes["down"],
            self.resets,
            self.stalls,
        )

    def arrival(self, direction: str, size: int, earliest: float) -> float | None:
        """Return when bytes have passed that start now; None if the connection is reset instead."""
        shape, before = self.shape, sum(self.bytes.values())
        self.bytes[direction] += size
        if _crossed(shape.reset_every, before, size):
            self.resets += 1
            return None
        at = max(self._free_at[direction], earliest)
        if shape.rate is not None:
            at += size / shape.rate
            self._free_at[direction] = at
        if _crossed(shape.stall_every, before, size):
            self.stalls += 1
            at += shape.stall_seconds  # for this connection only
        return at


def _crossed(every: int | None, before: int, size: int) -> bool:
    """Whether these bytes complete another `every` bytes."""
    return every is not None and before // every != (before + size) // every


class _Side(asyncio.Protocol):
    """One end of a pair of connections. A peer that cannot take more bytes stops the other end from reading."""

    peer: _Side | None = None
    transport: asyncio.Transport | None = None
    direction = "up"
    _peer_full = False
    _passing = False

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer._peer_full = True
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer._peer_full = False
            if not self.peer._passing:
                self.peer.transport.resume_reading()

    def pass_shaped(self, data: bytes, after: float) -> None:
        """Pass bytes on when the link has moved them; meanwhile read no more from this side."""
        assert self.transport is not None
        arrival = self._link.arrival(self.direction, len(data), self._loop.time() + after)
        if arrival is None:
            self.reset()
            return
        self._passing = True
        self.transport.pause_reading()
        self._loop.call_at(arrival, self._passed, data)

    def _passed(self, data: bytes) -> None:
        self._passing = False
        if self.peer is not None:
            self.peer.send(data)
        if not self._peer_full and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def reset(self) -> None:
        """End both connections, with a reset and not with an orderly end."""
        for side in (self, self.peer):
            if side is not None and side.transport is not None:
                connection = side.transport.get_extra_info("socket")
                if connection is not None:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                side.transport.abort()

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


class _ClientSide(_Side):
    """The connection of a client. Bytes that begin a request, and what follows them meanwhile, wait in `_held`."""

    def __init__(self, address: tuple[str, int], link: _Link) -> None:
        super().__init__(link)
        self._address = address
        self._held: list[bytes] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.between_requests = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link.connections += 1
        assert self.transport is not None
        self.transport.pause_reading()  # until there is a connection to the server
        self._connecting = self._loop.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        begins, self.between_requests = self.between_requests, False
        self._link.requests += begins
        if not self._link.shape.plain:
            self.pass_shaped(data, self._link.shape.seconds if begins else 0.0)
            return
        self._link.bytes["up"] += len(data)
        if self._held is not None:
            self._held.append(data)
        elif begins:
            self._held = [data]
            self._loop.call_later(self._link.shape.seconds, self._release)
        elif self.peer is not None:
            self.peer.send(data)

    async def _connect(self) -> None:
        assert self.transport is not None
        try:
            _, self.peer = await self._loop.create_connection(lambda: _ServerSide(self, self._link), *self._address)
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

    direction = "down"

    def __init__(self, client: _ClientSide, link: _Link) -> None:
        super().__init__(link)
        self.peer = self._client = client

    def data_received(self, data: bytes) -> None:
        if not data.startswith(_INTERIM):
            self._client.between_requests = True
        if self._link.shape.plain:
            self._link.bytes["down"] += len(data)
            self._client.send(data)
        else:
            self.pass_shaped(data, 0.0)


async def _serve(address: tuple[str, int], shape: Shape) -> None:
    """Serve until standard input ends; answer each line of it with the counters."""
    loop = asyncio.get_running_loop()
    link = _Link(shape)
    door = socket.socket()
    if not shape.plain:
        # The sender must feel the link: a large buffer would take megabytes at once.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    door.bind(("127.0.0.1", 0))
    server = await loop.create_server(lambda: _ClientSide(address, link), sock=door, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()

    def asked() -> None:
        lines = os.read(0, 4096)
        if not lines:
            loop.remove_reader(0)
            ended.set_result(None)
        for _ in range(lines.count(b"\n")):
            print(msgspec.json.encode(link.usage()).decode(), flush=True)

    loop.add_reader(0, asked)
    await ended


if __name__ == "__main__":
    host, port, shape = sys.argv[1:]
    asyncio.run(_serve((host, int(port)), msgspec.json.decode(shape, type=Shape)))
