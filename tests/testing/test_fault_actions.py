"""What each action does to a request, seen from the client and from the store."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from http.client import IncompleteRead, RemoteDisconnected
from threading import Event

import pytest

from bayou_testing.faults import Delay, Fail, Garbage, Hold, LoseResponse, Reset, Rule, Silent, Truncate
from bayou_testing.gcs import GcsServer
from tests.testing.server_clients import Http


def test_fail_answers_for_the_server_and_nothing_takes_effect(gcs: GcsServer, http: Http) -> None:
    gcs.faults.add(Rule(Fail(503, b"busy", {"Retry-After": "1"}), method="PUT", nth=1))
    refused = http("PUT", "/b/k", b"1")
    assert (refused.status, refused.body, refused.headers["retry-after"]) == (503, b"busy", "1")
    assert gcs.objects() == {}
    assert http("PUT", "/b/k", b"1").status == 200


def test_fail_applied_takes_effect_all_the_same(gcs: GcsServer, http: Http) -> None:
    gcs.faults.add(Rule(Fail(500, applied=True), method="PUT"))
    assert http("PUT", "/b/k", b"1").status == 500
    assert gcs.objects()["k"].data == b"1"


def test_a_lost_response_is_a_closed_connection_after_the_effect(gcs: GcsServer, http: Http) -> None:
    gcs.faults.add(Rule(LoseResponse(), method="PUT"))
    with pytest.raises(RemoteDisconnected):
        http("PUT", "/b/k", b"1")
    assert gcs.objects()["k"].data == b"1"
    (row,) = gcs.log.rows()
    assert (row.status, row.fault, row.received) == (None, "LoseResponse", 1)


def test_a_reset_comes_before_anything_takes_effect(gcs: GcsServer, http: Http) -> None:
    gcs.faults.add(Rule(Reset(), method="PUT"))
    with pytest.raises(ConnectionResetError):
        http("PUT", "/b/k", b"1")
    assert gcs.objects() == {}


def test_a_truncated_body_is_announced_whole(gcs: GcsServer, http: Http) -> None:
    gcs.put_raw("k", b"0123456789")
    gcs.faults.add(Rule(Truncate(4), method="GET"))
    with pytest.raises(IncompleteRead) as caught:
        http("GET", "/b/k")
    assert (caught.value.partial, caught.value.expected) == (b"0123", 6)


def test_garbage_is_a_good_answer_with_a_bad_body(gcs: GcsServer, http: Http) -> None:
    gcs.faults.add(Rule(Garbage(b"<html>", {"Content-Type": "text/html"})))
    answer = http("GET", "/b?list-type=2")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"<html>", "text/html")


def test_a_delayed_request_takes_effect_later(gcs: GcsServer, http: Http) -> None:
    rule = Rule(Delay(0.01), method="PUT")
    gcs.faults.add(rule)
    assert http("PUT", "/b/k", b"1").status == 200
    assert gcs.faults.applied(rule) == 1


def test_a_held_request_waits_for_its_release(gcs: GcsServer, http: Http) -> None:
    hold = Hold(release=Event())
    gcs.faults.add(Rule(hold, method="PUT", path="k$"))
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(Http(gcs.port), "PUT", "/b/k", b"late")
        assert hold.arrived.wait(10)
        assert http("PUT", "/b/other", b"1").status == 200
        assert list(gcs.objects()) == ["other"]
        hold.release.set()
        assert held.result(10).status == 200
    assert gcs.objects()["k"].data == b"late"


def test_a_silent_server_accepts_and_says_nothing(gcs: GcsServer) -> None:
    gcs.faults.add(Rule(Silent(), method="PUT"))
    with socket.create_connection((gcs.host, gcs.port), timeout=0.2) as connection:
        connection.sendall(b"PUT /b/k HTTP/1.1\r\nContent-Length: 1\r\n\r\n1")
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        gcs.close()
        assert connection.recv(1) == b""
    assert gcs.objects() == {}


def test_closing_the_server_ends_held_requests_without_effect() -> None:
    hold = Hold(release=Event())
    with GcsServer(["b"]) as server, ThreadPoolExecutor(1) as pool:
        server.faults.add(Rule(hold))
        held = pool.submit(Http(server.port), "PUT", "/b/k", b"1")
        assert hold.arrived.wait(10)
        server.close()
        assert isinstance(held.exception(10), ConnectionError)
        assert server.objects() == {}


def test_the_log_has_a_row_before_the_client_has_the_answer(gcs: GcsServer, http: Http) -> None:
    for number in range(1, 51):
        http("PUT", f"/b/k{number}", b"xy")
        assert gcs.log.count(method="PUT") == number
    http("GET", "/b/k1")
    http("GET", "/b?list-type=2")
    assert gcs.log.count(path=r"/k1$") == 2
    assert gcs.log.count(query="list-type", status=200) == 1
    assert [row.path for row in gcs.log.writes()] == [f"/b/k{number}" for number in range(1, 51)]
    assert sum(row.received for row in gcs.log.writes()) == 100
    gcs.log.clear()
    assert gcs.log.count() == 0
