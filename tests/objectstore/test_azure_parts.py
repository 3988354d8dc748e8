"""Large files to Azure in blocks: which credentials the SDK gets, and what late, repeated and foreign requests do."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from bayou.core.errors import CannotConnect, CredentialsExpired, StoreError, TimedOut, UploadGone
from bayou.core.ids import ulid
from bayou.objectstore import Store, open_store
from bayou.objectstore.backends import azure_parts as module
from bayou.objectstore.backends.azure_parts import AzureParts, azure_parts
from bayou.objectstore.backends.credentials import AZURE_RENEWAL
from bayou.objectstore.multipart import MIB
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.azurite import ACCOUNT, ACCOUNT_KEY, AzuriteServer
from bayou_testing.contract import payload
from bayou_testing.faults import Fail, Late, Reset, Rule, Silent
from bayou_testing.proxy import HttpProxy
from tests.objectstore.conftest import QUICK
from tests.objectstore.scripted import Scripted, ok

pytestmark = pytest.mark.azure

KEY = payload("data/large/ü %41#raw?.json")
CONTENT = os.urandom(MIB) * 17
SHA256 = hashlib.sha256(CONTENT).digest()
ONCE = RetryPolicy(attempts=1, request_timeout_s=10, call_deadline_s=30)


@pytest.fixture
def proxy(azure_env: AzuriteServer) -> Iterator[HttpProxy]:
    with HttpProxy(azure_env.host, azure_env.port) as between:
        yield between


@pytest.fixture
def store(proxy: HttpProxy) -> Store:
    return open_store(f"az://bayou/{ulid()}", options={"endpoint": f"{proxy.url}/{ACCOUNT}"}, policy=QUICK)


@pytest.fixture
def parts(proxy: HttpProxy) -> AzureParts:
    found = azure_parts("bayou", {"endpoint": f"{proxy.url}/{ACCOUNT}"}, AZURE_RENEWAL)
    assert found is not None
    return found


def upload(store: Store) -> None:
    store.upload(KEY, io.BytesIO(CONTENT), len(CONTENT), SHA256)
    target = io.BytesIO()
    assert store.download(KEY, target, len(CONTENT)).sha256 == SHA256


def blocks(proxy: HttpProxy) -> list[str]:
    """The ids of the blocks that were sent, as they are in the requests."""
    return [row.query["blockid"] for row in proxy.log.rows(method="PUT", query="blockid")]


# ---- requests ----


def test_an_upload_counts_the_requests_that_the_server_gets_and_has_its_content_type(
    store: Store, proxy: HttpProxy
) -> None:
    proxy.faults.add(Rule(Fail(503), method="PUT", query="blockid=", times=1))

    store.upload(KEY, io.BytesIO(CONTENT), len(CONTENT), SHA256)

    assert store.requests.put == len(proxy.log.rows(method="PUT")) == 3 + 1 + 1, "parts, one again, and the list"
    assert store.requests.bytes_out == sum(row.received for row in proxy.log.rows(query="blockid"))
    found = store.get(KEY, span=(0, 1))
    assert found is not None
    assert found.attributes["Content-Type"] == "application/json"


@pytest.mark.parametrize("trouble", [Fail(500), Fail(408), Reset()])
def test_the_sdk_sends_each_request_once(parts: AzureParts, proxy: HttpProxy, trouble: Fail | Reset) -> None:
    proxy.faults.add(Rule(trouble))
    with pytest.raises(StoreError) as caught:
        parts.put_part("key", ulid(), 1, b"content", timeout=10)
    assert caught.value.retryable
    assert len(proxy.log.rows()) == 1


def test_v12_a_part_that_gets_no_answer_ends_in_time(parts: AzureParts, proxy: HttpProxy) -> None:
    proxy.faults.add(Rule(Silent()))
    begun = time.monotonic()
    with pytest.raises(TimedOut):
        parts.put_part("key", ulid(), 1, b"content", timeout=0.5)
    assert time.monotonic() - begun < 5


def test_v12_a_part_that_a_server_takes_too_slowly_ends_in_time() -> None:
    server = Scripted(lambda _: ok(), sip=4096)
    try:
        found = azure_parts("bayou", {"endpoint": server.url, "account": "a", "skip_signature": "true"}, AZURE_RENEWAL)
        assert found is not None
        begun = time.monotonic()
        with pytest.raises(TimedOut):
            found.put_part("key", ulid(), 1, bytes(64 * MIB), timeout=1)
        assert time.monotonic() - begun < 8
    finally:
        server.close()


def test_a_server_that_is_not_there_cannot_be_connected_to() -> None:
    options = {"endpoint": "http://127.0.0.1:9", "account": "a", "skip_signature": "true"}
    found = azure_parts("bayou", options, AZURE_RENEWAL)
    assert found is not None
    with pytest.raises(CannotConnect, match=r"127\.0\.0\.1:9"):
        found.put_part("key", ulid(), 1, b"content", timeout=5)


def test_what_the_sdk_warns_of_is_not_for_the_user(
    store: Store, proxy: HttpProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    proxy.faults.add(Rule(Fail(503, b"<html>busy</html>"), query="blockid=", times=1))
    upload(store)
    assert capfd.readouterr() == ("", "")


# ---- completion ----


def test_v11_late_parts_and_a_repeated_completion_change_nothing(parts: AzureParts) -> None:
    key, name = ulid(), parts.begin("", timeout=0)
    tags = [parts.put_part(key, name, number, b"%d" % number, timeout=10) for number in (1, 2)]
    parts.put_part(key, name, 1, b"of an earlier command, and late", timeout=10)
    first = parts.complete(key, name, tags, timeout=10)
    parts.put_part(key, name, 1, b"1", timeout=10)
    parts.put_part(key, name, 2, b"later", timeout=10)
    with pytest.raises(UploadGone):
        parts.complete(key, name, tags, timeout=10)
    found = open_store("az://bayou").get(payload(key), span=(0, 10))
    assert found is not None
    assert (bytes(found.data), found.meta.etag) == (b"12", first.etag)


def test_a_completion_that_is_answered_too_late_is_found_complete(store: Store, proxy: HttpProxy) -> None:
    policy = RetryPolicy(base_s=0.005, cap_s=0.02, request_timeout_s=1.5)
    slow = open_store(store.url, options={"endpoint": f"{proxy.url}/{ACCOUNT}"}, policy=policy)
    proxy.faults.add(Rule(Late(4), query="comp=blocklist", times=1))
    stored = slow.upload(KEY, io.BytesIO(CONTENT), len(CONTENT), SHA256)
    assert stored.repeated
    assert store.head(KEY).etag == stored.etag


def test_blocks_of_an_upload_by_obstore_are_not_in_the_way(
    store: Store, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All block ids of a blob have one length; this upload was begun before the extra was installed."""
    with monkeypatch.context() as light:
        light.setattr(module, "first_missing", lambda _: "azure-storage-blob")
        without = open_store(store.url, options={"endpoint": f"{proxy.url}/{ACCOUNT}"}, policy=ONCE)
        proxy.faults.add(Rule(Fail(403), query="comp=blocklist"))
        with pytest.raises(StoreError):
            without.upload(KEY, io.BytesIO(CONTENT), len(CONTENT), SHA256)
        proxy.faults.clear()
    begun = len(blocks(proxy))
    upload(store)
    assert {len(block) for block in blocks(proxy)} == {44}
    assert 0 < begun < len(blocks(proxy))


def test_an_upload_has_no_request_that_drops_it_or_lists_it(store: Store, proxy: HttpProxy) -> None:
    store.abort_upload(KEY, ulid())
    assert [*store.unfinished_uploads()] == []
    assert store.requests.total == len(proxy.log.rows()) == 0


# ---- without the SDK ----


def test_without_the_sdk_a_failed_upload_starts_again(
    store: Store, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "first_missing", lambda _: "azure-storage-blob")
    proxy.faults.add(Rule(Fail(503), query="comp=blocklist", times=1))
    upload(store)
    sent = sum(row.received for row in proxy.log.rows(query="blockid"))
    assert sent == 2 * len(CONTENT)


# ---- credentials ----


def sas() -> str:
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    return generate_account_sas(
        ACCOUNT,
        ACCOUNT_KEY,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(read=True, write=True, list=True, delete=True, create=True),
        datetime.now(UTC) + timedelta(hours=1),
    )


@pytest.mark.parametrize("kind", ["AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN", "decoded", "emulator"])
def test_an_upload_has_the_credential_of_other_requests(
    proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from urllib.parse import unquote

    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    options = {"endpoint": f"{proxy.url}/{ACCOUNT}"}
    match kind:
        case "AZURE_STORAGE_ACCESS_KEY":
            monkeypatch.setenv(kind, ACCOUNT_KEY)
        case "AZURE_STORAGE_SAS_TOKEN":
            monkeypatch.setenv(kind, sas())
        case "decoded":
            monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", f"?{unquote(sas())}")
        case "emulator":
            monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", proxy.url)
            monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
            monkeypatch.delenv("AZURE_STORAGE_ENDPOINT")
            options = {"use_emulator": "true"}

    upload(open_store(f"az://bayou/{ulid()}", options=options, policy=ONCE))

    assert len(blocks(proxy)) == 3
    assert proxy.log.rows(query="comp")[-1].status == 201


def test_a_token_is_sent_once_and_no_other_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = b"WWW-Authenticate: Bearer authorization_uri=https://login.microsoftonline.com/t/oauth2/authorize"
    server = Scripted(lambda _: ok(b"", challenge, status=401))
    try:
        monkeypatch.setenv("AZURE_STORAGE_TOKEN", "TOKEN")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
        found = azure_parts("bayou", {"endpoint": server.url, "account": "a"}, AZURE_RENEWAL)
        assert found is not None
        with pytest.raises(CredentialsExpired):
            found.put_part("key", ulid(), 1, b"content", timeout=5)
        (request,) = server.requests
        assert b"Authorization: Bearer TOKEN\r\n" in request
    finally:
        server.close()


def test_v26_a_netrc_gives_no_credential(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    server = Scripted(lambda _: ok(status=201))
    try:
        netrc = f"{tmp_path}/netrc"
        with open(netrc, "w") as file:
            file.write("machine 127.0.0.1 login somebody password SECRET\n")
        monkeypatch.setenv("NETRC", netrc)
        options = {"endpoint": server.url, "account": "a", "skip_signature": "true"}
        found = azure_parts("bayou", options, AZURE_RENEWAL)
        assert found is not None
        found.put_part("key", ulid(), 1, b"content", timeout=5)
        (request,) = server.requests
        assert b"authorization" not in request.lower()
    finally:
        server.close()


def test_a_proxy_of_the_users_own_stays_the_way_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Scripted(lambda _: ok(status=201))
    try:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        options = {"endpoint": "http://store.invalid", "account": "a", "skip_signature": "true"}
        found = azure_parts("bayou", options, AZURE_RENEWAL)
        assert found is not None
        found.put_part("key", ulid(), 1, b"content", timeout=5)
        (request,) = proxy.requests
        assert request.startswith(b"PUT http://store.invalid/bayou/key?")
    finally:
        proxy.close()


SECRET = {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}
CLIENT = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_SECRET": "s"}


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"AZURE_STORAGE_ACCOUNT_NAME": "a", **CLIENT}, {}),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_SAS_KEY": "sig=x", **CLIENT}, {}),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "a"}, {"use_azure_cli": "true"}),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "a", "IDENTITY_ENDPOINT": "http://127.0.0.1:1"}, {}),
        ({"AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}, {}),
        (SECRET | {"AZURE_STORAGE_ACCESS_KEY": "another"}, {}),
        (SECRET | {"AZURE_CREDENTIAL_TYPE": "azure_cli"}, {}),
        (SECRET | {"AZURE_STORAGE_ENCRYPTION_KEY": "a2V5"}, {}),
        (SECRET | {"AZURE_PROXY_URL": "http://127.0.0.1:1"}, {}),
        (SECRET | {"AZURE_USE_FABRIC_ENDPOINT": "true"}, {}),
    ],
)
def test_what_only_obstore_can_use_leaves_the_upload_to_obstore(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], options: Mapping[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert azure_parts("bayou", options, AZURE_RENEWAL) is None
