"""Listings that cope with any key.

obstore parses keys as paths, and one key with an empty segment, a `.` or a control character fails its whole page.
Then these take over: boto3 for S3, the XML API for GCS. They are slower, and hardly ever needed.
"""

from __future__ import annotations

import importlib
import json
import os
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from bayou.errors import BadAnswer, BayouError, CannotConnect, CredentialsMissing, TimedOut
from bayou.store.credentials import GCS_RENEWAL, BotoCredentials, adc_file, aws_renewal
from bayou.store.failure import Request, from_status
from bayou.store.transport import ObjectMeta

_PAGE = 1000
_GOOGLE_TOKENS = "https://oauth2.googleapis.com/token"


def s3(
    bucket: str, place: str, options: Mapping[str, str], credentials: BotoCredentials | None
) -> Callable[[str, str | None, float], Iterator[list[ObjectMeta]]]:
    """Return a listing of an S3 bucket by boto3, with the same credentials as the other requests."""

    def pages(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        import boto3.session  # noqa: PLC0415
        import botocore.config  # noqa: PLC0415
        import botocore.exceptions as boto  # noqa: PLC0415

        session = credentials.session if credentials else boto3.session.Session()
        anonymous = options.get("skip_signature", "").lower() == "true"
        config = botocore.config.Config(
            retries={"total_max_attempts": 1},
            connect_timeout=min(5.0, timeout),
            read_timeout=timeout,
            s3={"addressing_style": "path"},
            **({"signature_version": botocore.UNSIGNED} if anonymous else {}),
        )
        client = session.client(
            "s3",
            region_name=options.get("region") or session.region_name or "us-east-1",
            endpoint_url=options.get("endpoint"),
            config=config,
        )
        arguments: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxKeys": _PAGE}
        if after is not None:
            arguments["StartAfter"] = after
        try:
            for page in client.get_paginator("list_objects_v2").paginate(**arguments):
                if "IsTruncated" not in page:  # in every listing, and in no web page
                    raise BadAnswer(
                        f"the answer to LIST {prefix} on {place} is not a listing", hint="check the endpoint"
                    )
                found = [
                    ObjectMeta(
                        row["Key"], row["Size"], row.get("ETag"), None, round(row["LastModified"].timestamp() * 1000)
                    )
                    for row in page.get("Contents", ())
                ]
                yield found
        except (boto.BotoCoreError, boto.ClientError) as error:
            raise _from_boto(error, Request("LIST", prefix, place, aws_renewal(options.get("profile")))) from None
        finally:
            client.close()

    return pages


def _from_boto(error: Exception, request: Request) -> BayouError:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
        told = answer.get("Error", {})
        body = f"<Code>{told.get('Code', '')}</Code><Message>{told.get('Message', '')}</Message>"
        return from_status(status, body, request)
    if type(error).__name__ == "ResponseParserError":
        return BadAnswer(f"the answer to {request} on {request.place} is not a listing", hint="check the endpoint")
    if "timeout" in type(error).__name__.lower():
        return TimedOut(f"no answer in time to {request} on {request.place}")
    if "credential" in str(error).lower():
        return CredentialsMissing(f"no credentials for {request.place}", hint=request.renewal.missing)
    return CannotConnect(f"cannot connect to {request.place}", hint="check the endpoint and the network")


def gcs(
    bucket: str, place: str, options: Mapping[str, str]
) -> Callable[[str, str | None, float], Iterator[list[ObjectMeta]]]:
    """Return a listing of a GCS bucket by its XML API."""

    def pages(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        request = Request("LIST", prefix, place, GCS_RENEWAL)
        base, headers = _google(options, timeout)
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix, "max-keys": str(_PAGE)}
        if after is not None:
            query["start-after"] = after
        while True:
            address = f"{base.rstrip('/')}/{urllib.parse.quote(bucket)}?{urllib.parse.urlencode(query)}"
            rows, token = _read_page(
                _fetch(urllib.request.Request(address, headers=headers), request, timeout), request
            )
            yield rows
            if token is None:
                return
            query["continuation-token"] = token
            query.pop("start-after", None)

    return pages


def _fetch(request: urllib.request.Request, about: Request, timeout: float) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        raise from_status(error.code, error.read().decode(errors="replace"), about, reason=str(error.reason)) from None
    except TimeoutError:
        raise TimedOut(f"no answer in time to {about} on {about.place}") from None
    except OSError:
        raise CannotConnect(f"cannot connect to {about.place}", hint="check the endpoint and the network") from None


def _read_page(body: bytes, about: Request) -> tuple[list[ObjectMeta], str | None]:
    try:
        root = ElementTree.fromstring(body)
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
        if root.tag != f"{space}ListBucketResult":
            raise BadAnswer(f"the answer to {about} is not a listing")
        text = {child.tag.removeprefix(space): child.text or "" for child in root}
        decode: Callable[[str], str] = urllib.parse.unquote if text.get("EncodingType") == "url" else str
        rows = [_row({cell.tag.removeprefix(space): cell.text or "" for cell in row}, decode)
                for row in root.findall(f"{space}Contents")]  # fmt: skip
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise BadAnswer(f"the answer to {about} is not a listing: {error}") from None
    return rows, text.get("NextContinuationToken") if text.get("IsTruncated") == "true" else None


def _row(cells: Mapping[str, str], decode: Callable[[str], str]) -> ObjectMeta:
    modified = datetime.fromisoformat(cells["LastModified"].replace("Z", "+00:00"))
    return ObjectMeta(
        decode(cells["Key"]),
        int(cells["Size"]),
        cells.get("ETag"),
        cells.get("Generation"),
        round(modified.timestamp() * 1000),
    )


def _google(options: Mapping[str, str], timeout: float) -> tuple[str, dict[str, str]]:
    """Return the base address and the headers that authorise a request, from the same places as obstore."""
    base = options.get("endpoint") or "https://storage.googleapis.com"
    if options.get("skip_signature", "").lower() == "true":
        return base, {}
    if token := os.environ.get("GOOGLE_BEARER_TOKEN"):
        return base, {"Authorization": f"Bearer {token}"}
    key = _google_key()
    base = options.get("endpoint") or key.get("gcs_base_url") or base
    if key.get("disable_oauth"):
        return base, {}
    if key.get("type") == "authorized_user":
        form = {name: key[name] for name in ("client_id", "client_secret", "refresh_token")}
        return base, {"Authorization": f"Bearer {_token(form | {'grant_type': 'refresh_token'}, timeout)}"}
    try:
        auth = importlib.import_module("google.auth")
        transport = importlib.import_module("google.auth.transport.requests")
    except ImportError:
        raise CredentialsMissing(
            "a listing with odd keys needs Google credentials that this installation cannot make by itself",
            hint="pip install google-auth requests, or sign in with: gcloud auth application-default login",
        ) from None
    credentials, _ = auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_only"])
    credentials.refresh(transport.Request())
    return base, {"Authorization": f"Bearer {credentials.token}"}


def _google_key() -> dict[str, Any]:
    if text := os.environ.get("GOOGLE_SERVICE_ACCOUNT_KEY"):
        return dict(json.loads(text))
    names = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")
    path = next((Path(os.environ[name]) for name in names if name in os.environ), adc_file())
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _token(form: Mapping[str, str], timeout: float) -> str:
    request = Request("POST", "token", "Google's token service", GCS_RENEWAL)
    body = _fetch(urllib.request.Request(_GOOGLE_TOKENS, urllib.parse.urlencode(form).encode()), request, timeout)
    try:
        return str(json.loads(body)["access_token"])
    except (ValueError, KeyError):
        raise BadAnswer("Google's token service gave no token", hint=GCS_RENEWAL.expired) from None
