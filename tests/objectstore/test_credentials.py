"""Credentials of AWS by profile and role: bounded in time, and the same for requests that obstore does not send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayou.core.errors import CannotConnect, CredentialsExpired, CredentialsMissing
from bayou.objectstore import keys, open_store
from bayou.objectstore.backends import credentials, strict_listing
from bayou.objectstore.backends.credentials import BotoCredentials
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.s3 import S3Endpoint
from bayou_testing.server import LoopbackServer
from bayou_testing.wire import Request, Response, answer
from tests.objectstore.conftest import BUCKET, QUICK

ROLE = """
[profile team]
role_arn = arn:aws:iam::123456789012:role/team
source_profile = base
region = us-east-1
[profile base]
aws_access_key_id = a
aws_secret_access_key = b
"""
EMPTY = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    return path


def test_v12_a_sign_in_service_that_never_answers_is_not_waited_for(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(ROLE)
    monkeypatch.setattr(credentials, "BOTO_LIMITS", {"read_timeout": 0.2, "retries": {"total_max_attempts": 1}})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        store = open_store(
            "s3://bucket/p",
            options={"profile": "team", "endpoint": "http://127.0.0.1:9"},
            policy=RetryPolicy(attempts=1),
        )
        with pytest.raises(CannotConnect) as caught:
            store.get(keys.HEAD)
    assert "credentials" in caught.value.message
    assert caught.value.hint


class Refusing(LoopbackServer):
    def respond(self, request: Request) -> Response:
        return answer(
            403,
            b"<ErrorResponse><Error><Code>ExpiredToken</Code><Message>token expired</Message></Error></ErrorResponse>",
        )


def test_a_role_whose_session_has_expired_is_renewed_by_the_command_that_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(ROLE)
    with Refusing() as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        provider = BotoCredentials("team")
        with pytest.raises(CredentialsExpired) as caught:
            provider.fetch()
    assert "aws sso login --profile team" in str(caught.value.hint)
    assert isinstance(provider.failure, CredentialsExpired)


def test_a_profile_without_credentials_says_so(config: Path) -> None:
    config.write_text("[profile team]\nregion = us-east-1\n")
    with pytest.raises(CredentialsMissing):
        open_store("s3://bucket/p", options={"profile": "team"})


@pytest.mark.s3
def test_an_empty_store_is_listed_with_a_profile(
    s3_env: S3Endpoint, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(
        f"[profile team]\naws_access_key_id = {s3_env.access_key}\naws_secret_access_key = {s3_env.secret_key}\n"
    )
    for name in s3_env.env():
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"endpoint": s3_env.url, "profile": "team"}
    assert [*open_store(f"s3://{BUCKET}/nothing-here", options=options, policy=QUICK).list()] == []


class Recording(LoopbackServer):
    def __init__(self) -> None:
        self.requests: list[Request] = []
        super().__init__()

    def respond(self, request: Request) -> Response:
        self.requests.append(request)
        return answer(200, EMPTY)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    with Recording() as server:
        yield server


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "/bucket"),
        ({"virtual_hosted_style_request": "true"}, ""),
        ({"virtual_hosted_style_request": "false"}, "/bucket"),
    ],
)
def test_the_second_listing_goes_where_the_first_one_went(
    recording: Recording, options: dict[str, str], path: str
) -> None:
    everything = {"endpoint": recording.url, "region": "eu-north-1", **options}
    assert [*strict_listing.s3("bucket", "s3://bucket", everything, None)("p/", "p/a b+c", 5.0)] == [[]]
    (request,) = recording.requests
    assert request.path.removesuffix("/") == path
    assert request.query == {
        "list-type": "2",
        "encoding-type": "url",
        "max-keys": "1000",
        "prefix": "p/",
        "start-after": "p/a b+c",
    }
    authorization = request.headers["authorization"]
    assert "Credential=AKIATEST/" in authorization
    assert "/eu-north-1/s3/aws4_request" in authorization
    assert request.headers["x-amz-security-token"] == "session"
    assert "x-amz-request-payer" not in request.headers


def test_who_pays_for_a_listing_is_told(recording: Recording) -> None:
    options = {"endpoint": recording.url, "request_payer": "true"}
    [*strict_listing.s3("bucket", "s3://bucket", options, None)("p/", None, 5.0)]
    assert recording.requests[0].headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in recording.requests[0].headers["authorization"]


def test_anonymous_listings_are_not_signed(recording: Recording) -> None:
    options = {"endpoint": recording.url, "skip_signature": "true"}
    [*strict_listing.s3("bucket", "s3://bucket", options, None)("p/", None, 5.0)]
    assert "authorization" not in recording.requests[0].headers
