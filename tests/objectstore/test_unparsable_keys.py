"""F108: one odd key in a bucket does not stop anybody, and every key is listed once, exactly as it is."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest

from bayou.core.errors import BadAnswer, Rejected
from bayou.core.ids import ulid
from bayou.objectstore import Store, open_store
from bayou.objectstore.keys import Key
from bayou_testing.contract import Connect, payload
from bayou_testing.faults import Garbage, Rule
from bayou_testing.gcs import GcsServer
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from tests.objectstore.conftest import BUCKET, QUICK

PLAIN = r"^(?!.*encoding-type=url)"
ENCODED = r"encoding-type=url"
AWAY = [
    "data//x",
    "data/./x",
    "data/../x",
    "data/ctl\x01x",
    "data/new\nline",
    "data/tab\t",
    "/data/x",
    "data/a/",  # beside the file data/a
]
NFC, NFD = "data/caf\u00e9", "data/cafe\u0301"


def listed(store: Store, under: Key | None = None) -> list[str]:
    return [meta.key for page in store.list(under) for meta in page]


class Bucket:
    """A prefix of the GCS server that a test fills, and the requests that were made about it."""

    def __init__(self, server: GcsServer) -> None:
        self._server = server
        self.prefix = ulid()
        self.store = open_store(f"gs://bayou/{self.prefix}", policy=QUICK)

    def fill(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._server.put_raw(f"{self.prefix}/{key}", b"" if key.endswith("/") else key.encode("utf-8", "replace"))

    def listings(self) -> int:
        rows = self._server.log.rows(query="list-type")
        return sum(row.query["prefix"].startswith(self.prefix) for row in rows)


@pytest.fixture
def bucket(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in gcs.env().items():
        monkeypatch.setenv(name, value)
    return Bucket(gcs)


@pytest.mark.gcs
@pytest.mark.parametrize("odd", AWAY[:-1])
@pytest.mark.parametrize("names", ["data/{:05}", "logs/{:05}", "audit/{:05}"])
def test_f108_a_listing_goes_on_past_an_odd_key_on_any_page(bucket: Bucket, odd: str, names: str) -> None:
    # Good keys behind it (first page), before it (last page), and on both sides of it.
    good = [names.format(number) for number in range(2_300)] + ["data/0", "logs/0"]
    bucket.fill([*good, odd])
    assert listed(bucket.store) == sorted([*good, odd])
    assert bucket.store.requests.list == bucket.listings()


@pytest.mark.gcs
def test_f108_all_of_them_at_once(bucket: Bucket) -> None:
    good = [f"data/{number:05}" for number in range(1_500)] + [
        "data/" + "n" * 300,
        NFC,
        NFD,
        "data/A",
        "data/a",
        "data/a/b",
    ]
    everything = sorted([*good, *AWAY])
    bucket.fill(everything)
    pages = [meta for page in bucket.store.list() for meta in page]
    assert [meta.key for meta in pages] == everything
    assert all(meta.size == (0 if meta.key.endswith("/") else len(meta.key.encode())) for meta in pages)
    assert all(meta.etag and meta.version and meta.modified > 0 for meta in pages)
    assert bucket.store.requests.list == bucket.listings()


@pytest.mark.gcs
def test_f108_below_a_directory_too(bucket: Bucket) -> None:
    bucket.fill(["data/a", "data//x", "files/b", "data/ctl\x01"])
    assert listed(bucket.store, payload("data")) == ["data//x", "data/a", "data/ctl\x01"]


@pytest.mark.gcs
def test_names_that_only_look_alike_stay_apart(bucket: Bucket) -> None:
    alike = sorted(
        [NFC, NFD, "data/a b", "data/a+b", "data/a%20b", "data/A", "data/a", "data/a/b", "data/" + "n" * 300]
    )
    bucket.fill(alike)
    assert unicodedata.normalize("NFC", NFD) == NFC
    assert listed(bucket.store) == alike
    assert bucket.store.requests.list == bucket.listings() == 1, "obstore copes with all of these"
    bucket.fill(["data//x"])
    assert listed(bucket.store) == sorted([*alike, "data//x"]), "and so does the other listing"


@pytest.mark.gcs
def test_a_folder_loses_its_slash_unless_an_odd_key_is_on_its_page(bucket: Bucket) -> None:
    bucket.fill(["data/a", "data/folder/", "data/folder/x"])
    assert listed(bucket.store) == ["data/a", "data/folder", "data/folder/x"]
    bucket.fill(["data//odd"])
    assert listed(bucket.store) == ["data//odd", "data/a", "data/folder/", "data/folder/x"]


@pytest.mark.gcs
def test_f108_an_odd_key_is_listed_but_never_asked_for(bucket: Bucket, gcs: GcsServer) -> None:
    bucket.fill(AWAY)
    gcs.log.clear()
    for key in AWAY:
        for call in (bucket.store.get, bucket.store.head, lambda key: bucket.store.put(key, b"x")):
            with pytest.raises(Rejected):
                call(Key(key))
        with pytest.raises(Rejected):
            bucket.store.delete([Key(key)])
    assert gcs.log.count() == 0


@pytest.mark.s3
def test_odd_keys_that_seaweedfs_takes(s3: Connect, s3_env: S3Endpoint) -> None:
    store = s3()
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    names = [NFC, NFD, "data/a b", "data/a+b", "data/A", "data/a", "data/a/b", "data/folder/", "data/" + "n" * 250]
    for name in names:
        status, _ = s3_env.request("PUT", f"/{BUCKET}/{prefix}/{name}", body=b"" if name.endswith("/") else b"1")
        assert status == 200
    assert sorted(listed(store)) == sorted("data/folder" if name == "data/folder/" else name for name in names)


@pytest.mark.s3
def test_f108_a_control_character_that_seaweedfs_replaces_in_a_listing_is_read_as_it_is(
    s3: Connect, s3_env: S3Endpoint
) -> None:
    store = s3()
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    names = ["files/a", "files/ctl\x01x", "files/\N{REPLACEMENT CHARACTER}"]
    for name in names:
        assert s3_env.request("PUT", f"/{BUCKET}/{prefix}/{name}", body=b"1")[0] == 200
    assert sorted(listed(store)) == names
    assert sorted(listed(store, Key("files"))) == names
    assert store.list_directory(Key("files")) is None, "a directory is listed exactly, or not at all"


def page(prefix: str, keys: Sequence[str], *, encoded: bool, token: str | None = None) -> bytes:
    """Make a listing as S3 answers it."""

    def name(key: str) -> str:
        return quote_plus(key, safe="/") if encoded else escape(key)

    rows = "".join(
        f"<Contents><Key>{name(f'{prefix}/{key}')}</Key><LastModified>2024-05-06T07:08:09.123Z</LastModified>"
        f"<ETag>&quot;{number:032x}&quot;</ETag><Size>{number}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for number, key in enumerate(keys)
    )
    head = f"<Name>b</Name><Prefix>{name(prefix)}/</Prefix><KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys>"
    if encoded:
        head += "<EncodingType>url</EncodingType>"
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="{space}">{head}'
        f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}{rows}</ListBucketResult>"
    ).encode()


def prefix_of(store: Store) -> str:
    return store.url.removeprefix(f"s3://{BUCKET}/")


@pytest.mark.s3
def test_f108_s3_is_asked_again_for_encoded_keys(proxied: Store, proxy: HttpProxy) -> None:
    odd = sorted(
        ["data//x", "data/./x", "data/ctl\x01x", "data/a b", "data/a+b", "data/a%2Bb", NFD, "data/folder/", "data/&<>"]
    )
    later = ["files/1", "files/2"]
    prefix = prefix_of(proxied)
    proxy.faults.add(
        Rule(Garbage(page(prefix, ["data//x"], encoded=False, token="t1")), method="GET", query=PLAIN),
        Rule(Garbage(page(prefix, later, encoded=True)), method="GET", query="continuation-token=t"),
        Rule(Garbage(page(prefix, odd, encoded=True, token="t")), method="GET", query=ENCODED),
    )
    pages = [meta for page in proxied.list() for meta in page]
    assert [meta.key for meta in pages] == [*odd, *later]
    assert [meta.size for meta in pages] == [*range(len(odd)), 0, 1]
    assert {meta.modified for meta in pages} == {1_714_979_289_123}
    assert pages[1].etag == f'"{1:032x}"'
    assert proxied.requests.list == proxy.log.count() == 3
    sent = proxy.log.rows()[-1]
    assert sent.query["prefix"] == f"{prefix}/"
    assert "x-amz-date" in sent.headers


@pytest.mark.s3
def test_f108_a_server_that_does_not_encode_is_understood_as_well(proxied: Store, proxy: HttpProxy) -> None:
    odd = ["data//x", "data/./x", "data/a+b", "data/a%20b", "data/ü&<>"]
    proxy.faults.add(Rule(Garbage(page(prefix_of(proxied), odd, encoded=False)), method="GET"))
    assert listed(proxied) == odd


@pytest.mark.s3
def test_f108_the_second_listing_goes_on_behind_the_last_good_page(proxied: Store, proxy: HttpProxy) -> None:
    prefix = prefix_of(proxied)
    good = [f"data/{number:04}" for number in range(1_000)]
    proxy.faults.add(
        Rule(Garbage(page(prefix, ["data/0999//odd"], encoded=True)), query=f"{ENCODED}.*start-after="),
        Rule(Garbage(page(prefix, ["data/0999//odd"], encoded=False)), query="continuation-token=t"),
        Rule(Garbage(page(prefix, good, encoded=False, token="t")), query=PLAIN),
    )
    assert listed(proxied) == [*good, "data/0999//odd"]
    assert proxy.log.rows()[-1].query["start-after"] == f"{prefix}/data/0999"
    assert proxied.requests.list == proxy.log.count() == 3


@pytest.mark.s3
def test_the_second_listing_is_signed_and_real(
    s3: Connect, s3_env: S3Endpoint, proxied: Store, proxy: HttpProxy
) -> None:
    for number in range(3):
        proxied.put(payload(f"data/{number}"), b"x" * number)
    prefix = prefix_of(proxied)
    proxy.faults.add(Rule(Garbage(page(prefix, ["data//x"], encoded=False)), method="GET", query=PLAIN))
    assert {meta.key: meta.size for page in proxied.list() for meta in page} == {"data/0": 0, "data/1": 1, "data/2": 2}


@pytest.mark.s3
def test_v4_an_odd_key_that_cannot_be_read_at_all_is_an_error(proxied: Store, proxy: HttpProxy) -> None:
    broken = page(prefix_of(proxied), ["data//x"], encoded=False).replace(b"data//x", b"data/&#1;//x")
    proxy.faults.add(Rule(Garbage(broken), method="GET"))
    with pytest.raises(BadAnswer):
        listed(proxied)
