"""The GCS test server, in plain HTTP: what the XML API promises."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote
from xml.etree import ElementTree

import pytest

from bayou_testing.gcs import Conditions, GcsServer
from tests.testing.server_clients import Answer, Http, race, target


def code(answer: Answer) -> str | None:
    return ElementTree.fromstring(answer.body).findtext("Code")


def keys(answer: Answer) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(answer.body).iterfind("{*}Contents/{*}Key")]


def manifest(etags: dict[int, str]) -> bytes:
    parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etags[n]}</ETag></Part>" for n in sorted(etags))
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


def test_a_write_returns_generation_and_etag_and_a_read_the_same(gcs: GcsServer, http: Http) -> None:
    written = http(
        "PUT", "/b/k", b"hello", content_type="text/plain", x_goog_meta_sha256="ab", cache_control="no-store"
    )
    read = http("GET", "/b/k")
    assert (written.status, read.status, read.body) == (200, 200, b"hello")
    for name in ("etag", "x-goog-generation"):
        assert written.headers[name] == read.headers[name]
    assert read.headers["content-type"] == "text/plain"
    assert read.headers["x-goog-meta-sha256"] == "ab"
    assert read.headers["cache-control"] == "no-store"
    age = datetime.now(UTC) - parsedate_to_datetime(read.headers["last-modified"])
    assert abs(age.total_seconds()) < 60


def test_the_clock_of_the_store_is_its_own(gcs: GcsServer, http: Http) -> None:
    gcs.clock = lambda: datetime(2001, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    http("PUT", "/b/k", b"1")
    assert http("HEAD", "/b/k").headers["last-modified"] == "Sat, 03 Feb 2001 04:05:06 GMT"
    assert b"<LastModified>2001-02-03T04:05:06.789Z</LastModified>" in http("GET", "/b?list-type=2").body


def test_generations_only_grow_and_equal_bytes_have_equal_etags(http: Http) -> None:
    answers = [http("PUT", f"/b/k{number % 2}", b"same").headers for number in range(20)]
    generations = [int(headers["x-goog-generation"]) for headers in answers]
    assert generations == sorted(set(generations))
    assert len({headers["etag"] for headers in answers}) == 1


def test_head_is_get_without_the_body(gcs: GcsServer, http: Http) -> None:
    gcs.put_raw("k", b"hello")
    head, read = http("HEAD", "/b/k"), http("GET", "/b/k")
    assert (head.status, head.body) == (200, b"")
    assert {**head.headers, "date": ""} == {**read.headers, "date": ""}
    assert (http("HEAD", "/b/none").status, http("HEAD", "/b").status) == (404, 200)


def test_create_only_writes_once(gcs: GcsServer, http: Http) -> None:
    assert http("PUT", "/b/k", b"1", x_goog_if_generation_match="0").status == 200
    second = http("PUT", "/b/k", b"2", x_goog_if_generation_match="0")
    assert (second.status, code(second)) == (412, "PreconditionFailed")
    assert gcs.objects()["k"].data == b"1"


def test_a_swap_needs_the_current_generation(gcs: GcsServer, http: Http) -> None:
    first = http("PUT", "/b/k", b"1").headers["x-goog-generation"]
    assert http("PUT", "/b/k", b"2", x_goog_if_generation_match=first).status == 200
    assert http("PUT", "/b/k", b"3", x_goog_if_generation_match=first).status == 412
    assert http("PUT", "/b/none", b"3", x_goog_if_generation_match=first).status == 412
    assert http("PUT", "/b/k", b"3", x_goog_if_generation_match="x").status == 400
    assert {key: blob.data for key, blob in gcs.objects().items()} == {"k": b"2"}


def test_delete_takes_preconditions_and_says_when_there_is_nothing(gcs: GcsServer, http: Http) -> None:
    generation = str(gcs.put_raw("k", b"1").generation)
    assert http("DELETE", "/b/k", x_goog_if_generation_match="1").status == 412
    assert http("DELETE", "/b/k?generation=1").status == 404
    assert http("DELETE", f"/b/k?generation={generation}").status == 204
    gone = http("DELETE", "/b/k")
    assert (gone.status, code(gone)) == (404, "NoSuchKey")


def test_reads_with_conditions(gcs: GcsServer, http: Http) -> None:
    blob = gcs.put_raw("k", b"1")
    unmodified = http("GET", "/b/k", if_none_match=blob.etag)
    assert (unmodified.status, unmodified.body, unmodified.headers["etag"]) == (304, b"", blob.etag)
    assert http("GET", "/b/k", if_none_match='"other"').status == 200
    assert http("GET", "/b/k", if_match=f'"other", {blob.etag}').status == 200
    assert http("GET", "/b/k", if_match='"other"').status == 412
    assert http("GET", "/b/k", if_unmodified_since="Thu, 01 Jan 1970 00:00:00 GMT").status == 412
    assert http("GET", "/b/k", if_modified_since="Fri, 01 Jan 2100 00:00:00 GMT").status == 304
    assert http("GET", f"/b/k?generation={blob.generation}").status == 200
    assert http("GET", "/b/k?generation=1").status == 404


@pytest.mark.parametrize(
    ("header", "status", "body", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-30", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
def test_ranges(gcs: GcsServer, http: Http, header: str, status: int, body: bytes, content_range: str | None) -> None:
    gcs.put_raw("k", b"0123456789")
    answer = http("GET", "/b/k", range=header)
    assert (answer.status, answer.body, answer.headers.get("content-range")) == (status, body, content_range)


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_a_range_beyond_the_end_cannot_be_satisfied(gcs: GcsServer, http: Http, header: str) -> None:
    gcs.put_raw("k", b"0123456789")
    answer = http("GET", "/b/k", range=header)
    assert (answer.status, code(answer), answer.headers["content-range"]) == (416, "InvalidRange", "bytes */10")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_bucket_must_exist(http: Http, method: str) -> None:
    for where in ("/nope/k", "/nope"):
        answer = http(method, where)
        assert (answer.status, code(answer)) == (404, "NoSuchBucket")


ODD_KEYS = [
    "a//b",
    "./x",
    "../x",
    "folder/",
    "/absolute",
    "sp ace",
    "per%41cent",
    "a+b?c#d&e=f;g",
    "back\\slash",
    "<&>\"'",
    "ctl\x01\x1f\x7fx",
    "tab\tx",
    "ü\u0301\u202e😀",
    "~",
]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_are_kept_as_they_are(gcs: GcsServer, http: Http, key: str) -> None:
    assert http("PUT", target(key), b"1").status == 200
    assert http("GET", target(key)).body == b"1"
    assert list(gcs.objects()) == [key]
    listed = http("GET", "/b?list-type=2&encoding-type=url")
    assert [unquote(each) for each in keys(listed)] == [key]


def test_a_listing_writes_control_characters_as_references(gcs: GcsServer, http: Http) -> None:
    for key in ("tab\tx", "new\nline", "cr\rx"):
        gcs.put_raw(key, b"")
    assert keys(http("GET", "/b?list-type=2")) == ["cr\rx", "new\nline", "tab\tx"]
    gcs.put_raw("ctl\x01x", b"")
    assert b"<Key>ctl&#1;x</Key>" in http("GET", "/b?list-type=2").body


@pytest.mark.parametrize("key", [".", "..", "a\nb", "x" * 1025])
def test_names_that_the_real_service_refuses_are_refused(gcs: GcsServer, http: Http, key: str) -> None:
    answer = http("PUT", target(key), b"1")
    assert (answer.status, code(answer)) == (400, "InvalidObjectName")
    gcs.put_raw(key, b"1")
    assert list(gcs.objects()) == [key]


def test_a_listing_is_in_bytewise_order_and_by_pages(gcs: GcsServer, http: Http) -> None:
    names = ["a", "a-x", "a/x", "a0", "b/1", "b/2", "é", "z", "\ufffd", "😀"]
    for name in reversed(names):
        gcs.put_raw(name, b"")
    assert keys(http("GET", "/b?list-type=2")) == sorted(names, key=str.encode)
    found: list[str] = []
    query = "/b?list-type=2&max-keys=3"
    while True:
        page = http("GET", query)
        found += keys(page)
        assert len(keys(page)) <= 3
        token = ElementTree.fromstring(page.body).findtext("{*}NextContinuationToken")
        if token is None:
            break
        query = f"/b?list-type=2&max-keys=3&continuation-token={quote(token, safe='')}"
    assert found == sorted(names, key=str.encode)


def test_a_listing_by_prefix_delimiter_and_start(gcs: GcsServer, http: Http) -> None:
    for name in ("a", "d/1", "d/2", "d/e/3", "d/e/4", "d/f/5", "dx", "e"):
        gcs.put_raw(name, b"")

    def listed(query: str) -> tuple[list[str], list[str]]:
        answer = http("GET", f"/b?list-type=2&{query}")
        groups = ElementTree.fromstring(answer.body).iterfind("{*}CommonPrefixes/{*}Prefix")
        return keys(answer), [group.text or "" for group in groups]

    assert listed("prefix=d%2F") == (["d/1", "d/2", "d/e/3", "d/e/4", "d/f/5"], [])
    assert listed("prefix=d%2F&delimiter=%2F") == (["d/1", "d/2"], ["d/e/", "d/f/"])
    assert listed("delimiter=%2F") == (["a", "dx", "e"], ["d/"])
    assert listed("start-after=d%2Fe%2F3") == (["d/e/4", "d/f/5", "dx", "e"], [])
    assert listed("prefix=d%2F&delimiter=%2F&start-after=d%2Fe%2F3") == ([], ["d/e/", "d/f/"])
    assert listed("prefix=d%2F&delimiter=%2F&max-keys=3") == (["d/1", "d/2"], ["d/e/"])
    assert listed("max-keys=0") == ([], [])


def test_a_multipart_upload_is_visible_only_when_complete() -> None:
    with GcsServer(["b"], min_part=2) as server:
        http = Http(server.port)
        started = http("POST", "/b/k?uploads", content_type="text/plain", x_goog_meta_a="1")
        upload = ElementTree.fromstring(started.body).findtext("{*}UploadId")
        parts = {2: b"cd", 1: b"ab", 3: b"e"}
        etags = {n: http("PUT", f"/b/k?partNumber={n}&uploadId={upload}", parts[n]).headers["etag"] for n in parts}
        assert (server.objects(), server.open_uploads()) == ({}, ["k"])
        whole = manifest(etags)
        wrong = manifest({**etags, 3: '"0"'})
        assert http("POST", f"/b/k?uploadId={upload}", wrong).status == 400
        assert http("POST", f"/b/other?uploadId={upload}", whole).status == 404
        assert http("POST", f"/b/k?uploadId={upload}", whole).status == 200
        assert server.open_uploads() == []
        read = http("GET", "/b/k")
        assert (read.body, read.headers["content-type"], read.headers["x-goog-meta-a"]) == (b"abcde", "text/plain", "1")
        assert http("POST", f"/b/k?uploadId={upload}", whole).status == 404
        http.close()


def test_parts_must_be_large_enough_and_an_upload_can_be_aborted(gcs: GcsServer, http: Http) -> None:
    upload = ElementTree.fromstring(http("POST", "/b/k?uploads").body).findtext("{*}UploadId")
    part = f"/b/k?uploadId={upload}&partNumber="
    etags = {number: http("PUT", f"{part}{number}", b"small").headers["etag"] for number in (1, 2)}
    small = http("POST", f"/b/k?uploadId={upload}", manifest(etags))
    assert (small.status, code(small)) == (400, "EntityTooSmall")
    assert http("DELETE", f"/b/k?uploadId={upload}").status == 204
    assert (gcs.objects(), gcs.open_uploads()) == ({}, [])


@pytest.mark.parametrize(
    ("conditions", "second_create", "stale_swap", "winners"),
    [
        ("honour", 412, 412, {1}),
        ("ignore", 200, 200, {8}),
        ("create-only", 412, 200, {8}),
        ("racy", 412, 412, set(range(2, 9))),
    ],
)
def test_stores_that_get_conditions_wrong(
    conditions: Conditions, second_create: int, stale_swap: int, winners: set[int]
) -> None:
    with GcsServer(["b"], conditions=conditions) as server:
        http = Http(server.port)
        first = http("PUT", "/b/k", b"1", x_goog_if_generation_match="0").headers["x-goog-generation"]
        assert http("PUT", "/b/k", b"2", x_goog_if_generation_match="0").status == second_create
        current = http("PUT", "/b/k", b"3").headers["x-goog-generation"]
        assert http("PUT", "/b/k", b"4", x_goog_if_generation_match=first).status == stale_swap
        http.close()
        if stale_swap == 200:
            current = str(server.objects()["k"].generation)

        def swap(number: int) -> int:
            client = Http(server.port)
            answer = client("PUT", "/b/k", b"%d" % number, x_goog_if_generation_match=current)
            client.close()
            return answer.status

        assert race(8, swap).count(200) in winners


def test_what_is_not_served_is_refused_rather_than_misunderstood(gcs: GcsServer, http: Http) -> None:
    gcs.put_raw("k", b"1")
    assert http("PUT", "/b/copy", b"", x_goog_copy_source="b/k").status == 501
    assert http("GET", "/b").status == 501
    assert http("PATCH", "/b/k", b"").status == 405
    assert http("POST", "/b/k?uploads", x_goog_if_generation_match="0").status == 400
    assert list(gcs.objects()) == ["k"]


def test_buckets_are_apart(gcs: GcsServer, http: Http) -> None:
    gcs.create_bucket("other")
    gcs.put_raw("k", b"1", bucket="other")
    assert (gcs.objects(), list(gcs.objects("other"))) == ({}, ["k"])
    assert http("GET", "/other/k").body == b"1"
    gcs.delete_raw("k", bucket="other")
    assert gcs.get_raw("k", bucket="other") is None
