"""Many small objects go the quick way only where a signature is all that they need."""

from __future__ import annotations

import pytest

from bayou.store.open import _needs_only_a_signature

PLAIN = ["region", "endpoint", "profile", "virtual_hosted_style_request", "disable_bulk_delete"]
MORE = ["skip_signature", "request_payer", "sse_kms_key_id", "server_side_encryption", "s3_express", "anything_new"]
VARIABLES = [
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_REQUEST_PAYER",
    "AWS_SKIP_SIGNATURE",
    "AWS_S3_EXPRESS",
    "AWS_PROXY_URL",
    "AWS_ALLOW_INVALID_CERTIFICATES",
    "AWS_DEFAULT_CONTENT_TYPE",
]
HARMLESS = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_PROFILE"]
PROXIES = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]


@pytest.fixture(autouse=True)
def no_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said about where no proxy is needed."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)


def test_options_that_say_where_and_who_need_no_more_than_a_signature() -> None:
    assert _needs_only_a_signature({})
    assert _needs_only_a_signature(dict.fromkeys(PLAIN, "x"))


@pytest.mark.parametrize("option", MORE)
def test_options_that_say_how_are_not(option: str) -> None:
    assert not _needs_only_a_signature({"region": "x", option: "true"})


def test_credentials_in_the_environment_need_no_more_than_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HARMLESS:
        monkeypatch.setenv(name, "x")
    assert _needs_only_a_signature({})


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_that_obstore_takes_for_such_options_are_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert not _needs_only_a_signature({})


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_is_asked_by_obstore_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "")
    assert _needs_only_a_signature({})
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert not _needs_only_a_signature({})
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    assert not _needs_only_a_signature({}), "who knows what that means"


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_a_proxy_that_is_for_nobody_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv(name, "*")
    assert _needs_only_a_signature({})
