"""A store opened by another process: with its own credentials and no others, and none of them on show (17.1, V26)."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bayou.objectstore import keys
from bayou.objectstore.spec import CREDENTIALS, SECRETS, SETTINGS, StoreSpec
from bayou_testing.server import LoopbackServer
from bayou_testing.wire import Request, Response, answer

SECRET = "nobody-sees-this"
FOREIGN = {
    "AWS_ACCESS_KEY_ID": "me",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": SECRET,
    "AWS_PROFILE": SECRET,
    "AWS_CONTAINER_AUTHORIZATION_TOKEN": SECRET,
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": SECRET,
    "AWS_WEB_IDENTITY_TOKEN_FILE": SECRET,
    "AWS_ROLE_ARN": SECRET,
    "AWS_BEARER_TOKEN_BEDROCK": SECRET,
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
    "AZURE_STORAGE_CONNECTION_STRING": SECRET,
    "AZURE_CLIENT_SECRET": SECRET,
    "AZURE_OPENAI_API_KEY": SECRET,
    "GOOGLE_BEARER_TOKEN": SECRET,
    "GOOGLE_API_KEY": SECRET,
    "GCE_METADATA_HOST": SECRET,
    "CLOUDSDK_AUTH_ACCESS_TOKEN": SECRET,
    "IDENTITY_HEADER": SECRET,
    "MSI_SECRET": SECRET,
}

OPEN = """
import json, os, pickle, sys, threading
from bayou.core.errors import StoreError
from bayou.objectstore import keys
recipes = pickle.loads(sys.stdin.buffer.read())
start = threading.Barrier(len(recipes))

def use(spec):
    start.wait()
    store = spec.open()
    for name in ("files/a", "files/b"):  # a client is made when it is first used, and may be made again
        try:
            store.within_seconds(5 if name == "files/a" else 50).get(keys.payload(name, None))
        except StoreError:
            pass

threads = [threading.Thread(target=use, args=(spec,)) for spec in recipes]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(dict(os.environ)))
"""
"""A worker in which several tasks open a store each, all at once."""


class Keeping(LoopbackServer):
    """A store that keeps what authorises the requests, and has nothing."""

    def __init__(self) -> None:
        self.authorised: set[str] = set()
        super().__init__()

    def respond(self, request: Request) -> Response:
        self.authorised |= {value for name, value in request.headers.items() if name.lower() == "authorization"}
        self.authorised |= {value for name, value in request.headers.items() if name.lower() == "x-amz-security-token"}
        return answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {"Content-Type": "application/xml"})


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who is signed in everywhere."""
    for name, value in FOREIGN.items():
        monkeypatch.setenv(name, value)


def open_elsewhere(*recipes: StoreSpec, **environ: str) -> dict[str, str]:
    """Open and use all of them at once in a process of another environment; return what that has at the end."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN],
        input=pickle.dumps(recipes),
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path), "NO_PROXY": "*", **environ},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def secrets_of(spec: StoreSpec) -> list[str]:
    return sorted(name for name, value in spec.environ.items() if value == SECRET)


# ---- what goes along ----


def test_17_1_the_recipe_of_a_directory_has_no_credentials_at_all(everything: None, tmp_path: Path) -> None:
    for url in (tmp_path.as_uri(), "memory://name", "elsewhere://plugged/in"):
        spec = StoreSpec.of(url, None, {})
        assert (dict(spec.environ), spec.aws_keys, spec.secret) == ({}, None, False)
        assert SECRET.encode() not in pickle.dumps(spec)


def test_17_1_the_recipe_of_a_bucket_has_the_keys_of_its_own_provider_only(
    everything: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_PROXY_URL", f"http://me:{SECRET}@127.0.0.1:9")
    s3, gs, az = (StoreSpec.of(f"{scheme}://bucket/p", None, {}) for scheme in ("s3", "gs", "az"))

    assert s3.aws_keys is not None
    assert (s3.aws_keys.access_key_id, s3.aws_keys.secret_access_key, s3.aws_keys.token) == ("me", SECRET, SECRET)
    assert dict(s3.environ) == {"AWS_REGION": "eu-west-1"}
    assert (gs.aws_keys, secrets_of(gs)) == (None, ["GCE_METADATA_HOST", "GOOGLE_BEARER_TOKEN"])
    assert az.aws_keys is None
    assert secrets_of(az) == ["AZURE_CLIENT_SECRET", "AZURE_STORAGE_ACCOUNT_KEY", "IDENTITY_HEADER"]
    assert az.environ["AZURE_STORAGE_ACCOUNT_NAME"] == "account"
    assert all(spec.secret for spec in (s3, gs, az))


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_who_reads_anonymously_takes_no_credentials_along(everything: None, scheme: str) -> None:
    spec = StoreSpec.of(f"{scheme}://bucket", None, {"skip_signature": "true"})

    assert SECRET.encode() not in pickle.dumps(spec)
    assert not spec.secret


def test_a_recipe_shows_nothing_of_what_it_carries(everything: None) -> None:
    for scheme in ("s3", "gs", "az"):
        spec = pickle.loads(pickle.dumps(StoreSpec.of(f"{scheme}://bucket/p", "infra", {})))

        assert SECRET not in repr(spec) + str(spec)
        assert spec.secret


@pytest.mark.parametrize(
    "name", sorted({name for kind in (SETTINGS, CREDENTIALS, SECRETS) for names in kind.values() for name in names})
)
def test_each_variable_is_one_that_its_client_reads(name: str) -> None:
    """A name that no client knows would be a misspelt one."""
    from obstore.exceptions import UnknownConfigurationKeyError
    from obstore.store import AzureStore, GCSStore, S3Store

    apart = {"GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT", "CLOUDSDK_CONFIG"}
    apart |= {"AZURITE_BLOB_STORAGE_URL", "AZURE_CONFIG_DIR", "IDENTITY_HEADER", "AWS_CA_BUNDLE"}
    if name in apart:
        return  # read by other means than as an option
    clients: tuple[Any, ...] = (S3Store, GCSStore, AzureStore)
    for client in clients:
        try:
            client("bucket", config={name.lower(): "x"})
        except UnknownConfigurationKeyError:
            continue
        except Exception:  # noqa: BLE001  (obstore has a class for each provider; the value is nonsense)
            pass
        return
    raise AssertionError(name)


# ---- who opens it ----


def test_who_opens_it_has_these_credentials_and_no_others(everything: None) -> None:
    with Keeping() as server:
        spec = StoreSpec.of("s3://bucket/p", "infra", {"endpoint": server.url})

        left = open_elsewhere(spec, **dict.fromkeys(FOREIGN, "another's"), SERVICE_ACCOUNT="another's")

    assert server.authorised
    assert all("Credential=me/" in value or value == SECRET for value in server.authorised)
    assert not [name for name, value in left.items() if value in ("another's", SECRET)]


def test_17_1_stores_that_are_opened_at_once_have_their_own_credentials_each(
    everything: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a replication does: from one account to another, and from one provider to another."""
    (tmp_path / "credentials").write_text("[backup]\naws_access_key_id = other\naws_secret_access_key = theirs\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("AWS_PROFILE")
    with Keeping() as mine, Keeping() as theirs, Keeping() as google:
        recipes = [
            StoreSpec.of("s3://mine", None, {"endpoint": mine.url}),
            StoreSpec.of("s3://theirs", None, {"endpoint": theirs.url, "profile": "backup"}),
            StoreSpec.of("gs://bucket", None, {"endpoint": google.url}),
        ]
        (tmp_path / "credentials").unlink()  # as on another machine

        left = open_elsewhere(*recipes)

    for server, key in ((mine, "me"), (theirs, "other")):
        assert {value.partition("Credential=")[2].partition("/")[0] for value in server.authorised} <= {key, ""}
        assert any(f"Credential={key}/" in value for value in server.authorised)
    assert SECRET in mine.authorised
    assert SECRET not in theirs.authorised
    assert google.authorised == {f"Bearer {SECRET}"}
    assert [name for name, value in left.items() if value == SECRET] == ["GCE_METADATA_HOST", "GOOGLE_BEARER_TOKEN"]


def test_the_process_that_made_a_recipe_keeps_its_environment(everything: None, tmp_path: Path) -> None:
    before = dict(os.environ)

    for url in ("s3://bucket", "gs://bucket", tmp_path.as_uri()):
        StoreSpec.of(url, None, {}).open()

    assert dict(os.environ) == before


def test_a_directory_needs_no_credentials(tmp_path: Path) -> None:
    store = StoreSpec.of(tmp_path.as_uri(), None, {}).open()
    store.put(keys.payload("data/a", None), b"1")

    assert (tmp_path / "data/a").read_bytes() == b"1"


def test_what_names_the_store_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    named: Mapping[str, str] = {
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SERVER_SIDE_ENCRYPTION": "sse-c",
        "AWS_SSE_CUSTOMER_KEY_BASE64": "a2V5",
    }
    with Keeping() as server:
        for name, value in {**named, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)

        left = open_elsewhere(StoreSpec.of("s3://bucket", None, {}))

    assert server.authorised
    assert (left["AWS_ENDPOINT_URL"], left["AWS_SSE_CUSTOMER_KEY_BASE64"]) == (server.url, "a2V5")


def test_the_certificates_of_a_private_ca_go_along_with_an_s3_store_alone(everything: None, monkeypatch) -> None:
    """A Spark worker of this machine has to trust the server that this process trusts."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/private-ca.pem")

    assert StoreSpec.of("s3://bucket", None, {}).environ["AWS_CA_BUNDLE"] == "/etc/private-ca.pem"
    assert "AWS_CA_BUNDLE" not in StoreSpec.of("gs://bucket", None, {}).environ
