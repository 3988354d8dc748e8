"""`spark/sql`: a question whose answer is data. On a real Spark, in workflows, and in all the ways it can end."""

from __future__ import annotations

import io
import json
import threading
import time
from typing import Any

import pytest
from pyarrow import parquet as pq

from bayou.data.outputs import Output
from bayou.data.records import Records
from bayou.models import create_model, find_model
from bayou.models.run import RunRequest, prepare, run_method
from bayou.repo import Repo, init_repo
from bayou.session import write_session
from bayou.state.connection import Connection
from tests.sync.conftest import Team
from tests.workflows.scene import lay, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FOREVER = "SELECT id FROM range(0, 1000000000000000, 1, 1) WHERE id < 0"


@pytest.fixture
def repo(tmp_path) -> Repo:
    return init_repo(tmp_path / "repo")


def ask(repo: Repo, sql: str, cancel: threading.Event | None = None, **arguments: Any) -> Output:
    """Run a query as a model, in a session of its own."""
    if not (repo.root / "models/spark/sql/report.yaml").exists():
        create_model(repo, "spark/sql", "report", {"sql": "SELECT 0"})
    model = find_model(repo, "report")
    prepared = prepare(Connection(repo), RunRequest(model, "query", {"sql": sql, **arguments}))
    with write_session(repo, models=[model.ref]) as session:
        return run_method(session, prepared, cancel=cancel or threading.Event())


def content(repo: Repo, model: str, name: str) -> bytes:
    with Records(repo) as records:
        return records.data.read(records.data.get(find_model(repo, model).ref, name))


def rows(repo: Repo, model: str) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(content(repo, model, "result"))).to_pylist()


def data_files(repo: Repo) -> list[str]:
    """Return the files of models of this type, whole or in the making."""
    root = repo.tree_root / "data" / "spark"
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())


@pytest.mark.usefixtures("warm")
def test_a_workflow_s_report_sees_what_its_steps_made_and_a_peer_gets_it(team: Team, command):
    """In a directory whose name means something else in a URL."""
    writer, reader = team.clone("one 100%20 #1"), team.clone("two")
    (writer.repo.root / "models").mkdir(exist_ok=True)
    shell(writer.repo, "usage", 'printf "{\\"used\\": $USED}"')
    create_model(
        writer.repo,
        "spark/sql",
        "usage-report",
        {
            "sql": "SELECT step, get_json_object(get_json_object(string(content), '$.stdout'), '$.used') AS used"
            " FROM versions WHERE run = :run AND name = 'result' AND model IN (SELECT explode(:models)) ORDER BY step",
            "parameters": {"run": "${{ run.id }}", "models": ["usage", "it's \\ \" :run"]},
        },
    )
    create_model(writer.repo, "spark/sql", "runs-report", {"sql": "SELECT status, started_at FROM runs"})
    lay(
        writer.repo,
        """
        - name: collect
          steps:
            - name: usage
              for_each: [7, 9]
              model: usage
              method: execute
              inputs: {env: {USED: "${{ each.value }}"}}
        - name: report
          depends_on: [collect]
          steps:
            - {name: sql, model: usage-report, method: query}
            - {name: runs, model: runs-report, method: query}
        """,
    )

    ran = command("workflow", "run", "nightly", "--json", "--repo", str(writer.repo.root))

    assert ran.code == 0, ran.out + ran.err
    sql, beside = ran.document["jobs"][1]["steps"]
    assert [made["name"] for made in sql["data"]] == ["log", "result", "summary"]
    assert beside["status"] == "succeeded"
    found = rows(writer.repo, "usage-report")
    assert [row["used"] for row in found] == ["7", "9"]
    assert [row["status"] for row in rows(writer.repo, "runs-report")] == ["running"]
    summary = json.loads(content(writer.repo, "usage-report", "summary"))
    assert summary.pop("duration_s") > 0
    assert summary == {
        "rows": 2,
        "columns": [{"name": "step", "type": "string"}, {"name": "used", "type": "string"}],
        "bytes": len(content(writer.repo, "usage-report", "result")),
        "sql": find_model(writer.repo, "usage-report").arguments["sql"],
    }
    with Records(writer.repo) as records:
        item = records.data.get(find_model(writer.repo, "usage-report").ref, "result").metadata
    assert (item.content_type, item.owner.run, item.owner.step) == (
        "application/vnd.apache.parquet",
        ran.document["run_id"],
        "sql",
    )

    reader.pull()

    mine, theirs = ({path: text for path, text in one.files.items() if "/sql/" in path} for one in (writer, reader))
    assert theirs == mine
    assert len([path for path in mine if path.startswith("data/spark/sql/")]) == 2 * 3 * 2
    assert not [path for path in team.payload_keys() if "part-" in path or "_SUCCESS" in path]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT sise FROM runs", "there is no column `sise`; runs: run_id, workflow, workflow_id, status, "),
        ("SELECT :nonesuch", "found the unbound parameter: nonesuch"),
        ("SELECT 1 AS a, 2 AS a", "two columns are called a; name each with AS"),
        ("SELECT 1 DIV id AS x FROM range(1)", "the query failed: division by zero"),
    ],
)
def test_a_query_that_fails_says_why_and_leaves_no_data(repo, sql, error):
    output = ask(repo, sql)

    assert (output.status, [saved.name for saved in output.data]) == ("failed", ["log"])
    assert output.error.startswith(error)
    assert "\n" not in output.error
    assert {path.split("/")[-3] for path in data_files(repo)} == {"log"}
    with Records(repo) as records:
        (kept,) = records.outputs.list(find_model(repo, "report").ref)
        assert kept.error == output.error
        assert [row.name for row in records.data.find(all_versions=True)] == ["log"]


@pytest.mark.parametrize("sql", ["DROP VIEW data", "FROM data INSERT OVERWRITE DIRECTORY 'x' USING csv SELECT name"])
def test_what_is_no_question_is_refused_before_spark_is_started(repo, sql, monkeypatch):
    monkeypatch.setattr("bayou.spark.sql.query.spark_session", None)

    output = ask(repo, sql)

    assert output.status == "failed"
    assert output.error.split(" is no query; data is looked at with ")[0] in ("DROP", "INSERT")


def test_without_java_the_error_says_how_to_get_it(repo, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("bayou.spark.java.USUAL_HOMES", ())

    output = ask(repo, "SELECT 1")

    assert output.status == "failed"
    assert output.error.startswith("Spark needs Java 17 or newer, and there is none; install it with: ")


@pytest.mark.usefixtures("warm")
def test_a_query_that_takes_too_long_is_stopped(repo):
    output = ask(repo, FOREVER, timeout=0.5)

    assert (output.status, output.error) == ("failed", "the query took longer than 0.5 s, and was stopped")
    assert [saved.name for saved in output.data] == ["log"]


@pytest.mark.usefixtures("warm")
def test_a_query_that_is_cancelled_stops_on_the_server_and_says_so(repo, monkeypatch):
    """The method ends only when the server has given up what it was asked: nothing here waits for less."""
    monkeypatch.setattr("bayou.models.run.STOP_S", 120.0)
    cancel, came_of = threading.Event(), []
    asking = threading.Thread(target=lambda: came_of.append(ask(repo, FOREVER, cancel)))
    asking.start()
    while not list(repo.tree_root.glob("data/spark/sql/*/result/.bayou-*.tmp/.bayou-*.tmp/_temporary")):
        assert asking.is_alive(), came_of  # a task writes there once it runs
        time.sleep(0.02)

    cancel.set()
    asking.join()

    (output,) = came_of
    assert (output.status, output.error) == ("cancelled", "cancelled")
    assert [saved.name for saved in output.data] == ["log"]
    with Records(repo) as records:
        assert [row.name for row in records.data.find(all_versions=True)] == ["log"]


@pytest.mark.usefixtures("warm")
def test_parameters_keep_their_types_and_no_rows_are_a_result_too(repo):
    asked = {"t": "x'y", "n": 2**40, "f": 1.5, "b": True, "none": None, "l": ["a", "b"], "view": "data"}
    sql = "SELECT :t AS t, :n AS n, :f AS f, :b AS b, :none AS o, :l AS l FROM IDENTIFIER(:view) WHERE size < 0"

    output = ask(repo, sql, parameters={**asked, "none": None})
    summary = json.loads(content(repo, "report", "summary"))

    assert output.status == "succeeded", output.error
    assert summary["rows"] == 0
    assert [column["type"] for column in summary["columns"]] == [
        *("string", "bigint", "double", "boolean", "void", "array<string>"),
    ]
    assert rows(repo, "report") == []
