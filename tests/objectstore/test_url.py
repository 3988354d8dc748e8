"""From a URL to a store: what is accepted, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import ConfigInvalid, CredentialInConfig, Unavailable, UsageError
from bayou.core.ids import ulid
from bayou.objectstore import Store, keys, open_store
from bayou.objectstore.open import open_transport
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.transport import Transport
from bayou.objectstore.url import OPTIONS, StoreUrl, check_options, parse_url
from bayou_testing.contract import payload
from bayou_testing.faulty import Fault, FaultyTransport

HUSH = "hush4711"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("s3://bucket", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/a/b/", StoreUrl("s3", "bucket", "a/b")),
        ("S3://Bucket/A", StoreUrl("s3", "Bucket", "A")),
        ("gs://my_bucket.example.com/p", StoreUrl("gs", "my_bucket.example.com", "p")),
        ("az://$web/p", StoreUrl("az", "$web", "p")),
        ("memory://x/p", StoreUrl("memory", "x", "p")),
        ("s3://bucket/a%20b", StoreUrl("s3", "bucket", "a%20b")),
        ("s3://bucket/a b@c", StoreUrl("s3", "bucket", "a b@c")),
        ("mine://host:99/p", StoreUrl("mine", "host:99", "p")),
        ("file:///mnt/shared", StoreUrl("file", "/mnt/shared", "")),
        ("file://localhost/mnt/shared/", StoreUrl("file", "/mnt/shared", "")),
        ("file:////mnt//shared/./x/../y", StoreUrl("file", "/mnt/shared/y", "")),
        ("file:///a%20b/%C3%BC%3F%23", StoreUrl("file", "/a b/ü?#", "")),
        ("file:///a%ffb", StoreUrl("file", os.fsdecode(b"/a\xffb"), "")),
    ],
)
def test_a_url_is_read(text: str, parsed: StoreUrl) -> None:
    assert parse_url(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["s3://bucket/a/b", "gs://b", "file:///a%20b/%C3%BC", "file:///a%ff", "memory://x/p q", "s3://b/a%20b"],
)
def test_a_url_that_was_read_is_written_as_it_was(text: str) -> None:
    assert str(parse_url(text)).lower() == text.lower()
    assert parse_url(str(parse_url(text))) == parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bucket/prefix",
        "s3:bucket",
        "s3:/bucket",
        "://bucket",
        "x y://bucket",
        "s3:///prefix",
        "s3://bucket?x=1",
        "s3://bucket/p#f",
        "s3://[bucket",
        "s3://b:9000/p",
        "s3://bu cket/p",
        "s3://bücket/p",
        "s3://.",
        "s3://bucket/a\nb",
        "s3://buc\tket",
        "s3://bucket\x00",
        "memory://",
        "file://host/path",
        "file://relative",
        "file:relative",
        "file:///a%00b",
        "s3://b\u2100c/p",
    ],
)
def test_what_is_no_url_of_a_store_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_url(text)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_servers_address_as_a_bucket_gets_a_hint_where_it_belongs() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_url("s3://127.0.0.1:9000/bucket")
    assert "endpoint" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text",
    [
        f"s3://AKIA:{HUSH}@bucket/p",
        f"s3://{HUSH}@bucket/p",
        f"s3://AKIA:a/{HUSH}@bucket/p",
        f"s3://AKIA:{HUSH}/x@bucket/p",
        f"s3://:{HUSH}@bucket",
        "s3://@bucket",
        f"https://user:{HUSH}@host/bucket",
        f"file://user:{HUSH}@host/p",
        f"AKIA:{HUSH}@bucket",
        f"s3:///AKIA:{HUSH}@bucket",
        f"file://{HUSH}@host",
        f"s3://bucket/p?X-Amz-Signature={HUSH}",
        f"az://container?sig={HUSH}",
        f"s3://AKIA:{HUSH}\n@bucket",
    ],
)
def test_a_credential_in_a_url_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert HUSH not in caught.value.message + str(caught.value.hint)
    assert caught.value.hint


@given(
    rest=st.text(st.characters(codec="ascii"), max_size=20), before=st.text(st.characters(codec="ascii"), max_size=20)
)
def test_a_password_is_never_shown_whatever_it_is_made_of(rest: str, before: str) -> None:
    for text in (f"s3://user:{before}{HUSH}{rest}@bucket/p", f"s3://bucket/p?sig={before}{HUSH}{rest}"):
        with pytest.raises(UsageError) as caught:
            parse_url(text)
        assert HUSH not in caught.value.message + str(caught.value.hint)


@pytest.mark.parametrize("scheme", OPTIONS)
@pytest.mark.parametrize(
    "name",
    [
        "secret_access_key",
        "aws_secret_access_key",
        "access_key_id",
        "session_token",
        "token",
        "sas_token",
        "account_key",
        "password",
        "service_account_key",
        "private_key",
        "client_secret",
        "bearer_token",
        "API_KEY",
    ],
)
def test_a_credential_among_the_options_is_refused_and_not_shown(scheme: str, name: str) -> None:
    with pytest.raises(CredentialInConfig) as caught:
        check_options(scheme, {name: HUSH}, OPTIONS[scheme])
    assert name in caught.value.message
    assert HUSH not in caught.value.message + str(caught.value.hint)


@pytest.mark.parametrize(
    "endpoint", [f"http://user:{HUSH}@host", f"https://{HUSH}@host:9000", f"https://a.blob.example/?sig={HUSH}"]
)
def test_a_credential_in_an_endpoint_is_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(CredentialInConfig) as caught:
        open_store("s3://bucket", options={"endpoint": endpoint})
    assert HUSH not in caught.value.message + str(caught.value.hint)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endpoint", "not a url"),
        ("endpoint", ""),
        ("endpoint", "127.0.0.1:9000"),
        ("endpoint", "ftp://host"),
        ("endpoint", "http://"),
        ("endpoint", "http://host/a b"),
        ("endpoint", "http://h\u00f6st"),
        ("endpoint", "http://host:port"),
        ("endpoint", "http://[::1"),
        ("endpoint", "file:///etc/passwd"),
        ("region", ""),
        ("region", "eu west"),
        ("region", "eu\r\nX-Header: 1"),
        ("skip_signature", "maybe"),
        ("virtual_hosted_style_request", "1"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_before_the_client_library_meets_it(option: str, value: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        open_store("s3://bucket", options={option: value})
    assert option in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "https://storage.example.com", "http://[::1]:9000/", "https://host/path"]
)
def test_an_address_is_accepted(endpoint: str) -> None:
    check_options("s3", {"endpoint": endpoint, "profile": "my team", "skip_signature": "True"}, OPTIONS["s3"])


@pytest.mark.parametrize(
    ("url", "name", "near"),
    [
        ("s3://b", "regoin", "region"),
        ("s3://b", "end_point", "endpoint"),
        ("az://b", "acount", "account"),
        ("gs://b", "end-point", "endpoint"),
    ],
)
def test_an_unknown_option_names_the_nearest_known_one(url: str, name: str, near: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        open_store(url, options={name: "x"})
    assert name in caught.value.message
    assert caught.value.hint == f"did you mean {near}?"


def test_an_unknown_option_like_none_that_is_known_gets_the_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        open_store("gs://b", options={"colour": "red"})
    assert caught.value.hint == "known: endpoint, skip_signature"
    with pytest.raises(ConfigInvalid) as caught:
        open_store(tmp_path.as_uri(), options={"region": "x"})
    assert caught.value.hint == "known: none"


def test_a_directory_with_a_strange_name_is_opened_by_its_url(tmp_path: Path) -> None:
    directory = tmp_path / "a b?#%ü"
    directory.mkdir()
    store = open_store(directory.as_uri())
    store.put(payload("data/x"), b"1")
    assert (directory / "data" / "x").read_bytes() == b"1"
    assert store.url == directory.as_uri()
    assert open_store(store.url).head(payload("data/x")).size == 1


def test_a_memory_store_is_shared_by_its_name_within_a_process() -> None:
    name = ulid()
    open_store(f"memory://{name}/p").put(payload("data/x"), b"1")
    assert open_store(f"memory://{name}/p").head(payload("data/x")).size == 1
    assert [*open_store(f"memory://{ulid()}/p").list()] == []


Plug = Callable[[StoreUrl, Mapping[str, str]], Transport]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Plug]], None]:
    """Install a package that brings a store for a scheme."""

    def install(scheme: str, load: Callable[[], Plug]) -> None:
        point = SimpleNamespace(name=scheme, value="their_package:open", load=load)
        monkeypatch.setattr(
            "importlib.metadata.entry_points", lambda *, group: [point] if group == "bayou.stores" else []
        )

    return install


def test_a_plugged_in_transport_gets_scope_retries_and_counts(plug: Callable[[str, Callable[[], Plug]], None]) -> None:
    opened: list[tuple[StoreUrl, Mapping[str, str]]] = []
    transport = FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))

    def factory(place: StoreUrl, options: Mapping[str, str]) -> Transport:
        opened.append((place, options))
        return transport

    plug("mine", lambda: factory)
    store = open_store(
        "mine://host:99/proj", namespace="infra", options={"colour": "red"}, policy=RetryPolicy(base_s=0.001)
    )
    assert opened == [(StoreUrl("mine", "host:99", "proj"), {"colour": "red"})]
    transport.faults.append(Fault("put", nth=1, error=lambda: Unavailable("503")))
    store.put(keys.HEAD, b"1")
    assert [request.key for request in transport.seen] == ["proj/infra/.bayou/head.json"] * 2
    assert store.requests.put == 2
    assert isinstance(store, Store)


def test_a_plug_in_does_not_replace_a_built_in_store(plug: Callable[[str, Callable[[], Plug]], None]) -> None:
    plug("memory", lambda: pytest.fail("asked for a scheme that is built in"))
    name = ulid()
    assert open_store(f"memory://{name}").url == f"memory://{name}"


def test_a_scheme_that_nobody_brings_is_a_config_error() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        open_store("nowhere://bucket/p")
    assert "nowhere://" in caught.value.message
    assert "s3, gs, az, file, memory" in str(caught.value.hint)


def test_a_plug_in_that_cannot_be_loaded_is_a_config_error(plug: Callable[[str, Callable[[], Plug]], None]) -> None:
    def broken() -> Plug:
        raise ModuleNotFoundError("No module named 'their_dependency'")

    plug("mine", broken)
    with pytest.raises(ConfigInvalid) as caught:
        open_store("mine://bucket/p")
    assert "their_package:open" in caught.value.message
    assert "their_dependency" in caught.value.message
