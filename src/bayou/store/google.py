"""Access to Google Cloud Storage without obstore: from the same places, by the same means, as obstore has it.

A key file signs its own tokens, a user's refresh token is exchanged for one, and a machine of Google's asks its
metadata server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
import urllib.parse
from collections.abc import Mapping

from bayou.errors import BadAnswer, CredentialsMissing
from bayou.store.credentials import GCS_RENEWAL, gcs_key
from bayou.store.failure import Request
from bayou.store.fetch import fetch

_STORAGE = "https://storage.googleapis.com"
_TOKENS = "https://oauth2.googleapis.com/token"
_METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_VALID_S = 3600
_PEM = re.compile(r"-----BEGIN PRIVATE KEY-----(.+?)-----END PRIVATE KEY-----", re.DOTALL)
_SHA256_INFO = bytes.fromhex("3031300d060960864801650304020105000420")
"""What PKCS #1 puts before a SHA-256 digest."""


def access(options: Mapping[str, str], timeout: float) -> tuple[str, dict[str, str]]:
    """Return the base address, and the headers that authorise a request there."""
    base = options.get("endpoint") or _STORAGE
    if options.get("skip_signature", "").lower() == "true":
        return base, {}
    if token := os.environ.get("GOOGLE_BEARER_TOKEN"):
        return base, _bearer(token)
    try:
        key = gcs_key()
    except ValueError:
        raise _unusable() from None
    base = options.get("endpoint") or key.get("gcs_base_url") or _STORAGE
    if key.get("disable_oauth"):
        return base, {}
    try:
        if key.get("type") == "authorized_user":
            return base, _bearer(_exchanged(key, timeout))
        if "private_key" in key:
            return base, _bearer(self_signed(key, int(time.time())))
    except (KeyError, ValueError, IndexError):
        raise _unusable() from None
    return base, _bearer(_of_this_machine(timeout))


def self_signed(key: Mapping[str, str], now: int) -> str:
    """Return a token that a key file signs for itself (RS256), valid for an hour."""
    email = key["client_email"]
    header = {"alg": "RS256", "typ": "JWT", "kid": key["private_key_id"]}
    claims = {"iss": email, "sub": email, "scope": _SCOPE, "iat": now, "exp": now + _VALID_S}
    text = b".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
    modulus, exponent = _rsa(key["private_key"])
    size = (modulus.bit_length() + 7) // 8
    info = _SHA256_INFO + hashlib.sha256(text).digest()
    block = b"\x00\x01".ljust(size - len(info) - 1, b"\xff") + b"\x00" + info
    signature = pow(int.from_bytes(block, "big"), exponent, modulus).to_bytes(size, "big")
    return b".".join([text, _base64(signature)]).decode()


def _rsa(pem: str) -> tuple[int, int]:
    """Return modulus and private exponent of a PKCS #8 key: a sequence in an octet string in a sequence."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("not a private key")
    _version, _algorithm, wrapped = _der(_der(base64.b64decode("".join(found[1].split())))[0])
    _version, modulus, _public, exponent, *_primes = _der(_der(wrapped)[0])
    return int.from_bytes(modulus, "big"), int.from_bytes(exponent, "big")


def _der(data: bytes) -> list[bytes]:
    """Return the contents of the values that follow each other in DER."""
    values = []
    while data:
        length, start = data[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(data[2:start], "big")
        values.append(data[start : start + length])
        data = data[start + length :]
    return values


def _exchanged(key: Mapping[str, str], timeout: float) -> str:
    form = {name: key[name] for name in ("client_id", "client_secret", "refresh_token")}
    body = urllib.parse.urlencode(form | {"grant_type": "refresh_token"}).encode()
    return _token(_TOKENS, {}, "Google's token service", timeout, form=body)


def _of_this_machine(timeout: float) -> str:
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    return _token(
        f"http://{host}{_METADATA}", {"Metadata-Flavor": "Google"}, "Google's metadata server", min(5.0, timeout)
    )


def _token(address: str, headers: Mapping[str, str], place: str, timeout: float, *, form: bytes | None = None) -> str:
    body = fetch(address, headers, Request("GET", "a token", place, GCS_RENEWAL), timeout, form=form)
    try:
        return str(json.loads(body)["access_token"])
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(f"{place} gave no token", hint=GCS_RENEWAL.expired) from None


def _unusable() -> CredentialsMissing:
    return CredentialsMissing("the Google key that was found cannot be used", hint=GCS_RENEWAL.missing)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
