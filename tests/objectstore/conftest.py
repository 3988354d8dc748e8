"""Stores for the tests of `bayou.objectstore`: real servers, each test on a prefix of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from bayou.core.ids import ulid
from bayou.objectstore import Store, open_store
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.azurite import AzuriteServer
from bayou_testing.contract import Connect
from bayou_testing.gcs import GcsServer
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint

QUICK = RetryPolicy(base_s=0.005, cap_s=0.02, request_timeout_s=10, call_deadline_s=30)
BUCKET = "store-tests"


@pytest.fixture
def s3_env(seaweed: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    """SeaweedFS, and its credentials in the environment."""
    for name, value in seaweed.env().items():
        monkeypatch.setenv(name, value)
    seaweed.create_bucket(BUCKET)
    return seaweed


@pytest.fixture
def s3(s3_env: S3Endpoint) -> Connect:
    prefix = ulid()
    return lambda namespace=None: open_store(
        f"s3://{BUCKET}/{prefix}", namespace=namespace, options={"endpoint": s3_env.url}, policy=QUICK
    )


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    """The address of moto's server, with a bucket.

    It serves one request at a time: moto checks a condition and writes without a lock, so in threads two writers of one
    key could win.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None: ...

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.port}"
    urlopen(Request(f"{url}/{BUCKET}", method="PUT"), timeout=60).close()
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def moto(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Connect:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    prefix = ulid()
    return lambda namespace=None: open_store(
        f"s3://{BUCKET}/{prefix}", namespace=namespace, options={"endpoint": moto_url}, policy=QUICK
    )


@pytest.fixture
def proxy(s3_env: S3Endpoint) -> Iterator[HttpProxy]:
    """A proxy in front of SeaweedFS that counts, and fails on demand."""
    with HttpProxy(s3_env.host, s3_env.port) as between:
        yield between


@pytest.fixture
def proxied(proxy: HttpProxy) -> Store:
    return open_store(f"s3://{BUCKET}/{ulid()}", options={"endpoint": proxy.url}, policy=QUICK)


@pytest.fixture
def azure_env(azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> AzuriteServer:
    """Azurite, and its address and credentials in the environment."""
    for name, value in azurite.env().items():
        monkeypatch.setenv(name, value)
    return azurite


@pytest.fixture
def gs(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Connect:
    for name, value in gcs.env().items():
        monkeypatch.setenv(name, value)
    prefix = ulid()
    return lambda namespace=None: open_store(f"gs://bayou/{prefix}", namespace=namespace, policy=QUICK)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A GCS server of the test's own, with its address and credentials in the environment."""
    with GcsServer(buckets=["bayou"]) as one:
        for name, value in one.env().items():
            monkeypatch.setenv(name, value)
        yield one


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a `file://` store."""
    directory = tmp_path / "store"
    directory.mkdir()
    return directory


@pytest.fixture
def transport(root: Path) -> LocalTransport:
    return LocalTransport(root)


@pytest.fixture
def broken_gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Store]]:
    """Make a store on a GCS server that does not keep its promises."""
    servers: list[GcsServer] = []

    def make(conditions: str) -> Store:
        server = GcsServer(buckets=["bayou"], conditions=conditions)  # type: ignore[arg-type]
        servers.append(server)
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        return open_store("gs://bayou/p", policy=QUICK)

    yield make
    for server in servers:
        server.close()
