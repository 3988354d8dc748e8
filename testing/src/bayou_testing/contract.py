"""What any store must do, as a test class: subclass it, give it a `connect` fixture, and pytest does the rest.

    class TestMine(StoreContract):
        @pytest.fixture
        def connect(self) -> Connect:
            return lambda namespace=None: open_store("mine://bucket/prefix", namespace=namespace)

`connect` returns a `Store` on an empty prefix, the same for all stores of one test.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable
from typing import Protocol

import pytest

from bayou.core.errors import (
    AlreadyExists,
    BadAnswer,
    ContentChanged,
    NotFound,
    PreconditionFailed,
    Rejected,
    StoreError,
    TooLarge,
)
from bayou.core.ids import ulid
from bayou.objectstore import Create, Match, Store, keys
from bayou.objectstore.keys import Key
from bayou.objectstore.multipart import MIB, THRESHOLD
from bayou.objectstore.probe import probe

CREATORS = 64
ROUNDS = 5


class Connect(Protocol):
    def __call__(self, namespace: str | None = None) -> Store: ...


def payload(path: str) -> Key:
    return keys.payload(path, None)


def race(count: int, write: Callable[[int], object]) -> list[int]:
    """Let `count` threads write at the same moment; return the numbers of those that won."""
    barrier = threading.Barrier(count)
    winners: list[int] = []
    broken: list[StoreError] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            write(number)
            winners.append(number)
        except (AlreadyExists, PreconditionFailed):
            pass
        except StoreError as error:
            broken.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken, broken[0]
    return winners


def listed(store: Store, under: Key | None = None) -> dict[str, int]:
    return {meta.key: meta.size for page in store.list(under) for meta in page}


class StoreContract:
    """The contract. Every test has a prefix of its own."""

    #: Whether the store keeps a content type and metadata of its own (a directory does not).
    keeps_attributes = True

    @pytest.fixture
    def connect(self) -> Connect:
        raise AssertionError("give the suite a `connect` fixture")

    @pytest.fixture
    def store(self, connect: Connect) -> Store:
        return connect()

    def test_what_was_put_comes_back_with_its_fingerprint(self, store: Store) -> None:
        stored = store.put(payload("data/a"), b"content")
        found = store.get(payload("data/a"))
        assert found is not None
        assert bytes(found.data) == b"content"
        assert (found.meta.etag, found.meta.version) == (stored.etag, stored.version)
        assert found.meta.size == 7
        assert found.meta.key == "data/a"
        assert found.meta.modified > 1_500_000_000_000

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put(payload("data/empty"), b"")
        found = store.get(payload("data/empty"))
        assert found is not None
        assert bytes(found.data) == b""
        assert listed(store) == {"data/empty": 0}

    def test_an_object_beyond_a_limit_is_refused(self, store: Store) -> None:
        key = payload("data/a")
        stored = store.put(key, bytes(100))
        found = store.get(key, most=100)
        assert found is not None
        assert bytes(found.data) == bytes(100)
        with pytest.raises(TooLarge, match="100 bytes"):
            store.get(key, most=99)
        assert store.get(key, if_none_match=stored.etag, most=99) is None
        with pytest.raises(NotFound):
            store.get(payload("data/b"), most=100)

    def test_a_span_has_those_bytes_and_the_whole_size(self, store: Store) -> None:
        store.put(payload("data/a"), bytes(range(100)))
        found = store.get(payload("data/a"), span=(10, 20))
        assert found is not None
        assert bytes(found.data) == bytes(range(10, 20))
        assert found.meta.size == 100
        tail = store.get(payload("data/a"), span=(90, 200))
        assert tail is not None
        assert bytes(tail.data) == bytes(range(90, 100))

    def test_a_span_beyond_the_end_is_an_error(self, store: Store) -> None:
        store.put(payload("data/a"), b"short")
        with pytest.raises(StoreError):
            store.get(payload("data/a"), span=(100, 200))

    def test_a_missing_key_is_not_found(self, store: Store) -> None:
        store.put(payload("data/there"), b"1")
        with pytest.raises(NotFound):
            store.get(payload("data/missing"))
        with pytest.raises(NotFound):
            store.head(payload("data/missing"))
        with pytest.raises(NotFound):
            store.get(payload("data/there/below"))

    def test_head_tells_what_get_tells(self, store: Store) -> None:
        store.put(payload("data/a"), b"content")
        found = store.get(payload("data/a"))
        assert found is not None
        assert store.head(payload("data/a")) == found.meta

    def test_create_only_never_overwrites(self, store: Store) -> None:
        store.put(keys.HEAD, b"first", condition=Create())
        with pytest.raises(AlreadyExists):
            store.put(keys.HEAD, b"second", condition=Create())
        assert _content(store, keys.HEAD) == b"first"

    def test_a_swap_needs_the_current_version(self, store: Store) -> None:
        first = store.put(keys.HEAD, b"one", condition=Create())
        second = store.put(keys.HEAD, b"two", condition=Match(first.etag, first.version))
        with pytest.raises(PreconditionFailed):
            store.put(keys.HEAD, b"stale", condition=Match(first.etag, first.version))
        assert _content(store, keys.HEAD) == b"two"
        store.put(keys.HEAD, b"three", condition=Match(second.etag, second.version))
        assert _content(store, keys.HEAD) == b"three"

    def test_a_swap_of_a_missing_object_fails(self, store: Store) -> None:
        first = store.put(keys.HEAD, b"one", condition=Create())
        store.delete([keys.HEAD])
        with pytest.raises((PreconditionFailed, NotFound)):
            store.put(keys.HEAD, b"two", condition=Match(first.etag, first.version))
        assert listed(store) == {}

    def test_versions_of_equal_size_in_a_row_all_differ(self, store: Store) -> None:
        current = store.put(keys.HEAD, b"000", condition=Create())
        seen = {(current.etag, current.version)}
        for number in range(1, 50):
            current = store.put(keys.HEAD, f"{number:03}".encode(), condition=Match(current.etag, current.version))
            seen.add((current.etag, current.version))
        assert len(seen) == 50

    def test_a_conditional_get_says_not_modified_only_for_the_same_version(self, store: Store) -> None:
        first = store.put(keys.HEAD, b"one", condition=Create())
        assert store.get(keys.HEAD, if_none_match=first.etag) is None
        second = store.put(keys.HEAD, b"two", condition=Match(first.etag, first.version))
        found = store.get(keys.HEAD, if_none_match=first.etag)
        assert found is not None
        assert bytes(found.data) == b"two"
        assert found.meta.etag == second.etag

    def test_a_get_that_must_match_fails_on_another_version(self, store: Store) -> None:
        first = store.put(keys.HEAD, b"one", condition=Create())
        found = store.get(keys.HEAD, if_match=first.etag)
        assert found is not None
        store.put(keys.HEAD, b"two", condition=Match(first.etag, first.version))
        with pytest.raises(PreconditionFailed):
            store.get(keys.HEAD, if_match=first.etag)

    @pytest.mark.parametrize("round_", range(ROUNDS))
    def test_of_many_creators_one_wins(self, store: Store, round_: int) -> None:
        winners = race(CREATORS, lambda number: store.put(keys.HEAD, f"{number:02}".encode(), condition=Create()))
        assert len(winners) == 1
        assert _content(store, keys.HEAD) == f"{winners[0]:02}".encode()

    @pytest.mark.parametrize("round_", range(ROUNDS))
    def test_of_many_swappers_from_one_version_one_wins(self, store: Store, round_: int) -> None:
        first = store.put(keys.HEAD, b"--", condition=Create())
        condition = Match(first.etag, first.version)
        winners = race(CREATORS, lambda number: store.put(keys.HEAD, f"{number:02}".encode(), condition=condition))
        assert len(winners) == 1
        assert _content(store, keys.HEAD) == f"{winners[0]:02}".encode()

    def test_listing_has_every_key_once_and_nothing_of_the_neighbours(self, connect: Connect) -> None:
        solo, other = connect(), connect("other")
        paths = [f"data/t/m{number % 7}/n{number}/1/raw" for number in range(60)] + [
            "files/a-b",
            "files/a/b",
            "files/a.b",
        ]
        list(solo.map(lambda path: solo.put(payload(path), path.encode()), paths))
        other.put(payload("data/foreign"), b"x")
        seen = [meta for page in solo.list(payload("data")) for meta in page]
        assert sorted(meta.key for meta in seen) == sorted(path for path in paths if path.startswith("data/"))
        assert all(meta.size == len(meta.key) and meta.etag and meta.modified > 0 for meta in seen)
        assert set(listed(other)) == {"data/foreign"}
        assert set(listed(solo)) == {*paths, "other/data/foreign"}

    def test_a_listing_of_several_pages_is_whole(self, store: Store) -> None:
        paths = [f"logs/{number:05}" for number in range(2_300)]
        list(store.map(lambda path: store.put(payload(path), b""), paths))
        assert [*listed(store, payload("logs"))] == paths

    def test_a_listing_tells_the_fingerprint_that_get_tells(self, store: Store) -> None:
        store.put(payload("data/a"), b"content")
        found = store.get(payload("data/a"))
        assert found is not None
        (meta,) = [meta for page in store.list() for meta in page]
        assert (meta.etag, meta.size) == (found.meta.etag, 7)

    def test_an_empty_listing_is_empty(self, store: Store) -> None:
        store.put(payload("files/x"), b"")
        assert listed(store, payload("data")) == {}

    @pytest.mark.parametrize(
        "name",
        ["a b", "a%20b", "ü-Ω-漢", "#?&+=", "~x", "a:b", "[x]{y}", "quote'\"`", "x.lock", "..x", "tail.", "*", "😀"],
    )
    def test_odd_but_valid_names_survive(self, store: Store, name: str) -> None:
        key = keys.payload(f"data/{name}/raw", ulid())
        store.put(key, b"1")
        assert _content(store, key) == b"1"
        assert listed(store) == {key: 1}
        store.delete([key])
        assert listed(store) == {}

    def test_deleting_is_whole_and_repeatable(self, store: Store) -> None:
        names = [payload(f"data/{number}") for number in range(30)]
        list(store.map(lambda key: store.put(key, b"x"), names))
        store.delete(names[:20])
        store.delete([*names[:25], payload("data/never")])
        assert sorted(listed(store)) == sorted(names[25:])

    def test_a_large_file_goes_up_and_down_in_parts(self, store: Store) -> None:
        content = os.urandom(MIB) * (THRESHOLD // MIB + 5) + b"tail"
        digest = hashlib.sha256(content).digest()
        key = keys.payload("data/large/raw", ulid())
        stored = store.upload(key, _file(content), len(content), digest)
        target = io.BytesIO()
        came = store.download(key, target, len(content), if_match=stored.etag)
        assert came.sha256 == digest
        assert target.getvalue() == content
        assert came.meta.etag == stored.etag
        assert listed(store) == {key: len(content)}

    @pytest.mark.parametrize("size", [10, THRESHOLD + MIB])
    def test_a_file_that_is_not_what_was_promised_makes_no_object(self, store: Store, size: int) -> None:
        content = b"x" * size
        key = payload("data/changed")
        with pytest.raises(ContentChanged):
            store.upload(key, _file(content), size, hashlib.sha256(b"other").digest())
        with pytest.raises(ContentChanged):
            store.upload(key, _file(content), size - 1, hashlib.sha256(content).digest())
        with pytest.raises(ContentChanged):
            store.upload(key, _file(content), size + 1, hashlib.sha256(content).digest())
        with pytest.raises(NotFound):
            store.head(key)

    def test_a_download_of_another_size_is_refused(self, store: Store) -> None:
        store.put(payload("data/a"), b"12345")
        with pytest.raises(BadAnswer):
            store.download(payload("data/a"), io.BytesIO(), 4)

    def test_bytes_alone_are_whole_or_refused(self, store: Store) -> None:
        key, sha256 = payload("data/a"), hashlib.sha256(b"12345").digest()
        store.put(key, b"12345")
        before = store.requests
        read = store.read(key, 5, sha256)
        assert read is not None
        assert bytes(read) == b"12345"
        sent = store.requests - before
        assert (sent.total, sent.get, sent.bytes_in) == (1, 1, 5)
        assert store.read(key, 5, hashlib.sha256(b"54321").digest()) is None
        for other in (0, 1, 4, 6, 100):
            with pytest.raises(BadAnswer):
                store.read(key, other, sha256)
        store.put(payload("data/empty"), b"")
        empty = store.read(payload("data/empty"), 0, hashlib.sha256(b"").digest())
        assert empty is not None
        assert bytes(empty) == b""
        with pytest.raises(NotFound):
            store.read(payload("data/never"), 5, sha256)

    def test_a_range_has_just_those_bytes_or_is_refused(self, store: Store) -> None:
        key = payload("data/a")
        store.put(key, b"0123456789")
        before = store.requests
        assert bytes(store.read_range(key, 3, 7)) == b"3456"
        sent = store.requests - before
        assert (sent.total, sent.get, sent.bytes_in) == (1, 1, 4)
        assert bytes(store.read_range(key, 0, 10)) == b"0123456789"
        assert bytes(store.read_range(key, 9, 10)) == b"9"
        for start, end in ((8, 11), (0, 11), (10, 11), (100, 200)):
            with pytest.raises((BadAnswer, Rejected)):
                store.read_range(key, start, end)
        store.put(payload("data/empty"), b"")
        with pytest.raises((BadAnswer, Rejected)):
            store.read_range(payload("data/empty"), 0, 1)
        with pytest.raises(NotFound):
            store.read_range(payload("data/never"), 3, 7)

    def test_attributes_are_kept(self, store: Store) -> None:
        if not self.keeps_attributes:
            pytest.skip("this store keeps none")
        store.put(payload("data/a"), b"1", attributes={"Content-Type": "text/plain", "origin": "here"})
        found = store.get(payload("data/a"))
        assert found is not None
        assert found.attributes["Content-Type"] == "text/plain"
        assert found.attributes["origin"] == "here"

    def test_every_request_is_counted(self, store: Store) -> None:
        before = store.requests
        store.put(payload("data/a"), b"12345")
        store.get(payload("data/a"))
        store.head(payload("data/a"))
        listed(store)
        store.delete([payload("data/a")])
        sent = store.requests - before
        assert (sent.put, sent.get, sent.head, sent.list, sent.delete) == (1, 1, 1, 1, 1)
        assert (sent.bytes_out, sent.bytes_in) == (5, 5)

    def test_the_probe_finds_it_good_and_leaves_nothing(self, store: Store) -> None:
        assert probe(store).conditional_get
        assert listed(store) == {}


def _content(store: Store, key: Key) -> bytes:
    found = store.get(key)
    assert found is not None
    return bytes(found.data)


class _Named(io.BytesIO):
    name = "source"


def _file(content: bytes) -> io.BytesIO:
    return _Named(content)
