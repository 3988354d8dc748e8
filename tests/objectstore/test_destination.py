"""17.4, 17.13, V26: a credential goes to its own store and no further, over TLS unless the user's address has none."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import pytest

from bayou.core.errors import ConfigInvalid, DeleteFailed, StoreError, UsageError, WrongRegion
from bayou.objectstore import Store, keys, open_store
from bayou.objectstore.backends.credentials import GCS_RENEWAL
from bayou.objectstore.backends.obstore_errors import Request
from bayou.objectstore.backends.plain_http import fetch
from bayou.objectstore.backends.providers import client_arguments, host_of
from bayou.objectstore.multipart import THRESHOLD
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.url import OPTIONS, CustomEndpoint, check_options, custom_endpoint
from bayou_testing.contract import payload
from tests.objectstore.scripted import Scripted

ONCE = RetryPolicy(attempts=1, request_timeout_s=10, call_deadline_s=30)
KEY = payload("data/a")
OBJECT = (
    b'HTTP/1.1 200 OK\r\nETag: "1"\r\nLast-Modified: Wed, 12 Oct 2022 10:00:00 GMT\r\nContent-Length: 4\r\n\r\nbody'
)
SECRETS = {"s3": [b"AWSKEY", b"AWSSESSION"], "gs": [b"GOOGLETOKEN"], "az": [b"AZURETOKEN"]}
VARIABLES = {
    "AWS_ACCESS_KEY_ID": "AWSKEY",
    "AWS_SECRET_ACCESS_KEY": "AWSSECRET",
    "AWS_SESSION_TOKEN": "AWSSESSION",
    "GOOGLE_BEARER_TOKEN": "GOOGLETOKEN",
    "AZURE_STORAGE_TOKEN": "AZURETOKEN",
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
}
LARGE = bytes(THRESHOLD + 1)
CALLS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get(KEY),
    "span": lambda store: store.get(KEY, span=(0, 2)),
    "head": lambda store: store.head(KEY),
    "put": lambda store: store.put(KEY, b"content"),
    "upload in parts": lambda store: store.upload(KEY, io.BytesIO(LARGE), len(LARGE), sha256(LARGE).digest()),
    "list": lambda store: [*store.list()],
    "list_directory": lambda store: store.list_directory(),
    "delete": lambda store: store.delete([KEY]),
    "delete many": lambda store: store.delete([KEY, payload("data/b")]),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of every provider at once, and no proxy."""
    for name in [name for name in os.environ if name.upper().endswith("_PROXY") or name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], bytes]], Scripted]]:
    servers: list[Scripted] = []

    def begin(script: Callable[[str], bytes]) -> Scripted:
        servers.append(Scripted(script))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


Serve = Callable[[Callable[[str], bytes]], Scripted]


def redirect(status: int, address: str) -> Callable[[str], bytes]:
    answer = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {address}/x\r\nContent-Length: 0\r\n\r\n".encode()
    return lambda _: answer


# ---- redirects ----


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_17_13_no_request_follows_a_redirect_to_another_host(serve: Serve, scheme: str, status: int) -> None:
    thief = serve(lambda _: OBJECT)
    server = serve(redirect(status, f"http://localhost:{thief.port}"))
    for name, call in CALLS.items():
        store = open_store(f"{scheme}://bucket/p", options={"endpoint": server.url}, policy=ONCE)
        with pytest.raises(StoreError) as caught:
            call(store)
        error = caught.value
        causes = [*error.failed.values()] if isinstance(error, DeleteFailed) else [error]
        if (name, status) != ("upload in parts", 303):  # boto3 does not say that it was a redirect
            assert {type(cause) for cause in causes} == {WrongRegion}, name
        assert all("token" not in cause.message.lower() and "\n" not in cause.message for cause in causes)
        assert error.hint
    assert server.requests
    assert thief.visits == []


def test_17_13_a_redirect_from_tls_to_clear_text_is_not_followed_not_even_on_the_same_host() -> None:
    assert client_arguments(1, "https://127.0.0.1:9000", ["127.0.0.1"])["client_options"]["allow_http"] is False


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_17_13_requests_without_obstore_follow_no_redirect_at_all(serve: Serve, host: str) -> None:
    thief = serve(lambda _: OBJECT)
    server = serve(redirect(307, f"http://{host}:{thief.port}"))
    about = Request("LIST", "p/", "gs://bucket", GCS_RENEWAL)
    with pytest.raises(WrongRegion):
        fetch(f"{server.url}/bucket", {"Authorization": "Bearer GOOGLETOKEN"}, about, 5)
    with pytest.raises(WrongRegion):
        fetch(f"{server.url}/token", {}, about, 5, form=b"refresh_token=GOOGLETOKEN")
    assert len(server.requests) == 2
    assert thief.visits == []


def test_17_13_a_redirect_on_the_stores_own_host_is_followed(serve: Serve) -> None:
    """So a server that renames its paths goes on working; its own host has the credentials already."""
    server = serve(lambda key: OBJECT if key == "x" else redirect(307, "")(key))
    store = open_store("s3://bucket/p", options={"endpoint": server.url}, policy=ONCE)
    found = store.get(KEY)
    assert found is not None
    assert bytes(found.data) == b"body"


def test_a_proxy_of_the_users_own_stays_the_way_to_the_store(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = serve(lambda _: OBJECT)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("http_proxy", proxy.url)
    store = open_store("s3://bucket/p", options={"endpoint": "http://store.invalid"}, policy=ONCE)
    assert store.get(KEY) is not None
    (request,) = proxy.requests
    assert request.startswith(b"GET http://store.invalid/bucket/p/data/a ")


# ---- who gets which credentials ----


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_v26_a_store_gets_the_credentials_of_its_own_provider_and_no_others(serve: Serve, scheme: str) -> None:
    server = serve(lambda _: OBJECT)
    store = open_store(f"{scheme}://bucket/p", options={"endpoint": server.url}, policy=ONCE)
    for call in CALLS.values():
        try:
            call(store)
        except StoreError:
            pass  # it is no listing, of course
    sent = b"".join(server.requests)
    assert all(secret in sent for secret in SECRETS[scheme])
    others = [secret for other, secrets in SECRETS.items() if other != scheme for secret in secrets]
    assert not [secret for secret in [*others, b"AWSSECRET"] if secret in sent]


# ---- TLS ----


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the clients of obstore are made with."""
    calls: list[dict[str, Any]] = []

    def make(*_: Any, **how: Any) -> Any:
        calls.append(how)
        raise ValueError("not made")

    for name in ("S3Store", "GCSStore", "AzureStore"):
        monkeypatch.setattr(f"obstore.store.{name}", make)
    return calls


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    ("endpoint", "allowed"),
    [(None, False), ("https://host:9000", False), ("http://127.0.0.1:9000", True), ("HTTP://host", True)],
)
def test_17_4_clear_text_is_spoken_only_where_the_address_says_so(
    made: list[dict[str, Any]], scheme: str, endpoint: str | None, allowed: bool
) -> None:
    with pytest.raises(StoreError):
        open_store(f"{scheme}://bucket", options={"endpoint": endpoint} if endpoint else {}, policy=ONCE).get(KEY)
    assert [call["client_options"]["allow_http"] for call in made] == [allowed]


@pytest.mark.parametrize(
    ("scheme", "variable"),
    [
        ("s3", "AWS_ENDPOINT_URL_S3"),
        ("s3", "AWS_ENDPOINT_URL"),
        ("s3", "AWS_ENDPOINT"),
        ("gs", "GOOGLE_BASE_URL"),
        ("az", "AZURE_STORAGE_ENDPOINT"),
        ("az", "AZURE_ENDPOINT"),
    ],
)
def test_17_4_an_address_of_the_environment_is_the_users_own(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str
) -> None:
    server = serve(lambda _: OBJECT)
    monkeypatch.setenv(variable, server.url)
    assert open_store(f"{scheme}://bucket/p", policy=ONCE).get(KEY) is not None
    assert server.requests


# ---- what a clone can name ----

HOSTILE = ["x.evil.example/#", "evil.example/?", "x@evil.example", "a:b", "a.b", "x\\evil", "a/b", "", "x" * 64, "%2f"]


@pytest.mark.parametrize(("scheme", "name"), [("s3", "region"), ("az", "account")])
@pytest.mark.parametrize("value", HOSTILE)
def test_17_4_no_option_but_the_endpoint_says_where_requests_go(scheme: str, name: str, value: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_options(scheme, {name: value}, OPTIONS[scheme])
    assert name in caught.value.message
    assert not value or value not in caught.value.message


@pytest.mark.parametrize("value", ["x; rm -rf ~", "$(id)", "`id`", "a\nb", "a'b", 'a"b', "a\\b", "", "x" * 200])
def test_17_4_a_profile_is_nothing_that_a_shell_runs(value: str) -> None:
    with pytest.raises(ConfigInvalid):
        check_options("s3", {"profile": value}, OPTIONS["s3"])


@pytest.mark.parametrize("endpoint", ["https://host:0", "https://host:65536", "https://host:99999", "https://host/#x"])
def test_an_address_with_a_port_that_cannot_be_or_a_fragment_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigInvalid):
        check_options("s3", {"endpoint": endpoint}, OPTIONS["s3"])


@pytest.mark.parametrize("bucket", ["evil.example#", "evil.example/?x", "a@evil.example", "evil.example:443", "a\\b"])
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_17_4_no_bucket_says_where_requests_go(scheme: str, bucket: str) -> None:
    with pytest.raises(UsageError):
        open_store(f"{scheme}://{bucket}")


@pytest.mark.parametrize(
    ("scheme", "options", "found"),
    [
        ("s3", {}, None),
        ("s3", {"region": "eu-west-1"}, None),
        ("s3", {"endpoint": "https://s3.eu-west-1.amazonaws.com"}, None),
        ("s3", {"endpoint": "https://S3.EU-West-1.amazonaws.com:443/"}, None),
        ("s3", {"endpoint": "https://bucket.s3.dualstack.eu-west-1.amazonaws.com"}, None),
        ("s3", {"endpoint": "https://s3-fips.us-gov-west-1.amazonaws.com"}, None),
        ("s3", {"endpoint": "https://s3.cn-north-1.amazonaws.com.cn"}, None),
        ("s3", {"endpoint": "http://s3.eu-west-1.amazonaws.com"}, True),
        ("s3", {"endpoint": "https://s3.eu-west-1.amazonaws.com:8443"}, False),
        ("s3", {"endpoint": "https://evil-1.eu-west-1.elb.amazonaws.com"}, False),
        ("s3", {"endpoint": "https://s3.eu-west-1.elb.amazonaws.com"}, False),
        ("s3", {"endpoint": "https://ec2-1-2-3-4.compute-1.amazonaws.com"}, False),
        ("s3", {"endpoint": "https://s3.eu-west-1.amazonaws.com.evil.example"}, False),
        ("s3", {"endpoint": "https://evils3.amazonaws.com.example"}, False),
        ("s3", {"endpoint": "https://evils3.amazonaws.com"}, False),
        ("s3", {"endpoint": "http://127.0.0.1:9000"}, True),
        ("s3", {"endpoint": "HTTP://127.0.0.1:9000"}, True),
        ("s3", {"endpoint": "https://storage.googleapis.com"}, False),
        ("gs", {"endpoint": "https://storage.googleapis.com"}, None),
        ("gs", {"endpoint": "https://storage.googleapis.com.evil.example"}, False),
        ("gs", {"endpoint": "https://evilstorage.googleapis.com"}, False),
        ("gs", {"endpoint": "https://s3.amazonaws.com"}, False),
        ("az", {"account": "team"}, None),
        ("az", {"endpoint": "https://team.blob.core.windows.net"}, None),
        ("az", {"endpoint": "https://blob.core.windows.net.evil.example"}, False),
        ("az", {"endpoint": "https://evil.cloudapp.azure.com"}, False),
        ("az", {"use_emulator": "True"}, True),
        ("az", {"use_emulator": "false"}, None),
        ("file", {}, None),
        ("mine", {"endpoint": "http://x"}, None),
    ],
)
def test_17_4_an_endpoint_that_is_not_the_providers_own_is_told(
    scheme: str, options: Mapping[str, str], found: bool | None
) -> None:
    """`found`: whether it is clear text; None: it is the provider's own."""
    told = custom_endpoint(scheme, options)
    expected = None if found is None else CustomEndpoint(options.get("endpoint", "http://127.0.0.1:10000"), found)
    assert told == expected


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("http://127.1:9000", "127.0.0.1"),
        ("http://0x7f000001", "127.0.0.1"),
        ("http://[::1]:9000", "::1"),
        ("https://Host.Example/path", "host.example"),
        ("https://1.example", "1.example"),
        ("https://example.1x", "example.1x"),
        ("not an address", ""),
        ("http://[::1", ""),
    ],
)
def test_hosts_are_compared_as_obstore_writes_them(address: str, host: str) -> None:
    assert host_of(address) == host


def test_the_keys_of_requests_are_no_part_of_a_host(serve: Serve) -> None:
    server = serve(lambda _: OBJECT)
    store = open_store("s3://bucket/p", options={"endpoint": server.url}, policy=ONCE)
    store.get(keys.as_listed("@evil.example/x#y?z"))
    assert server.requests[0].startswith(b"GET /bucket/p/%40evil.example/x%23y%3Fz HTTP/1.1\r\n")
