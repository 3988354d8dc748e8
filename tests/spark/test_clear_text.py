"""Credentials do not travel to another machine in clear text (17.1, V26). Nothing is connected to here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bayou.config import Config, DatastoreConfig, SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import SparkUnavailable, TrustNeeded
from bayou.engine.handle import RemoteHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.select import SCAN, Engines, Selector
from bayou.objectstore.spec import StoreSpec
from bayou.repo import init_repo, open_repo
from bayou.spark import session
from bayou.spark.session import is_loopback, require_private_channel
from bayou.spark.sql.content import grant_for
from tests.trusting import trust

SECRET = "nobody-sees-this"
CLEAR = ["sc://spark.example", "sc://spark.example:15002", "sc://10.0.0.7:15002/", "sc://spark.example/;user_id=me"]
CLEAR += [
    "sc://spark.example/;use_ssl=yes",
    "sc://localhost.example:1",
    "sc://127.0.0.1.example",
    "sc://[2001:db8::1]:1",
]
CLEAR += ["sc://0.0.0.0:15002", "sc://spark.example/;use_ssl=true;use_ssl=", "sc://spark.example/;x=use_ssl"]
PRIVATE = ["sc://127.0.0.1:15002", "sc://localhost/;user_id=me", "sc://[::1]:15002", "sc://127.8.9.1"]
PRIVATE += [
    "sc://spark.example/;use_ssl=true",
    "sc://spark.example/;token=t0ken",
    "sc://spark.example/;user_id=a;use_ssl=TRUE",
]
PRIVATE += ["sc://spark.example/;use_ssl=false"]


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> StoreSpec:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return StoreSpec.of("s3://bucket/p", None, {})


@pytest.mark.parametrize("address", CLEAR)
def test_17_1_no_credential_goes_to_another_machine_in_clear_text(spec: StoreSpec, address: str) -> None:
    with pytest.raises(
        SparkUnavailable, match=r"the credentials of s3://bucket/p would travel in clear text"
    ) as refused:
        require_private_channel(SparkConfig(remote=address), spec)

    assert ";use_ssl=true" in refused.value.hint
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_channel_that_stays_here_or_is_encrypted_or_is_meant_to_be_open_is_used(
    spec: StoreSpec, address: str
) -> None:
    require_private_channel(SparkConfig(remote=address), spec)


def test_a_token_of_the_environment_means_encryption_as_well(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "t0ken")

    require_private_channel(SparkConfig(remote="sc://spark.example"), spec)


def test_an_address_that_this_user_has_typed_is_used(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYOU_SPARK_REMOTE", "sc://spark.example")

    require_private_channel(SparkConfig(remote="sc://spark.example"), spec)

    with pytest.raises(SparkUnavailable):
        require_private_channel(SparkConfig(remote="sc://another.example"), spec)


def test_an_address_that_this_user_has_allowed_is_used(
    spec: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bayou trust` says of it that it is unencrypted."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = init_repo(tmp_path / "repo")
    made.file.write_text(f'{made.file.read_text()}[spark]\nremote = "sc://spark.example"\n')
    clone = open_repo(made.root).config.spark
    with pytest.raises(TrustNeeded, match="unencrypted"):
        require_private_channel(clone, spec)

    trust(made.root)
    require_private_channel(open_repo(made.root).config.spark, spec)


def test_where_there_is_no_credential_to_ship_any_channel_will_do(spec: StoreSpec, tmp_path: Path) -> None:
    elsewhere = SparkConfig(remote="sc://spark.example")
    for given in (
        StoreSpec.of(tmp_path.as_uri(), None, {}),
        StoreSpec.of("s3://open", None, {"skip_signature": "true"}),
    ):
        require_private_channel(elsewhere, given)
    for here in (SparkConfig(), SparkConfig(master="spark://spark.example:7077")):
        require_private_channel(here, spec)


def test_17_1_a_job_asks_before_it_connects(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "open_session", lambda *_, **__: pytest.fail("a connection was opened"))
    elsewhere = SparkConfig(remote="sc://spark.example")
    warnings: list[str] = []

    needs = Needs((RemoteHandle(spec),))

    def by(executor: Executor) -> str:
        assert executor.engine == "local", "the job ran on Spark"
        return executor.engine

    must = Engines(elsewhere, Selector("spark"), Deadline.after(100), warnings.append)
    with pytest.raises(SparkUnavailable, match="clear text"):
        must.run(needs, by, what="the store was listed", cost=SCAN, files=1)
    may = Engines(elsewhere, Selector(override=0), Deadline.after(100), warnings.append)

    assert may.run(needs, by, what="the store was listed", cost=SCAN, files=1) == "local"
    assert len(warnings) == 1
    assert warnings[0].startswith("the store was listed by this process alone")


def test_17_1_a_query_gets_no_leave_to_read_from_the_store(spec: StoreSpec) -> None:
    config = Config("id", DatastoreConfig(url="s3://bucket/p"), spark=SparkConfig(remote="sc://spark.example"))
    repo: Any = SimpleNamespace(config=config, offline=False)

    grant = grant_for(repo)

    assert grant.spec is None
    assert "clear text" in grant.refused


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("[::1]", True), ("localhost", True), ("LOCALHOST.", False), ("0.0.0.0", False)],
)
def test_what_is_this_machine(host: str, here: bool) -> None:
    assert is_loopback(host) == here
