"""What Spark finds that may go is what one process finds, version for version and byte for byte."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core.errors import JavaMissing
from bayou.data.catalog.catalog import Where
from bayou.data.catalog.rows import VersionRow
from bayou.data.catalog.schema import SCHEMA, values
from bayou.data.catalog.schema import put as schema_put
from bayou.data.engine import CatalogEngine
from bayou.data.records import Records
from bayou.data.retention import plan_gc, run_gc
from bayou.data.retention.retention_job import RetentionJob, RetentionResult, RetentionRow, from_row, to_row
from bayou.data.retention.rules import ExpiredVersion, GoneRuns, RetentionEvaluator, evaluate, order
from bayou.data.runs import Run
from bayou.engine.job import Needs
from bayou.engine.select import Request
from bayou.repo import Repo, open_repo
from bayou.spark.executor import decode, encode, schema_of
from tests.data.conftest import directory_repo, repo
from tests.data.retention.conftest import LATER, put, size, versions
from tests.sync.conftest import Team

__all__ = ["directory_repo", "repo"]

NOW = datetime(2030, 3, 31, 12, tzinfo=UTC)
_SPANS = ["10m", "24h", "7d", "4w", "6mo", "1y"]
_NAMES = st.sampled_from(["a", "é", "n", "n 1"])


@st.composite
def rows(draw) -> VersionRow:
    age = timedelta(minutes=draw(st.sampled_from([-60, 0, 9, 10, 1440, 100_000, 600_000])))
    created = (NOW - age).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return VersionRow(
        model="web",
        model_id=draw(st.sampled_from(["m", "m-2"])),
        type=draw(st.sampled_from(["t", "t/u"])),
        name=draw(_NAMES),
        version=draw(st.integers(1, 8)),
        id="i",
        size=draw(st.integers(0, 9)),
        sha256=None,
        content_type="text/plain",
        created_at=draw(st.sampled_from([created, created, created, "2030-01-01T00:00:00", "long ago"])),
        tags=draw(st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=1)),
        lifetime=draw(st.sampled_from([None, "run", "infinite", "soon", *_SPANS])),
        keep=draw(st.sampled_from([None, "1", "2", "5", "0", "some", *_SPANS])),
        streaming=draw(st.booleans()),
        deleted=draw(st.sampled_from([False, False, False, True])),
        run=draw(st.sampled_from([None, "R1", "R2"])),
    )


HISTORIES = st.lists(rows(), max_size=30, unique_by=order)


def court_of(root: Path) -> RetentionEvaluator:
    return RetentionEvaluator(NOW, GoneRuns(frozenset({"R1"})), root, "repo")


@given(HISTORIES, st.integers(1, 40))
def test_what_a_worker_rules_crosses_as_it_is(history, at_once) -> None:
    ruled = list(court_of(Path("/nowhere")).evaluate(sorted(history, key=order)))

    sent = [to_row(outcome, 1, at) for at, outcome in enumerate(ruled)]
    some = [sent[start : start + at_once] for start in range(0, len(sent), at_once)]

    assert [
        from_row(line) for lines in some for line in decode(RetentionRow, encode(schema_of(RetentionRow), lines))
    ] == ruled


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(HISTORIES, st.integers(1, 40), st.integers(1, 6))
def test_parts_of_items_are_ruled_as_all_at_once(tmp_path_factory, history, wanted, least) -> None:
    """However many parts there are, and in whatever order they come."""
    catalog = tmp_path_factory.mktemp("catalog") / "catalog.db"
    with closing(sqlite3.connect(catalog)) as db, db:
        db.executescript(SCHEMA)
        schema_put(db, "version", [(*values(row)[1], None) for row in history])
    court = court_of(Path("/nowhere"))
    job = RetentionJob(catalog, court, Needs())

    with patch("bayou.data.retention.retention_job.VERSIONS_PER_PART", least):
        parts = job.parts(wanted)
    result = job.fold(line for part in reversed(parts) for line in job.run(part))

    expected = RetentionResult.of(court.evaluate(sorted(with_latest(history), key=order)))
    assert (result.versions, result.unclear) == (expected.versions, expected.unclear)


def with_latest(history: list[VersionRow]) -> list[VersionRow]:
    """Rows as the catalog gives them, which says of each whether it is the latest of its item."""
    highest = {row.item: row.version for row in sorted(history, key=order) if not row.deleted}
    return [replace(row, latest=highest.get(row.item) == row.version) for row in history]


@given(HISTORIES)
def test_a_court_dooms_what_the_rules_doom(history) -> None:
    found = list(court_of(Path("/nowhere")).evaluate(sorted(history, key=order)))
    evaluation = evaluate(history, NOW, lambda row: row.run == "R1")

    expired = [one.expired for one in found if isinstance(one, ExpiredVersion)]
    assert sorted(expired, key=lambda one: order(one.row)) == expired
    assert expired == sorted(evaluation.versions, key=lambda one: order(one.row))
    assert sorted(one for one in found if isinstance(one, str)) == sorted(evaluation.unclear)
    assert not any(one.row.deleted for one in expired)


def furnish(repo: Repo) -> None:
    """Save versions of which some may go, for each reason there is, and some cannot be result."""
    runs = ["01JCQ7S9Z5T8A1B2C3D4E5F6G7", "01JCQ7S9Z5T8A1B2C3D4E5F6G8"]
    with Records(repo) as records:
        records.runs.save(Run(runs[0], "w-id", "w", "succeeded", started_at="2026-01-01T00:00:00.000Z"))
    for at in range(6):
        put(repo, f"item {at}", *[b"x" * one for one in range(6)], keep=str(at + 1))
        put(repo, f"short {at}", b"1", b"22", lifetime=_SPANS[at])
    put(repo, "kept", b"for ever")
    put(repo, "of a run", b"stays", run=runs[0], lifetime="run")
    put(repo, "of a run that is gone", b"goes", run=runs[1], lifetime="run")
    with Records(repo) as records:
        (place,) = records.data.find(name="item 5")
        bad = repo.tree_root / place.metadata_path
    bad.write_bytes(bad.read_bytes().replace(b'keep: "6"', b'keep: "soon"'))


def planned(repo: Repo, choice: Request):
    with Records(repo, engine=CatalogEngine(choice)) as records:
        return plan_gc(records, LATER)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_f120_both_ways_preview_the_same_and_delete_exactly_that(warm, repo: Repo) -> None:
    furnish(repo)
    if repo.config.datastore.url is not None:
        from bayou.sync.report import SyncOptions
        from tests import api

        api.sync(repo, SyncOptions())

    by_point, by_spark = planned(repo, "point"), planned(repo, "spark")
    before = size(repo)
    with Records(repo, engine=CatalogEngine("spark")) as records:
        gone = run_gc(records, plan_gc(records, LATER).within(by_spark))

    assert by_spark == by_point
    assert gone == by_point
    assert (by_spark.expired, len(by_spark.versions)) == (11, 26)
    assert [one for one in by_spark.warnings if "its keep (soon) cannot be read" in one]
    assert by_spark.versions[0] == by_point.versions[0]
    assert gone.bytes == before - size(repo)
    assert versions(repo, "item 0") == [6]
    assert versions(repo, "of a run") == [1]
    assert len(planned(repo, "spark").versions) == 0


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_versions_that_are_too_many_for_this_process_are_judged_on_spark(warm, team: Team, monkeypatch) -> None:
    clone = team.clone("A")
    put(clone.repo, "n", *[b"x"] * 12, keep="2")
    expected = planned(clone.repo, "point")
    monkeypatch.setenv("BAYOU_POINT_LIMIT", "10")
    monkeypatch.setattr(RetentionEvaluator, "evaluate", None)  # in this process; workers have their own

    plan = planned(open_repo(clone.repo.root), "auto")

    assert plan == expected
    assert [one.row.version for one in plan.versions] == list(range(1, 11))


@contextmanager
def without_spark(monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise JavaMissing("there is no Java")

    with monkeypatch.context() as patch:
        patch.setattr("bayou.spark.session.open_session", missing)
        yield


def test_without_java_this_process_judges_and_says_so(repo: Repo, monkeypatch) -> None:
    put(repo, "n", *[b"x"] * 6, keep="2")
    expected = planned(repo, "point")
    monkeypatch.setenv("BAYOU_POINT_LIMIT", "5")

    with without_spark(monkeypatch):
        plan = planned(open_repo(repo.root), "auto")
        with pytest.raises(JavaMissing):
            planned(open_repo(repo.root), "spark")

    assert plan.versions == expected.versions
    assert plan.warnings == ("what may go was found by this process alone, since Spark could not: there is no Java",)


def test_v5_what_was_judged_while_others_wrote_is_judged_again(repo: Repo, monkeypatch) -> None:
    """A worker that misses the newest version of an item would let its older ones go."""
    put(repo, "n", *[b"x"] * 4, keep="1")
    asked = []
    divide = RetentionJob.parts

    def parts(self: RetentionJob, wanted: int) -> object:
        with Records(repo) as other:
            stale = sorted(other.catalog.select(Where()), key=order)
        asked.append(len(stale))
        monkeypatch.setattr("bayou.data.retention.retention_job.versions_between", lambda *_: iter(stale))
        found = divide(self, wanted)
        if len(asked) == 1:
            put(repo, "n", b"keeps all")
        return found

    monkeypatch.setattr(RetentionJob, "parts", parts)

    plan = planned(repo, "point")

    assert asked == [4, 5]
    assert len(plan.versions) == 0


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_command_does_as_it_is_told(warm, team: Team, command, monkeypatch) -> None:
    clone = team.clone("A")
    put(clone.repo, "n", *[b"x"] * 5, keep="2")

    monkeypatch.setattr(RetentionEvaluator, "evaluate", None)  # in this process; workers have their own
    here = ("--repo", str(clone.repo.root), "--json")

    shown = command("data", "gc", "--engine", "spark", "--dry-run", *here)
    done = command("data", "gc", "--engine", "spark", "--yes", *here)

    assert (shown.code, done.code) == (0, 0), shown.err + done.err
    assert json.loads(shown.out)["versions_deleted"] == json.loads(done.out)["versions_deleted"] == 3
    assert versions(clone.repo, "n") == [4, 5]
