"""Servers for the tests of the servers themselves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from bayou_testing.gcs import GcsServer
from bayou_testing.proxy import HttpProxy
from bayou_testing.seaweed import SeaweedEndpoint
from tests.testing.server_clients import Http


@pytest.fixture
def gcs() -> Iterator[GcsServer]:
    with GcsServer(buckets=["b"]) as server:
        yield server


@pytest.fixture
def http(gcs: GcsServer) -> Iterator[Http]:
    client = Http(gcs.port)
    yield client
    client.close()


@pytest.fixture
def bucket(seaweed: SeaweedEndpoint) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    seaweed.create_bucket(name)
    return name


@pytest.fixture
def proxy(seaweed: SeaweedEndpoint) -> Iterator[HttpProxy]:
    with HttpProxy(seaweed.host, seaweed.port) as server:
        yield server
