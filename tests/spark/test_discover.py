"""Discovery on Spark finds what the point way finds, node for node, however Spark divides the work."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core.errors import HeadLost
from bayou.engine.parts import divide
from bayou.index.build import build
from bayou.index.discovery import IN_THE_WAY
from bayou.index.discovery import discover as by_point
from bayou.index.node_store import LocalNodes, NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import keys
from bayou.objectstore.backends.credentials import StaticCredentials
from bayou.objectstore.spec import StoreSpec
from bayou.spark import discover as job
from bayou.spark import discover as judge
from bayou.spark.arrow import ddl
from bayou.spark.discover import JUDGED, Judge, Leaves, discover, judged
from bayou.spark.session import log_of
from tests.index.memory import MemoryStore

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


@pytest.fixture
def store(tmp_path) -> StoreSpec:
    """A directory with payload at several depths, and with what is not payload."""
    plain = [f"data/t/m-{at % 3}/n-{at % 40}/{at}/raw" for at in range(3000)]
    others = ["elsewhere/a", "top", "data/.lock", ".bayou/probe/x", "files/x/.bayou/head.json", "files/x/deep/y"]
    odd = ["data/t/~x/raw", "outputs/a\\b", "outputs/c\x01/d", "files/é", "files/x.y"]
    return fill(tmp_path / "store", [*plain, *others, *odd])


@pytest.mark.parametrize("carry", [False, True])
def test_spark_builds_the_tree_of_the_point_way(spark, store, tmp_path, monkeypatch, carry):
    monkeypatch.setattr(job, "_ROWS", 900)
    opened = store.open()
    expected = by_point(opened)
    whole = build(expected.entries, local(tmp_path / "whole"))
    before = {path for path in (tmp_path / "store").rglob("*") if path.is_file()}
    sink = local(tmp_path / "nodes") if carry else StoreSink(opened, COMMIT)

    found = discover(spark, opened, store, sink, carry=carry)

    assert found.root == whole
    assert (list(found.refused), found.refusals) == (list(expected.refused), len(expected.refused))
    assert found.ignored == expected.ignored
    source = sink if isinstance(sink, LocalNodes) else StoreNodes(opened)
    assert list(scan(IndexTree(source, found.root))) == expected.entries
    if carry:  # V15
        assert {path for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


def test_an_empty_store_has_an_empty_tree(spark, tmp_path):
    (tmp_path / "store").mkdir()
    recipe = fill(tmp_path / "store", [])

    assert discover(spark, recipe.open(), recipe, local(tmp_path / "nodes")).root is None


def test_objects_of_pushes_without_a_head_are_a_lost_head(spark, tmp_path):
    recipe = fill(tmp_path / "store", [f"data/t/~{COMMIT}/raw", "data/x"])

    with pytest.raises(HeadLost, match="data/t/~"):
        discover(spark, recipe.open(), recipe, local(tmp_path / "nodes"))


@pytest.mark.parametrize("seed", range(2))
def test_random_stores_have_the_same_tree_whatever_the_parts(spark, tmp_path, monkeypatch, seed):
    """Objects that are the directory of others too, which only a bucket can hold."""
    chance = random.Random(seed)
    names = ["a", "b", "a-b", "a.b", "a0", "é", "~x", ".lock"]
    laid = {"data/" + "/".join(chance.choices(names, k=chance.randint(1, 5))) for _ in range(600)}
    bucket: Any = MemoryStore({key: b"x" * chance.randint(0, 3) for key in laid})
    monkeypatch.setattr(job, "_ROWS", chance.choice([20, 100]))
    expected = by_point(bucket)
    table = [row for page in bucket.list() for row in Judge(bucket)(page).to_pylist()]

    rows = spark.createDataFrame(table, ddl(JUDGED))
    found = job._build(bucket, rows, job._counts(rows), Leaves(COMMIT), sink := local(tmp_path / "nodes"))

    assert found.root == build(expected.entries, local(tmp_path / "whole"))
    assert list(found.refused) == list(expected.refused)
    assert any(one.reason == IN_THE_WAY for one in found.refused)
    assert list(scan(IndexTree(sink, found.root))) == expected.entries


def test_tasks_that_run_twice_write_the_same_tree(spark, store, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_ROWS", 1000)
    (marks := tmp_path / "marks").mkdir()

    def first_attempts_fail(commit, recipe):
        kernel = Leaves(commit, recipe)

        def run(batches):
            from pyspark import TaskContext

            yield from kernel(batches)
            mark = marks / str(TaskContext.get().partitionId())
            if not mark.exists():
                mark.touch()
                raise OSError("the work is done, and nobody hears of it")

        return run

    monkeypatch.setattr(job, "Leaves", first_attempts_fail)
    opened = store.open()
    expected = by_point(opened)

    found = discover(spark, opened, store, StoreSink(opened, COMMIT))

    assert len(list(marks.iterdir())) > 1
    assert found.root == build(expected.entries, local(tmp_path / "whole"))
    assert list(scan(IndexTree(StoreNodes(opened), found.root))) == expected.entries


def test_credentials_are_neither_in_plans_nor_in_logs(spark, tmp_path, capfd):
    secret = "only-the-kernel-may-know-this"
    keys_of_aws = StaticCredentials("me", secret, secret, None)
    recipe = replace(
        fill(tmp_path / "store", ["data/a"]), environ={"GOOGLE_BEARER_TOKEN": secret}, aws_keys=keys_of_aws
    )

    found = judged(spark, recipe, [divide(recipe.open(), 1)[0]], 1)
    found.explain(mode="extended")
    found.mapInArrow(Leaves(COMMIT, recipe), "piece string").explain(mode="extended")
    with pytest.raises(Exception, match="nonsense"):
        found.selectExpr("nonsense").collect()

    assert secret.encode() in pickle.dumps(recipe)
    assert secret not in repr(recipe) + repr(Leaves(COMMIT, recipe)) + "".join(capfd.readouterr())
    assert secret not in log_of(spark).read_text()
    assert [row["path"] for row in found.where(found["verdict"] == judge.PAYLOAD).collect()] == ["data/a"]


@pytest.mark.s3
def test_tasks_talk_to_a_bucket_with_the_callers_credentials(spark, seaweed, tmp_path, monkeypatch):
    for name, value in seaweed.env().items():
        monkeypatch.setenv(name, value)
    seaweed.create_bucket("discover")
    recipe = StoreSpec.of("s3://discover/team", "infra", {"endpoint": seaweed.url}, 8)
    opened = recipe.open()
    objects = [keys.payload(f"data/t/m-{at % 3}/{at}/raw", None) for at in range(40)]
    list(opened.map(lambda key: opened.put(key, b"1"), objects))

    found = discover(spark, opened, recipe, StoreSink(opened, COMMIT))

    assert [entry.path for entry in scan(IndexTree(StoreNodes(opened), found.root))] == sorted(objects)
