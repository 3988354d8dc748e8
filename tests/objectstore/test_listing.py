"""V4: a listing is whole, or an error; whatever a server, a proxy or a stranger answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from bayou.core import limits
from bayou.core.errors import BadAnswer, StoreError, TimedOut, Unavailable
from bayou.core.ids import ulid
from bayou.objectstore import ObjectMeta, Store, open_store
from bayou.objectstore.backends import plain_http
from bayou.objectstore.backends.obstore_errors import Renewal, Request
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.open import open_transport
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.url import parse_url
from bayou_testing.faults import Fail, Garbage, Rule
from bayou_testing.faulty import FaultyTransport
from bayou_testing.gcs import GcsServer
from tests.objectstore.conftest import QUICK

ENCODED = r"encoding-type=url"
LATER = r"continuation-token|start-after"
LISTING = b"<ListBucketResult><IsTruncated>%s</IsTruncated>%s</ListBucketResult>"
ROW = b"<Contents><Key>%s</Key><Size>1</Size><LastModified>2024-05-06T07:08:09Z</LastModified></Contents>"


@pytest.fixture
def store(server: GcsServer) -> Store:
    return open_store("gs://bayou/p", policy=QUICK)


def fill(server: GcsServer, count: int) -> list[str]:
    names = [f"data/{number:05}" for number in range(count)]
    for name in names:
        server.put_raw(f"p/{name}", b"")
    return names


def listed(store: Store) -> list[str]:
    return [meta.key for page in store.list() for meta in page]


@pytest.mark.gcs
@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 1_001, 2_000])
def test_a_listing_of_any_length_is_whole_and_every_request_is_counted(
    server: GcsServer, store: Store, count: int
) -> None:
    names = fill(server, count)
    assert listed(store) == names
    assert store.requests.list == server.log.count()


@pytest.mark.gcs
def test_f053_a_page_that_is_a_web_page_does_not_end_the_listing(server: GcsServer, store: Store) -> None:
    names = fill(server, 2_500)
    server.faults.add(Rule(Garbage(b"<html>please sign in</html>"), query=LATER, nth=1))
    assert listed(store) == names


@pytest.mark.gcs
@pytest.mark.parametrize("body", [b"<html>please sign in</html>", b"", b"{}", b"<ListBucketResult/>"])
def test_f053_pages_that_stay_garbage_are_an_error(server: GcsServer, store: Store, body: bytes) -> None:
    fill(server, 1_500)
    server.faults.add(Rule(Garbage(body), query=LATER))
    with pytest.raises(BadAnswer):
        listed(store)


@pytest.mark.gcs
def test_a_page_that_failed_is_counted_like_the_others(server: GcsServer, store: Store) -> None:
    names = fill(server, 2_500)
    server.faults.add(Rule(Fail(503), query=LATER, nth=1, times=2))
    assert listed(store) == names
    assert store.requests.list == server.log.count() == 5


BOMB = b"""<?xml version="1.0"?><!DOCTYPE ListBucketResult [
<!ENTITY a "%s"><!ENTITY b "%s"><!ENTITY c "%s"><!ENTITY d "%s">]>
<ListBucketResult><IsTruncated>false</IsTruncated><Name>&d;</Name></ListBucketResult>""" % (
    b"x" * 1000,
    b"&a;" * 1000,
    b"&b;" * 1000,
    b"&c;" * 1000,
)


@pytest.mark.gcs
@pytest.mark.parametrize("body", [BOMB, BOMB.decode().replace('"1.0"', '"1.0" encoding="UTF-16"', 1).encode("utf-16")])
def test_a_document_that_would_fill_the_memory_is_refused_unread(server: GcsServer, store: Store, body: bytes) -> None:
    server.faults.add(Rule(Garbage(body), query=ENCODED))
    with pytest.raises(BadAnswer) as caught:
        listed(store)
    assert len(caught.value.message) < 400


@pytest.mark.gcs
@pytest.mark.parametrize(
    "rows",
    [
        b"<NextContinuationToken>t</NextContinuationToken>",
        b"",
        ROW.replace(b"<Size>1", b"<Size>one") % b"p/x",
        ROW.replace(b"2024", b"\x1b[31m") % b"p/x",
        ROW.replace(b"Key>", b"Kay>") % b"p/x",
    ],
    ids=["the same page for ever", "more, but not where", "no size", "no time", "no key"],
)
def test_a_listing_that_makes_no_sense_is_refused(server: GcsServer, store: Store, rows: bytes) -> None:
    server.faults.add(Rule(Garbage(LISTING % (b"true", rows)), query=ENCODED))
    with pytest.raises(BadAnswer) as caught:
        listed(store)
    assert caught.value.message.isprintable()


@pytest.mark.gcs
@pytest.mark.parametrize("key", [b"p2/data/x", b"data/x", b"/p/data/x"])
def test_v9_a_server_that_lists_what_nobody_asked_for_is_not_believed(
    server: GcsServer, store: Store, key: bytes
) -> None:
    server.faults.add(Rule(Garbage(LISTING % (b"false", ROW % key)), query=ENCODED))
    with pytest.raises(BadAnswer, match="not below"):
        listed(store)


@pytest.mark.gcs
def test_credentials_do_not_follow_a_redirect(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "ya29.secret")
    with GcsServer(buckets=["bayou"]) as elsewhere:
        server.faults.add(Rule(Fail(302, headers={"Location": f"{elsewhere.url}/bayou?list-type=2"}), query=ENCODED))
        with pytest.raises(StoreError):
            listed(open_store("gs://bayou/p", options={"endpoint": server.url}, policy=QUICK))
        assert elsewhere.log.count() == 0


class Pages:
    """A transport whose listing is a script: pages, and errors between them."""

    url, sorted_listing, delete_batch = "script://", True, 1

    def __init__(self, *script: Sequence[str] | StoreError) -> None:
        self.script = list(script)
        self.asked: list[str | None] = []

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        self.asked.append(after)
        while self.script:
            step = self.script.pop(0)
            if isinstance(step, StoreError):
                raise step
            yield [ObjectMeta(f"p/{key}", 0, '"1"', None, 1) for key in step]


def scripted(*script: Sequence[str] | StoreError) -> tuple[Store, Pages]:
    pages = Pages(*script)
    return Store(pages, KeyScope.of("p", None), policy=QUICK), pages  # type: ignore[arg-type]


def test_a_listing_in_order_goes_on_where_it_broke() -> None:
    store, pages = scripted(["a", "b"], Unavailable("503"), [], ["c"], Unavailable("503"), ["d"])
    assert listed(store) == ["a", "b", "c", "d"]
    assert pages.asked == [None, "p/b", "p/c"]
    assert store.requests.list == 6, "two that failed, three that brought keys, one that brought none"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param((["b", "a"], Unavailable("503"), ["c"]), id="out of order before the break"),
        pytest.param((["a/x"], Unavailable("503"), ["a-x", "b"]), id="out of order after it"),
        pytest.param((["a/x"], Unavailable("503"), ["b", "a-x"]), id="out of order within the next page"),
    ],
)
def test_f053_a_listing_out_of_order_cannot_go_on_and_says_so(script: Sequence[Sequence[str] | StoreError]) -> None:
    store, _ = scripted(*script)
    with pytest.raises(StoreError):
        listed(store)


def test_a_listing_out_of_order_that_does_not_break_is_fine() -> None:
    store, _ = scripted(["a/x", "a-x"], ["c", "b"])
    assert listed(store) == ["a/x", "a-x", "c", "b"]


def test_a_page_that_comes_again_and_again_is_an_error() -> None:
    store, _ = scripted(*[["a", "b"]] * 100)
    with pytest.raises(BadAnswer):
        listed(store)


def test_the_time_that_the_reader_takes_is_not_the_listings() -> None:
    transport = open_transport(parse_url(f"memory://{ulid()}"), {})
    for number in range(3_000):
        transport.put(f"p/{number:05}", b"", timeout=5)
    store = Store(transport, KeyScope.of("p", None), policy=RetryPolicy(call_deadline_s=1.0))
    seen = 0
    for page in store.list():
        seen += len(page)
        time.sleep(0.5)
    assert seen == 3_000


def test_a_transport_that_raises_plainly_when_it_deletes_is_retried_and_named() -> None:
    from bayou.core.errors import AccessDenied, DeleteFailed
    from bayou_testing.contract import payload
    from bayou_testing.faulty import Fault

    faulty = FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))
    store = Store(faulty, KeyScope.of("p", None), policy=QUICK)
    store.put(payload("data/a"), b"")
    faulty.faults.append(Fault("delete", nth=1, error=lambda: Unavailable("503")))
    store.delete([payload("data/a")])
    assert listed(store) == []
    faulty.faults = [Fault("delete", error=lambda: AccessDenied("no"))]
    with pytest.raises(DeleteFailed) as caught:
        store.delete([payload("data/b")])
    assert isinstance(caught.value.failed["data/b"], AccessDenied)


ABOUT = Request("LIST", "p/", "gs://bayou", Renewal("", ""))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


@pytest.fixture
def talk() -> Iterator[Callable[[Callable[[socket.socket], object]], str]]:
    """Serve one connection with bytes of the test's own choice."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads: list[threading.Thread] = []

        def start(speak: Callable[[socket.socket], object]) -> str:
            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    try:
                        speak(connection)
                    except OSError:
                        pass  # the client has had enough

            threads.append(threading.Thread(target=serve))
            threads[-1].start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}/"

        yield start
        for thread in threads:
            thread.join()


def drip(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def gush(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65_536)


@pytest.mark.parametrize(
    ("speak", "error"),
    [
        pytest.param(drip, TimedOut, id="one byte at a time"),
        pytest.param(gush, BadAnswer, id="without end"),
        pytest.param(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"), Unavailable, id="not HTTP"),
        pytest.param(lambda connection: None, Unavailable, id="nothing at all"),
        pytest.param(
            lambda connection: connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 99\r\n\r\ncut"),
            Unavailable,
            id="an error that is cut short",
        ),
    ],
)
def test_v12_a_request_of_our_own_is_bounded_in_time_and_size(
    talk: Callable[[Callable[[socket.socket], object]], str],
    speak: Callable[[socket.socket], object],
    error: type[StoreError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LISTING_BYTES", 1 << 20)
    with pytest.raises(error):
        plain_http.fetch(talk(speak), {}, ABOUT, 0.3)
