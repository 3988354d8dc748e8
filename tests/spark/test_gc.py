"""Collection on Spark deletes what one process deletes, in the same order of steps, and nothing else."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any

import pytest

from bayou.core.errors import DeleteFailed, NodeMissing, SparkLost
from bayou.engine.local import LocalExecutor
from bayou.engine.select import Request
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, names
from bayou.maintenance.gc_jobs import ListJob
from bayou.objectstore import keys
from bayou.spark import executor
from bayou.spark.arrow import read_parts
from bayou.sync.commit import commit
from bayou.sync.report import CollectReport
from bayou_testing.faults import Fail, Rule
from tests import api
from tests.spark.messy import Mess, entries_of, head_of, make_mess
from tests.spark.test_verify import a_team, killed_once
from tests.sync.conftest import Team

# The mess is one of single objects; `test_compact` and tests/maintenance/test_gc_packs collect packs.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("loose_objects")]

SOON = -5.0
"""A grace that ends in the future: clocks of stores are coarse."""


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayou.maintenance.gc_jobs.ENTRIES_PER_PART", 10)


def collect(mess: Mess, engine: Request, *, dry_run: bool = False, grace_s: float = SOON) -> CollectReport:
    return api.collect(mess.clone.repo, dry_run=dry_run, grace_s=grace_s, engine=engine)


def left(mess: Mess) -> list[str]:
    """What a store holds, whatever the ids of pushes and commits are."""
    return sorted(re.sub(r"[0-9A-Z]{26}|[0-9a-f]{64}", "*", key) for key in mess.objects)


def test_spark_deletes_what_one_process_deletes_although_workers_are_killed(warm, tmp_path, monkeypatch):
    here, there = (make_mess(a_team(tmp_path / name)) for name in ("point", "spark"))
    (marks := tmp_path / "marks").mkdir()
    real: Any = read_parts
    monkeypatch.setattr(executor, "read_parts", lambda *told: real(*told[:-1], killed_once(told[-1], marks)))

    dry = collect(there, "spark", dry_run=True)
    expected, done = collect(here, "point"), collect(there, "auto")

    assert counts(dry) == counts(done) == counts(expected)
    assert (done.objects_deleted, done.leftovers_deleted, done.trash_deleted) == (9, 2, 3)
    assert done.warnings == []
    assert left(there) == left(here)
    assert list(marks.iterdir())
    again = collect(there, "spark")
    assert counts(again)[:3] == (0, 0, 0)


def counts(report: CollectReport) -> tuple[int, ...]:
    return report.objects_deleted, report.leftovers_deleted, report.trash_deleted, report.nodes_deleted


def test_t13_a_push_that_was_under_way_makes_its_uploads_again(warm, team: Team, monkeypatch):
    mess = make_mess(team)
    mess.clone.write("files/late", "of a push that waits")
    real = commit.commit

    def waits(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(commit, "commit", real)
        collect(mess, "spark")
        return real(*args, **kwargs)

    monkeypatch.setattr(commit, "commit", waits)
    mess.clone.push(engine="point")

    found = entries_of(mess.store)["files/late"]
    assert mess.store.head(found.key).size == found.size


def test_v5_without_the_whole_index_nothing_is_deleted(warm, team: Team):
    mess = make_mess(team)
    *_, leaf = names(IndexTree(StoreNodes(mess.store), head_of(mess.store).root))
    mess.store.delete([keys.node(leaf)])
    before = mess.objects

    for engine in ("point", "spark"):
        with pytest.raises(NodeMissing):
            collect(mess, engine)

    assert mess.objects == before


@pytest.mark.s3
def test_a_bucket_is_collected_by_tasks_and_fails_as_it_does_here(warm, s3_team: Team, proxy):
    mess = make_mess(s3_team)
    garbage = collect(mess, "point", dry_run=True)
    needed = mess.objects.keys() & {entry.key for entry in entries_of(mess.store).values()}
    proxy.faults.add(Rule(Fail(403), method="POST", query="delete", nth=2, times=1000))  # the first is for the clock
    with pytest.raises(DeleteFailed):
        collect(mess, "spark")
    proxy.faults.clear()

    done = collect(mess, "spark")

    # What was deleted before the failure is not there to be deleted again.
    assert counts(done)[:3] <= counts(garbage)[:3]
    assert counts(collect(mess, "point", dry_run=True))[:3] == (0, 0, 0)
    assert needed <= mess.objects.keys()
    assert len(needed) > 50


def test_a_collection_whose_spark_is_lost_is_made_here_and_says_so(team: Team, monkeypatch, install_engine):
    """This process alone deletes, so that the report tells how much that was (V17)."""
    mess = make_mess(team)
    expected = collect(mess, "point", dry_run=True)

    class Lost:
        @contextmanager
        def open(self, *_: Any, **__: Any) -> Any:
            yield self

        def run(self, job: Any) -> Any:
            if isinstance(job, ListJob):
                return LocalExecutor().run(job)
            raise SparkLost("the Spark server went away")

    install_engine(Lost)
    before = mess.objects

    with pytest.raises(SparkLost):
        collect(mess, "spark")
    assert mess.objects.keys() >= {key for key in before if not key.startswith(".bayou/")}

    done = collect(mess, "auto")

    assert counts(done)[:3] == counts(expected)[:3]
    assert done.warnings == [
        "the store was collected by this process alone, since Spark could not: the Spark server went away"
    ]
