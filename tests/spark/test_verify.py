"""Verify on Spark says what one process says, mends what it mends, and survives what it survives."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core.errors import AccessDenied
from bayou.core.ids import ulid
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, names
from bayou.objectstore import keys
from bayou.spark import executor
from bayou.spark.arrow import read_parts
from bayou.sync.report import VerifyReport
from bayou_testing.faults import Fail, Rule
from tests import api
from tests.maintenance.damages import small_nodes  # noqa: F401  (used by name)
from tests.maintenance.pack_damages import bytes_of, overwrite, packs_of, paths, small_files, with_packs
from tests.spark.messy import Mess, entries_of, head_of, make_mess
from tests.sync.conftest import Team
from tests.sync.indexes import commit_rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayou.maintenance.verify_job.ENTRIES_PER_PART", 3)


@pytest.fixture
def mess(team: Team) -> Mess:
    return make_mess(team)


def verify(mess: Mess, engine: str, **options: Any) -> VerifyReport:
    return api.verify(mess.clone.repo, **{"deep": False, "repair": False, "engine": engine, **options})


def test_spark_finds_what_one_process_finds(warm, mess, monkeypatch):
    plain, deep = verify(mess, "point"), verify(mess, "point", deep=True)
    monkeypatch.setattr("bayou.engine.local.LocalExecutor.run", None)  # from here on Spark does it

    assert verify(mess, "spark") == plain
    assert verify(mess, "auto", deep=True) == deep
    assert (len(deep.missing), len(deep.changed), deep.trash, deep.leftovers) == (6, 7, 3, 11)
    assert deep.unindexed == ["files/nobody/indexed", "outputs/this"]
    assert [one.path for one in deep.refused] == ["data/t/~x/raw", "files/nested"]


def test_a_repair_on_spark_mends_what_one_process_mends(warm, tmp_path, monkeypatch):
    messes = [make_mess(a_team(tmp_path / name)) for name in ("point", "spark")]
    monkeypatch.setattr("bayou.maintenance.verify_rules.WINDOW", 3)  # several commits

    by_point, by_spark = (
        verify(mess, engine, deep=True, repair=True) for mess, engine in zip(messes, ("point", "spark"), strict=True)
    )

    assert without_ids(by_spark) == without_ids(by_point)
    assert by_spark.repaired >= 8
    entries = [{path: (entry.size, entry.sha256) for path, entry in entries_of(mess.store).items()} for mess in messes]
    assert entries[0] == entries[1]
    assert verify(messes[1], "point", deep=True) == verify(messes[0], "point", deep=True)
    assert head_of(messes[1].store).seq == head_of(messes[0].store).seq


@pytest.mark.soak
@pytest.mark.usefixtures("small_nodes")
def test_what_a_damaged_node_hides_is_hidden_on_spark_too_and_rebuilt(warm, mess):
    tree = IndexTree(StoreNodes(mess.store), head_of(mess.store).root)
    leaves = list(names(tree))
    mess.store.delete([keys.node(leaves[1]), keys.node(leaves[-1])])
    expected = verify(mess, "point")

    found = verify(mess, "spark")

    assert found == expected
    assert len(found.damaged) == 2
    mended = verify(mess, "spark", repair=True)
    assert mended.damaged == []
    assert verify(mess, "spark").damaged == []


def test_a_worker_that_is_killed_in_the_middle_costs_nothing(warm, mess, tmp_path, monkeypatch):
    expected = verify(mess, "point")
    (marks := tmp_path / "marks").mkdir()
    real: Any = read_parts
    monkeypatch.setattr(executor, "read_parts", lambda *told: real(*told[:-1], killed_once(told[-1], marks)))

    assert verify(mess, "spark") == expected
    assert list(marks.iterdir())


@pytest.mark.parametrize("kind", ["team", pytest.param("s3_team", marks=pytest.mark.s3)])
def test_packs_are_judged_and_mended_on_spark_as_here(warm, kind, request, tmp_path, monkeypatch):
    """P8: the tasks get the driver's listing of the packs, and read the files of each pack together."""
    team: Team = request.getfixturevalue(kind)
    clone, store = with_packs(team, small_files(90), 5), team.store()
    gone, short, other, _, well = packs_of(store).values()
    store.delete([gone[0].key])
    store.put(short[0].key, bytes_of(store, short[0].key)[:-1])
    bad = [other[0], other[4], other[-1]]
    for entry in bad:
        overwrite(store, entry)
    odd = replace(well[0], offset=1 << 50)
    commit_rows(store, {odd.path: odd})
    store.put(keys.pack(f"{ulid()}-7"), b"1234567")
    here = [api.verify(clone.repo, deep=deep, repair=False, engine="point") for deep in (False, True)]
    monkeypatch.setattr("bayou.engine.local.LocalExecutor.run", None)  # from here on Spark does it

    on_spark = [api.verify(clone.repo, deep=deep, repair=False, engine="spark") for deep in (False, True)]

    assert on_spark == here
    assert [(one.missing, one.changed, one.leftovers) for one in on_spark] == [
        (paths(gone), paths(short), 1),
        (paths(gone), paths([*short, *bad]), 1),
    ]
    assert [row.path for row in on_spark[1].unsafe] == [odd.path]
    before = entries_of(store)
    mended = api.verify(clone.repo, deep=True, repair=True, engine="spark")
    assert (mended.ok, mended.repaired) == (True, len(gone) + len(short) + len(bad) + 1)
    after = entries_of(store)
    assert all(after[path].same_content(entry) for path, entry in before.items())
    assert head_of(store).log[-1].kind == "repair"


@pytest.mark.s3
def test_a_bucket_is_verified_by_tasks_and_fails_as_it_does_here(warm, s3_team, proxy):
    mess = make_mess(s3_team)
    expected = verify(mess, "point", deep=True)

    assert verify(mess, "spark", deep=True) == expected

    proxy.faults.add(Rule(Fail(403), method="HEAD", path=r"/raw$"))  # V4: that is no proof that anything is missing
    for engine in ("point", "spark"):
        with pytest.raises(AccessDenied):
            verify(mess, engine)


def without_ids(report: VerifyReport) -> VerifyReport:
    """Return a report whose warnings do not name the keys of uploads, which are new each time."""
    return replace(report, warnings=[re.sub(r"~[0-9A-Z]{26}", "~", warning) for warning in report.warnings])


def killed_once(kernel: Any, marks: Path) -> Any:
    """Return a kernel whose first attempts are killed after their work, before anybody has heard of it."""

    def run(batches: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        done = list(kernel(batches))
        mark = marks / str(TaskContext.get().partitionId())
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from done

    return run


def a_team(root: Path) -> Team:
    (root / "store").mkdir(parents=True)
    return Team(root, (root / "store").as_uri(), {})
