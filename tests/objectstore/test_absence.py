"""V4: only the store's own "no such key" means absent, whichever way it was asked."""

from __future__ import annotations

import pytest

from bayou.core.errors import AccessDenied, BadAnswer, CannotConnect, NoSuchBucket, NotFound, Unavailable
from bayou.core.ids import ulid
from bayou.objectstore import Store, open_store
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.open import open_transport
from bayou.objectstore.url import parse_url
from bayou_testing.contract import payload
from bayou_testing.faults import Fail, Garbage, Rule
from bayou_testing.faulty import Fault, FaultyTransport
from bayou_testing.gcs import GcsServer
from tests.objectstore.conftest import QUICK

KEY = payload("data/a")


@pytest.fixture
def store(server: GcsServer) -> Store:
    return open_store("gs://bayou/p", policy=QUICK)


@pytest.mark.gcs
def test_a_missing_object_is_told_by_its_body(server: GcsServer, store: Store) -> None:
    with pytest.raises(NotFound):
        store.head(KEY)
    assert [row.method for row in server.log.rows()] == ["HEAD", "GET"]
    assert (store.requests.head, store.requests.get) == (1, 1)


@pytest.mark.gcs
def test_a_web_page_instead_of_an_object_is_asked_for_again_and_is_no_object(server: GcsServer, store: Store) -> None:
    store.put(KEY, b"12345")
    page = Garbage(b"<html>please sign in</html>", {"ETag": '"1"'})
    server.faults.add(Rule(page, method="GET", nth=1))
    found = store.get(KEY)
    assert found is not None
    assert bytes(found.data) == b"12345"

    server.faults.add(Rule(page, method="GET"))
    with pytest.raises(BadAnswer, match="is not an object"):
        store.get(KEY)


@pytest.mark.gcs
def test_a_head_that_a_proxy_answers_with_404_does_not_make_an_object_vanish(server: GcsServer, store: Store) -> None:
    store.put(KEY, b"12345")
    told = store.head(KEY)
    server.faults.add(Rule(Fail(404), method="HEAD"))
    assert store.head(KEY) == told


@pytest.mark.gcs
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fail(404, b"<html>no such page</html>"), BadAnswer),
        (Fail(404), BadAnswer),
        (Fail(403), AccessDenied),
        (Fail(503), Unavailable),
    ],
)
def test_what_else_may_lie_behind_a_404_without_a_body_is_told_apart(
    server: GcsServer, store: Store, fault: Fail, error: type[Exception]
) -> None:
    server.faults.add(Rule(Fail(404), method="HEAD"), Rule(fault, method="GET"))
    with pytest.raises(error):
        store.head(KEY)


@pytest.mark.gcs
def test_a_missing_bucket_is_no_missing_object(server: GcsServer) -> None:
    elsewhere = open_store("gs://elsewhere/p", policy=QUICK)
    for call in (lambda: elsewhere.head(KEY), lambda: elsewhere.get(KEY), lambda: [*elsewhere.list()]):
        with pytest.raises(NoSuchBucket):
            call()


def test_a_store_that_said_no_has_been_reached() -> None:
    faulty = FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))
    store = Store(faulty, KeyScope.of("p", None), policy=QUICK)
    with pytest.raises(NotFound):
        store.get(KEY)
    faulty.faults.append(Fault("get", error=lambda: CannotConnect("restarting")))
    with pytest.raises(CannotConnect):
        store.get(KEY)
    assert len(faulty.seen) == 1 + QUICK.attempts
