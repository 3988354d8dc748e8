"""Which engine does the work: one rule, and why it chose."""

from __future__ import annotations

import pytest

from bayou.config import Config, SparkConfig, SyncConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import JavaMissing, SparkUnavailable, UsageError
from bayou.engine import select
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Needs
from bayou.engine.select import (
    CLUSTER_BYTES,
    CLUSTER_FILES,
    LARGE,
    RECORDS,
    SCAN,
    SESSION_S,
    START_S,
    TRANSFER,
    Engines,
    Selector,
    WorkCost,
    is_cluster,
)
from bayou.objectstore import open_store

AUTO, COLD = Selector(cores=2, server_runs=lambda: True), Selector(cores=2)
PAYS_COLD = TRANSFER.limit(2, server_runs=False) or 0


@pytest.mark.parametrize(
    ("selector", "files", "spark"),
    [
        (AUTO, LARGE, False),
        (AUTO, LARGE + 1, True),
        (COLD, LARGE + 1, False),
        (COLD, PAYS_COLD, False),
        (COLD, PAYS_COLD + 1, True),
        (Selector(cores=1, server_runs=lambda: True), 10_000_000, False),
        (Selector(cluster=True), CLUSTER_FILES, False),
        (Selector(cluster=True), CLUSTER_FILES + 1, True),
        (Selector("point", cluster=True), 10_000_000, False),
        (Selector("spark"), 0, True),
        (Selector(override=50), 50, False),
        (Selector(override=50), 51, True),
        (Selector(override=50_000, cluster=True), 2000, False),
    ],
)
def test_the_rule(selector, files, spark):
    assert selector.choose(TRANSFER, files).spark is spark


@pytest.mark.parametrize("cost", [SCAN, TRANSFER, RECORDS])
@pytest.mark.parametrize("cores", [2, 4, 16])
@pytest.mark.parametrize("runs", [True, False])
def test_spark_is_chosen_only_for_what_it_finishes_sooner(cost: WorkCost, cores: int, runs: bool) -> None:
    """With Java installed no command is slower than without it, as far as the measured costs go."""
    selector = Selector(cores=cores, server_runs=lambda: runs)
    begin_s = SESSION_S + (0 if runs else START_S)
    for files in (LARGE + 1, 150_000, 300_000, 1_000_000, 10_000_000):
        sooner = begin_s + files * cost.spark_us / cores / 1e6 < files * cost.here_us / 1e6
        assert selector.choose(cost, files).spark is sooner


def test_two_cores_list_and_compare_no_faster_on_spark():
    assert SCAN.limit(2, server_runs=True) is None
    assert AUTO.choose(SCAN, 10_000_000).why == "Spark is not faster at this on the 2 cores of this machine"
    assert AUTO.limit(SCAN) is None


def test_a_cluster_also_takes_few_files_of_many_bytes():
    assert Selector(cluster=True).choose(TRANSFER, 3, CLUSTER_BYTES + 1).spark
    assert not AUTO.choose(TRANSFER, 3, CLUSTER_BYTES + 1).spark
    assert not Selector(cluster=True, override=50).choose(TRANSFER, 3, CLUSTER_BYTES + 1).spark


@pytest.mark.parametrize(
    ("selector", "limit"),
    [
        (AUTO, PAYS_COLD),
        (Selector(cores=1), None),
        (Selector("point"), None),
        (Selector("spark"), 0),
        (Selector(cluster=True), CLUSTER_FILES),
        (Selector(override=7), 7),
    ],
)
def test_what_this_process_does_before_it_knows_how_much_there_is(selector, limit):
    assert selector.limit(TRANSFER) == limit


def test_a_small_sync_asks_for_no_server():
    def asked() -> bool:
        pytest.fail("a choice that a server does not change")

    assert not Selector(cores=2, server_runs=asked).choose(TRANSFER, LARGE).spark
    assert Selector(cores=2, server_runs=asked).limit(TRANSFER) == PAYS_COLD


def test_a_choice_says_why():
    assert Selector("point").choose(TRANSFER, 3).why == "--engine point"
    assert COLD.choose(TRANSFER, 900_000).why == (
        "900,000 entries or files; on this machine Spark, whose server has yet to start, pays for more than 831,250"
    )


@pytest.mark.parametrize(
    ("config", "cluster"),
    [
        (SparkConfig(), False),
        (SparkConfig(master="local[4]"), False),
        (SparkConfig(master="spark://host:7077"), True),
        (SparkConfig(remote="sc://host:15002"), True),
    ],
)
def test_a_cluster_is_spark_on_other_machines(config, cluster):
    assert is_cluster(config) is cluster
    assert Selector.of(Config(repo_id="x", spark=config), "auto").cluster is cluster


class NoJava:
    def is_server_running(self, config):
        return False

    def open(self, config, needs, *, deadline, progress):
        raise JavaMissing("there is no Java")


def engines(selector: Selector, warnings: list[str]) -> Engines:
    return Engines(SparkConfig(), selector, Deadline.after(9), warnings.append)


def test_where_spark_cannot_be_had_the_work_is_done_here_with_a_warning(install_engine):
    install_engine(NoJava)
    warnings: list[str] = []

    done = engines(Selector(override=1), warnings).run(
        Needs(), lambda by: by.engine, what="it was done", cost=SCAN, files=2
    )

    assert done == "local"
    assert warnings == ["it was done by this process alone, since Spark could not: there is no Java"]
    with pytest.raises(JavaMissing):
        engines(Selector("spark"), warnings).run(Needs(), lambda by: by.engine, what="it was done", cost=SCAN, files=2)


def test_a_store_in_memory_is_for_this_process_alone(install_engine):
    install_engine(NoJava)
    needs = Needs([StoreHandle(open_store("memory://x"), lambda: pytest.fail("no spec is made of it"))])
    warnings: list[str] = []

    assert (
        engines(Selector(override=1), warnings).run(needs, lambda by: by.engine, what="it", cost=SCAN, files=2)
        == "local"
    )
    assert warnings == []
    with pytest.raises(UsageError):
        engines(Selector("spark"), warnings).run(needs, lambda by: by.engine, what="it", cost=SCAN, files=2)


def test_a_program_without_spark_says_so(install_engine):
    install_engine(None)

    assert not select.is_server_running(SparkConfig())
    with pytest.raises(SparkUnavailable, match="without Spark"):
        select.spark_engine()


def test_a_limited_rate_keeps_the_work_in_this_process():
    config = Config("id", sync=SyncConfig(limit_rate=1_000_000))
    selector = Selector.of(config, "auto")
    assert (selector.choose(TRANSFER, 10**9).spark, selector.limit(TRANSFER)) == (False, None)
    with pytest.raises(UsageError, match="rate limit"):
        Selector.of(config, "spark")
