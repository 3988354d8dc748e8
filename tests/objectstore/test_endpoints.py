"""Which server is asked: an option is stronger than the environment, for every request and for both listings."""

from __future__ import annotations

import pytest

from bayou.objectstore import open_store
from bayou_testing.contract import listed, payload
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from tests.objectstore.conftest import BUCKET, QUICK

pytestmark = pytest.mark.s3


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_the_option_wins_over_the_environment(
    s3_env: S3Endpoint, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    store = open_store(f"s3://{BUCKET}/endpoint-{variable}", options={"endpoint": proxy.url}, policy=QUICK)
    assert listed(store) == {}, "the second listing asks the same server"
    store.put(payload("data/a"), b"1")
    assert listed(store) == {"data/a": 1}
    assert proxy.log.count() == store.requests.total


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_without_an_option_the_environment_decides(
    s3_env: S3Endpoint, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv(variable, proxy.url)
    store = open_store(f"s3://{BUCKET}/environment-{variable}", policy=QUICK)
    assert listed(store) == {}
    assert proxy.log.count() == store.requests.total == 2
