"""`data sql` on a real Spark: every view, every format, content only where it is asked for, and ways to end."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import sqlite3
from contextlib import closing

import pytest
from pyarrow import parquet as pq

import bayou
from bayou.data.catalog.rows import SavedVersion
from bayou.data.outputs import Output
from bayou.data.records import Records
from bayou.data.runs import Run
from bayou.repo import init_repo
from bayou.spark.sql.query import open_query
from tests.data.models import MODEL, OTHER
from tests.docs.test_pages_run import DOCS, typed
from tests.spark.messy import entries_of
from tests.sync.conftest import Clone, Team
from tests.test_api_docs import run_page
from tests.trusting import trust

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("warm")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone that shares some data, an output and a run through a directory store."""
    root = tmp_path_factory.mktemp("library")
    (root / "store").mkdir()
    clone = Team(root, (root / "store").as_uri(), {}).clone("repo")
    with Records(clone.repo) as records:
        records.data.save(MODEL, "report", b'{"total": 1}', tags={"env": "prod"})
        made = records.data.save(MODEL, "report", b'{"total": 2}', tags={"env": "prod"})
        records.data.save(OTHER, "blob", b"\xff\x00")
        records.data.save(OTHER, "gone", b"was here")
        records.data.delete(OTHER, "gone")
        saved = SavedVersion("report", 2, made.size, made.sha256)
        times = ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:06.000Z")
        records.outputs.save(MODEL, Output("out-1", "measure", "succeeded", *times, 0.322, data=(saved,)))
        records.runs.save(Run("run-1", "wf-1", "nightly", "failed", times[0], failed_step="a.b", by="me@here"))
    clone.sync()
    return clone


@pytest.fixture
def ask(command, library):
    """Ask a question of the library, and return the answer's rows."""

    def call(query: str) -> list[dict[str, object]]:
        ran = command("data", "sql", query, "--json", "--repo", str(library.repo.root))
        assert ran.code == 0, ran.err
        assert ran.document["total"] == len(ran.document["results"])
        return ran.document["results"]

    return call


def test_data_has_the_latest_version_of_each_item_with_its_content(ask):
    rows = ask(
        "SELECT model, name, version, tags['env'] AS env, size, get_json_object(string(content), '$.total') AS total,"
        " content FROM data ORDER BY name"
    )

    assert [(row["model"], row["name"], row["version"], row["env"]) for row in rows] == [
        ("weekly", "blob", 1, None),
        ("main", "report", 2, "prod"),
    ]
    assert rows[0]["content"] == "/wA="
    assert rows[1]["total"] == "2"


def test_versions_has_all_of_them_and_no_content_of_what_is_deleted(ask):
    rows = ask(
        "SELECT name, version, latest, deleted, string(content) AS text, created_at > TIMESTAMP '2020-01-01' AS recent"
        " FROM versions WHERE name <> 'blob' ORDER BY name, version"
    )

    assert [tuple(row.values()) for row in rows] == [
        ("gone", 1, False, True, None, True),
        ("report", 1, False, False, '{"total": 1}', True),
        ("report", 2, True, False, '{"total": 2}', True),
    ]


def test_outputs_and_runs_have_what_was_recorded_and_join_with_data(ask):
    rows = ask(
        "SELECT o.id, o.method, o.duration_s, made.name, made.version, d.size, r.workflow, r.`by`, r.started_at, r.tags"
        " FROM (SELECT *, explode(data) AS made FROM outputs) o"
        " JOIN data d ON d.name = made.name AND d.version = made.version"
        " JOIN runs r ON r.started_at = o.started_at"
    )

    assert rows == [
        {
            "id": "out-1",
            "method": "measure",
            "duration_s": 0.322,
            "name": "report",
            "version": 2,
            "size": 12,
            "workflow": "nightly",
            "by": "me@here",
            "started_at": "2026-01-02T03:04:05.678Z",
            "tags": {},
        }
    ]


def test_entries_are_what_the_store_holds(ask, library):
    rows = ask("SELECT e.path, e.sha256 = v.sha256 AS same FROM entries e LEFT JOIN versions v ON e.path = v.path")

    assert {row["path"] for row in rows} == set(library.files)
    assert [row["same"] for row in rows if row["path"].endswith("/raw")] == [True, True, True]


def test_entries_say_where_their_bytes_are(ask, library):
    located = ask("SELECT path, at, pack, offset, stored, method FROM entries")
    packs = ask("SELECT pack, count(*) AS files, sum(stored) AS bytes FROM entries GROUP BY pack ORDER BY files")

    entries = entries_of(library.repo.store())
    assert {row["path"]: (row["at"], row["pack"], row["offset"], row["stored"], row["method"]) for row in located} == {
        path: (entry.at, entry.pack, entry.offset, entry.stored, entry.method) for path, entry in entries.items()
    }
    assert sum(row["files"] for row in packs) == len(entries)
    assert all(row["pack"] is not None for row in packs)


def test_what_there_is_can_be_asked_too(ask):
    assert {row["viewName"] for row in ask("SHOW VIEWS")} == {"data", "versions", "outputs", "runs", "entries"}
    assert {"col_name": "content", "data_type": "binary", "comment": None} in ask("DESCRIBE versions")


def test_a_query_opens_only_the_content_that_it_uses(command, tmp_path):
    """Content that is not there would be an error, wherever anybody looked for it."""
    repo = init_repo(tmp_path / "repo")
    with Records(repo) as records:
        for name in ("here", "gone"):
            records.data.save(MODEL, name, name.encode())
        (repo.tree_root / records.data.get(MODEL, "gone").path).unlink()
    where = ("--repo", str(repo.root))

    counted = command("data", "sql", "SELECT count(*), max(size), max(path) FROM versions", "--format", "csv", *where)
    one = command("data", "sql", "SELECT string(content) AS c FROM data WHERE name = 'here'", "--format", "csv", *where)
    both = command("data", "sql", "SELECT name, content FROM data", "--json", *where)

    assert counted.out.splitlines()[1].startswith("2,4,data/")
    assert (one.code, one.out) == (0, "c\nhere\n")
    assert both.code == 1
    assert both.error["code"] == "spark_failed"
    assert both.error["message"].startswith("the content of data/net/vpc/")
    assert both.error["message"].endswith("/gone/1/raw is missing")
    assert both.error["hint"] == (
        "bayou datastore verify shows what is damaged; a query that names content_error gets a row for it"
    )


def test_lazy_content_comes_from_s3_with_the_caller_s_credentials_and_only_when_it_is_used(s3_team, proxy, command):
    """The server was started without these credentials: they travel with the query."""
    one, two = s3_team.clone("one"), s3_team.clone("two", hydrate="lazy")
    with Records(one.repo) as records:
        for name in ("a", "b", "c"):
            records.data.save(MODEL, name, name.encode() * 1000)
    one.sync()
    two.sync()
    where = ("--repo", str(two.repo.root), "--json")
    proxy.log.clear()

    names = command("data", "sql", "SELECT name, size FROM data ORDER BY name", *where)
    assert names.document["total"] == 3
    assert proxy.log.rows() == []

    content = command("data", "sql", "SELECT length(content) AS n FROM data WHERE name > 'a' LIMIT 1", *where)
    assert content.document["results"] == [{"n": 1000}]
    assert [request.method for request in proxy.log.rows()] == ["GET"]
    assert not [path for path in two.files if path.endswith("/raw")]


def test_every_format_says_the_same(command, library, tmp_path):
    query = (
        "SELECT * FROM VALUES ('report', 2, map('env', 'prod')), ('blob', 1, CAST(map() AS MAP<STRING, STRING>))"
        " AS v(name, version, tags) ORDER BY name"
    )
    where = ("--repo", str(library.repo.root))
    told = [{"name": "blob", "version": 1, "tags": {}}, {"name": "report", "version": 2, "tags": {"env": "prod"}}]

    table = command("data", "sql", query, *where)
    lines = command("data", "sql", query, "--format", "json", *where)
    csv = command("data", "sql", query, "-o", str(tmp_path / "out.csv"), *where)
    whole = command("data", "sql", query, "-o", str(tmp_path / "out.parquet"), *where, "--json")
    parts = command("data", "sql", query, "-o", f"{tmp_path}/parts/", *where, "--json")

    assert table.out.splitlines() == [
        "name    version  tags",
        "blob          1  {}",
        'report        2  {"env": "prod"}',
    ]
    assert table.err == "2 rows\n"
    assert [json.loads(line) for line in lines.out.splitlines()] == told
    assert csv.out == f"wrote 2 rows to {tmp_path / 'out.csv'}\n"
    assert (tmp_path / "out.csv").read_text() == 'name,version,tags\nblob,1,{}\nreport,2,"{""env"": ""prod""}"\n'
    assert whole.document == {"path": str(tmp_path / "out.parquet"), "format": "parquet", "total": 2}
    assert parts.document["total"] == 2
    for place in (tmp_path / "out.parquet", tmp_path / "parts"):
        rows = pq.read_table(place).sort_by("name").to_pylist(maps_as_pydicts="strict")
        assert rows == told
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.csv", "out.parquet", "parts"]


@pytest.mark.parametrize(
    ("query", "code", "message", "hint"),
    [
        ("SELECT * FROM date", 2, "there is no view `date`", "data, versions, outputs, runs, entries"),
        ("SELECT sise FROM runs", 2, "there is no column `sise`", "runs: run_id, workflow"),
        ("SELECT name FRO data", 2, "syntax error at or near 'data': extra input 'data'", None),
        ("DROP VIEW data", 2, "DROP is no query", "SELECT"),
        ("SELECT 1 DIV 0 FROM data", 1, "the query failed: division by zero", "spark.log"),
    ],
)
def test_bad_sql_is_one_line(command, library, query, code, message, hint):
    ran = command("data", "sql", query, "--json", "--repo", str(library.repo.root))

    assert ran.code == code
    assert ran.error["message"] == message
    assert hint is None or hint in ran.error["hint"]


def test_a_hundred_thousand_versions_are_read_in_parts_and_streamed(tmp_path):
    repo = init_repo(tmp_path / "repo")
    with Records(repo) as records:
        records.catalog.refresh()
        with closing(sqlite3.connect(repo.root / ".bayou" / "catalog.db")) as db, db:
            db.execute(
                "INSERT INTO version (type, model_id, name, version, model, id, size, content_type, created_at, tags,"
                " streaming, deleted)"
                " WITH RECURSIVE n(at) AS (SELECT 0 UNION ALL SELECT at + 1 FROM n WHERE at < 99999)"
                " SELECT 't', 'm', 'n' || (at / 100), 1 + at % 100, 'm', 'i' || at, at, 'text/plain',"
                " '2026-01-01T00:00:00Z', '{}', 0, 0 FROM n"
            )
        with open_query(repo, "SELECT size, version, latest FROM versions") as query:
            seen = {(size, version, latest) for size, version, latest in query.rows()}

    assert seen == {(at, 1 + at % 100, at % 100 == 99) for at in range(100_000)}


def test_ctrl_c_stops_the_job_on_the_server_too(s3_team, processes, tmp_path):
    """A worker is held in the middle of reading: its store takes the request, and does not answer."""
    one, two = s3_team.clone("one"), s3_team.clone("two", hydrate="lazy")
    with Records(one.repo) as records:
        records.data.save(MODEL, "a", b"1")
    one.sync()
    two.sync()
    before = set(tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        two.repo.file.write_text(two.repo.file.read_text().replace(s3_team.options["endpoint"], address))
        trust(two.repo.root)
        asked = ["data", "sql", "SELECT content FROM data", "--repo", str(two.repo.root), "-o", "out.parquet"]
        process = processes.start(["-m", "bayou", *asked])

        worker, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

        assert process.returncode == 130
        assert (out, err.splitlines()[0]) == ("", "error: interrupted")
        while worker.recv(1 << 16):
            pass  # what it had asked; then it is gone, and with it the job
        worker.close()
    assert set(tmp_path.iterdir()) == before


def test_a_program_gets_a_frame_or_arrow_tables(library):
    with bayou.open(library.repo.root) as repo:
        frame = repo.sql("SELECT name, version FROM data WHERE name = :name", name="report")
        tables = list(repo.sql_batches("SELECT name FROM versions WHERE name = 'report'"))

    assert frame.to_dict("records") == [{"name": "report", "version": 2}]
    assert [name for table in tables for name in table["name"].to_pylist()] == ["report", "report"]


def test_the_sql_of_the_page_of_the_api_runs(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)

    assert run_page(tmp_path, spark=True)["rows"] == 4


def test_the_commands_of_the_page_about_spark_run(command, library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line) for line, _ in typed(DOCS / "spark.md")]

    for words in commands:
        ran = command(*words[1:], "--repo", str(library.repo.root))
        assert ran.code == 0, ran.err

    assert [words[:3] for words in commands] == [["bayou", "data", "sql"]] * 4
    assert (tmp_path / "versions.parquet").exists()
