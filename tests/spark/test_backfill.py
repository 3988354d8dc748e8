"""A rebuild of the catalog on Spark has the rows that one process makes: good records, bad ones, and those not here."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayou.core.errors import JavaMissing, SparkFailed
from bayou.core.file_lock import FileLock
from bayou.data.catalog import Catalog, RefreshReport
from bayou.data.catalog.backfill import (
    BackfillPart,
    BackfillRow,
    CacheReader,
    DirectoryReader,
    DirectoryStamp,
    UnreadableDirectory,
    directories,
    divide,
    from_row,
    records_of,
    survey_below,
    to_row,
)
from bayou.data.catalog.derive import MissingFile, RecordRead, read_all, version_row
from bayou.data.engine import CatalogEngine
from bayou.engine.local import LocalExecutor
from bayou.engine.select import LARGE, RECORDS, Request, Selector
from bayou.repo import Repo
from bayou.spark.executor import decode, encode, schema_of
from bayou.spark.sql.query import open_query
from bayou.sync.service import Datastore
from tests.data.catalog.scene import REPORT, VPC, age, metadata, output_file, run_file, write
from tests.data.catalog.test_rebuild import DAMAGES, database, make_older, remove
from tests.data.conftest import directory_repo, repo
from tests.data.hostile import UNPARSABLE
from tests.sync.conftest import Team

__all__ = ["directory_repo", "repo"]

_TABLES = {"version": "type, model_id, name, version", "output": "id", "run": "run_id", "bad": "path", "folder": "path"}


@contextmanager
def catalog_by(repo: Repo, choice: Request) -> Iterator[Catalog]:
    with Datastore(repo) as datastore, Catalog(datastore.connection, datastore.tree, CatalogEngine(choice)) as catalog:
        yield catalog


def dump(repo: Repo) -> dict[str, list[tuple[object, ...]]]:
    """Everything that a catalog says, what it reflects included."""
    with sqlite3.connect(database(repo)) as db:
        found = {table: db.execute(f"SELECT * FROM {table} ORDER BY {by}").fetchall() for table, by in _TABLES.items()}
        found["meta"] = db.execute("SELECT * FROM meta ORDER BY key").fetchall()
        found["schema"] = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    db.close()
    return found


def rebuilt(repo: Repo, choice: Request) -> tuple[RefreshReport, dict[str, list[tuple[object, ...]]]]:
    with catalog_by(repo, choice) as catalog:
        done = catalog.refresh()
    return done, dump(repo)


def furnish(repo: Repo) -> None:
    """Write records of each kind, some of which nobody can parse, read, or take for one."""
    made = [metadata(VPC, f"item {at % 7}", at // 7 + 1, tags={"env": "prod", "é": "\u2028"}) for at in range(60)]
    write(
        repo, *made, metadata(REPORT, "5", 3, deleted=True), metadata(REPORT, "übung", 1, streaming=True, sha256=None)
    )
    with Datastore(repo) as datastore:
        datastore.tree.write_many([output_file(VPC, f"o-{at}", duration_s=0.1 * at) for at in range(5)])
        datastore.tree.write_many([run_file("deploy", f"01J{at}", "failed", inputs={"a": at}) for at in range(5)])
        datastore.tree.write_many(
            [
                ("data/t/m/broken/1/metadata.yaml", b"a: [1"),
                ("data/t/m/binary/1/metadata.yaml", b"\xff\xfe"),
                ("data/t/m/short/1/metadata.yaml", b"id: x\n"),
                ("data/t/m/hand/1/metadata.yaml", _BY_HAND),
                ("workflow-runs/deploy-id/odd.yaml", b"workflow: deploy\n"),
                ("data/t/m/claimed/1/raw", b"no metadata"),
            ]
        )
    shut = repo.tree_root / "data/t/m/shut"
    shut.mkdir(parents=True)
    (shut / "1").symlink_to(repo.tree_root / "data")
    age(repo)


_BY_HAND = b"""
id: i
name: hand
version: 1
content_type: text/plain
size: 3
created_at: 2026-01-01 10:00:00+02:00
owner: {model: m, model_id: m, type: t, repo: r}
""".replace(b"2026-01-01 10:00:00+02:00", b"'2026-01-01 10:00:00+02:00'")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_v20_spark_and_this_process_make_the_same_catalog(warm, repo: Repo) -> None:
    """After each kind of damage: what can be read of the old catalog is kept, and so are rows of what is not here."""
    furnish(repo)
    gone = metadata(REPORT, "gone", 1)
    here = repo.tree_root / "data"
    with catalog_by(repo, "point") as catalog:
        catalog.refresh()
        catalog.change(put=[version_row(gone.location.metadata, gone)])
    shutil.move(here / VPC.type / VPC.id / "item 3", repo.root / "away")
    age(repo)
    kept = database(repo).read_bytes()
    for damage in (remove, make_older):
        found = []
        for choice in ("point", "spark"):
            database(repo).write_bytes(kept)
            damage(database(repo))
            found.append(rebuilt(repo, choice))
        (by_point, expected), (by_spark, rows) = found
        assert rows == expected
        assert by_spark == by_point
        assert by_spark.rebuilt == DAMAGES[damage]
        assert len(rows["version"]) >= 52
        assert {path for path, *_ in rows["bad"]} >= {"data/t/m/broken/1/metadata.yaml"}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_walk_that_meets_too_many_records_goes_on_on_spark(warm, team: Team, monkeypatch) -> None:
    """A lazy tree, whose metadata is here and whose content is not."""
    theirs, lazy = team.clone("theirs"), team.clone("lazy", hydrate="lazy")
    write(theirs.repo, *(metadata(VPC, "state", at) for at in range(1, 31)))
    theirs.push()
    lazy.pull()
    monkeypatch.setenv("BAYOU_POINT_LIMIT", "20")
    monkeypatch.setattr("bayou.data.catalog.follow_store.read_all", _not_here)
    monkeypatch.setattr("bayou.data.catalog.backfill.read_all", None)  # in this process; workers have their own

    with catalog_by(_again(lazy.repo), "auto") as catalog:
        done = catalog.refresh()
        found = catalog.find(all_versions=True)

    assert done.line == "the catalog was missing: rebuilt, 30 rows"
    assert [row.version for row in found] == list(range(1, 31))
    assert not any(path.endswith("/raw") for path in lazy.files)


def _not_here(root: Path, found: Iterator[str]) -> Iterator[RecordRead | MissingFile]:
    assert not list(found), "this process reads nothing"
    return iter(())


def test_few_records_start_no_spark(repo: Repo, monkeypatch) -> None:
    monkeypatch.setattr("bayou.spark.session.open_session", None)
    furnish(repo)

    assert rebuilt(repo, "auto")[0].rows > 60


def test_a_server_is_not_started_for_what_this_process_reads_sooner(repo: Repo, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("bayou.spark.session.open_session", None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    furnish(repo)

    assert rebuilt(_again(repo), "auto")[0].rows > 60
    (tmp_path / "bayou" / "spark" / "some").mkdir(parents=True)
    server = FileLock(tmp_path / "bayou" / "spark" / "some" / "server.lock")
    assert server.acquire()
    assert Selector.of(repo.config, "auto").choose(RECORDS, LARGE + 1).spark
    server.release()
    assert not Selector.of(repo.config, "auto").choose(RECORDS, LARGE + 1).spark
    assert (CatalogEngine().limit(repo), CatalogEngine("spark").limit(repo), CatalogEngine("point").limit(repo)) == (
        RECORDS.limit(2, server_runs=False),
        0,
        None,
    )
    monkeypatch.setenv("BAYOU_POINT_LIMIT", "20")
    assert CatalogEngine().limit(_again(repo)) == 20


def test_without_java_this_process_reads_everything_and_says_so(repo: Repo, monkeypatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise JavaMissing("there is no Java", hint="install it")

    furnish(repo)
    expected = rebuilt(repo, "point")[1]
    remove(database(repo))
    monkeypatch.setenv("BAYOU_POINT_LIMIT", "20")
    monkeypatch.setattr("bayou.spark.session.open_session", missing)

    with pytest.raises(JavaMissing), catalog_by(repo, "spark") as catalog:
        catalog.refresh()
    done, rows = rebuilt(_again(repo), "auto")

    assert rows == expected
    assert done.warnings == ("the catalog was rebuilt by this process alone, since Spark could not: there is no Java",)


def _again(repo: Repo) -> Repo:
    from bayou.repo import open_repo

    return open_repo(repo.root)


def test_a_job_that_fails_half_way_leaves_nothing_for_the_process_that_goes_on(
    repo: Repo, monkeypatch, install_engine
) -> None:
    furnish(repo)
    expected = rebuilt(repo, "point")
    remove(database(repo))
    monkeypatch.setenv("BAYOU_POINT_LIMIT", "20")

    install_engine(HalfWay)

    done, rows = rebuilt(_again(repo), "auto")

    assert rows == expected[1]
    assert (done.changed, done.rows) == (expected[0].changed, expected[0].rows)
    assert done.warnings == ("the catalog was rebuilt by this process alone, since Spark could not: it ends here",)


class HalfWay(LocalExecutor):
    """A Spark that runs a job up to the middle of its rows."""

    @contextmanager
    def open(self, *_: object, **__: object) -> Iterator[HalfWay]:
        yield self

    def is_server_running(self, config: object) -> bool:
        return True

    def run(self, job: Any) -> Any:
        told = [line for part in job.parts(8) for line in job.run(part)]

        def rows() -> Iterator[BackfillRow]:
            yield from told[: len(told) // 2]
            raise SparkFailed("it ends here")

        return job.fold(rows())


_ANSWERS = st.one_of(
    st.builds(
        RecordRead,
        st.text(st.characters(exclude_categories=["Cs"])),
        st.lists(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()).map(tuple),
        st.none() | st.just("1:2:3:4"),
    ),
    st.builds(RecordRead, st.just("p"), st.none(), st.none(), st.just("why"), st.booleans()),
    st.builds(DirectoryStamp, st.just("p"), st.none() | st.integers(0, 2**62)),
    st.builds(UnreadableDirectory, st.just("p"), st.just("why")),
    st.builds(MissingFile, st.just("p")),
)


@given(st.lists(_ANSWERS))
def test_what_workers_tell_crosses_as_it_is(told) -> None:
    assert list(map(from_row, crossed(map(to_row, told)))) == told


def crossed(lines: Iterable[BackfillRow]) -> Iterator[BackfillRow]:
    """Return rows as they arrive from a worker of Spark."""
    sent = list(lines)
    return decode(BackfillRow, encode(schema_of(BackfillRow), sent)) if sent else iter(())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.sampled_from([b"a: 1\n", b"", b"- x", b"id: 2026-99-99\n"]))
def test_a_file_of_any_content_is_read_by_a_worker_as_by_this_process(tmp_path, content) -> None:
    path = "data/t/m/n/1/metadata.yaml"
    os.makedirs((tmp_path / path).parent, exist_ok=True)
    (tmp_path / path).write_bytes(content)

    (expected,) = read_all(tmp_path, [path])
    for reader in (CacheReader(tmp_path), DirectoryReader(tmp_path)):
        told = map(from_row, crossed(reader.run(BackfillPart(below=["data"]))))
        assert list(records_of(told)) == [expected]


@pytest.mark.parametrize("wanted", [1, 3, 8, 1000])
def test_parts_of_a_directory_are_all_of_it(directory_repo: Repo, wanted: int) -> None:
    furnish(directory_repo)
    root = directory_repo.tree_root
    whole = survey_below(root, ["data", "outputs", "workflow-runs"])

    upper, front = divide(root, wanted)
    below = [survey_below(root, [place]) for place in front]

    assert {path for one in (upper, *below) for path in one.found} == whole.found.keys()
    assert sorted(path for one in (upper, *below) for path in one.found) == sorted(whole.found)
    told = [one.path for seen in (upper, *below) for one in directories(seen)]
    assert sorted(told) == sorted([*whole.folders, *whole.hidden])


@pytest.mark.spark
def test_17_6_a_backfill_and_a_query_on_spark_survive_hostile_records(repo: Repo) -> None:
    """Each is a bad row with its path, as where this process reads them; the good one is found."""
    good = metadata(VPC, "good", 1)
    bad = {metadata(VPC, f"bad {at}", 1).location.metadata: content for at, content in enumerate(UNPARSABLE.values())}
    item = metadata(VPC, "numbered", 1).location.item
    bad |= {f"{item}/{number}/metadata.yaml": good.to_bytes() for number in (2**63 - 1, 10**30)}
    bad |= {f"outputs/{VPC.type}/{VPC.id}/{at}.yaml": content for at, content in enumerate(UNPARSABLE.values())}
    write(repo, good)
    with Datastore(repo) as datastore:
        datastore.tree.write_many(list(bad.items()))

    with catalog_by(repo, "spark") as catalog:
        assert "rebuilt" in (catalog.refresh().line or "")
        assert [row.name for row in catalog.find(all_versions=True)] == ["good"]
        assert {one.path for one in catalog.bad()} == bad.keys()
    with open_query(repo, "SELECT name, version FROM versions") as found:
        assert [tuple(row) for row in found.rows()] == [("good", 1)]
