"""Discovery on Spark finds what one look at the whole store finds, node for node, however Spark divides the work."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow
import pytest
from msgspec.structs import replace
from pyspark import TaskContext, cloudpickle

from bayou.core.errors import HeadLost
from bayou.engine.handle import StoreHandle
from bayou.index.build import build
from bayou.index.node_store import LocalNodes, NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import keys
from bayou.objectstore.backends.credentials import StaticCredentials
from bayou.objectstore.spec import StoreSpec
from bayou.spark.arrow import read_parts
from bayou.spark.executor import JobKernel, SparkExecutor, schema_of
from bayou.spark.session import log_of
from bayou.sync.plan.discovery_job import Discovery, DiscoveryJob, Verdict
from tests.sync import reference_discovery as reference

pytestmark = pytest.mark.spark

COMMIT = "01J8XG4Q6V5T3N2M1K0H9G8F7E"


def fill(root: Path, names) -> StoreSpec:
    for at, key in enumerate(names):
        file = root / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * (at % 7))
    return StoreSpec.of(root.as_uri(), None, {}, 4)


def local(directory: Path) -> LocalNodes:
    return LocalNodes(NodeFiles(directory), COMMIT)


def job_of(spec: StoreSpec) -> DiscoveryJob:
    return DiscoveryJob(StoreHandle(spec.open(), lambda: spec), divided=True)


def discover(spark, spec: StoreSpec) -> closing[Discovery]:
    return closing(SparkExecutor(spark).run(job_of(spec)))


@pytest.fixture
def store(tmp_path) -> StoreSpec:
    """A directory with payload at several depths, and with what is not payload."""
    plain = [f"data/t/m-{at % 3}/n-{at % 40}/{at}/raw" for at in range(3000)]
    others = ["elsewhere/a", "top", "data/.lock", ".bayou/probe/x", "files/x/.bayou/head.json", "files/x/deep/y"]
    odd = ["data/t/~x/raw", "outputs/a\\b", "outputs/c\x01/d", "files/é", "files/x.y"]
    return fill(tmp_path / "store", [*plain, *others, *odd])


def test_spark_finds_what_one_look_at_everything_finds_and_writes_nothing(spark, store, tmp_path):
    expected = reference.discover(store.open())
    before = {path for path in (tmp_path / "store").rglob("*") if path.is_file()}

    with discover(spark, store) as found:
        root = build(found.entries(), sink := local(tmp_path / "nodes"))

    assert root == build(expected.entries, local(tmp_path / "whole"))
    assert (list(found.refused), found.refusals) == (expected.refused, len(expected.refused))
    assert found.ignored == expected.ignored
    assert list(scan(IndexTree(sink, root))) == expected.entries
    assert {path for path in (tmp_path / "store").rglob("*") if path.is_file()} == before  # V15


def test_an_empty_store_has_no_entries(spark, tmp_path):
    (tmp_path / "store").mkdir()

    with discover(spark, fill(tmp_path / "store", [])) as found:
        assert list(found.entries()) == []


@pytest.mark.parametrize("proof", [f"data/t/~{COMMIT}/raw", ".bayou/log/1.json", ".bayou/packs/1-1"])
def test_p9_what_only_a_client_with_a_head_writes_is_a_lost_head(spark, tmp_path, proof):
    spec = fill(tmp_path / "store", [proof, "data/x", "files/y"])

    with pytest.raises(HeadLost, match=proof):
        discover(spark, spec)


class FailsAtFirst(JobKernel):
    """The kernel of a job, but each task fails once, after it has done its work."""

    def __call__(self, part: object) -> Iterator[pyarrow.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from JobKernel.__call__(self, part)
        if context.attemptNumber() == 0:
            raise OSError("the work is done, and the driver never hears of it")


def test_tasks_that_run_twice_find_every_entry_once(spark, store, monkeypatch):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr("bayou.spark.executor.JobKernel", FailsAtFirst)

    with discover(spark, store) as found:
        assert list(found.entries()) == reference.discover(store.open()).entries


def test_credentials_are_neither_in_plans_nor_in_logs(spark, tmp_path, capfd):
    secret = "only-the-kernel-may-know-this"
    keys_of_aws = StaticCredentials("me", secret, secret, None)
    spec = replace(fill(tmp_path / "store", ["data/a"]), environ={"GOOGLE_BEARER_TOKEN": secret}, aws_keys=keys_of_aws)
    job = job_of(spec)

    found = read_parts(spark, schema_of(Verdict), job.parts(1), JobKernel(job))
    found.explain(mode="extended")
    with pytest.raises(Exception, match="nonsense"):
        found.selectExpr("nonsense").collect()

    assert secret.encode() in pickle.dumps(spec)
    assert secret not in repr(spec) + repr(job) + repr(JobKernel(job)) + "".join(capfd.readouterr())
    assert secret not in log_of(spark).read_text()
    assert b"data/a" in [bytes(row["key"]) for row in found.collect()]


@pytest.mark.s3
def test_tasks_talk_to_a_bucket_with_the_callers_credentials(spark, seaweed, tmp_path, monkeypatch):
    for name, value in seaweed.env().items():
        monkeypatch.setenv(name, value)
    seaweed.create_bucket("discover")
    spec = StoreSpec.of("s3://discover/team", "infra", {"endpoint": seaweed.url}, 8)
    opened = spec.open()
    objects = [keys.payload(f"data/t/m-{at % 3}/{at}/raw", None) for at in range(40)]
    list(opened.map(lambda key: opened.put(key, b"1"), objects))

    with discover(spark, spec) as found:
        root = build(found.entries(), StoreSink(opened, COMMIT))

    assert [entry.path for entry in scan(IndexTree(StoreNodes(opened), root))] == sorted(objects)
