"""The contract suite, on every store that Bayou brings along, and on real ones where a variable names a bucket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bayou.core.ids import ulid
from bayou.objectstore import open_store
from bayou_testing.azurite import AzuriteServer
from bayou_testing.contract import Connect, StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def connect(self) -> Connect:
        name = ulid()
        return lambda namespace=None: open_store(f"memory://{name}/prefix", namespace=namespace)


class TestDirectory(StoreContract):
    keeps_attributes = False

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        (tmp_path / "store").mkdir()
        return lambda namespace=None: open_store((tmp_path / "store").as_uri(), namespace=namespace)


@pytest.mark.s3
class TestSeaweedFS(StoreContract):
    @pytest.fixture
    def connect(self, s3: Connect) -> Connect:
        return s3


class TestMoto(StoreContract):
    @pytest.fixture
    def connect(self, moto: Connect) -> Connect:
        return moto


@pytest.mark.gcs
class TestGcs(StoreContract):
    @pytest.fixture
    def connect(self, gs: Connect) -> Connect:
        return gs


@pytest.mark.azure
class TestAzurite(StoreContract):
    @pytest.fixture
    def connect(self, azure_env: AzuriteServer) -> Connect:
        prefix = ulid()
        return lambda namespace=None: open_store(f"az://bayou/{prefix}", namespace=namespace)


@pytest.mark.azure
class TestAzuriteWithoutTheSdk(TestAzurite):
    @pytest.fixture(autouse=True)
    def no_sdk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bayou.objectstore.backends.azure_parts.first_missing", lambda _: "azure-storage-blob")


if "BAYOU_TEST_BUCKET" in os.environ:

    class TestRealBucket(StoreContract):
        """`BAYOU_TEST_BUCKET=gs://bucket/prefix ./dev test tests/objectstore`, with the provider's own credentials.

        Give them by variables that begin with BAYOU_TEST_CREDENTIAL_ and go on with the provider's name for each: the
        tests hide everything else that a developer has.
        """

        @pytest.fixture
        def connect(self, monkeypatch: pytest.MonkeyPatch) -> Connect:
            for name, value in list(os.environ.items()):
                if name.startswith("BAYOU_TEST_CREDENTIAL_"):
                    monkeypatch.setenv(name.removeprefix("BAYOU_TEST_CREDENTIAL_"), value)
            url = f"{os.environ['BAYOU_TEST_BUCKET']}/{ulid()}"
            return lambda namespace=None: open_store(url, namespace=namespace)
