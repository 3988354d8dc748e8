"""V9: a store is bound to its prefix and namespace, and nothing leads out of it."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import ConfigInvalid, NamespaceInvalid, NotFound, Rejected, StoreError
from bayou.core.ids import ulid
from bayou.objectstore import Create, Store, keys, open_store
from bayou.objectstore.keys import Key, KeyScope
from bayou.objectstore.multipart import MIB
from bayou.objectstore.open import open_transport
from bayou.objectstore.probe import probe
from bayou.objectstore.url import parse_url
from bayou_testing.contract import payload
from bayou_testing.faulty import FaultyTransport
from bayou_testing.gcs import GcsServer
from bayou_testing.log import LoggedRequest
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from tests.objectstore.conftest import BUCKET, QUICK

BAD_NAMES = [
    "data",
    "logs",
    "workflow-runs",
    ".bayou",
    "A",
    "a/b",
    "",
    "a" * 65,
    "-a",
    "a-",
    "a_b",
    "a.b",
    "..",
    "ä",
    "a\n",
    "a ",
]


def listed(store: Store, under: Key | None = None) -> set[str]:
    return {meta.key for page in store.list(under) for meta in page}


@pytest.fixture
def counted() -> Iterator[GcsServer]:
    with GcsServer(buckets=["bayou"]) as server:
        yield server


@pytest.mark.gcs
@pytest.mark.parametrize("name", BAD_NAMES)
def test_f073_a_bad_namespace_is_refused_before_any_request(
    counted: GcsServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable, value in counted.env().items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(NamespaceInvalid) as caught:
        open_store("gs://bayou/p", namespace=name)
    assert caught.value.hint
    assert counted.log.count() == 0


@pytest.mark.parametrize("name", ["a", "0", "infra", "team-1", "a" * 64, "a--b", "bayou", "datas"])
def test_a_good_namespace_is_a_directory_of_the_prefix(name: str) -> None:
    assert KeyScope.of("proj", name).root == f"proj/{name}/"
    assert KeyScope.of("", name).root == f"{name}/"


@pytest.mark.parametrize(
    "prefix", ["a//b", "a/./b", "../a", "a/..", "a\\b", "a\x01b", "e\u0301", "x" * 801, "a/" + "n" * 256]
)
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        KeyScope.of(prefix, None)
    assert "prefix" in caught.value.message


@pytest.mark.parametrize("url", ["memory://b/a//b", "memory://b/a/../b", "memory://b/./b", "memory://b/a\\b"])
def test_a_bad_prefix_in_a_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigInvalid):
        open_store(url)


def test_slashes_around_a_prefix_do_not_matter() -> None:
    assert {KeyScope.of(prefix, None).root for prefix in ("proj", "/proj", "proj/", "//proj//")} == {"proj/"}
    assert KeyScope.of("", None).root == KeyScope.of("/", None).root == ""


@pytest.mark.parametrize(
    "provider", ["memory", "file", pytest.param("s3", marks=pytest.mark.s3), pytest.param("gs", marks=pytest.mark.gcs)]
)
def test_f073_siblings_never_see_each_other(provider: str, request: pytest.FixtureRequest) -> None:
    """`proj` and `proj2`, `proj` and its namespaces: a prefix is a directory, and not the beginning of a name."""
    place = ulid()
    options: dict[str, str] = {}
    match provider:
        case "memory":
            base = f"memory://{place}"
        case "file":
            base = request.getfixturevalue("tmp_path").as_uri()
        case "s3":
            endpoint: S3Endpoint = request.getfixturevalue("s3_env")
            base, options = f"s3://{BUCKET}/{place}", {"endpoint": endpoint.url}
        case _:
            request.getfixturevalue("gs")
            base = f"gs://bayou/{place}"
    proj, proj2, dashed = (
        open_store(f"{base}/{name}", options=options, policy=QUICK) for name in ("proj", "proj2", "proj-2")
    )
    one, two = (
        open_store(f"{base}/proj", namespace=name, options=options, policy=QUICK) for name in ("one", "one-two")
    )
    for store, name in ((proj, "a"), (proj2, "b"), (dashed, "c"), (one, "d"), (two, "e")):
        store.put(payload(f"data/{name}"), b"")
        store.put(keys.HEAD, name.encode())
    assert listed(proj2) == {"data/b", ".bayou/head.json"}
    assert listed(dashed) == {"data/c", ".bayou/head.json"}
    assert listed(one) == {"data/d", ".bayou/head.json"}
    assert listed(two) == {"data/e", ".bayou/head.json"}
    assert listed(proj, payload("data")) == {"data/a"}
    assert {key for key in listed(proj) if "/data/" in key} == {"one/data/d", "one-two/data/e"}
    with pytest.raises(NotFound):
        proj.get(payload("data/b"))
    proj.delete([payload("data/b"), keys.HEAD])
    assert keys.HEAD in listed(proj2)
    assert "data/b" in listed(proj2)


def use_everything(store: Store) -> None:
    """Send every kind of request that there is."""
    stored = store.put(payload("data/a"), b"1")
    store.get(payload("data/a"), if_match=stored.etag)
    store.head(payload("data/a"))
    with pytest.raises(NotFound):
        store.head(payload("data/none"))
    content = os.urandom(MIB) * 17
    store.upload(payload("data/large"), io.BytesIO(content), len(content), hashlib.sha256(content).digest())
    store.download(payload("data/large"), io.BytesIO(), len(content))
    store.put(keys.lease("../../escape"), b"1", condition=Create())
    for under in (None, payload("data"), payload("files")):
        listed(store, under)
    store.delete([payload("data/a"), payload("data/large"), keys.lease("../../escape")])


def assert_inside(rows: Sequence[LoggedRequest], bucket: str, inside: str) -> None:
    assert len(rows) > 10
    for row in rows:
        key = row.path.removeprefix(f"/{bucket}").removeprefix("/")
        if "list-type" in row.query:
            assert row.query["prefix"].startswith(inside)
            assert row.query.get("start-after", inside).startswith(inside)
        elif "delete" in row.query:
            assert row.method == "POST", "the keys of a bulk request are in its body"
        else:
            assert key.startswith(inside), row


@pytest.mark.s3
def test_v9_every_key_that_an_s3_server_sees_is_inside(proxy: HttpProxy, s3_env: S3Endpoint) -> None:
    prefix = ulid()
    use_everything(
        open_store(f"s3://{BUCKET}/{prefix}", namespace="infra", options={"endpoint": proxy.url}, policy=QUICK)
    )
    assert_inside(proxy.log.rows(), BUCKET, f"{prefix}/infra/")
    everything = s3_env.request("GET", f"/{BUCKET}", query={"list-type": "2", "prefix": prefix})[1]
    assert everything.count(b"<Key>") == 0


@pytest.mark.gcs
def test_v9_every_key_that_a_gcs_server_sees_is_inside(counted: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in counted.env().items():
        monkeypatch.setenv(variable, value)
    store = open_store("gs://bayou/p", namespace="infra", policy=QUICK)
    use_everything(store)
    probe(store)
    assert_inside(counted.log.rows(), "bayou", "p/infra/")
    assert counted.objects() == {}


@pytest.mark.parametrize(
    "key", ["", "/", "/x", "x/", "x//y", ".", "..", "../x", "x/..", "x/./y", "data/../../other/x", "x\x00y", "x\ny"]
)
def test_a_key_that_could_name_something_else_is_refused_without_a_request(key: str) -> None:
    faulty = FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))
    store = Store(faulty, KeyScope.of("p", "n"), policy=QUICK)
    for call in (
        lambda: store.get(Key(key)),
        lambda: store.head(Key(key)),
        lambda: store.put(Key(key), b""),
        lambda: store.delete([Key(key)]),
        lambda: [*store.list(Key(key))],
    ):
        with pytest.raises(Rejected):
            call()
    assert faulty.seen == []


@given(key=st.text(alphabet=st.sampled_from("a.~/\\\x00é -%"), max_size=12))
def test_v9_whatever_the_key_no_object_outside_is_touched(key: str) -> None:
    transport = open_transport(parse_url(f"memory://{ulid()}"), {})
    for other in ("p", "p2/x", "x", "p/other/x"):
        transport.put(other, b"theirs", timeout=5)
    store = Store(transport, KeyScope.of("p", "n"), policy=QUICK)
    try:
        store.put(Key(key), b"mine")
    except StoreError:
        assert listed(store) == set()
    else:
        assert listed(store) == {key}
    there = {meta.key for page in transport.list("", timeout=5) for meta in page}
    assert {name for name in there if not name.startswith("p/n/")} == {"p", "p2/x", "x", "p/other/x"}


def test_a_scope_knows_what_is_inside() -> None:
    scope = KeyScope.of("proj", "one")
    assert scope.relative("proj/one/data/a") == "data/a"
    assert scope.relative("proj/one-two/data/a") is None
    assert scope.relative("proj2/one/data/a") is None
