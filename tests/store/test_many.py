"""Many small objects of a real bucket, the quick way: what arrives, what is refused, what is left to others."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bayou.deadline import Deadline
from bayou.errors import AccessDenied, Cancelled, DeadlinePassed, NotFound, Rejected, StoreError
from bayou.ids import ulid
from bayou.store import Store, credentials, keys, open_store
from bayou.store.credentials import Granted
from bayou.store.keys import Key
from bayou.store.lane import _SIGNED as BATCH
from bayou.store.signature import Signature
from bayou.store.transport import Stored, Undone
from bayou.testing.contract import payload
from bayou.testing.faults import Fail, LoseResponse, Rule, Silent
from bayou.testing.proxy import HttpProxy
from bayou.testing.s3 import S3Endpoint
from bayou.testing.seaweed import SeaweedEndpoint
from bayou.testing.server import LoopbackServer
from bayou.testing.wire import Request, Response, answer
from tests.store.conftest import BUCKET, QUICK

pytestmark = pytest.mark.s3

ODD = ["a b", "a+b", "100%", "%41", "ünïcödé/Ж/漢", "~tilde/~", "(x)'!*,;:@&=$", 'q"uote', "#hash?what", "a.b-c_d"]


def open_many(url: str, *, concurrency: int = 4, prefix: str | None = None) -> Store:
    place = f"s3://{BUCKET}/{prefix or ulid()}"
    return open_store(place, options={"endpoint": url}, concurrency=concurrency, policy=QUICK)


@pytest.fixture
def store(proxy: HttpProxy) -> Store:
    return open_many(proxy.url)


@pytest.fixture
def single(proxy: HttpProxy) -> Store:
    """A store that asks one thing after another."""
    return open_many(proxy.url, concurrency=1)


def put(store: Store, objects: Iterable[tuple[Key, bytes]]) -> dict[str, Stored | StoreError | Undone]:
    return dict(store.put_many((key, key, data) for key, data in objects))


def read(store: Store, objects: Iterable[tuple[Key, bytes]]) -> dict[str, bytes | StoreError | Undone]:
    """Read objects that have these bytes, or should have."""
    return dict(store.read_many((key, key, len(data), hashlib.sha256(data).digest()) for key, data in objects))


def some(count: int, under: str = "files") -> dict[Key, bytes]:
    return {payload(f"{under}/{number:03}"): b"content %d" % number for number in range(count)}


def test_what_was_put_is_there_as_if_it_had_been_put_one_by_one(store: Store) -> None:
    objects = {payload(f"files/{name}"): name.encode() * 50 for name in ODD}
    objects |= {payload("files/empty"): b"", keys.payload("files/of a push", ulid()): bytes(range(256)) * 4096}
    found = put(store, objects.items())
    assert {meta.key: meta.size for page in store.list() for meta in page} == {
        key: len(data) for key, data in objects.items()
    }
    for key, data in objects.items():
        there = store.get(key)
        assert there is not None
        assert bytes(there.data) == data
        assert found[key] == Stored(there.meta.etag, there.meta.version)
        assert found[key] == store.put(payload("data/ordinary"), data), "the same fingerprint"


def test_what_was_put_one_by_one_is_read(store: Store) -> None:
    objects = {payload(f"files/{name}"): name.encode() * 50 for name in ODD}
    list(store.map(lambda item: store.put(*item), objects.items()))
    assert read(store, objects.items()) == objects


def test_each_request_is_counted_once_as_the_server_counts_it(store: Store, proxy: HttpProxy) -> None:
    objects = some(100)
    assert all(isinstance(result, Stored) for result in put(store, objects.items()).values())
    assert read(store, objects.items()) == objects
    assert (store.requests.put, store.requests.get, store.requests.total) == (100, 100, 200)
    assert (proxy.log.count(method="PUT"), proxy.log.count(method="GET"), proxy.log.count()) == (100, 100, 200)
    size = sum(map(len, objects.values()))
    assert (store.requests.bytes_out, store.requests.bytes_in) == (size, size)


def test_what_is_not_as_it_should_be_is_left_to_others_and_what_is_missing_is_missing(single: Store) -> None:
    there = some(2)
    put(single, there.items())
    first, second = there
    found = read(single, [(first, there[first]), (second, b"short"), (payload("files/none"), b"1")])
    assert found[first] == there[first]
    assert found[second] is Undone.LOST, "another size"
    assert isinstance(found["files/none"], NotFound)
    assert read(single, [(second, there[second].upper())])[second] is Undone.LOST, "other bytes"
    assert (single.requests.put, single.requests.get) == (2, 4)


@pytest.mark.parametrize("fault", [Fail(503), Fail(429), Fail(500, applied=True), LoseResponse()])
def test_what_may_pass_is_left_to_others_and_counted(single: Store, proxy: HttpProxy, fault: Any) -> None:
    proxy.faults.add(Rule(fault, every=3))
    objects = some(12)
    found = put(single, objects.items())
    assert [result is Undone.LOST for result in found.values()] == [False, False, True] * 4
    assert single.requests.put == proxy.log.count() == 12
    proxy.faults.clear()


def test_what_never_left_is_not_counted(proxy: HttpProxy) -> None:
    store = open_many(proxy.url)
    proxy.close()
    items = ((number, payload(f"files/{number}"), b"1") for number in range(100))
    assert dict(store.put_many(items)) == dict.fromkeys(range(BATCH), Undone.UNSENT)
    assert store.requests.total == 0
    assert next(items)[0] == BATCH, "and nothing more is taken"
    assert list(store.put_many(items)) == [], "once it is closed"
    assert next(items)[0] == BATCH + 1


@pytest.mark.parametrize("url", ["memory://many", "gs"])
def test_where_there_is_no_quicker_way_nothing_is_taken(url: str, request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue("gs")() if url == "gs" else open_store(url)
    items = iter([(1, payload("files/a"), b"1")])
    assert list(store.put_many(items)) == list(store.read_many(iter([]))) == []
    assert next(items)[0] == 1


class Flipping(HttpProxy):
    """A network that gets one bit wrong, in the bodies of some requests."""

    def respond(self, request: Request) -> Response:
        if request.method == "PUT" and "wrong" in request.path:
            body = bytes([request.wire_body[0] ^ 1]) + request.wire_body[1:]
            request = replace(request, body=body, wire_body=body)
        return super().respond(request)


def test_bytes_that_changed_on_the_way_are_refused_and_no_object_appears(s3_env: S3Endpoint) -> None:
    with Flipping(s3_env.host, s3_env.port) as proxy:
        store = open_many(proxy.url, concurrency=1)
        found = put(store, [(payload(f"files/{name}"), b"content") for name in ("good", "wrong", "good2")])
        assert isinstance(found["files/wrong"], Rejected)
        assert "BadDigest" in found["files/wrong"].message
        assert [meta.key for page in store.list() for meta in page] == ["files/good", "files/good2"]


@pytest.fixture
def limited(seaweed: SeaweedEndpoint, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Store:
    """One that may write only below `open/`, one thing after another."""
    for name, value in seaweed.limited().env().items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}", options={"endpoint": proxy.url}, concurrency=1, policy=QUICK)


def test_a_refusal_is_final_once_this_way_has_proved_good(limited: Store, proxy: HttpProxy) -> None:
    mine, closed = Key(f"open/{ulid()}"), Key(f"closed/{ulid()}")
    found = put(limited, [(mine, b"1"), (closed, b"1")])
    assert isinstance(found[mine], Stored)
    assert isinstance(found[closed], AccessDenied)
    assert "403" in found[closed].message
    assert proxy.log.count(method="PUT", path=closed) == 1


def test_until_then_a_refusal_may_be_meant_for_this_way_and_others_decide(limited: Store, proxy: HttpProxy) -> None:
    mine, closed = Key(f"open/{ulid()}"), Key(f"closed/{ulid()}")
    found = put(limited, [(closed, b"1"), (mine, b"1")])
    assert found[closed] is Undone.LOST
    assert isinstance(found[mine], Stored)
    assert limited.requests.put == proxy.log.count(method="PUT") == 2
    with pytest.raises(AccessDenied):
        limited.put(closed, b"1")


def test_no_message_has_the_signature_of_a_request(limited: Store) -> None:
    closed = Key(f"closed/{ulid()}")
    found = put(limited, [(Key(f"open/{ulid()}"), b"1"), (closed, b"1")])
    text = str(found[closed]) + repr(found[closed])
    assert "AWS4" not in text
    assert "X-Amz" not in text


class Keeping(LoopbackServer):
    """Keeps requests, and answers each with what it is told to."""

    def __init__(self, **headers: str) -> None:
        self.requests: list[Request] = []
        self._headers = headers
        super().__init__()

    def respond(self, request: Request) -> Response:
        self.requests.append(request)
        return answer(200, b"", self._headers)


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch, s3_env: S3Endpoint) -> Iterator[Callable[[str | None], None]]:
    """Take the keys out of the environment, and grant them in their place."""
    with ExitStack() as ends:

        def grant(token: str | None) -> None:
            for name in s3_env.env():
                monkeypatch.delenv(name)
            keys = Granted(s3_env.access_key, s3_env.secret_key, token, "us-east-1")
            ends.enter_context(credentials.given(keys))

        yield grant


def test_credentials_of_a_provider_are_good_enough(proxy: HttpProxy, granted: Callable[[str | None], None]) -> None:
    granted(None)
    store, objects = open_many(proxy.url), some(40)
    assert all(isinstance(result, Stored) for result in put(store, objects.items()).values())
    assert read(store, objects.items()) == objects


def test_the_token_of_a_session_goes_along(granted: Callable[[str | None], None]) -> None:
    granted("session")
    with Keeping(ETag='"1"', **{"x-amz-version-id": "v1"}) as server:
        found = put(open_many(server.url), some(1).items())
    assert list(found.values()) == [Stored('"1"', "v1")]
    (request,) = server.requests
    assert request.headers["x-amz-security-token"] == "session"
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=bayou-test/")
    assert not request.query


def test_a_success_without_a_fingerprint_is_left_to_others(s3_env: S3Endpoint) -> None:
    with Keeping() as server:
        assert list(put(open_many(server.url), some(1).items()).values()) == [Undone.LOST]


def test_several_threads_have_lanes_of_their_own(store: Store) -> None:
    found: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(put(store, some(50, f"files/{name}").items())))
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(result, Stored) for one in found for result in one.values()) == 150
    assert len([meta for page in store.list() for meta in page]) == 150


def test_v12_a_server_that_never_answers_is_waited_for_no_longer_than_the_deadline(
    store: Store, proxy: HttpProxy
) -> None:
    proxy.faults.add(Rule(Silent()))
    with pytest.raises(DeadlinePassed, match=r"0\.3 s"):
        put(store.within(Deadline.after(0.3)), some(40).items())
    with pytest.raises(DeadlinePassed, match=r"0\.3 s"):
        read(store.within(Deadline.after(0.3)), some(40).items())


def test_v12_whoever_cancels_ends_it(store: Store, proxy: HttpProxy) -> None:
    deadline = Deadline.after(600)

    def objects() -> Iterator[tuple[Key, bytes]]:
        for number, item in enumerate(some(200).items()):
            if number == 100:
                deadline.cancel()
            yield item

    with pytest.raises(Cancelled):
        put(store.within(deadline), objects())
    assert 0 < proxy.log.count(method="PUT") < 200


def test_a_request_that_was_signed_too_long_ago_is_left_to_others(
    single: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was asleep, or somebody who took long over a result."""
    put(single, some(1).items())
    at, ago = Signature.at, datetime.now(UTC) - timedelta(minutes=20)
    monkeypatch.setattr(Signature, "at", lambda bucket, keys: at(bucket, keys, ago))
    assert put(single, some(4).items()) == dict.fromkeys(some(4), Undone.LOST)


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_where_credentials_have_gone_nothing_is_sent(
    store: Store, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    assert put(store, some(2).items()) == dict.fromkeys(some(2), Undone.UNSENT)
    assert proxy.log.count() == 0


def test_v12_after_its_deadline_nothing_is_sent(store: Store, proxy: HttpProxy) -> None:
    put(store, some(20).items())
    with pytest.raises(DeadlinePassed):
        put(store.within(Deadline.after(0.0)), some(20, "files/late").items())
    assert [meta.key for page in store.list(payload("files/late")) for meta in page] == []
