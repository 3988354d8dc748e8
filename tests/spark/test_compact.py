"""Compaction on Spark gives the index that one process gives, although its tasks are killed and run twice."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import SparkLost
from bayou.engine.local import LocalExecutor
from bayou.engine.select import Request
from bayou.maintenance.compact_move import MoveJob
from bayou.spark import executor
from bayou.spark.arrow import read_parts
from bayou.sync.report import CompactReport
from tests import api
from tests.maintenance.damages import small_nodes  # noqa: F401  (used by name)
from tests.maintenance.pack_scene import check, collect, fresh, noise, packs_of, rows, small_packs, stored_packs
from tests.spark.test_verify import a_team, killed_once
from tests.sync.conftest import Clone, Team

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("small_packs")]

__all__ = ["small_packs"]

FILES = {f"data/t/m/n-{number % 7}/{number}/raw": noise(str(number), 2000) for number in range(150)}


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayou.maintenance.compact_plan.LEAVES_PER_PART", 1)
    monkeypatch.setattr("bayou.maintenance.compact_move.PART_BYTES", 50_000)


def worn(team: Team) -> Clone:
    """Push files in five packs, delete many of them, and push small packs and small objects besides."""
    clone = team.clone("a")
    clone.write_all(FILES)
    clone.push(engine="point")
    clone.delete(*[path for number, path in enumerate(FILES) if number % 3])
    clone.push(engine="point")
    for number in range(5):
        clone.write(f"files/small/{number}", noise(f"small {number}", 700))
        clone.push(engine="point")
    with open(clone.repo.file, "a") as config:
        config.write("[sync]\npack_below = 0\n")
    clone.reopen()
    clone.write_all({f"files/loose/{number}": noise(f"loose {number}", 300) for number in range(6)})
    clone.push(engine="point")
    clone.repo.file.write_text(clone.repo.file.read_text().replace("pack_below = 0", "point_limit = 20"))
    clone.reopen()
    return clone


def compact(clone: Clone, engine: Request, **more: Any) -> CompactReport:
    return api.compact(clone.repo, **{"dry_run": False, "engine": engine, **more})


def counts(report: CompactReport) -> tuple[int, ...]:
    return report.packs_before, report.files, report.objects, report.bytes, report.skipped


def shape(team: Team) -> dict[str, tuple[Any, ...]]:
    """What the index says, whatever the names of pushes and packs are."""
    return {path: (one.size, one.sha256, one.pack is None, one.stored, one.method) for path, one in rows(team).items()}


def test_spark_compacts_as_one_process_does_although_workers_are_killed(
    warm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teams = [a_team(tmp_path / name) for name in ("point", "spark")]
    here, there = (worn(team) for team in teams)
    expected = compact(here, "point")
    (marks := tmp_path / "marks").mkdir()
    real: Any = read_parts
    monkeypatch.setattr(executor, "read_parts", lambda *told: real(*told[:-1], killed_once(told[-1], marks)))

    dry = compact(there, "spark", dry_run=True)
    done = compact(there, "auto")

    assert list(marks.iterdir())
    assert (done.warnings, done.failures, done.objects) == ([], 0, 6)
    assert counts(done) == counts(expected) == counts(dry)
    assert done.freed == dry.freed
    assert shape(teams[0]) == shape(teams[1])
    assert check(teams[0]) == check(teams[1])
    # P1: a run whose rows nobody took has left packs under names of its own.
    assert stored_packs(teams[1]) > packs_of(teams[1])
    collect(there)
    assert stored_packs(teams[1]) == packs_of(teams[1])
    assert fresh(teams[1]).files == check(teams[0])
    assert there.sync(engine="point").requests.total == 1


def test_a_compaction_whose_spark_is_lost_goes_on_here_from_what_it_has_committed(
    team: Team, monkeypatch: pytest.MonkeyPatch, install_engine: Any
) -> None:
    """The tasks have moved some files, which were committed, when the server goes away."""
    clone = worn(team)
    monkeypatch.setattr("bayou.maintenance.compact_move.COMMIT_ROWS", 10)
    expected = compact(clone, "point", dry_run=True)

    class Lost:
        @contextmanager
        def open(self, *_: Any, **__: Any) -> Any:
            yield self

        def run(self, job: Any) -> Any:
            if not isinstance(job, MoveJob):
                return LocalExecutor().run(job)
            whole = LocalExecutor(threads=1).run
            fold = job.fold

            def cut(rows: Any) -> Any:
                fold(row for _, row in zip(range(30), rows, strict=False))
                raise SparkLost("the Spark server went away")

            job.fold = cut  # type: ignore[method-assign]
            return whole(job)

    install_engine(Lost)

    done = compact(clone, "auto")

    assert done.warnings == [
        "packs were rewritten by this process alone, since Spark could not: the Spark server went away"
    ]
    # What was committed is not moved again, but for the last pack of the tasks, which may be a small one.
    assert 0 <= done.files - expected.files < 10
    assert (done.objects, done.skipped, done.failures) == (expected.objects, 0, 0)
    assert done.packs_after == len(packs_of(team))
    assert len(check(team)) == len(rows(team))
