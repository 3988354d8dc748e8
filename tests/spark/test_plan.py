"""The plan of a large sync where only the store has a word: nothing is compared, and the same is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayou.sync.plan import compare_job
from bayou.sync.report import SyncReport
from tests.spark.without_spark import without_spark
from tests.sync.conftest import Clone, Team


@pytest.fixture
def here(team: Team) -> Clone:
    """Somebody who has pushed versions, files, and names that are no payload's."""
    here = team.clone("here")
    here.write_all({f"data/t/m/n/{at}/{name}": b"%d" % at for at in range(1, 21) for name in ("raw", "metadata.yaml")})
    here.write_all({f"files/{at:03}": b"x" * at for at in range(30)})
    here.push()
    return here


def pulled(clone: Clone, **options: Any) -> SyncReport:
    with pytest.MonkeyPatch.context() as patch, without_spark():
        patch.setattr("bayou.sync.plan.windows.WINDOW", 10)
        return clone.pull(engine="spark", **options)


def by_comparison(clone: Clone) -> SyncReport:
    """Pull as if somebody else than the store might have a word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_job, "_is_first_full_pull", lambda *_: False)
        return pulled(clone)


def test_a_first_pull_compares_nothing_and_brings_the_same(team: Team, here: Clone) -> None:
    alone, compared = team.clone("alone"), team.clone("compared")

    report, other = pulled(alone), by_comparison(compared)

    assert alone.files == compared.files == here.files
    assert (report.pulled, report.missing, report.failed, report.refused) == (
        other.pulled,
        other.missing,
        other.failed,
        other.refused,
    )
    assert pulled(alone).pulled.files == 0
    assert alone.status().in_sync


def test_a_first_pull_reads_each_node_once(team: Team, here: Clone) -> None:
    report, other = pulled(team.clone("alone")), by_comparison(team.clone("compared"))

    assert report.requests == other.requests


def test_whoever_has_a_file_or_wants_less_is_compared(team: Team, here: Clone, monkeypatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(compare_job, "_observe_entries", lambda *_: calls.append("alone"))
    lying, lazy = team.clone("lying"), team.clone("lazy", hydrate="lazy")
    excluding = team.clone("excluding", exclude=["files/**"])
    lying.lay("files/mine", "mine")

    for clone in (lying, lazy, excluding):
        pulled(clone)

    assert calls == []
    assert lying.files == {**here.files, "files/mine": b"mine"}
    assert not [path for path in lazy.files if path.endswith("raw")]
    assert excluding.files == {path: data for path, data in here.files.items() if not path.startswith("files/")}


def test_t8_what_somebody_writes_after_the_look_is_not_written_over(team: Team, here: Clone, monkeypatch) -> None:
    there = team.clone("there")
    real = compare_job._observe_entries

    def late(*args: Any) -> Any:
        there.write_all({"files/007": b"written meanwhile"})
        return real(*args)

    monkeypatch.setattr(compare_job, "_observe_entries", late)
    report = pulled(there)

    assert [one.path for one in report.conflicts] == ["files/007"]
    assert Path(report.conflicts[0].copy).read_bytes() == b"written meanwhile"
    assert there.files["files/007"] == b"x" * 7
