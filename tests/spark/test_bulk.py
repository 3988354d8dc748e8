"""Where a sync hands over to Spark: a listing that is too long for one process, and only that."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, JavaMissing
from bayou.engine.handle import StoreHandle
from bayou.engine.local import LocalExecutor
from bayou.engine.select import Engines, Selector
from bayou.index.head import read_head
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.index.tree import scan
from bayou.objectstore import Store
from bayou.objectstore.spec import StoreSpec
from bayou.repo import init_repo, open_repo
from bayou.spark.executor import SparkExecutor
from bayou.spark.session import interrupt_at_deadline
from bayou.sync.plan import remote_snapshot
from bayou.sync.plan.discovery_job import Discovery
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
def engines(warnings) -> Engines:
    return Engines(SparkConfig(), Selector(override=50, cores=2), Deadline.after(100), warnings.append)


@pytest.fixture
def handle(bucket) -> StoreHandle:
    spec = StoreSpec.of(bucket.as_uri(), None, {}, 8)
    return StoreHandle(spec.open(), lambda: spec)


@pytest.fixture
def only_on_spark(monkeypatch) -> None:
    """Let this process begin the listing, as one part, and do nothing else of it."""
    real = LocalExecutor.run

    def run(self, job):
        assert len(job.parts(100)) == 1
        return real(self, job)

    monkeypatch.setattr(LocalExecutor, "run", run)


def paths(found: remote_snapshot.RemoteSnapshot) -> list[str]:
    return [entry.path for entry in scan(found.tree)]


def everything(store: Store) -> list[str]:
    return sorted(meta.key for page in store.list() for meta in page if meta.key.endswith("/raw"))


@pytest.mark.spark
def test_a_long_listing_becomes_a_head_by_way_of_spark(warm, handle, engines, only_on_spark, warnings, tmp_path):
    store = handle.open()

    made = remote_snapshot.create_index(handle, engines, NodeFiles(tmp_path / "cache"), "ada")

    assert (paths(made), made.discovered, [one.key for one in made.refused]) == (everything(store), True, ["data/~x"])
    assert read_head(store).head == made.head
    assert warnings == []


@pytest.mark.spark
def test_v15_a_pull_keeps_what_spark_found_to_itself(warm, bucket, handle, engines, only_on_spark, tmp_path):
    cache = NodeFiles(tmp_path / "cache")
    before = sorted(bucket.rglob("*"))

    found = remote_snapshot.discover_snapshot(handle, engines, LocalNodes(cache, "c1"), cache)

    assert (paths(found), found.seen) == (everything(handle.open()), None)
    assert sorted(bucket.rglob("*")) == before


def test_a_short_listing_starts_no_spark(bucket, handle, engines, tmp_path, monkeypatch):
    monkeypatch.setattr("bayou.spark.session.open_session", None)
    for file in list(bucket.rglob("raw"))[:20]:
        file.unlink()

    made = remote_snapshot.create_index(handle, engines, NodeFiles(tmp_path / "cache"), "ada")

    assert paths(made) == everything(handle.open())


def test_without_java_this_process_does_it_alone_and_says_so(handle, engines, warnings, tmp_path, monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise JavaMissing("there is no Java")

    monkeypatch.setattr("bayou.spark.session.open_session", missing)

    made = remote_snapshot.create_index(handle, engines, NodeFiles(tmp_path / "cache"), "ada")

    assert paths(made) == everything(handle.open())
    assert warnings == ["the store was listed by this process alone, since Spark could not: there is no Java"]


@pytest.mark.spark
def test_setup_discovers_a_large_store_on_spark(warm, bucket, tmp_path, monkeypatch):
    root = init_repo(tmp_path / "repo").root
    with open(root / "bayou.toml", "a") as file:
        file.write("[sync]\npoint_limit = 50\n")
    used = []
    real = SparkExecutor.run

    def run(self, job):
        found = real(self, job)
        assert isinstance(found, Discovery)
        used.append(len(list(found.entries())))
        return found

    monkeypatch.setattr(SparkExecutor, "run", run)

    report = api.setup(
        open_repo(root), bucket.as_uri(), namespace=None, options={}, lazy=False, skip_migration=False, timeout=100
    )

    assert used == [60]
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


@pytest.mark.spark
@pytest.mark.parametrize("answers", [True, False])
def test_v12_a_job_whose_interrupt_spark_loses_ends_with_its_deadline(spark, answers, tmp_path, monkeypatch):
    """A real server loses an interrupt only at a moment that no test can choose, so here none is sent."""
    ended = str(tmp_path / "ended")

    def stall(batches):
        import time
        from pathlib import Path

        while not Path(ended).exists():
            time.sleep(0.1)
        yield from batches

    monkeypatch.setattr("bayou.spark.session.INTERRUPT_S", 0.5)
    monkeypatch.setattr(spark, "interruptAll", list if answers else threading.Event().wait)
    try:
        with pytest.raises(DeadlinePassed), interrupt_at_deadline(spark, Deadline.after(0.5)):
            spark.range(1).mapInArrow(stall, "id long").collect()
    finally:
        Path(ended).touch()
