"""Listings of S3 and GCS that return any key and accept only a real listing.

obstore parses keys as paths: one key with an empty segment, a `.` or a control character fails its whole page. It also
takes any document without keys for the end of a listing. In these rare cases the transport uses the listings of this
module, which send the same request and parse the response themselves, and are slower.
"""

from __future__ import annotations

import json
import os
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bayou.core.clock import parse_ms
from bayou.core.errors import BadAnswer, CredentialsMissing
from bayou.core.extras import GCP, require
from bayou.objectstore.backends.credentials import (
    GCS_RENEWAL,
    BotoCredentials,
    StaticCredentials,
    aws_keys,
    aws_renewal,
    gcs_key,
)
from bayou.objectstore.backends.obstore_errors import ENDPOINT_HINT, Request, one_line
from bayou.objectstore.backends.plain_http import fetch
from bayou.objectstore.transport import ObjectMeta
from bayou.objectstore.url import is_own_host

_PAGE = 1000
_GOOGLE = "https://storage.googleapis.com"
GOOGLE_TOKEN_URL = "https://oauth2.googleapis.com/token"
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
GOOGLE_WRITE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

Listing = Callable[[str, str | None, float], Iterator[list[ObjectMeta]]]
Headers = Callable[[str], Mapping[str, str]]
"""The headers that authorise a GET of an address."""


def s3(
    bucket: str, target: str, options: Mapping[str, str], credentials: BotoCredentials | StaticCredentials | None
) -> Listing:
    """Return a listing of an S3 bucket, with the credentials and the address of the bucket's other requests."""
    region = options.get("region") or "us-east-1"
    virtual = options.get("virtual_hosted_style_request", "").lower() == "true"  # such an endpoint contains the bucket
    base = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    base = base or f"https://{f'{bucket}.' if virtual else ''}s3.{region}.amazonaws.com"
    renewal = aws_renewal(options.get("profile"))

    def pages(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        extra = {"x-amz-request-payer": "requester"} if options.get("request_payer", "").lower() == "true" else {}
        anonymous = options.get("skip_signature", "").lower() == "true"
        headers = (lambda _: extra) if anonymous else _signer(region, credentials, extra)
        request = Request("LIST", prefix, target, renewal)
        return _pages(base if virtual else f"{base.rstrip('/')}/{bucket}", headers, request, after, timeout)

    return pages


def gcs(bucket: str, target: str, options: Mapping[str, str]) -> Listing:
    """Return a listing of a GCS bucket, through its XML API."""

    def pages(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        base, headers = google_access(options, timeout)
        request = Request("LIST", prefix, target, GCS_RENEWAL)
        return _pages(f"{base.rstrip('/')}/{bucket}", lambda _: headers, request, after, timeout)

    return pages


def google_access(
    options: Mapping[str, str], timeout: float, scope: str = _GOOGLE_SCOPE
) -> tuple[str, Mapping[str, str]]:
    """Return the address of Google's storage, and the headers that authorise a request there.

    The credentials are those that obstore uses. The key file of a service account needs google-auth, which signs its
    tokens; no other kind of access does.
    """
    base = options.get("endpoint") or _GOOGLE
    if options.get("skip_signature", "").lower() == "true":
        return base, {}
    if token := os.environ.get("GOOGLE_BEARER_TOKEN"):
        return base, {"Authorization": f"Bearer {token}"}
    try:
        key = gcs_key()
        base = options.get("endpoint") or key.get("gcs_base_url") or _GOOGLE
        if key.get("disable_oauth"):
            return base, {}
        personal = key.get("type") == "authorized_user" or "private_key" in key
        if not (personal or is_own_host("gs", base)):
            # V26: what is left is the token of the machine, which goes to Google only.
            raise CredentialsMissing("the Google key that was found is not for this endpoint", hint=GCS_RENEWAL.missing)
        return base, {"Authorization": f"Bearer {_google_token(key, timeout, scope)}"}
    except (ValueError, KeyError):  # the error's text may quote the key
        raise CredentialsMissing("the Google key that was found cannot be used", hint=GCS_RENEWAL.missing) from None


def _google_token(key: Mapping[str, Any], timeout: float, scope: str) -> str:
    if key.get("type") == "authorized_user":
        form = {name: key[name] for name in ("client_id", "client_secret", "refresh_token")}
        body = urllib.parse.urlencode(form | {"grant_type": "refresh_token"}).encode()
        return _token_from(GOOGLE_TOKEN_URL, {}, "Google's token service", timeout, form=body)
    if "private_key" in key:
        return _self_signed(key, scope)
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    address = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    return _token_from(address, {"Metadata-Flavor": "Google"}, "Google's metadata server", min(5.0, timeout))


def _self_signed(key: Mapping[str, Any], scope: str) -> str:
    """Return a token that google-auth signs with the key of a service account, without a request."""
    require(GCP, "a listing of this bucket with a service account's key (it is empty or has unusual keys)")
    from google.oauth2.service_account import Credentials  # noqa: PLC0415  (an extra, and rarely needed)

    complete = {"token_uri": GOOGLE_TOKEN_URL, **key}
    signed = Credentials.from_service_account_info(complete, scopes=[scope], always_use_jwt_access=True)
    signed.refresh(None)
    return str(signed.token)


def _token_from(
    address: str, headers: Mapping[str, str], target: str, timeout: float, *, form: bytes | None = None
) -> str:
    body = fetch(address, headers, Request("GET", "a token", target, GCS_RENEWAL), timeout, form=form)
    try:
        return str(json.loads(body)["access_token"])
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(f"{target} gave no token", hint=GCS_RENEWAL.expired) from None


def _signer(region: str, credentials: BotoCredentials | StaticCredentials | None, extra: Mapping[str, str]) -> Headers:
    """Return a function that signs a request to S3; botocore does it, and is imported only here."""
    from botocore.auth import S3SigV4Auth  # noqa: PLC0415
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    from botocore.credentials import Credentials  # noqa: PLC0415

    keys: Any = Credentials(*aws_keys(credentials))

    def sign(address: str) -> Mapping[str, str]:
        request = AWSRequest("GET", address, headers=dict(extra))
        S3SigV4Auth(keys, "s3", region).add_auth(request)
        return dict(request.headers.items())

    return sign


def _pages(
    address: str, headers: Headers, about: Request, after: str | None, timeout: float
) -> Iterator[list[ObjectMeta]]:
    """Request one page after the other. Keys are requested as %XX, because XML cannot express all of them."""
    query = {"list-type": "2", "encoding-type": "url", "max-keys": str(_PAGE), "prefix": about.key}
    if after is not None:
        query["start-after"] = after
    while True:
        target = f"{address}?{urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote, safe='')}"
        rows, token = _read_page(fetch(target, headers(target), about, timeout), about)
        yield rows
        if token is None:
            return
        if token == query.get("continuation-token"):
            raise BadAnswer(f"{about.target} lists the same page again and again", hint=ENDPOINT_HINT)
        query["continuation-token"] = token
        query.pop("start-after", None)


def _read_page(body: bytes, about: Request) -> tuple[list[ObjectMeta], str | None]:
    """Return the rows of a page and the token of the next; raise `BadAnswer` if the body is not a listing."""
    try:
        text = body.decode()
        if "<!DOCTYPE" in text:  # no listing has a document type, whose entities could expand without bounds
            raise ValueError("a document type")
        root = ElementTree.fromstring(text)
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
        if root.tag != f"{space}ListBucketResult":
            raise ValueError("another document")
        head = {child.tag.removeprefix(space): child.text or "" for child in root}
        decode = _unquoted if head.get("EncodingType") == "url" else str
        more = {"true": True, "false": False}[head["IsTruncated"]]
        token = head["NextContinuationToken"] if more else None
        rows = [_row({cell.tag.removeprefix(space): cell.text or "" for cell in row}, decode)
                for row in root.findall(f"{space}Contents")]  # fmt: skip
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        why = one_line(str(error))
        raise BadAnswer(f"the answer to {about} on {about.target} is no listing: {why}", hint=ENDPOINT_HINT) from None
    return rows, token


def _row(cells: Mapping[str, str], decode: Callable[[str], str]) -> ObjectMeta:
    return ObjectMeta(
        decode(cells["Key"]),
        int(cells["Size"]),
        cells.get("ETag"),
        cells.get("Generation"),
        parse_ms(cells["LastModified"]),
    )


def _unquoted(key: str) -> str:
    """Decode a key: a plus sign is a space, and bytes that are not UTF-8 become surrogates."""
    return urllib.parse.unquote_plus(key, errors="surrogateescape")
