"""A real cluster: jobs from store to store need no directory of ours, and those that need one say so first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import SparkNotShared
from bayou.core.ids import ulid
from bayou.engine.handle import StoreHandle
from bayou.engine.select import Engines, Selector
from bayou.index.node_store import NodeFiles
from bayou.index.tree import scan
from bayou.objectstore import keys, open_store
from bayou.objectstore.spec import StoreSpec
from bayou.spark.server.control import SparkServer
from bayou.spark.session import spark_session
from bayou.spark.shared_fs import require_shared
from bayou.spark.warm import stop
from bayou.sync.plan import remote_snapshot
from tests import api
from tests.spark.cluster import Cluster, can_be_apart, cluster
from tests.spark.test_server_ports import GIVEN, Stranger, open_blocks, spark_ports
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import content_of
from tests.trusting import trust

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark_cluster(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    hidden = tmp_path_factory.getbasetemp()
    if not can_be_apart(hidden):
        pytest.skip("this system does not let us keep a directory from a process")
    with cluster(tmp_path_factory.mktemp("cluster"), hidden) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(made.conf))
        yield made


def on(cluster: Cluster, clone: Clone) -> Clone:
    """Give a clone this cluster for its Spark."""
    clone.repo.file.write_text(f'{clone.repo.file.read_text()}[spark]\nmaster = "{cluster.url}"\n')
    trust(clone.repo.root)
    clone.reopen()
    return clone


def test_a_job_that_needs_the_tree_says_so_before_it_starts(spark_cluster: Cluster, tmp_path: Path):
    tree = tmp_path / "tree"
    tree.mkdir()
    with spark_session(SparkConfig(master=spark_cluster.url)) as spark:
        with pytest.raises(SparkNotShared, match=r"do not see the tree .* file system that all of them share"):
            require_shared(spark, tree, "the tree")
        assert list(tree.iterdir()) == []
    asked = spark_cluster.tasks()
    assert (len(asked), all(asked)) == (2, True)

    (tmp_path / "store" / "files").mkdir(parents=True)
    (tmp_path / "store" / "files" / "a").write_bytes(b"a")
    alone = Team(tmp_path, (tmp_path / "store").as_uri(), {})
    warnings: list[str] = []
    store, engines = on_cluster(spark_cluster, alone, Selector(override=0), warnings)
    # A store that is a directory which only we see is not taken for an empty one: this process lists it.
    made = remote_snapshot.create_index(store, engines, NodeFiles(tmp_path / "cache"), "ada", proved=True)

    assert [entry.path for entry in scan(made.tree)] == ["files/a"]
    assert len(warnings) == 1
    assert "do not see the store" in warnings[0]


def on_cluster(made: Cluster, team: Team, rule: Selector, warnings: list[str]) -> tuple[StoreHandle, Engines]:
    """Return the store of a team, and how jobs run on the cluster by this rule."""
    spec = StoreSpec.of(team.url, None, team.options, 8)
    engines = Engines(SparkConfig(master=made.url), rule, Deadline.after(500), warnings.append)
    return StoreHandle(spec.open(), lambda: spec), engines


@pytest.mark.soak
def test_17_3_a_cluster_that_authenticates_is_used_as_its_administrator_says(classes: Path, tmp_path, monkeypatch):
    """And our own server in front of it obeys no stranger either."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    if not can_be_apart(hidden):
        pytest.skip("this system does not let us keep a directory from a process")
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster", hidden, secret="of-this-cluster") as made:
        monkeypatch.setenv("SPARK_CONF_DIR", str(made.conf))
        config = SparkConfig(master=made.url)
        with spark_session(config) as spark:
            assert spark.range(0, 8, 1, 4).mapInArrow(lambda batches: batches, "id long").count() == 8
            ports = spark_ports(SparkServer.of(config))
            assert len(ports) == 2
            for port in ports:
                with Stranger(port) as stranger:
                    assert stranger.ask(open_blocks())[0] not in GIVEN
        stop(config)


@pytest.mark.soak
def test_jobs_from_store_to_store_run_where_no_directory_is_shared(spark_cluster: Cluster, s3_team: Team, tmp_path):
    plain = {f"files/{number % 7}/{number}": b"%d" % number for number in range(120)}
    for path, data in plain.items():
        s3_team.store().put(keys.payload(path, None), data)
    alice = on(spark_cluster, s3_team.clone("alice"))
    warnings: list[str] = []
    store, engines = on_cluster(spark_cluster, s3_team, Selector("spark"), warnings)

    found = remote_snapshot.create_index(store, engines, NodeFiles(tmp_path / "cache"), "ada", proved=True)

    assert [entry.path for entry in scan(found.tree)] == sorted(plain)
    discovered = spark_cluster.tasks()
    assert len(discovered) == 2
    assert all(discovered)

    url = f"s3://sync-tests/{ulid()}"
    report = api.replicate(alice.repo, url, options=s3_team.options, engine="spark", timeout=500)

    assert (report.copied, report.skipped, report.warnings, warnings) == (120, 0, [], [])
    assert content_of(open_store(url, options=s3_team.options)) == plain
    assert all(after > before for before, after in zip(discovered, spark_cluster.tasks(), strict=True))
