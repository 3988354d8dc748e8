"""The GCS test server as obstore speaks to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, InvalidPathError, NotModifiedError, PreconditionError

from bayou_testing.gcs import GcsServer
from tests.testing.server_clients import gcs_store, parts_then_failure, race

PART = 5 << 20


def test_an_object_comes_back_with_its_metadata(gcs: GcsServer) -> None:
    store = gcs_store(gcs)
    stored = obstore.put(store, "a b/ü~x", b"hello", attributes={"Content-Type": "text/plain", "sha256": "ab"})
    got = obstore.get(store, "a b/ü~x")
    assert bytes(got.bytes()) == b"hello"
    assert got.attributes["Content-Type"] == "text/plain"
    assert got.attributes["sha256"] == "ab"
    assert (got.meta["e_tag"], got.meta["version"]) == (stored["e_tag"], stored["version"])
    assert obstore.head(store, "a b/ü~x") == got.meta
    assert bytes(obstore.get_range(store, "a b/ü~x", start=1, end=3)) == b"el"
    with pytest.raises(NotModifiedError):
        obstore.get(store, "a b/ü~x", options={"if_none_match": stored["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.get(store, "a b/ü~x", options={"if_match": '"other"'})
    obstore.delete(store, ["a b/ü~x"])
    with pytest.raises(FileNotFoundError, match="NoSuchKey"):
        obstore.get(store, "a b/ü~x")
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        obstore.get(gcs_store(gcs, "nope"), "k")


def test_of_64_creators_one_wins(gcs: GcsServer) -> None:
    store = gcs_store(gcs)
    results = race(64, lambda number: obstore.put(store, "head", b"%d" % number, mode="create"))
    (winner,) = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert all(isinstance(result, AlreadyExistsError) for n, result in enumerate(results) if n != winner)
    assert gcs.objects()["head"].data == b"%d" % winner


def test_of_64_swappers_from_one_version_one_wins(gcs: GcsServer) -> None:
    store = gcs_store(gcs)
    first = obstore.put(store, "head", b"first")
    results = race(64, lambda number: obstore.put(store, "head", b"%d" % number, mode={"version": first["version"]}))
    (winner,) = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert all(isinstance(result, PreconditionError) for n, result in enumerate(results) if n != winner)
    assert gcs.objects()["head"].data == b"%d" % winner
    assert gcs.log.count(method="PUT", status=412) == 63


def test_a_listing_of_many_pages_is_whole_and_in_order(gcs: GcsServer) -> None:
    names = [f"d/{number:05}" for number in range(2500)]
    for name in names:
        gcs.put_raw(name, b"")
    gcs.put_raw("e/1", b"")
    store = gcs_store(gcs)
    assert [meta["path"] for meta in obstore.list(store, "d").collect()] == names
    assert gcs.log.count(query="list-type") == 3
    assert [meta["path"] for meta in obstore.list(store, "d", offset=names[2000]).collect()] == names[2001:]
    assert obstore.list_with_delimiter(store)["common_prefixes"] == ["d", "e"]


@pytest.mark.parametrize("key", ["data//x", "data/./x", "data/ctl\x01x", "data/nl\nx"])
def test_one_odd_key_fails_the_whole_listing_of_obstore(gcs: GcsServer, key: str) -> None:
    gcs.put_raw("data/good", b"")
    gcs.put_raw(key, b"")
    with pytest.raises(InvalidPathError):
        obstore.list(gcs_store(gcs), "data").collect()


def test_a_folder_marker_loses_its_slash_in_obstore(gcs: GcsServer) -> None:
    gcs.put_raw("data/folder/", b"")
    store = gcs_store(gcs)
    assert [meta["path"] for meta in obstore.list(store, "data").collect()] == ["data/folder"]
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "data/folder")


def test_a_large_object_goes_in_parts(gcs: GcsServer) -> None:
    store = gcs_store(gcs)
    stored = obstore.put(store, "big", iter([b"x" * PART, b"y" * PART, b"z"]), chunk_size=PART)
    assert gcs.objects()["big"].data == b"x" * PART + b"y" * PART + b"z"
    assert obstore.head(store, "big")["e_tag"] == stored["e_tag"]
    assert gcs.log.count(method="PUT", query="partNumber") == 3
    assert gcs.open_uploads() == []


def test_a_source_that_breaks_leaves_no_object_and_no_upload(gcs: GcsServer) -> None:
    with pytest.raises(RuntimeError, match="the source broke"):
        obstore.put(gcs_store(gcs), "big", parts_then_failure(b"x" * PART, 2), chunk_size=PART)
    assert gcs.log.count(method="POST", query="uploads") == 1
    assert (gcs.objects(), gcs.open_uploads()) == ({}, [])


def test_the_environment_leads_another_process_here(gcs: GcsServer) -> None:
    program = """
import obstore
from obstore.store import GCSStore
obstore.put(GCSStore("b", client_options={"allow_http": True}), "from/env", b"1")
"""
    environment = {**os.environ, **gcs.env()}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=30)
    assert list(gcs.objects()) == ["from/env"]
    assert json.loads(gcs.service_account_key())["gcs_base_url"] == gcs.url
