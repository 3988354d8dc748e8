"""An S3 endpoint as tests need it: where it is, its credentials, and signed requests without a client library."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPConnection
from urllib.parse import quote
from xml.etree import ElementTree

from bayou_testing.processes import ServerFailed

_TIMEOUT = 10.0


class S3Endpoint:
    """A server on a loopback port that speaks S3, and the key pair that may do everything there."""

    def __init__(self, host: str, port: int, access_key: str, secret_key: str, region: str = "us-east-1") -> None:
        self.host = host
        self.port = port
        self.access_key = access_key
        self.secret_key = secret_key
        self.region = region

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def env(self) -> dict[str, str]:
        """Return the environment in which any S3 client finds this server and nothing else."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, bytes]:
        """Send one signed request, and return status and body. `path` is `/bucket` or `/bucket/key`, not encoded."""
        status, _, answered = self.exchange(method, path, query=query, body=body)
        return status, answered

    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send one signed request with some unsigned headers, and return status, headers and body."""
        pairs = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in (query or {}).items())
        target, query_string = quote(path, safe="/-_.~"), "&".join(f"{k}={v}" for k, v in pairs)
        sent = {**(headers or {}), **self._signed(method, target, query_string, body)}
        connection = HTTPConnection(self.host, self.port, timeout=_TIMEOUT)
        try:
            connection.request(method, f"{target}?{query_string}" if query_string else target, body, sent)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def create_bucket(self, name: str) -> None:
        """Make a bucket; one that is there already will do."""
        status, body = self.request("PUT", f"/{name}")
        if status not in (200, 409):
            raise ServerFailed(f"bucket {name} could not be made: {status} {body.decode(errors='replace')}")

    def open_uploads(self, bucket: str) -> Sequence[str]:
        """Return the key of every multipart upload that was neither completed nor aborted."""
        status, body = self.request("GET", f"/{bucket}", query={"uploads": ""})
        if status != 200:
            raise ServerFailed(f"uploads of {bucket} could not be listed: {status} {body.decode(errors='replace')}")
        return [upload.findtext("{*}Key", "") for upload in ElementTree.fromstring(body).iterfind("{*}Upload")]

    def _signed(self, method: str, target: str, query_string: str, body: bytes) -> dict[str, str]:
        """Sign with AWS Signature Version 4: a digest of the request, under a key for this day, region and service."""
        now = datetime.now(UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": f"{self.host}:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": stamp}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = "\n".join([method, target, query_string, lines, names, digest])
        scope = f"{day}/{self.region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"Credential={self.access_key}/{scope}"
        headers["authorization"] = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
        return headers
