"""Requests to Google that obstore does not send carry the same credentials as those that it does."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from bayou.core.errors import BadAnswer, CredentialsMissing, PackageMissing, StoreError
from bayou.objectstore import open_store
from bayou.objectstore.backends import strict_listing
from bayou.objectstore.backends.strict_listing import google_access
from bayou_testing.gcs import GcsServer
from bayou_testing.server import LoopbackServer
from bayou_testing.wire import Request, Response, answer
from tests.objectstore.conftest import QUICK

pytestmark = pytest.mark.gcs


def prime(bits: int, rng: random.Random) -> int:
    """Find a number that is prime as far as Fermat can tell: good enough to check signatures with."""
    small = [number for number in range(3, 2_000) if all(number % other for other in range(2, int(number**0.5) + 1))]
    while True:
        number = rng.getrandbits(bits) | 3 << bits - 2 | 1
        if all(number % one for one in small) and all(pow(base, number - 1, number) == 1 for base in (2, 3, 5)):
            return number


def der(tag: int, body: bytes) -> bytes:
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8 or 1, "big")
    return bytes([tag]) + (size if len(body) < 128 else bytes([0x80 | len(size)]) + size) + body


def der_number(number: int) -> bytes:
    return der(2, number.to_bytes(number.bit_length() // 8 + 1, "big"))


class KeyFile:
    """A service account's key file, made for one test."""

    def __init__(self, rng: random.Random) -> None:
        one, two = prime(1024, rng), prime(1024, rng)
        self.modulus, self.public = one * two, 65537
        private = pow(self.public, -1, (one - 1) * (two - 1))
        rsa = [
            0,
            self.modulus,
            self.public,
            private,
            one,
            two,
            private % (one - 1),
            private % (two - 1),
            pow(two, -1, one),
        ]
        inner = der(0x30, b"".join(map(der_number, rsa)))
        algorithm = der(0x30, bytes.fromhex("06092a864886f70d0101010500"))
        text = base64.encodebytes(der(0x30, der_number(0) + algorithm + der(4, inner))).decode()
        self.fields = {
            "type": "service_account",
            "client_email": "robot@project.example",
            "private_key_id": "key-1",
            "private_key": f"-----BEGIN PRIVATE KEY-----\n{text}-----END PRIVATE KEY-----\n",
        }

    def verify(self, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return header and claims of a token that this key has signed."""
        head, claims, signature = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
        block = pow(int.from_bytes(signature, "big"), self.public, self.modulus).to_bytes(256, "big")
        digest = hashlib.sha256(token.rpartition(".")[0].encode()).digest()
        assert block.startswith(b"\x00\x01\xff\xff")
        assert block.endswith(b"\x00" + bytes.fromhex("3031300d060960864801650304020105000420") + digest)
        assert set(block[2 : block.index(b"\x00", 2)]) == {0xFF}
        return json.loads(head), json.loads(claims)


class Listening(GcsServer):
    """A GCS server that remembers who came with which credentials."""

    def __init__(self) -> None:
        self.authorizations: list[str] = []
        super().__init__(buckets=["bayou"])

    def respond(self, request: Request) -> Response:
        self.authorizations.append(request.headers.get("authorization", ""))
        return super().respond(request)


@pytest.fixture(scope="module")
def key_file() -> KeyFile:
    return KeyFile(random.Random(1))


@pytest.fixture
def server() -> Iterator[Listening]:
    with Listening() as one:
        yield one


def test_an_empty_store_is_listed_with_a_service_accounts_key_alone(
    key_file: KeyFile, server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key_file.fields | {"gcs_base_url": server.url}))
    store = open_store("gs://bayou/p", policy=QUICK)
    assert [*store.list()] == []
    theirs, ours = (key_file.verify(value.removeprefix("Bearer ")) for value in server.authorizations)
    for name in ("alg", "kid"):
        assert ours[0][name] == theirs[0][name]
    for name in ("iss", "sub"):
        assert ours[1][name] == theirs[1][name]
    assert ours[1]["scope"].endswith("read_only")
    assert ours[1]["exp"] - ours[1]["iat"] == 3600


def test_without_google_auth_the_error_names_the_extra(
    key_file: KeyFile, server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.oauth2.service_account", None)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key_file.fields | {"gcs_base_url": server.url}))
    with pytest.raises(PackageMissing) as caught:
        list(open_store("gs://bayou/p", policy=QUICK).list())
    assert caught.value.hint == "install it with: pip install 'bayou[gcp]'"


def test_odd_keys_are_listed_with_a_key_file(
    key_file: KeyFile, server: Listening, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(key_file.fields))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    server.put_raw("p/data//x", b"1")
    store = open_store("gs://bayou/p", options={"endpoint": server.url}, policy=QUICK)
    assert [meta.key for page in store.list() for meta in page] == ["data//x"]


@pytest.mark.parametrize(
    "text",
    [
        "{not json",
        "[1, 2]",
        '{"private_key": "none", "client_email": "a", "private_key_id": "b"}',
        '{"private_key": "-----BEGIN PRIVATE KEY-----\\nAAAA\\n-----END PRIVATE KEY-----"}',
        '{"type": "authorized_user", "client_secret": "hush"}',
    ],
)
def test_a_key_that_cannot_be_used_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", text)
    with pytest.raises(CredentialsMissing) as caught:
        google_access({}, 1.0)
    assert caught.value.hint
    assert "hush" not in caught.value.message
    with pytest.raises(StoreError) as caught_by_store:
        open_store("gs://bayou/p", options={"endpoint": "http://127.0.0.1:9"}, policy=QUICK).get("data/a")  # type: ignore[arg-type]
    assert isinstance(caught_by_store.value, CredentialsMissing)


class TokenServer(LoopbackServer):
    """What Google's token service, or a machine's metadata server, answers."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.requests: list[Request] = []
        super().__init__()

    def respond(self, request: Request) -> Response:
        self.requests.append(request)
        return answer(200, self.body)


def test_a_users_refresh_token_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(user))
    with TokenServer(b'{"access_token": "fresh"}') as tokens:
        monkeypatch.setattr(strict_listing, "GOOGLE_TOKEN_URL", tokens.url)
        assert google_access({}, 5.0)[1] == {"Authorization": "Bearer fresh"}
        form = parse_qs(tokens.requests[0].body.decode())
        assert form == {
            "client_id": ["c"],
            "client_secret": ["s"],
            "refresh_token": ["r"],
            "grant_type": ["refresh_token"],
        }


def test_a_machine_of_googles_asks_its_metadata_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with TokenServer(b'{"access_token": "mine", "expires_in": 3599}') as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", f"{metadata.host}:{metadata.port}")
        assert google_access({}, 5.0)[1] == {"Authorization": "Bearer mine"}
        assert metadata.requests[0].headers["metadata-flavor"] == "Google"


def test_v26_the_token_of_a_machine_of_googles_goes_to_google_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of another kind, as of workload identity, must not lead to the machine's own token."""
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", '{"type": "external_account"}')
    with TokenServer(b'{"access_token": "mine", "expires_in": 3599}') as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", f"{metadata.host}:{metadata.port}")
        with pytest.raises(CredentialsMissing):
            google_access({"endpoint": "https://storage.example.com"}, 5.0)
        assert metadata.requests == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b'"x"'])
def test_a_token_service_without_a_token_is_an_error(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    with TokenServer(body) as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", f"{metadata.host}:{metadata.port}")
        with pytest.raises(BadAnswer, match="gave no token"):
            google_access({}, 5.0)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({"GOOGLE_BEARER_TOKEN": "x"}, {"skip_signature": "true"}),
        ({"GOOGLE_SERVICE_ACCOUNT_KEY": '{"disable_oauth": true}'}, {}),
    ],
)
def test_anonymous_access_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], options: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert google_access(options, 1.0) == ("https://storage.googleapis.com", {})
