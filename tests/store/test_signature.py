"""Signatures of requests to S3 are those that botocore makes, whatever the key, the bytes and the credentials."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import S3Store

from bayou.store.credentials import Keys
from bayou.store.signature import Bucket, Signature

NOW = datetime(2026, 11, 17, 9, 8, 7, tzinfo=UTC)
KEYS = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and "/" not in name
)


def reference(method: str, address: str, body: bytes, keys: Keys, region: str) -> dict[str, str]:
    """Sign by botocore, at the same moment."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    class Then(S3SigV4Auth):
        def add_auth(self, request: Any) -> None:
            request.context["timestamp"] = f"{NOW:%Y%m%dT%H%M%SZ}"
            request.context["payload_signing_enabled"] = True
            self._modify_request_before_signing(request)
            text = self.string_to_sign(request, self.canonical_request(request))
            self._inject_signature_to_request(request, self.signature(text, request))

    request = AWSRequest(method, address, data=body)
    Then(Credentials(*keys), "s3", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def headers_of(text: str) -> dict[str, str]:
    assert text.endswith("\r\n")
    pairs = [line.split(": ", 1) for line in text.removesuffix("\r\n").split("\r\n")]
    return {name.lower(): value for name, value in pairs}


@given(
    st.lists(NAMES, min_size=1, max_size=4).map("/".join),
    st.binary(max_size=100),
    st.sampled_from(["PUT", "GET"]),
    st.sampled_from([None, "a/token+of=some session=="]),
    st.sampled_from(["us-east-1", "eu-central-2"]),
    st.sampled_from(["/bucket/", "/", "/a/b/"]),
)
def test_a_signature_is_botocores(
    key: str, body: bytes, method: str, token: str | None, region: str, before: str
) -> None:
    keys = KEYS._replace(token=token)
    signature = Signature.at(Bucket("http://127.0.0.1:8333", before, region), keys, NOW)
    (signed,) = signature.sign(method, [(key, body)])
    expected = reference(method, signed.address, body, keys, region)
    assert headers_of(signed.headers) == {name: expected[name] for name in headers_of(signed.headers)}
    assert ("x-amz-security-token" in headers_of(signed.headers)) == (token is not None)


def test_each_of_many_is_signed_as_if_it_were_alone() -> None:
    signature = Signature.at(Bucket("http://127.0.0.1:8333", "/b/", "us-east-1"), KEYS, NOW)
    requests = [("a", b"1"), ("b", b""), ("a", b"2")]
    assert signature.sign("PUT", requests) == [one for each in requests for one in signature.sign("PUT", [each])]


@pytest.mark.parametrize("key", ["data/a b/~x/ä+%", "x"])
@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "http://127.0.0.1:8333"},
        {"endpoint": "http://127.0.0.1:8333/below"},
        {"endpoint": "http://bucket.localhost:8333", "virtual_hosted_style_request": "true"},
        {},
        {"virtual_hosted_style_request": "true"},
    ],
)
def test_addresses_are_obstores(options: dict[str, str], key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    config: Any = {"region": "eu-west-1", "access_key_id": "id", "secret_access_key": "secret", **options}
    store = S3Store("bucket", config=config, client_options={"allow_http": True})
    signed = [obstore.sign(store, "PUT", name, timedelta(minutes=1)) for name in ("x", key)]
    bucket = Bucket.of(signed[0], "x")
    assert bucket.region == "eu-west-1"
    (ours,) = Signature.at(bucket, KEYS, NOW).sign("PUT", [(key, b"")])
    assert ours.address == signed[1].partition("?")[0]


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/bucket/x",
        "http://127.0.0.1/bucket/y?X-Amz-Credential=id%2F20261117%2Fus-east-1%2Fs3%2Faws4_request",
        "http://127.0.0.1/bucket/x?X-Amz-Credential=id%2F20261117%2Fus-east-1%2Fiam%2Faws4_request",
        "http://127.0.0.1/bucket/x?X-Amz-Credential=id",
        "",
    ],
)
def test_what_is_no_signed_address_of_that_key_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not a signed address"):
        Bucket.of(address, "x")


def test_no_text_has_a_secret() -> None:
    keys = KEYS._replace(token="a-session")
    signature = Signature.at(Bucket("http://127.0.0.1:8333", "/b/", "us-east-1"), keys, NOW)
    for secret in (KEYS.secret_access_key, "a-session", signature.secret.hex(), repr(signature.secret)):
        assert secret not in repr(keys) + str(keys) + repr(signature) + str(signature)
