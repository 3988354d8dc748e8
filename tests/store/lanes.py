"""Lanes to servers that answer by script, as fixtures; what is ordered of them, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from bayou.store.exchange import Answer
from bayou.store.lane import Lane, Order
from bayou.store.signature import Signed
from bayou.store.transport import Undone
from tests.store.scripted import Script, Scripted, ok

PATIENCE = 30
"""Seconds; only ever waited for when a test fails."""

Found = dict[int, Answer | Undone]
Serve = Callable[..., Scripted]
MakeLane = Callable[..., Lane]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Scripted] = []

    def make(script: Script = lambda key: ok(key.encode()), **more: Any) -> Scripted:
        servers.append(Scripted(script, **more))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def lane_to() -> Iterator[MakeLane]:
    lanes: list[Lane] = []

    def make(*servers: Scripted, connections: int = 4, timeout: float = PATIENCE) -> Lane:
        def sign(method: str, orders: Sequence[Order[int]]) -> list[Signed]:
            return [
                Signed(f"{servers[number % len(servers)].url}/{order.key}", f"Signed: {method}\r\n")
                for number, order in enumerate(orders)
            ]

        lanes.append(Lane(sign, connections, timeout))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.close()


def get(numbers: Iterable[int]) -> Iterator[Order[int]]:
    return (Order(number, str(number)) for number in numbers)


def put(bodies: Iterable[bytes]) -> Iterator[Order[int]]:
    for number, body in enumerate(bodies):
        yield Order(number, str(number), f"Content-Length: {len(body)}\r\n", body)


def all_of(results: Iterator[tuple[int, Answer | Undone]]) -> Found:
    found: Found = {}
    for number, result in results:
        assert number not in found, "each is told once"
        found[number] = result
    return found


def send(lane: Lane, orders: Iterator[Order[int]], method: Any = "GET") -> Found:
    return all_of(lane.send(method, orders, lambda: None))


def bodies(found: Found) -> dict[int, bytes]:
    return {number: result.body for number, result in found.items() if isinstance(result, Answer)}
