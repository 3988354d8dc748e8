"""Uploads in parts by S3's multipart protocol, which S3, servers like it and Google's XML API have. A `PartTransport`.

obstore hides the id of a multipart upload, so no later process could resume one; boto3 shows it. Bayou imports boto3
only here and for credentials, and here only for a file that is sent in parts. The client gets the address, the region,
the credentials and the certificates of the store's other requests, and nothing else: it retries nothing, since `Store`
does, and it follows no redirect (V26).
"""

from __future__ import annotations

import io
import os
import ssl
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bayou.core import activity
from bayou.core.clock import to_ms
from bayou.core.errors import BadAnswer, BayouError, NotFound, TimedOut, UploadGone
from bayou.objectstore.backends import credentials
from bayou.objectstore.backends.obstore_errors import (
    Renewal,
    Request,
    cannot_connect,
    connection_broke,
    from_status,
    no_answer,
    no_progress,
    unreadable_answer,
)
from bayou.objectstore.keys import content_type
from bayou.objectstore.transport import PutResult, UnfinishedUpload

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MIB = 1 << 20
_TIMEOUTS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""A client has one limit for each wait on its connection: for some bytes to leave, or to arrive."""

_GONE = frozenset({"NoSuchUpload", "InvalidPart", "InvalidPartOrder"})
_CONNECTIONS = 64
_NO_FILES = {"profile": None, "config_file": os.devnull, "credentials_file": os.devnull}
_ACCESS_S = 10.0
_TOKEN_S = 1800.0

Connect = Callable[[float], Any]
"""Make a boto3 client whose waits are limited to this many seconds."""


class BotoParts:
    """The multipart uploads of one bucket."""

    def __init__(
        self, bucket: str, target: str, address: str, connect: Connect, renewal: Renewal, extra: Mapping[str, Any]
    ) -> None:
        self._bucket = bucket
        self._target = target
        self._address = address
        self._connect = connect
        self._renewal = renewal
        self._extra = {name: value for name, value in extra.items() if name in ("RequestPayer",)}
        self._begin = dict(extra)
        self._clients: dict[float, Any] = {}
        self._lock = threading.Lock()

    @property
    def least_part(self) -> int:
        return 5 * _MIB

    @property
    def registered(self) -> bool:
        return True

    def begin(self, key: str, *, timeout: float) -> str:
        arguments = {"ContentType": content_type(key), **self._begin}
        return str(self._call("create_multipart_upload", "POST", key, timeout, arguments)["UploadId"])

    def put_part(self, key: str, upload: str, number: int, data: Buffer, *, timeout: float) -> str:
        body = _Body(bytes(data), time.monotonic() + timeout)
        arguments = {"UploadId": upload, "PartNumber": number, "Body": body, **self._extra}
        answer = self._call("upload_part", "PUT", key, timeout, arguments)
        tag = answer.get("ETag")
        if not tag:
            raise BadAnswer(f"the answer to a part of {key} on {self._target} has no ETag", hint="check the endpoint")
        return str(tag)

    def complete(self, key: str, upload: str, tags: Sequence[str], *, timeout: float) -> PutResult:
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        arguments = {"UploadId": upload, "MultipartUpload": {"Parts": parts}, **self._extra}
        answer = self._call("complete_multipart_upload", "POST", key, timeout, arguments)
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        etag = answer.get("ETag") or None  # some servers send none, some without its quotes
        if etag is not None and not etag.endswith('"'):
            etag = f'"{etag}"'
        return PutResult(etag, answer.get("VersionId") or headers.get("x-goog-generation"))

    def abort(self, key: str, upload: str, *, timeout: float) -> None:
        try:
            self._call("abort_multipart_upload", "DELETE", key, timeout, {"UploadId": upload, **self._extra})
        except (UploadGone, NotFound):
            return

    def unfinished(self, prefix: str, *, timeout: float) -> Iterator[Sequence[UnfinishedUpload]]:
        more: dict[str, str] = {}
        while True:
            page = self._call("list_multipart_uploads", "LIST", None, timeout, {"Prefix": prefix, **more})
            yield [
                UnfinishedUpload(found["Key"].removeprefix("/"), found["UploadId"], to_ms(found["Initiated"]))
                for found in page.get("Uploads", ())
            ]
            names = {"KeyMarker": page.get("NextKeyMarker"), "UploadIdMarker": page.get("NextUploadIdMarker")}
            following = {name: value for name, value in names.items() if value}
            if not page.get("IsTruncated") or following == more:
                return
            more = following

    def _call(self, name: str, verb: str, key: str | None, timeout: float, arguments: Mapping[str, Any]) -> Any:
        from botocore import exceptions as boto  # noqa: PLC0415

        about = Request(verb, key or "", self._target, self._renewal, self._address)
        named = {"Bucket": self._bucket, **({"Key": key} if key is not None else {})}
        try:
            return getattr(self._client(timeout), name)(**named, **arguments)
        except boto.ClientError as error:
            raise _translate(error.response, about) from None
        except TimeoutError:  # of `_Body`, while the request was signed
            raise TimedOut(f"{about} on {self._target} was not sent in time") from None
        except (boto.ReadTimeoutError, boto.ConnectTimeoutError):
            raise no_answer(about) from None
        except (boto.EndpointConnectionError, boto.ProxyConnectionError, boto.SSLError):
            raise cannot_connect(about) from None
        except (boto.HTTPClientError, boto.ConnectionError) as error:
            stalled = isinstance(error.kwargs.get("error"), TimeoutError)
            raise (no_progress(about) if stalled else connection_broke(about)) from None
        except boto.BotoCoreError:
            raise unreadable_answer(about) from None

    def _client(self, timeout: float) -> Any:
        limit = _TIMEOUTS[max(0, bisect_right(_TIMEOUTS, timeout) - 1)]
        with self._lock:  # boto3 makes clients one at a time
            if limit not in self._clients:
                self._clients[limit] = self._connect(limit)
            return self._clients[limit]


class _Body(io.BytesIO):
    """The bytes of a part. Reading fails once the time of the request is over, which ends the request.

    Once the request is signed, what is read is handed over to the system, which sends it.
    """

    sent = False

    def __init__(self, data: bytes, ends: float) -> None:
        super().__init__(data)
        self._ends = ends

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._ends:
            raise TimeoutError("the part took too long")
        data = super().read(size)
        if self.sent:
            activity.handed_over(len(data))
        return data


def s3_parts(
    bucket: str,
    config: Mapping[str, str],
    endpoint: str | None,
    provider: credentials.BotoCredentials | credentials.StaticCredentials | None,
    renewal: Renewal,
) -> BotoParts | None:
    """Return the parts of an S3 bucket with the settings of its obstore client; None for settings that boto3 lacks."""
    settings = _s3_settings(config)
    virtual = settings("virtual_hosted_style_request").lower() == "true"
    if bucket.endswith("--x-s3") or settings("s3_express").lower() == "true" or settings("checksum_algorithm"):
        return None
    if settings("sse_customer_key_base64") or settings("server_side_encryption") == "sse-c":
        return None
    address = endpoint or f"https://s3.{config['region']}.amazonaws.com"
    if virtual and endpoint is not None:
        scheme, _, host = endpoint.partition("://")
        if not host.startswith(f"{bucket}."):
            return None
        address = f"{scheme}://{host.removeprefix(f'{bucket}.')}"
    extra: dict[str, Any] = {}
    if settings("request_payer").lower() == "true":
        extra["RequestPayer"] = "requester"
    if kind := settings("server_side_encryption"):
        extra["ServerSideEncryption"] = kind
    if key_id := settings("sse_kms_key_id"):
        extra["SSEKMSKeyId"] = key_id
    if settings("sse_bucket_key_enabled").lower() == "true":
        extra["BucketKeyEnabled"] = True
    anonymous = settings("skip_signature").lower() == "true"

    def connect(timeout: float) -> Any:
        arguments = {
            "region_name": config["region"],
            "endpoint_url": address,
            "verify": False
            if settings("allow_invalid_certificates").lower() == "true"
            else certificates("AWS_CA_BUNDLE"),
        }
        style = "virtual" if virtual else "path"
        if isinstance(provider, credentials.BotoCredentials):
            return _prepared(provider.session, timeout, style, anonymous=False, arguments=arguments)
        if not anonymous:
            keys = credentials.aws_keys(provider)
            arguments |= {
                "aws_access_key_id": keys.access_key_id,
                "aws_secret_access_key": keys.secret_access_key,
                "aws_session_token": keys.token,
            }
        return _prepared(_plain_session(), timeout, style, anonymous=anonymous, arguments=arguments)

    return BotoParts(bucket, f"s3://{bucket}", address, connect, renewal, extra)


def google_parts(bucket: str, options: Mapping[str, str], renewal: Renewal) -> BotoParts | None:
    """Return the parts of a GCS bucket, through Google's XML API; None without a token for it.

    obstore knows sources of credentials that Bayou does not, and the key of a service account needs google-auth.
    """
    access = _GoogleAccess(options)
    try:
        storage, _ = access(_ACCESS_S)
    except BayouError:
        return None

    def connect(timeout: float) -> Any:
        address, _ = access(timeout)
        arguments = {"region_name": "auto", "endpoint_url": address.rstrip("/"), "verify": certificates()}
        client = _prepared(_plain_session(), timeout, "path", anonymous=True, arguments=arguments)

        def authorise(request: Any, **_: Any) -> None:
            for name, value in access(timeout)[1].items():
                request.headers[name] = value

        client.meta.events.register("before-send.s3", authorise)
        return client

    return BotoParts(bucket, f"gs://{bucket}", storage.rstrip("/"), connect, renewal, {})


class _GoogleAccess:
    """The address of Google's storage and the headers of a request; a token is valid for an hour."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._found: tuple[str, Mapping[str, str]] | None = None
        self._until = 0.0

    def __call__(self, timeout: float) -> tuple[str, Mapping[str, str]]:
        from bayou.objectstore.backends.strict_listing import GOOGLE_WRITE_SCOPE, google_access  # noqa: PLC0415

        with self._lock:
            if self._found is None or time.monotonic() > self._until:
                self._found = google_access(self._options, timeout, GOOGLE_WRITE_SCOPE)
                self._until = time.monotonic() + _TOKEN_S
            return self._found


def certificates(bundle: str | None = None) -> str | None:
    """Return the file of certificates to trust; None: boto3's own, where the system names none.

    `bundle` is the provider's own variable for it. If it is set, boto3 trusts the certificates in that file alone.
    """
    named = (bundle and os.environ.get(bundle)) or os.environ.get("SSL_CERT_FILE")
    return named or ssl.get_default_verify_paths().cafile


def _s3_settings(config: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that reads a setting where obstore finds it: the options, then the environment."""

    def setting(name: str) -> str:
        return config.get(name) or config.get(f"aws_{name}") or os.environ.get(f"AWS_{name.upper()}") or ""

    return setting


def _plain_session() -> Any:
    """Return a boto3 session that reads neither a profile nor a file: the store's own settings are complete."""
    import boto3.session  # noqa: PLC0415  (300 ms: only for a file that is sent in parts)
    import botocore.session  # noqa: PLC0415

    unset = {name: (None, None, default, None) for name, default in _NO_FILES.items()}
    core = botocore.session.Session(session_vars=unset)
    return boto3.session.Session(botocore_session=core)


def _prepared(session: Any, timeout: float, style: str, *, anonymous: bool, arguments: Mapping[str, Any]) -> Any:
    """Make a client that sends each request once, and neither waits for a "100 Continue" nor adds checksums."""
    from botocore import UNSIGNED  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.handlers import add_expect_header  # noqa: PLC0415

    config = Config(
        connect_timeout=min(5.0, timeout),
        read_timeout=timeout,
        retries={"total_max_attempts": 1},
        signature_version=UNSIGNED if anonymous else "s3v4",
        s3={"addressing_style": style},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=_CONNECTIONS,
        user_agent="bayou",
        ignore_configured_endpoint_urls=True,
    )
    client = session.client("s3", config=config, **arguments)
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3", _forbid_redirect)
    client.meta.events.register("before-send.s3", _mark_sent)
    return client


def _forbid_redirect(context: dict[str, Any], **_: Any) -> None:
    """Tell boto3 that a request was redirected before: it follows no second redirect, so it follows none (V26)."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _mark_sent(request: Any, **_: Any) -> None:
    """Note that a part is read to be sent, and no longer to be signed."""
    if isinstance(request.body, _Body):
        request.body.sent = True


def _translate(answer: Mapping[str, Any], about: Request) -> BayouError:
    """Translate an error response: boto3 has parsed its body to a code and a message."""
    error = answer.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 500)
    if code in _GONE:
        return UploadGone(f"the store no longer has the parts of {about.key}", hint="try again")
    # A body as the store sent it, so that one function decides what a response means.
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code and not code.isdigit() else message
    return from_status(status if status >= 300 else 500, body, about)
