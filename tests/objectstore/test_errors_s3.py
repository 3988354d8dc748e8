"""What a user is told when an S3 store, or the way to it, is broken: real answers, through real HTTP."""

from __future__ import annotations

import hashlib
import io
import socket
import sys
from pathlib import Path

import pytest

from bayou.core.deadline import Deadline
from bayou.core.errors import (
    AccessDenied,
    BadAnswer,
    CannotConnect,
    CredentialsExpired,
    CredentialsMissing,
    DeadlinePassed,
    NoSuchBucket,
    StoreError,
    Unavailable,
    WrongRegion,
)
from bayou.objectstore import Store, keys, multipart, open_store
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.contract import listed, payload
from bayou_testing.faults import Fail, Garbage, Reset, Rule, Silent, Truncate
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from tests.objectstore.conftest import BUCKET, QUICK

pytestmark = pytest.mark.s3

XML = (
    b"""<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message><RequestId>REQ-0123456789</RequestId></Error>"""
)


def one_clear_line(error: StoreError) -> str:
    """Check what every error owes its reader, and return it."""
    assert "\n" not in error.message
    assert len(error.message) < 500
    assert "Debug source" not in error.message
    assert error.hint
    return error.message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "403"),
        (b"<html><head><style>x{}</style></head><body><h1>Go\naway</h1></body></html>", "Go away"),
        (b'{"message": "not for you"}', "not for you"),
        (XML % (b"AccessDenied", b"Nope"), "REQ-0123456789"),
    ],
)
@pytest.mark.parametrize("verb", ["get", "put", "list", "delete"])
def test_f095_a_refusal_names_status_operation_and_reason(
    proxied: Store, proxy: HttpProxy, body: bytes, said: str, verb: str
) -> None:
    proxy.faults.add(Rule(Fail(403, body)))
    call = {
        "get": lambda: proxied.get(keys.HEAD),
        "put": lambda: proxied.put(keys.HEAD, b"x"),
        "list": lambda: list(proxied.list()),
        "delete": lambda: proxied.delete([keys.HEAD]),
    }[verb]
    with pytest.raises(StoreError) as caught:
        call()
    message = one_clear_line(caught.value)
    assert "403" in message
    assert verb.upper() in message or verb == "delete"
    assert said in message
    assert proxy.log.count() == 1, "a refusal is not retried"


@pytest.mark.parametrize("what", ["object", "part"])
def test_a_connection_that_breaks_is_named_with_its_address(proxied: Store, proxy: HttpProxy, what: str) -> None:
    proxy.faults.add(Rule(Reset()))
    data = bytes(multipart.THRESHOLD + 1)
    call = {
        "object": lambda: proxied.get(keys.HEAD),
        "part": lambda: proxied.upload(
            payload("files/large"), io.BytesIO(data), len(data), hashlib.sha256(data).digest()
        ),
    }[what]

    with pytest.raises(Unavailable) as caught:
        call()

    message = one_clear_line(caught.value)
    assert "the connection broke during" in message
    assert f" at {proxy.url}" in message


def test_f095_no_secret_reaches_the_text(proxied: Store, proxy: HttpProxy, s3_env: S3Endpoint) -> None:
    leak = f"secret_access_key={s3_env.secret_key}&X-Amz-Signature=abcdef0123 Authorization: Bearer tok123".encode()
    proxy.faults.add(Rule(Fail(403, leak)))
    with pytest.raises(AccessDenied) as caught:
        proxied.get(keys.HEAD)
    for secret in (s3_env.secret_key, "abcdef0123", "tok123"):
        assert secret not in caught.value.message


@pytest.mark.parametrize("status", [400, 403])
def test_f096_expired_credentials_are_named_first_with_the_command_that_renews_them(
    proxied: Store, proxy: HttpProxy, status: int
) -> None:
    proxy.faults.add(Rule(Fail(status, XML % (b"ExpiredToken", b"The provided token has expired."))))
    with pytest.raises(CredentialsExpired) as caught:
        proxied.get(keys.HEAD)
    assert caught.value.message.startswith("credentials")
    assert "aws sso login" in str(caught.value.hint)


def test_f097_no_credentials_anywhere_is_said_without_waiting(
    monkeypatch: pytest.MonkeyPatch, s3_env: S3Endpoint
) -> None:
    for name in s3_env.env():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CredentialsMissing) as caught:
        open_store("s3://bucket", options={"endpoint": s3_env.url})
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)


@pytest.mark.parametrize("url", ["gs://bucket", "az://container"])
def test_f097_the_same_for_other_providers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str) -> None:
    monkeypatch.setattr("bayou.objectstore.backends.credentials.PRODUCT_NAME", tmp_path / "none")
    with pytest.raises(CredentialsMissing) as caught:
        open_store(url)
    assert caught.value.hint


def test_wrong_secret(proxied: Store, s3_env: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store(f"s3://{BUCKET}/p", options={"endpoint": s3_env.url}, policy=QUICK)
    with pytest.raises(AccessDenied) as caught:
        store.get(keys.HEAD)
    one_clear_line(caught.value)
    assert "wrong" not in caught.value.message


def test_a_missing_bucket_is_not_an_empty_store(s3_env: S3Endpoint) -> None:
    store = open_store("s3://no-such-bucket-here/p", options={"endpoint": s3_env.url}, policy=QUICK)
    for call in (lambda: store.get(keys.HEAD), lambda: listed(store)):
        with pytest.raises(NoSuchBucket) as caught:
            call()
        assert "no-such-bucket-here" in one_clear_line(caught.value)


def test_a_bucket_in_another_region(proxied: Store, proxy: HttpProxy) -> None:
    body = XML % (b"AuthorizationHeaderMalformed", b"the region is wrong; expecting 'eu-west-1'")
    proxy.faults.add(Rule(Fail(400, body)))
    with pytest.raises(WrongRegion) as caught:
        proxied.get(keys.HEAD)
    assert "eu-west-1" in one_clear_line(caught.value)
    assert "region=eu-west-1" in str(caught.value.hint)


def test_a_redirect_without_a_place_is_another_region(proxied: Store, proxy: HttpProxy) -> None:
    proxy.faults.add(Rule(Fail(301, XML % (b"PermanentRedirect", b"elsewhere"))))
    with pytest.raises(WrongRegion):
        proxied.get(keys.HEAD)


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = _plain(f"http://127.0.0.1:{port}")
    with pytest.raises(CannotConnect) as caught:
        store.get(keys.HEAD)
    assert "connection refused" in one_clear_line(caught.value)
    assert store.requests.get == QUICK.first_contact_attempts


def test_an_unknown_host() -> None:
    with pytest.raises(CannotConnect) as caught:
        _plain("http://no-such-host.invalid").get(keys.HEAD)
    one_clear_line(caught.value)


def _plain(endpoint: str) -> Store:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "dummy")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
        store = open_store("s3://bucket/p", options={"endpoint": endpoint}, policy=QUICK)
        store.concurrency = 1
        try:
            store.head(keys.HEAD)
        except StoreError:
            pass
    return Store(store._transport, store._scope, policy=QUICK)


def test_f084_a_server_that_never_answers_ends_at_the_deadline(proxied: Store, proxy: HttpProxy) -> None:
    proxy.faults.add(Rule(Silent()))
    for call in (
        lambda store: store.get(keys.HEAD),
        lambda store: store.put(keys.HEAD, b"x"),
        lambda store: list(store.list()),
        lambda store: store.head(keys.HEAD),
    ):
        with pytest.raises(DeadlinePassed) as caught:
            call(proxied.within(Deadline.after(0.6)))
        assert "0.6 s" in caught.value.message


@pytest.mark.parametrize("status", [500, 502, 503, 429, 409])
def test_f085_passing_trouble_is_retried(proxied: Store, proxy: HttpProxy, status: int) -> None:
    proxy.faults.add(Rule(Fail(status, XML % (b"SlowDown", b"later")), every=3))
    for number in range(10):
        proxied.put(payload(f"data/{number}"), b"x")
    assert len(listed(proxied)) == 10
    sent = proxied.requests
    assert sent.put + sent.list == proxy.log.count(), "retries are counted as they were sent"
    assert sent.put > 10


@pytest.mark.parametrize("fault", [Reset(), Truncate(3)])
def test_f085_a_connection_that_breaks_is_tried_again(proxied: Store, proxy: HttpProxy, fault: object) -> None:
    proxied.put(payload("data/a"), b"0123456789")
    proxy.faults.add(Rule(fault, method="GET", times=2))  # type: ignore[arg-type]
    found = proxied.get(payload("data/a"))
    assert found is not None
    assert bytes(found.data) == b"0123456789"


def test_trouble_that_lasts_is_one_error(proxied: Store, proxy: HttpProxy) -> None:
    proxy.faults.add(Rule(Fail(503, XML % (b"SlowDown", b"later"))))
    with pytest.raises(Unavailable) as caught:
        proxied.get(keys.HEAD)
    assert "503" in one_clear_line(caught.value)


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"", b"<ListBucketResult><Contents>", b"\x00\xff garbage"])
def test_a_listing_that_is_garbage_is_an_error_and_not_empty(proxied: Store, proxy: HttpProxy, body: bytes) -> None:
    proxied.put(payload("data/a"), b"1")
    proxy.faults.add(Rule(Garbage(body), method="GET"))
    with pytest.raises(BadAnswer) as caught:
        listed(proxied)
    one_clear_line(caught.value)


@pytest.mark.parametrize("body", [b"", b"<html><h1>404</h1></html>", b"not found"])
def test_v4_a_404_that_is_not_the_stores_own_word_does_not_mean_absent(
    proxied: Store, proxy: HttpProxy, body: bytes
) -> None:
    proxy.faults.add(Rule(Fail(404, body), method="GET"))
    with pytest.raises(BadAnswer) as caught:
        proxied.get(keys.HEAD)
    one_clear_line(caught.value)


def test_a_409_on_a_conditional_write_is_not_taken_for_somebody_elses_object(proxied: Store, proxy: HttpProxy) -> None:
    from bayou.objectstore import Create

    body = XML % (b"ConditionalRequestConflict", b"try again")
    proxy.faults.add(Rule(Fail(409, body), method="PUT", times=2))
    proxied.put(keys.HEAD, b"mine", condition=Create())
    assert proxied.requests.put == 3


def test_profiles_and_roles_come_from_boto3_and_plain_keys_do_without(
    s3_env: S3Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    from pathlib import Path

    credentials = Path(str(tmp_path)) / "credentials"
    credentials.write_text(
        f"[team]\naws_access_key_id = {s3_env.access_key}\naws_secret_access_key = {s3_env.secret_key}\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    by_option = open_store(f"s3://{BUCKET}/prof", options={"endpoint": s3_env.url, "profile": "team"}, policy=QUICK)
    by_option.put(payload("data/a"), b"1")
    monkeypatch.setenv("AWS_PROFILE", "team")
    by_environment = open_store(f"s3://{BUCKET}/prof", options={"endpoint": s3_env.url}, policy=QUICK)
    assert set(listed(by_environment)) == {"data/a"}


def test_an_unknown_profile_is_a_config_error(s3_env: S3Endpoint) -> None:
    from bayou.core.errors import ConfigInvalid

    with pytest.raises(ConfigInvalid) as caught:
        open_store("s3://bucket", options={"endpoint": s3_env.url, "profile": "nobody"})
    assert "nobody" in caught.value.message


def test_plain_keys_never_import_boto3() -> None:
    import subprocess

    code = (
        "import os, sys; os.environ.update(AWS_ACCESS_KEY_ID='a', AWS_SECRET_ACCESS_KEY='b');"
        "from bayou.objectstore import open_store; open_store('s3://b/p', options={'endpoint': 'http://127.0.0.1:9'});"
        "bad = {'boto3', 'pyarrow', 'pandas', 'pyspark'} & set(sys.modules); print(sorted(bad)); sys.exit(bool(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_retry_policy_gives_up_sooner_on_a_store_that_was_never_reached() -> None:
    policy = RetryPolicy()
    error = CannotConnect("refused")
    assert not policy.should_retry(error, policy.first_contact_attempts, contacted=False)
    assert policy.should_retry(error, policy.first_contact_attempts, contacted=True)
