"""The probe: it refuses a store that Bayou cannot stand on, says why, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from bayou.core.deadline import Deadline
from bayou.core.errors import (
    AccessDenied,
    Cancelled,
    DeleteFailed,
    NoConditionalWrites,
    Rejected,
    StoreError,
    Unavailable,
)
from bayou.core.ids import ulid
from bayou.objectstore import Store, open_store
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.open import open_transport
from bayou.objectstore.probe import Capabilities, probe
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.url import parse_url
from bayou_testing.faulty import Fault, FaultyTransport, lost_answer
from bayou_testing.gcs import GcsServer
from bayou_testing.gcs_responses import error_xml
from bayou_testing.wire import Request, Response, answer
from tests.objectstore.conftest import QUICK

ONCE = RetryPolicy(attempts=1, first_contact_attempts=1)

Forbids = Callable[[Request, Response], bool]


class Guarded(GcsServer):
    """A bucket whose owner does not allow everything: it answers 403 to what `forbids` says of a request."""

    def __init__(self, forbids: Forbids) -> None:
        self._forbids = forbids
        super().__init__(buckets=["bayou"])

    def respond(self, request: Request) -> Response:
        before = dict(self.objects())
        response = super().respond(request)
        if not self._forbids(request, response):
            return response
        for key in self.objects().keys() - before.keys():
            self.delete_raw(key)
        for key, blob in before.items():
            self.put_raw(key, blob.data)
        return answer(403, error_xml("AccessDenied", "The owner does not allow that."))


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Callable[[GcsServer], Store]:
    def connect(server: GcsServer) -> Store:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        return open_store("gs://bayou/p", policy=QUICK)

    return connect


@pytest.mark.gcs
@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ("ignore", "it creates an object over one that exists"),
        ("create-only", "it swaps an object although the version that was to be matched is gone"),
        ("racy", "at once"),
    ],
)
def test_f064_a_store_that_does_not_honour_conditions_is_refused_with_the_reason(
    reach: Callable[[GcsServer], Store], conditions: str, reason: str
) -> None:
    with GcsServer(buckets=["bayou"], conditions=conditions) as server:  # type: ignore[arg-type]
        store = reach(server)
        with pytest.raises(NoConditionalWrites) as caught:
            probe(store)
        assert reason in caught.value.message
        assert "gs://bayou/p" in caught.value.message
        assert caught.value.hint
        assert server.objects() == {}


@pytest.mark.gcs
@pytest.mark.parametrize(
    ("forbids", "named"),
    [
        pytest.param(
            lambda request, response: response.status == 404 or "list-type" in request.query,
            "no permission to list objects",
            id="a missing key is a 403",
        ),
        pytest.param(
            lambda request, response: "list-type" in request.query, "no permission to list objects", id="no listing"
        ),
        pytest.param(
            lambda request, response: request.method == "GET" and response.status == 200,
            "no permission to read objects",
            id="no reading",
        ),
        pytest.param(lambda request, response: request.method == "PUT", "no permission to write objects", id="no PUT"),
    ],
)
def test_f099_the_missing_permission_is_named(
    reach: Callable[[GcsServer], Store], forbids: Forbids, named: str
) -> None:
    with Guarded(forbids) as server:
        with pytest.raises(AccessDenied) as caught:
            probe(reach(server))
        assert caught.value.message.startswith(named)
        assert "403" in caught.value.message
        assert caught.value.hint
        assert server.objects() == {}


@pytest.mark.gcs
def test_f099_a_store_that_may_not_delete_is_told_apart(reach: Callable[[GcsServer], Store]) -> None:
    with Guarded(lambda request, response: request.method == "DELETE") as server:
        with pytest.raises(AccessDenied) as caught:
            probe(reach(server))
        assert caught.value.message.startswith("no permission to delete objects")


@pytest.mark.gcs
def test_f099_where_replacing_needs_another_permission_than_creating_that_one_is_named(
    reach: Callable[[GcsServer], Store],
) -> None:
    def replaces(request: Request, response: Response) -> bool:
        condition = request.headers.get("x-goog-if-generation-match")
        return request.method == "PUT" and condition != "0" and response.status == 200

    with Guarded(replaces) as server:
        with pytest.raises(AccessDenied) as caught:
            probe(reach(server))
        assert caught.value.message.startswith("no permission to replace objects")


@pytest.mark.gcs
def test_a_store_that_has_no_conditional_writes_at_all_is_not_taken_for_a_busy_one(
    reach: Callable[[GcsServer], Store],
) -> None:
    class Old(GcsServer):
        def respond(self, request: Request) -> Response:
            if "x-goog-if-generation-match" in request.headers:
                return answer(501, error_xml("NotImplemented", "A header implies functionality that is missing."))
            return super().respond(request)

    with Old(buckets=["bayou"]) as server:
        with pytest.raises(Rejected) as caught:
            probe(reach(server))
        assert "conditional writes" in str(caught.value.hint)
        assert server.log.count(method="PUT") == 1, "what a store cannot do, it cannot do a moment later either"


@pytest.fixture
def faulty() -> FaultyTransport:
    return FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))


@pytest.fixture
def store(faulty: FaultyTransport) -> Store:
    return Store(faulty, KeyScope.of("p", None), policy=ONCE)


def left(faulty: FaultyTransport) -> list[str]:
    return [meta.key for page in faulty.inner.list("", timeout=5) for meta in page]


def requests_of_a_probe() -> int:
    transport = FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))
    probe(Store(transport, KeyScope.of("p", None)))
    return len(transport.seen)


def test_a_good_store_is_found_good_with_a_bounded_number_of_requests(store: Store, faulty: FaultyTransport) -> None:
    assert probe(store) == Capabilities(conditional_get=True)
    assert left(faulty) == []
    assert len(faulty.seen) < 80


@pytest.mark.parametrize("error", [AccessDenied, Unavailable])
def test_whichever_request_fails_it_is_an_error_and_nothing_is_left_behind(error: type[StoreError]) -> None:
    for number in range(1, requests_of_a_probe()):  # the last one is the delete itself
        faulty = FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))
        faulty.faults.append(Fault(nth=number, error=lambda: error("no")))
        with pytest.raises(error):
            probe(Store(faulty, KeyScope.of("p", None), policy=ONCE))
        assert left(faulty) == [], f"after request {number}, {faulty.seen[number - 1]}"


@pytest.mark.parametrize("error", [AccessDenied, Unavailable])
def test_what_cannot_be_deleted_at_the_end_is_an_error(
    store: Store, faulty: FaultyTransport, error: type[StoreError]
) -> None:
    faulty.faults.append(Fault("delete", error=lambda: error("no")))
    with pytest.raises(AccessDenied if error is AccessDenied else DeleteFailed):
        probe(store)


def test_whichever_answer_is_lost_nothing_is_left_behind() -> None:
    for number in range(1, requests_of_a_probe() + 1):
        faulty = FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))
        faulty.faults.append(Fault(nth=number, when="after", error=lost_answer))
        with contextlib.suppress(StoreError):  # where the answer would have been an error, that one stands
            probe(Store(faulty, KeyScope.of("p", None), policy=ONCE))
        assert left(faulty) == [], f"after request {number}, {faulty.seen[number - 1]}"


def test_what_cannot_be_deleted_does_not_hide_what_failed(store: Store, faulty: FaultyTransport) -> None:
    faulty.faults += [
        Fault("list", error=lambda: AccessDenied("no")),
        Fault("delete", error=lambda: Unavailable("503")),
    ]
    with pytest.raises(AccessDenied, match="list objects"):
        probe(store)


def test_an_interrupted_probe_cleans_up_too(store: Store, faulty: FaultyTransport) -> None:
    faulty.faults.append(Fault("list", error=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        probe(store)
    assert left(faulty) == []


def test_v12_a_probe_that_is_cancelled_cleans_up_in_time_of_its_own(store: Store, faulty: FaultyTransport) -> None:
    deadline = Deadline.after(60)

    def cancel() -> StoreError:
        deadline.cancel()
        return Unavailable("503")

    patient = Store(faulty, KeyScope.of("p", None), policy=RetryPolicy(base_s=60, cap_s=60))
    faulty.faults.append(Fault("list", nth=1, error=cancel))
    with pytest.raises(Cancelled):
        probe(patient.within(deadline))
    assert left(faulty) == []


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has no thread left after the fifth."""
    begun = iter(range(5))
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if self.name == "bayou-probe" and next(begun, None) is None:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.usefixtures("few_threads")
def test_v12_racers_that_have_started_do_not_wait_for_those_that_never_do(
    store: Store, faulty: FaultyTransport
) -> None:
    with pytest.raises(RuntimeError, match="start new thread"):
        probe(store)
    assert not [thread for thread in threading.enumerate() if thread.name == "bayou-probe"]
    assert left(faulty) == []
