"""Requests to S3 that are signed in their headers (AWS Signature Version 4).

obstore signs addresses only, which take longer to make, and a server longer to take apart, and which say nothing of the
bytes. Here the SHA-256 of what is sent is part of what is signed: these headers are good for no other content.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from datetime import UTC, datetime
from hashlib import sha256
from hmac import digest as hmac_digest
from typing import NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

from bayou.quick import dataclass
from bayou.store.credentials import Keys

_NOTHING = sha256(b"").hexdigest()


class Signed(NamedTuple):
    """Where a request goes, and the headers that authorise it."""

    address: str
    headers: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where a bucket is: the scheme and host of its addresses, what stands before a key, and its region."""

    origin: str
    before: str
    region: str

    @classmethod
    def of(cls, address: str, key: str) -> Bucket:
        """Read it off an address that was signed for a key of plain characters; `ValueError` if it is none."""
        parts = urlsplit(address)
        scope = "".join(parse_qs(parts.query).get("X-Amz-Credential", ())).split("/")[-4:]
        if not parts.path.endswith(f"/{key}") or scope[2:] != ["s3", "aws4_request"]:
            raise ValueError("not a signed address of that key")
        return cls(f"{parts.scheme}://{parts.netloc}", parts.path.removesuffix(key), scope[1])

    @property
    def host(self) -> str:
        return self.origin.partition("://")[2]


@dataclass(frozen=True, slots=True)
class Signature:
    """Signs requests to one bucket, as of one moment: a store takes them for a quarter of an hour."""

    bucket: Bucket
    stamp: str
    scope: str
    keys: Keys
    secret: bytes = field(repr=False)

    @classmethod
    def at(cls, bucket: Bucket, keys: Keys, now: datetime | None = None) -> Signature:
        stamp = f"{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        scope = f"{stamp[:8]}/{bucket.region}/s3/aws4_request"
        secret = f"AWS4{keys.secret_access_key}".encode()
        for part in scope.split("/"):
            secret = hmac_digest(secret, part.encode(), "sha256")
        return cls(bucket, stamp, scope, keys, secret)

    def sign(self, method: str, requests: Iterable[tuple[str, bytes]]) -> list[Signed]:
        """Return each request, of a key and the bytes that are sent, as it may be made once or more."""
        bucket, host, stamp = self.bucket, self.bucket.host, self.stamp
        dated = {"x-amz-date": stamp} | ({"x-amz-security-token": self.keys.token} if self.keys.token else {})
        names = ";".join(["host", "x-amz-content-sha256", *dated])
        fixed = "".join(f"{name}:{value}\n" for name, value in dated.items()) + f"\n{names}\n"
        told = "".join(f"{name}: {value}\r\n" for name, value in dated.items())
        told += f"Authorization: AWS4-HMAC-SHA256 Credential={self.keys.access_key_id}/{self.scope}, "
        told += f"SignedHeaders={names}, Signature="
        begin, origin = f"AWS4-HMAC-SHA256\n{stamp}\n{self.scope}\n", bucket.origin
        signed: list[Signed] = []
        for key, body in requests:
            target = f"{bucket.before}{quote(key, safe='/')}"
            proof = sha256(body).hexdigest() if body else _NOTHING
            lines = f"{method}\n{target}\n\nhost:{host}\nx-amz-content-sha256:{proof}\n{fixed}{proof}"
            text = f"{begin}{sha256(lines.encode()).hexdigest()}"
            signature = hmac_digest(self.secret, text.encode(), "sha256").hex()
            signed.append(Signed(f"{origin}{target}", f"x-amz-content-sha256: {proof}\r\n{told}{signature}\r\n"))
        return signed
