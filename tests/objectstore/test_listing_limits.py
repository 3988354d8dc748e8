"""Listings that a stranger answers: they end in time (17.10, V12), and leave out no key (17.9, V21)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, Cancelled, DeadlinePassed, StoreError
from bayou.objectstore import Store, open_store
from bayou.objectstore.backends import directory, directory_paths
from bayou.objectstore.keys import as_listed
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.faults import Delay, Rule
from bayou_testing.gcs import GcsServer
from tests.objectstore.scripted import Scripted

ONCE = RetryPolicy(attempts=1, request_timeout_s=10, call_deadline_s=30)
AGAIN = RetryPolicy(attempts=100, base_s=0.01, request_timeout_s=10, call_deadline_s=30)
"""A request that a busy machine answers too late is sent again, so that only the deadline ends a call."""

OBJECTS = 100
SLOW = Delay(0.05)
"""What one page takes: far less than a request may, and all pages together far more than the deadline allows."""
DEADLINE_S = 0.5
UNSAFE = ["../x", "../../etc/passwd", "/abs/x", "/data/x", "//x", "./x", "..", "data/../../x", "a/../b", "x\\..\\y"]


def listed(store: Store, under: str | None = None) -> list[str]:
    return [meta.key for page in store.list(as_listed(under) if under else None) for meta in page]


def leveled(store: Store) -> list[str]:
    level = store.list_directory()
    return listed(store) if level is None else [meta.key for meta in level.objects]


# ---- time ----


@pytest.mark.gcs
@pytest.mark.parametrize(
    ("read", "odd"),
    [
        (listed, []),
        (listed, ["data//odd"]),
        (lambda store: listed(store, "data"), []),
        (lambda store: store.list_directory(as_listed("data")), []),
    ],
    ids=["by obstore", "exactly", "of a directory", "of a level"],
)
def test_17_10_a_listing_of_slow_pages_ends_at_the_deadline(
    server: GcsServer, read: Callable[[Store], object], odd: list[str]
) -> None:
    server.page = 1
    for key in [f"data/{number:03}" for number in range(OBJECTS)] + odd:
        server.put_raw(f"p/{key}", b"")
    server.faults.add(Rule(SLOW))
    store = open_store("gs://bayou/p", policy=AGAIN).within(Deadline.after(DEADLINE_S))
    with pytest.raises(DeadlinePassed):
        read(store)
    assert server.log.count() < OBJECTS // 2, "nobody waited for the other pages"


@pytest.mark.gcs
def test_17_10_a_listing_without_a_deadline_of_the_callers_has_one_for_each_page(
    server: GcsServer,
) -> None:
    server.page = 1
    for number in range(OBJECTS):
        server.put_raw(f"p/data/{number:03}", b"")
    server.faults.add(Rule(SLOW))
    policy = RetryPolicy(attempts=100, base_s=0.01, request_timeout_s=10, call_deadline_s=DEADLINE_S)
    with pytest.raises(DeadlinePassed):
        listed(open_store("gs://bayou/p", policy=policy))
    assert server.log.count() < OBJECTS // 2


@pytest.mark.gcs
def test_a_listing_whose_pages_come_in_time_may_take_longer_than_one_page_may(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"data/{number:05}" for number in range(4_000)]
    for name in names:
        server.put_raw(f"p/{name}", b"")
    server.faults.add(Rule(Delay(0.8)))
    policy = RetryPolicy(attempts=1, request_timeout_s=10, call_deadline_s=3)
    assert listed(open_store("gs://bayou/p", policy=policy)) == names


def test_17_10_a_directory_that_answers_slowly_ends_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(OBJECTS):
        (tmp_path / "data" / str(number)).touch()
    looked: list[object] = []

    def slow(*where: object) -> Iterator[object]:
        for found in directory_paths.walk(*where):  # type: ignore[arg-type]
            time.sleep(SLOW.seconds)
            looked.append(found)
            yield found

    monkeypatch.setattr(directory, "walk", slow)
    store = open_store(tmp_path.as_uri()).within(Deadline.after(DEADLINE_S))
    with pytest.raises(DeadlinePassed):
        listed(store)
    assert len(looked) < OBJECTS // 2


@pytest.mark.gcs
def test_17_10_a_listing_can_be_cancelled_in_the_middle_of_a_page(
    server: GcsServer,
) -> None:
    server.page = 1
    for number in range(OBJECTS):
        server.put_raw(f"p/data/{number:03}", b"")
    server.faults.add(Rule(SLOW))
    deadline = Deadline.after(600)
    timer = threading.Timer(DEADLINE_S, deadline.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        listed(open_store("gs://bayou/p", policy=AGAIN).within(deadline))
    assert server.log.count() < OBJECTS // 2
    timer.join()


# ---- keys ----


@pytest.mark.gcs
@pytest.mark.parametrize("prefix", ["", "p/"])
def test_17_9_every_unsafe_key_is_listed_exactly_as_it_is(server: GcsServer, prefix: str) -> None:
    for key in [*UNSAFE, ".bayou/head.json", "-a", "data/y"]:
        server.put_raw(f"{prefix}{key}", b"")
    store = open_store(f"gs://bayou/{prefix}", policy=ONCE)
    assert listed(store) == sorted([*UNSAFE, ".bayou/head.json", "-a", "data/y"])
    assert store.requests.list == server.log.count()
    level = store.list_directory()
    assert level is None, "only the whole listing tells"


@pytest.mark.gcs
@pytest.mark.parametrize("before", [0, 999, 1_000, 1_700])
@pytest.mark.parametrize("behind", [0, 1_000, 2_300])
def test_17_9_a_key_that_begins_with_a_slash_is_told_from_one_that_does_not_on_any_page(
    server: GcsServer, before: int, behind: int
) -> None:
    names = [f".bayou/{number:04}" for number in range(before)] + ["/data/0000"]
    names += [f"data/{number:04}" for number in range(behind)]
    for name in names:
        server.put_raw(name, b"")
    store = open_store("gs://bayou", policy=ONCE)
    assert listed(store) == names
    assert store.requests.list == server.log.count() <= len(names) // 1_000 + 2


@pytest.mark.gcs
def test_17_9_no_unsafe_key_is_ever_asked_for(server: GcsServer) -> None:
    for key in UNSAFE:
        server.put_raw(f"p/{key}", b"x")
    store = open_store("gs://bayou/p", policy=ONCE)
    listed(store)
    server.log.clear()
    for key in (one for one in UNSAFE if "\\" not in one):
        for call in (store.get, store.head, lambda key: store.put(key, b""), lambda key: store.delete([key])):
            with pytest.raises(StoreError):
                call(as_listed(key))
    assert server.log.count() == 0


# ---- a server that lies ----


def page_of(key: str = "p/data/x", size: str = "1", modified: str = "2024-05-06T07:08:09Z") -> bytes:
    row = f"<Key>{key}</Key><Size>{size}</Size><LastModified>{modified}</LastModified><ETag>&quot;1&quot;</ETag>"
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{row}</Contents></ListBucketResult>".encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], Store]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dummy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    servers: list[Scripted] = []

    def begin(answer: bytes) -> Store:
        servers.append(Scripted(lambda _: answer))
        return open_store("s3://bucket/p", options={"endpoint": servers[-1].url}, policy=ONCE)

    yield begin
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    "answer",
    [
        page_of(size=str(2**63)),
        page_of(size=str(2**64 - 1)),
        page_of(size="-1"),
        page_of(size="1" * 5_000),
        page_of(modified="+12000-01-01T00:00:00Z"),
        page_of(modified="9999-12-31T23:59:60Z"),
        page_of(key="elsewhere/x"),
        page_of(key="p2/data/x"),
        page_of(key="../p/data/x"),
    ],
)
def test_v25_a_row_that_cannot_be_is_an_error_of_the_store(lying: Callable[[bytes], Store], answer: bytes) -> None:
    store = lying(answer)
    with pytest.raises(StoreError):
        listed(store)
    with pytest.raises(StoreError):
        leveled(store)


def test_v9_a_key_beside_the_prefix_is_not_left_out_in_silence(lying: Callable[[bytes], Store]) -> None:
    with pytest.raises(BadAnswer, match="not below"):
        listed(lying(page_of(key="q/data/x")))
