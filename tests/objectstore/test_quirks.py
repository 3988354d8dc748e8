"""Servers with habits of their own: ETags without quotes or none at all, no conditional writes, a private CA."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bayou.core.errors import (
    BadAnswer,
    CannotConnect,
    ConfigInvalid,
    CredentialsMissing,
    NoConditionalWrites,
    PreconditionFailed,
)
from bayou.core.ids import ulid
from bayou.objectstore import Store, keys, multipart, open_store
from bayou.objectstore.backends.boto_parts import certificates
from bayou.objectstore.probe import learn_etag_form, probe
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.transport import Create, Match
from bayou_testing.faults import Garbage, Rule
from bayou_testing.gcs import GcsServer
from bayou_testing.quirks import QuirkyS3, environment
from bayou_testing.s3 import S3Endpoint
from tests.objectstore.conftest import QUICK

BUCKET = "quirks"
KEY = keys.payload("files/a.json", None)


@pytest.fixture(autouse=True)
def s3(seaweed: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    for name, value in environment(seaweed).items():
        monkeypatch.setenv(name, value)
    seaweed.create_bucket(BUCKET)
    return seaweed


@pytest.fixture
def ceph(s3: S3Endpoint) -> Iterator[QuirkyS3]:
    with QuirkyS3(s3, unquoted_match=True) as server:
        yield server


def opened(server: QuirkyS3, **options: str) -> Store:
    return open_store(f"s3://{BUCKET}/{ulid()}", options={"endpoint": server.url, **options}, policy=QUICK)


def conditions(server: QuirkyS3) -> list[str]:
    return [row.headers["if-match"] for row in server.log.rows() if "if-match" in row.headers]


def test_the_probe_finds_out_that_a_server_wants_etags_without_quotes(ceph: QuirkyS3) -> None:
    store = opened(ceph)
    assert probe(store).unquoted_etags
    first = store.put(KEY, b"1", condition=Create())
    assert first.etag is not None
    assert first.etag.startswith('"')
    second = store.put(KEY, b"2", condition=Match(first.etag))
    with pytest.raises(PreconditionFailed):
        store.put(KEY, b"3", condition=Match(first.etag))
    assert store.head(KEY).etag == second.etag
    assert [key for page in store.list(keys.PROBES) for key in page] == []


def test_a_client_that_did_not_probe_learns_the_form_at_its_first_swap(ceph: QuirkyS3) -> None:
    store = opened(ceph)
    first = store.put(KEY, b"1", condition=Create())
    store.put(KEY, b"2", condition=Match(first.etag))
    assert store.unquoted_etags
    before = len(ceph.log.rows())
    second = store.head(KEY)
    store.put(KEY, b"3", condition=Match(second.etag))
    assert len(ceph.log.rows()) - before == 2  # what it has learned, it keeps
    assert [page for page in store.list(keys.PROBES) if page] == []


def test_the_option_spares_a_client_the_discovery(ceph: QuirkyS3) -> None:
    store = opened(ceph, unquoted_etags="true")
    first = store.put(KEY, b"1", condition=Create())
    store.put(KEY, b"2", condition=Match(first.etag))
    assert conditions(ceph) == [str(first.etag).strip('"')]


def test_of_many_swaps_of_one_version_one_wins_where_etags_have_no_quotes(ceph: QuirkyS3) -> None:
    store = opened(ceph)
    first = store.put(KEY, b"first", condition=Create())

    def swap(number: int) -> bool:
        try:
            store.put(KEY, str(number).encode(), condition=Match(first.etag))
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(swap, range(8))) == 1


def test_a_lost_race_teaches_nothing_and_is_no_reason_to_try_another_form(s3: S3Endpoint) -> None:
    with QuirkyS3(s3) as server:
        store = opened(server)
        first = store.put(KEY, b"1", condition=Create())
        s3.request("PUT", f"/{BUCKET}/{store.full_key(KEY)}", body=b"another client's")
        with pytest.raises(PreconditionFailed):
            store.put(KEY, b"2", condition=Match(first.etag))
        assert store.unquoted_etags is False
        assert conditions(server) == [first.etag]


@pytest.mark.parametrize("joins", [False, True])
def test_a_server_that_ignores_conditions_is_refused(s3: S3Endpoint, joins: bool) -> None:
    with QuirkyS3(s3, no_conditions=True) as server:
        store = opened(server)
        with pytest.raises(NoConditionalWrites, match="does not honour conditional writes"):
            learn_etag_form(store) if joins else probe(store)
        assert [page for page in store.list(keys.PROBES) if page] == []


@pytest.mark.parametrize("etags", ["unquoted", "missing"])
def test_a_large_file_arrives_whatever_the_server_says_about_its_etag(
    s3: S3Endpoint, etags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "THRESHOLD", 1 << 20)
    monkeypatch.setattr(multipart, "PART_SIZE", 5 << 20)
    content = os.urandom(6 << 20)
    with QuirkyS3(s3, multipart_etags=etags) as server:  # type: ignore[arg-type]
        store = opened(server)
        stored = store.upload(KEY, io.BytesIO(content), len(content), hashlib.sha256(content).digest())
        assert not stored.repeated
        found = store.head(KEY)
        assert stored.etag == (found.etag if etags == "unquoted" else None)  # V2: never the ETag of a later HEAD
        assert [meta.etag for page in store.list() for meta in page] == [found.etag]
        assert store.read(KEY, len(content), hashlib.sha256(content).digest()) == content


def test_an_answer_without_an_etag_is_not_taken_for_missing_credentials(s3: S3Endpoint) -> None:
    with QuirkyS3(s3) as server:
        server.faults.add(Rule(Garbage(b""), method="PUT"))
        with pytest.raises(BadAnswer, match="has no ETag"):
            opened(server).put(KEY, b"1")


def test_objects_carry_the_content_type_that_their_name_tells(s3: S3Endpoint) -> None:
    with QuirkyS3(s3) as server:
        store = opened(server)
        for key, kind in {
            keys.HEAD: "application/json",
            keys.node("0" * 64 + "-a"): "application/vnd.apache.parquet",
            keys.pack(f"{ulid()}-1"): "application/zip",
            keys.payload("files/a.csv", ulid()): "text/csv",
            keys.payload("data/t/m/n/1/raw", ulid()): "application/octet-stream",
        }.items():
            store.put(key, b"1")
            fetched = store.get(key)
            assert fetched is not None
            assert fetched.attributes["Content-Type"] == kind


@pytest.fixture
def private_ca(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The certificate of a private CA, and certificate and key of a server that it has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Bayou Test CA")
    openssl("req", *new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    return tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "server.key"


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_private_ca_is_trusted_if_the_environment_names_it(
    s3: S3Endpoint, private_ca: tuple[Path, Path, Path], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, *pair = private_ca
    with QuirkyS3(s3, tls=(pair[0], pair[1])) as server:
        with pytest.raises(CannotConnect, match="TLS failed") as refused:
            opened(server).put(KEY, b"1")
        assert server.url in refused.value.message
        assert "SSL_CERT_FILE (for S3 also AWS_CA_BUNDLE)" in str(refused.value.hint)
        monkeypatch.setenv(variable, str(authority))
        store = opened(server)
        store.put(KEY, b"1")
        assert [meta.key for page in store.list() for meta in page] == [str(KEY)]
        assert store.now() is not None  # a request without obstore
        monkeypatch.setattr(multipart, "THRESHOLD", 1)
        store.upload(KEY, io.BytesIO(b"parts"), 5, hashlib.sha256(b"parts").digest())  # by boto3
        assert StoreSpec.of("s3://b", None, {}).environ.get("AWS_CA_BUNDLE") == os.environ.get("AWS_CA_BUNDLE")


def test_a_bundle_that_cannot_be_read_is_named(s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
    with QuirkyS3(s3) as server, pytest.raises(ConfigInvalid, match=r"AWS_CA_BUNDLE, /nowhere/ca\.pem"):
        opened(server).put(KEY, b"1")


def test_aws_ca_bundle_is_for_s3_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle replaces all other authorities in boto3, so Google's own certificate would not be trusted any more."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/private/ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", "/all/authorities.pem")

    assert certificates("AWS_CA_BUNDLE") == "/private/ca.pem"  # S3
    assert certificates() == "/all/authorities.pem"  # Google


def test_without_signatures_no_token_of_the_machine_is_asked_for_or_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with GcsServer(buckets=["public"]) as server, GcsServer(buckets=[]) as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", f"{metadata.host}:{metadata.port}")
        store = open_store("gs://public", options={"endpoint": server.url, "skip_signature": "true"}, policy=QUICK)
        store.put(KEY, b"1", condition=Create())
        store.delete([KEY])
        assert [page for page in store.list() if page] == []
        assert metadata.log.rows() == []
        with pytest.raises(CredentialsMissing, match="goes to Google only"):
            open_store("gs://public", options={"endpoint": server.url})


def test_a_failure_names_the_address_of_the_server() -> None:
    store = open_store("s3://b", options={"endpoint": "http://127.0.0.1:9"}, policy=QUICK)
    with pytest.raises(CannotConnect, match=r"s3://b at http://127\.0\.0\.1:9"):
        store.head(KEY)
