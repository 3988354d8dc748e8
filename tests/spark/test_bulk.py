"""Where a sync hands over to Spark: a listing that is too long for one process, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayou.config import DatastoreConfig, SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, JavaMissing
from bayou.index.head import read_head
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.index.tree import scan
from bayou.objectstore import Store, open_store
from bayou.repo import init_repo, open_repo
from bayou.spark.session import interrupt_at_deadline
from bayou.sync.bulk import Bulk
from bayou.sync.plan import remote_snapshot
from tests import api


@pytest.fixture
def bucket(tmp_path) -> Path:
    for at in range(60):
        file = tmp_path / f"store/data/t/m-{at % 4}/{at}/raw"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"%d" % at)
    (tmp_path / "store/data/~x").touch()
    return tmp_path / "store"


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def bulk(bucket, warnings) -> Bulk:
    place = DatastoreConfig(url=bucket.as_uri())
    return Bulk(place, SparkConfig(), 50, 8, Deadline.after(100), warnings.append)


def paths(found: remote_snapshot.RemoteSnapshot) -> list[str]:
    return [entry.path for entry in scan(found.tree)]


def everything(store: Store) -> list[str]:
    return sorted(meta.key for page in store.list() for meta in page if meta.key.endswith("/raw"))


@pytest.mark.spark
def test_a_long_listing_becomes_a_head_by_way_of_spark(warm, bucket, bulk, warnings, tmp_path, monkeypatch):
    store = open_store(bucket.as_uri())
    monkeypatch.setattr(remote_snapshot, "build", None)  # this process builds nothing by itself

    made = remote_snapshot.create_index(store, NodeFiles(tmp_path / "cache"), "ada", bulk=bulk)

    assert (paths(made), made.discovered, [one.key for one in made.refused]) == (everything(store), True, ["data/~x"])
    assert read_head(store).head == made.head
    assert warnings == []


@pytest.mark.spark
def test_v15_a_pull_keeps_what_spark_found_to_itself(warm, bucket, bulk, tmp_path, monkeypatch):
    store = open_store(bucket.as_uri())
    cache = NodeFiles(tmp_path / "cache")
    before = sorted(bucket.rglob("*"))
    monkeypatch.setattr(remote_snapshot, "build", None)

    found = remote_snapshot.discover_snapshot(store, LocalNodes(cache, "c1"), cache, bulk)

    assert (paths(found), found.seen) == (everything(store), None)
    assert sorted(bucket.rglob("*")) == before


def test_a_short_listing_starts_no_spark(bucket, bulk, tmp_path, monkeypatch):
    monkeypatch.setattr("bayou.spark.session.open_session", None)
    for file in list(bucket.rglob("raw"))[:20]:
        file.unlink()
    store = open_store(bucket.as_uri())

    assert paths(remote_snapshot.create_index(store, NodeFiles(tmp_path / "cache"), "ada", bulk=bulk)) == everything(
        store
    )


def test_without_java_this_process_does_it_alone_and_says_so(bucket, bulk, warnings, tmp_path, monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise JavaMissing("there is no Java")

    monkeypatch.setattr("bayou.spark.session.open_session", missing)
    store = open_store(bucket.as_uri())

    assert paths(remote_snapshot.create_index(store, NodeFiles(tmp_path / "cache"), "ada", bulk=bulk)) == everything(
        store
    )
    assert warnings == ["the store was listed by this process alone, since Spark could not: there is no Java"]


@pytest.mark.spark
def test_setup_discovers_a_large_store_on_spark(warm, bucket, tmp_path, monkeypatch):
    root = init_repo(tmp_path / "repo").root
    with open(root / "bayou.toml", "a") as file:
        file.write("[sync]\npoint_limit = 50\n")
    used = []
    real = Bulk.discover
    monkeypatch.setattr(Bulk, "discover", lambda *args, **kwargs: used.append(real(*args, **kwargs)) or used[-1])

    report = api.setup(
        open_repo(root), bucket.as_uri(), namespace=None, options={}, lazy=False, skip_migration=False, timeout=100
    )

    assert used[0].root.entries == 60
    assert (report.discovered, report.pulled, report.pushed) == (True, 60, 0)
    assert sorted(path.read_bytes() for path in open_repo(root).tree_root.rglob("raw")) == sorted(
        path.read_bytes() for path in bucket.rglob("raw")
    )


@pytest.mark.spark
def test_v12_a_job_ends_with_its_deadline(spark):
    def stall(batches):
        import time

        time.sleep(300)
        yield from batches

    with pytest.raises(DeadlinePassed), interrupt_at_deadline(spark, Deadline.after(1)):
        spark.range(1).mapInArrow(stall, "id long").collect()
