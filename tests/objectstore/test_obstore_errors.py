"""Every failure that a store can have becomes one error of ours, in one short line, without a secret."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from obstore import exceptions as obs

from bayou.core import errors
from bayou.objectstore.backends.obstore_errors import Renewal, Request, UnparsableKey, from_status, one_line, translate

RENEWAL = Renewal(missing="sign in with: login", expired="renew with: login")
GET = Request("GET", "p/data/a", "s3://bucket", RENEWAL)
LIST = Request("LIST", "p/", "s3://bucket", RENEWAL)
HEAD = Request("HEAD", "p/data/a", "s3://bucket", RENEWAL)
HUSH = "hush4711"


def xml(code: str, message: str = "told") -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


def answered(status: int, body: str, reason: str = "Reason") -> str:
    """Return the text of an error as obstore makes it."""
    return (
        f"Generic S3 error: Error performing GET http://h/b/k in 1.2ms - Server returned non-2xx status code: "
        f'{status} {reason}: {body}\n\nDebug source:\nGeneric {{\n    store: "S3", secret: "{HUSH}" }}'
    )


def failed(kind: str, source: str = "") -> str:
    """Return the text of an error without an answer."""
    return (
        "Generic S3 error: Error performing GET http://h/b/k in 1.2ms - HTTP error: error sending request\n\n"
        f'Debug source:\nGeneric {{ source: HttpError {{\n    kind: {kind}, source: "{source}" }} }}'
    )


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, xml("ExpiredToken"), errors.CredentialsExpired),
        (400, xml("TokenRefreshRequired"), errors.CredentialsExpired),
        (403, xml("RequestExpired"), errors.CredentialsExpired),
        (403, xml("AccessDenied", "Request has expired"), errors.CredentialsExpired),
        (401, "", errors.CredentialsExpired),
        (401, xml("AuthenticationRequired"), errors.CredentialsExpired),
        (400, xml("AuthorizationHeaderMalformed", "expecting 'eu-west-1'"), errors.WrongRegion),
        (301, xml("PermanentRedirect"), errors.WrongRegion),
        (307, "", errors.WrongRegion),
        (404, xml("NoSuchKey"), errors.NotFound),
        (404, xml("BlobNotFound"), errors.NotFound),
        (404, xml("NoSuchBucket"), errors.NoSuchBucket),
        (404, xml("ContainerNotFound"), errors.NoSuchBucket),
        (404, xml("SomethingElse"), errors.BadAnswer),
        (404, "<html>not found</html>", errors.BadAnswer),
        (404, "", errors.BadAnswer),
        (412, xml("PreconditionFailed"), errors.PreconditionFailed),
        (412, "", errors.PreconditionFailed),
        (304, "", errors.PreconditionFailed),
        (409, xml("BlobAlreadyExists"), errors.AlreadyExists),
        (409, xml("ConditionalRequestConflict"), errors.Unavailable),
        (409, xml("OperationAborted"), errors.Unavailable),
        (403, xml("InvalidAccessKeyId"), errors.AccessDenied),
        (403, xml("SignatureDoesNotMatch"), errors.AccessDenied),
        (403, xml("RequestTimeTooSkewed"), errors.AccessDenied),
        (403, xml("AccessDenied"), errors.AccessDenied),
        (403, "", errors.AccessDenied),
        (408, "", errors.Unavailable),
        (425, "", errors.Unavailable),
        (429, "", errors.Unavailable),
        (500, xml("InternalError"), errors.Unavailable),
        (502, "<html>bad gateway</html>", errors.Unavailable),
        (503, xml("SlowDown"), errors.Unavailable),
        (400, xml("RequestTimeout"), errors.Unavailable),
        (400, xml("IncompleteBody"), errors.Unavailable),
        (400, xml("BadDigest"), errors.Rejected),
        (503, "<html>the cache has expired</html>", errors.Unavailable),
        (504, "", errors.Unavailable),
        (599, "", errors.Unavailable),
        (501, xml("NotImplemented"), errors.Rejected),
        (505, "", errors.Rejected),
        (400, xml("InvalidArgument"), errors.Rejected),
        (400, xml("KeyTooLongError"), errors.Rejected),
        (405, xml("MethodNotAllowed"), errors.Rejected),
        (411, "", errors.Rejected),
        (416, xml("InvalidRange"), errors.Rejected),
    ],
)
def test_an_answer_becomes_the_error_that_it_means(status: int, body: str, expected: type[errors.StoreError]) -> None:
    for found in (from_status(status, body, GET), translate(obs.GenericError(answered(status, body)), GET)):
        assert type(found) is expected
        assert isinstance(found, errors.StoreError)
        assert "\n" not in found.message
        assert HUSH not in found.message
        assert "Debug source" not in found.message


def test_the_hint_of_a_refusal_sends_to_no_command_that_is_refused_as_well() -> None:
    assert "bayou " not in (from_status(403, xml("AccessDenied"), GET).hint or "")


def test_a_404_to_head_has_no_body_to_tell_more() -> None:
    assert type(from_status(404, "", HEAD)) is errors.NotFound
    assert type(from_status(404, "<html>proxy</html>", HEAD)) is errors.BadAnswer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("Object at location p/x not found: No data in memory found."), errors.NotFound),
        (
            FileNotFoundError("/var/run/secrets/token: No such file or directory (os error 2)"),
            errors.CredentialsMissing,
        ),
        (obs.AlreadyExistsError("Object at location p/x already exists"), errors.AlreadyExists),
        (obs.PreconditionError("Request precondition failure for path p/x"), errors.PreconditionFailed),
        (obs.PermissionDeniedError("refused"), errors.AccessDenied),
        (obs.UnauthenticatedError("who are you"), errors.CredentialsExpired),
        (obs.GenericError(failed("Timeout")), errors.TimedOut),
        (obs.GenericError(failed("Request", "TimedOut")), errors.TimedOut),
        (obs.GenericError(failed("Connect", "ConnectionRefused")), errors.CannotConnect),
        (obs.GenericError(failed("Connect", "dns error")), errors.CannotConnect),
        (obs.GenericError(failed("Connect", "invalid peer certificate")), errors.CannotConnect),
        (obs.GenericError("tcp connect error: unreachable"), errors.CannotConnect),
        (obs.GenericError("Received redirect without LOCATION"), errors.WrongRegion),
        (obs.GenericError("Got invalid list response: unexpected end"), errors.BadAnswer),
        (obs.GenericError("error decoding: missing field `Blobs`"), errors.BadAnswer),
        (obs.GenericError(failed("Interrupted")), errors.Unavailable),
        (obs.GenericError("connection reset by peer"), errors.Unavailable),
        (obs.GenericError("broken pipe"), errors.Unavailable),
        (obs.GenericError("error reading request or response body"), errors.Unavailable),
        (obs.GenericError("GCP credential error: Unable to decode service account file"), errors.CredentialsMissing),
        (obs.GenericError("Generic AwsLcCryptoProvider error: Invalid RSA key"), errors.CredentialsMissing),
        (obs.GenericError("could not get a token from IMDS"), errors.CredentialsMissing),
        (ValueError("who knows"), errors.Rejected),
        (OSError("Generic Config error: failed to parse"), errors.Rejected),
    ],
)
def test_a_failure_without_an_answer_becomes_the_error_that_it_means(
    error: Exception, expected: type[errors.StoreError]
) -> None:
    found = translate(error, GET)
    assert type(found) is expected
    assert "\n" not in str(found)
    assert expected in (errors.NotFound, errors.AlreadyExists, errors.PreconditionFailed) or found.hint


@pytest.mark.parametrize(
    "text",
    [
        'Error parsing Path "p/a//b": Path "p/a//b" contained empty path segment',
        "Encountered illegal character sequence in path: \x01",
    ],
)
def test_a_key_that_obstore_cannot_express_is_no_error_of_the_store(text: str) -> None:
    assert isinstance(translate(obs.GenericError(text), LIST), UnparsableKey)
    body = f"<p>{text}</p>"
    assert isinstance(translate(obs.GenericError(answered(403, body)), LIST), errors.AccessDenied)


@pytest.mark.parametrize(
    ("error", "retryable", "ambiguous"),
    [
        (errors.NotFound, False, False),
        (errors.PreconditionFailed, False, False),
        (errors.AccessDenied, False, False),
        (errors.Rejected, False, False),
        (errors.CannotConnect, True, False),
        (errors.TimedOut, True, True),
        (errors.Unavailable, True, True),
        (errors.BadAnswer, True, True),
    ],
)
def test_what_may_be_tried_again_and_what_may_have_taken_effect(
    error: type[errors.StoreError], retryable: bool, ambiguous: bool
) -> None:
    assert (error.retryable, error.ambiguous) == (retryable, ambiguous)


def test_a_region_that_the_answer_names_is_named_in_the_hint() -> None:
    found = from_status(301, "<Error><Code>PermanentRedirect</Code><Region>eu-north-1</Region></Error>", GET)
    assert "eu-north-1" in str(found)
    assert "region=eu-north-1" in str(found.hint)


def test_the_request_id_is_kept_for_whoever_has_to_ask_the_provider() -> None:
    found = from_status(403, xml("AccessDenied").replace("</Error>", "<RequestId>REQ-42</RequestId></Error>"), GET)
    assert "[request REQ-42]" in str(found)


@pytest.mark.parametrize(
    "body",
    [
        "<Error><Code>Evil\n\x1b[31mred</Code></Error>",
        "<Error><Code>X</Code><Message>a\r\nb\x07</Message></Error>",
        "<Error><Code>X</Code><RequestId>a\nb\x1b]0;title\x07</RequestId></Error>",
        "x" * 100_000,
        "\u202eright to left\u200b",
    ],
)
def test_what_a_stranger_writes_cannot_move_the_cursor(body: str) -> None:
    found = from_status(403, body, GET, reason="Forbidden\x1b[2J")
    assert found.message.isprintable()
    assert len(found.message) < 600


@pytest.mark.parametrize(
    "piece", ["<script", "<", "<style>", "secret", "x-amz-", "token=", "&lt;", "://", "-----BEGIN"]
)
def test_a_long_answer_is_read_in_no_time(piece: str) -> None:
    body = piece * (2_000_000 // len(piece))
    used = time.process_time()
    found = translate(obs.GenericError(answered(403, body)), GET)
    # Processor time, not the wall's: what is linear takes a hundredth of this, what is quadratic hours.
    assert time.process_time() - used < 10
    assert isinstance(found, errors.AccessDenied)


@pytest.mark.parametrize(
    "text",
    [
        f"aws_secret_access_key={HUSH}",
        f"secret_access_key = '{HUSH} and more {HUSH}'",
        f'{{"client_secret": "{HUSH} {HUSH}"}}',
        f"SecretAccessKey: {HUSH}",
        f"X-Amz-Signature={HUSH}&X-Amz-Date=1",
        f"x-amz-security-token: {HUSH}",
        f"Authorization: Bearer {HUSH}",
        f"Authorization: Basic {HUSH}==",
        f"Authorization: SharedKey account:{HUSH}",
        f"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/2026, SignedHeaders=host, Signature={HUSH}",
        f"got Bearer {HUSH}, which is no good",
        f"?sv=2020&sig={HUSH}&se=2030",
        f"AccountKey={HUSH};EndpointSuffix=x",
        f"refresh_token={HUSH}",
        f"access_token: {HUSH}",
        f"session_token={HUSH}",
        f"password={HUSH}",
        f"error: token={HUSH}",
        f"https://user:{HUSH}@host/path",
        f"-----BEGIN PRIVATE KEY-----\n{HUSH}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{HUSH}",
        f"<b>secret</b>={HUSH}",
        f"sec\x00ret={HUSH}",
        f"secret&#61;{HUSH}",
        f"api_key={HUSH}",
    ],
)
def test_no_secret_is_shown(text: str) -> None:
    assert HUSH not in one_line(text)
    assert HUSH not in str(from_status(403, f"before {text} after", GET))
    assert HUSH not in str(translate(obs.GenericError(text), GET))


def test_what_is_no_secret_is_shown() -> None:
    for text in ("Access Denied", "the bucket policy forbids it", "key=data/a", "assign=1", "not a token in sight"):
        assert one_line(text) == text
    assert one_line("<h1>Go\n  away</h1><script>alert(1)</script>") == "Go away"


names = st.sampled_from(
    ["secret", "aws_secret_access_key", "X-Amz-Signature", "token", "Password", "sig", "account_key"]
)
separators = st.sampled_from(["=", ": ", " = ", "='", '": "'])


@given(before=st.text(), name=names, separator=separators, after=st.text())
@example("", "secret", "=", "")
def test_a_labelled_secret_is_never_shown_whatever_is_around_it(
    before: str, name: str, separator: str, after: str
) -> None:
    assert HUSH not in one_line(f"{before} {name}{separator}{HUSH} {after}")


@given(st.text(max_size=2_000))
@example("x" * 201)
@example("…" * 300)
def test_a_line_is_one_line_and_short(text: str) -> None:
    line = one_line(text)
    assert len(line) <= 200
    assert line.isprintable()


@given(status=st.integers(100, 599), body=st.text(max_size=500), reason=st.text(max_size=50))
def test_any_answer_becomes_one_line_and_only_the_stores_own_word_means_absent(
    status: int, body: str, reason: str
) -> None:
    found = from_status(status, body, GET, reason=reason)
    assert isinstance(found, errors.StoreError)
    assert found.message.isprintable()
    assert len(found.message) < 700
    assert not isinstance(found, errors.NotFound) or "NoSuchKey" in body
