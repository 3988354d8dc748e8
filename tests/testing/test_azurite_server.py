"""Azurite as a test server, where it is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import AzureStore

from bayou_testing.azurite import ACCOUNT, ACCOUNT_KEY, AzuriteServer, available
from tests.testing.server_clients import race

INSTALLED = os.environ.get("BAYOU_AZURITE")  # The suite runs without such variables; this one says where a program is.
MISSING = available()

azure = pytest.mark.skipif(MISSING is not None, reason=f"Azurite: {MISSING}")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureStore]:
    if INSTALLED:
        monkeypatch.setenv("BAYOU_AZURITE", INSTALLED)
    with AzuriteServer() as server:
        server.create_container("team")
        server.create_container("team")
        assert server.env()["AZURE_STORAGE_ACCOUNT_NAME"] == ACCOUNT
        yield AzureStore(
            "team",
            account_name=ACCOUNT,
            account_key=ACCOUNT_KEY,
            endpoint=server.url,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )


@azure
@pytest.mark.azure
def test_azurite_keeps_objects_and_honours_conditions(store: AzureStore) -> None:
    first = obstore.put(store, "a/k", b"1")
    assert bytes(obstore.get(store, "a/k").bytes()) == b"1"
    creators = race(16, lambda number: obstore.put(store, "new", b"%d" % number, mode="create"))
    assert sum(not isinstance(result, AlreadyExistsError) for result in creators) == 1
    swappers = race(16, lambda number: obstore.put(store, "a/k", b"%d" % number, mode={"e_tag": first["e_tag"]}))
    assert sum(not isinstance(result, PreconditionError) for result in swappers) == 1


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYOU_AZURITE", "nowhere")
    reason = available()
    assert reason is not None
    assert "nowhere" in reason or "node" in reason
