"""Many requests by one thread: each is told once, whatever the server does, and nothing is sent in doubt twice."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from itertools import islice

import pytest

from bayou.errors import Cancelled
from bayou.store import lane as lane_module
from bayou.store.exchange import Answer, Broken
from bayou.store.lane import Lane, Order
from bayou.store.signature import Signed
from bayou.store.transport import Undone
from tests.store.lanes import PATIENCE, MakeLane, Serve, all_of, bodies, get, lane_to, put, send, serve
from tests.store.scripted import body_of, key_of, ok

__all__ = ["lane_to", "serve"]

BATCH = lane_module._SIGNED
GIVE_UP = lane_module._GIVE_UP


@pytest.mark.parametrize("piece", [1 << 20, 7])
def test_every_order_gets_its_own_answer_however_that_comes(serve: Serve, lane_to: MakeLane, piece: int) -> None:
    server = serve(piece=piece)
    found = send(lane_to(server), get(range(150)))
    assert bodies(found) == {number: str(number).encode() for number in range(150)}
    assert sorted(map(key_of, server.requests)) == sorted(map(str, range(150))), "nothing is asked twice"


def test_a_request_is_what_was_ordered_and_nothing_else(serve: Serve, lane_to: MakeLane) -> None:
    server = serve()
    send(lane_to(server), put([b"abc"]), "PUT")
    head = f"PUT /0 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUser-Agent: bayou-many\r\nContent-Length: 3\r\n"
    head += "Signed: PUT\r\n\r\n"
    assert server.requests == [head.encode() + b"abc"]


def test_one_that_takes_long_holds_up_nobody(serve: Serve, lane_to: MakeLane) -> None:
    def script(key: str) -> bytes | None:
        return None if key == "0" else ok()

    server = serve(script)
    results = lane_to(server, connections=2).send("GET", get(range(40)), lambda: None)
    assert {number for number, _ in islice(results, 39)} == set(range(1, 40))
    results.close()


def test_connections_are_used_again(serve: Serve, lane_to: MakeLane) -> None:
    server = serve()
    lane = lane_to(server, connections=3)
    for _ in range(3):
        assert len(bodies(send(lane, get(range(50))))) == 50
    assert len(server.used) <= 3
    assert len(server.visits) <= 4, "and one to find out where it is"


def test_no_more_connections_are_made_than_there_are_orders(serve: Serve, lane_to: MakeLane) -> None:
    server = serve()
    send(lane_to(server, connections=64), get(range(2)))
    assert len(server.visits) <= 3


def test_a_connection_that_is_to_be_closed_is_not_used_again(serve: Serve, lane_to: MakeLane) -> None:
    server = serve(lambda key: ok(b"", b"Connection: Close"))
    assert len(bodies(send(lane_to(server), get(range(12))))) == 12
    assert [len(visit.requests) for visit in server.used] == [1] * 12
    for _ in range(12):
        assert server.leaving.acquire(timeout=PATIENCE), "we are the ones who close it"


def test_connections_that_the_server_has_closed_meanwhile_are_not_used_again(serve: Serve, lane_to: MakeLane) -> None:
    server = serve()
    lane = lane_to(server)
    send(lane, get(range(20)))
    server.hang_up()
    assert len(bodies(send(lane, get(range(20))))) == 20
    assert not lane.closed


def test_connections_that_were_idle_for_long_are_not_used_again(
    serve: Serve, lane_to: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "_IDLE_S", -1.0)
    server = serve()
    lane = lane_to(server, connections=1)
    for _ in range(3):
        send(lane, get(range(5)))
    assert [len(visit.requests) for visit in server.used] == [5] * 3


@pytest.mark.parametrize(
    "nonsense", [b"", b"hello\r\n\r\n", ok(b"x") + b"more", b"HTTP/1.1 200 OK\r\n\r\n", ok(b"longer than wanted")]
)
def test_a_request_without_a_plain_answer_is_lost_and_its_connection_with_it(
    serve: Serve, lane_to: MakeLane, nonsense: bytes
) -> None:
    server = serve(lambda key: nonsense if int(key) % 3 == 0 else ok(b"x"))
    found = send(lane_to(server, connections=1), (Order(n, str(n), wanted=1) for n in range(30)))
    assert {number for number, result in found.items() if result is Undone.LOST} == set(range(0, 30, 3))
    assert len(bodies(found)) == 20
    assert [len(visit.requests) for visit in server.used] == [1] + [3] * 9 + [2]


def test_where_nobody_listens_nothing_is_sent_and_the_rest_is_left(serve: Serve, lane_to: MakeLane) -> None:
    server = serve()
    server.close()
    lane, orders = lane_to(server), get(range(100))
    assert send(lane, orders) == dict.fromkeys(range(BATCH), Undone.UNSENT)
    assert lane.closed
    assert [order.what for order in orders] == list(range(BATCH, 100))


def test_a_server_that_goes_away_is_found_out(serve: Serve, lane_to: MakeLane) -> None:
    server = serve()
    lane = lane_to(server)
    send(lane, get(range(10)))
    server.close()
    assert send(lane, get(range(20))) == dict.fromkeys(range(20), Undone.UNSENT)
    assert lane.closed
    assert len(server.requests) == 10


@pytest.mark.parametrize(("answer", "told"), [(b"", Undone.LOST), (ok(b"no", status=403), 403)])
def test_after_8_failures_in_a_row_nothing_more_is_sent(
    serve: Serve, lane_to: MakeLane, answer: bytes, told: Undone | int
) -> None:
    server = serve(lambda key: answer)
    lane, orders = lane_to(server, connections=1), get(range(100))
    found = send(lane, orders)
    said = [result.status if isinstance(result, Answer) else result for result in found.values()]
    assert said == [told] * GIVE_UP + [Undone.UNSENT] * (BATCH - GIVE_UP)
    assert lane.closed
    assert not lane.proved
    assert len(server.requests) == GIVE_UP
    assert [order.what for order in orders] == list(range(BATCH, 100))
    assert send(lane, get(range(5))) == {}, "closed it stays"


def test_a_connection_that_breaks_before_it_is_seen_to_be_closed_is_dropped_once() -> None:
    """Seventeen requests, one of which is answered well, while the rest is refused and then reset: an overload."""
    refusal, begun = ok(b"no", status=403), threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as door:
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
        lane = Lane(lambda method, orders: [Signed(f"{url}/{one.key}", "") for one in orders], 17, timeout=PATIENCE)
        there: list[socket.socket] = []

        def refuse() -> None:
            door.accept()[0].close()
            there.extend(door.accept()[0] for _ in range(17))
            for connection in there:
                connection.recv(1 << 16)
            for connection in there[3:]:
                connection.sendall(refusal)
            begun.set()

        threading.Thread(target=refuse, daemon=True).start()
        results = lane.send("GET", get(range(60)), lambda: None)
        found = dict(next(results) for _ in range(14))
        assert begun.wait(PATIENCE)
        assert lane.closed, "so connections are idle although there is more to do"
        there[2].sendall(refusal)
        found |= dict([next(results)])
        there[0].sendall(ok())
        there[1].close()
        for connection in there[2:]:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    found |= all_of(results)
    lane.close()
    there[0].close()
    assert list(found.values()).count(Undone.LOST) >= 2


@pytest.mark.parametrize("answer", [b"", ok(b"no", status=403)])
def test_failures_with_a_success_between_are_none_to_give_up_for(
    serve: Serve, lane_to: MakeLane, answer: bytes
) -> None:
    server = serve(lambda key: ok() if int(key) % GIVE_UP == GIVE_UP - 1 else answer)
    lane = lane_to(server, connections=1)
    assert len(send(lane, get(range(5 * GIVE_UP)))) == 5 * GIVE_UP == len(server.requests)
    assert not lane.closed
    assert lane.proved


def test_a_request_that_gets_no_answer_in_time_is_lost(serve: Serve, lane_to: MakeLane) -> None:
    server = serve(lambda key: None if key in ("3", "5") else ok())
    found = send(lane_to(server, connections=2, timeout=2), get(range(40)))
    assert {number for number, result in found.items() if result is Undone.LOST} == {3, 5}
    assert len(bodies(found)) == 38
    assert server.leaving.acquire(timeout=PATIENCE)
    assert server.leaving.acquire(timeout=PATIENCE)


def test_whoever_looks_may_end_it_and_leaves_no_connection_behind(serve: Serve, lane_to: MakeLane) -> None:
    server = serve(lambda key: None)
    asked = iter(range(3))

    def look() -> None:
        if len(server.requests) == 4 and next(asked, None) is None:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        all_of(lane_to(server).send("GET", get(range(10)), look))
    for _ in range(4):
        assert server.leaving.acquire(timeout=PATIENCE)


def test_whoever_wants_no_more_leaves_no_busy_connection_behind(serve: Serve, lane_to: MakeLane) -> None:
    server = serve(lambda key: ok() if key == "0" else None)
    lane = lane_to(server)
    results = lane.send("GET", get(range(10)), lambda: None)
    assert next(results)[0] == 0
    results.close()
    busy = [visit for visit in server.used if key_of(visit.requests[-1]) != "0"]
    for _ in busy:
        assert server.leaving.acquire(timeout=PATIENCE)
    assert not lane.closed


def test_large_bodies_arrive_whole_at_a_server_that_reads_slowly(serve: Serve, lane_to: MakeLane) -> None:
    large = [bytes([number]) * 700_001 for number in range(6)]
    server = serve(lambda key: ok(), sip=8192)
    assert len(bodies(send(lane_to(server, connections=3), put(large), "PUT"))) == 6
    assert {key_of(request): body_of(request) for request in server.requests} == {
        str(number): body for number, body in enumerate(large)
    }


def test_large_answers_arrive_whole(serve: Serve, lane_to: MakeLane) -> None:
    server = serve(lambda key: ok(key.encode() * 900_000), piece=60_000)
    found = send(lane_to(server), (Order(number, str(number), wanted=900_000) for number in range(8)))
    assert bodies(found) == {number: str(number).encode() * 900_000 for number in range(8)}


def test_addresses_of_two_servers_are_not_asked(serve: Serve, lane_to: MakeLane) -> None:
    one, other = serve(), serve()
    lane, orders = lane_to(one, other), get(range(2 * BATCH))
    assert send(lane, orders) == dict.fromkeys(range(BATCH), Undone.UNSENT)
    assert lane.closed
    assert one.requests == other.requests == []
    assert len(list(orders)) == BATCH


def test_addresses_of_a_server_whose_port_begins_alike_are_not_asked(serve: Serve) -> None:
    server = serve()
    lane = Lane(lambda method, orders: [Signed(f"{server.url}/0", ""), Signed(f"{server.url}9/1", "")], 1, PATIENCE)
    found = send(lane, get(range(2)))
    lane.close()
    assert found == dict.fromkeys(range(2), Undone.UNSENT)


def test_v12_a_name_that_nobody_knows_and_nobody_says_so_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: forever.wait(600))
    lane = Lane(lambda method, orders: [Signed("http://store.example/0", "") for _ in orders], 1, timeout=0.1)
    assert send(lane, get(range(1))) == {0: Undone.UNSENT}
    lane.close()
    forever.set()


def test_where_nothing_can_be_signed_nothing_is_sent() -> None:
    def sign(method: str, orders: Sequence[Order[int]]) -> list[Signed]:
        raise Broken("no credentials", sent=False)

    lane, orders = Lane(sign, 4, PATIENCE), get(range(2 * BATCH))
    assert send(lane, orders) == dict.fromkeys(range(BATCH), Undone.UNSENT)
    lane.close()
    assert lane.closed
    assert len(list(orders)) == BATCH
