"""`spark/sql` without Spark: the session provides the runner, and the model type imports nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, JavaMissing, QueryInvalid
from bayou.data.outputs import Output
from bayou.data.records import Records
from bayou.models import Definition
from bayou.models.run import RunRequest, prepare, run_method
from bayou.repo import Repo
from bayou.session import Session, write_session
from bayou.state.connection import Connection


class Column:
    name, type = "disk", "bigint"


class Result:
    columns, rows, size = [Column()], 2, 7


class WithRunner:
    """A write session whose queries a function of the test runs."""

    def __init__(self, session: Session, runner: Callable[..., Result]) -> None:
        self.records, self.leases, self.environment = session.records, session.leases, session.environment
        self.sql_runner = runner


def ask(repo: Repo, model: Definition, runner: Callable[..., Result], **inputs: object) -> Output:
    prepared = prepare(Connection(repo), RunRequest(model, "query", inputs))
    with write_session(repo, models=[model.ref]) as session:
        return run_method(WithRunner(session, runner), prepared, cancel=threading.Event())


def failing(error: Exception) -> Callable[..., Result]:
    def run(*_: object) -> Result:
        raise error

    return run


def test_the_runner_of_the_session_writes_the_rows_and_its_result_is_the_summary(repo, define, read):
    model = define("spark/sql", "report", {"sql": "SELECT :least", "parameters": {"least": 3}})
    asked: list[tuple[Path, str, Mapping[str, Any]]] = []

    def run(found: Repo, text: str, parameters: Mapping[str, Any], target: Path, deadline: Deadline) -> Result:
        asked.append((found.root, text, parameters))
        assert 50 < deadline.remaining() <= 60
        target.write_bytes(b"parquet")
        return Result()

    output = ask(repo, model, run, timeout=60)

    assert (output.status, output.error) == ("succeeded", None)
    assert asked == [(repo.root, "SELECT :least", {"least": 3})]
    assert read(model, "result") == b"parquet"
    summary = json.loads(read(model, "summary"))
    assert summary.pop("duration_s") >= 0
    assert summary == {
        "rows": 2,
        "columns": [{"name": "disk", "type": "bigint"}],
        "bytes": 7,
        "sql": "SELECT :least",
    }


def test_what_a_user_can_act_on_is_the_method_s_error_with_its_hint(repo, define):
    model = define("spark/sql", "report", {"sql": "SELECT 1"})

    for error in (QueryInvalid("no column x", hint="there is y"), JavaMissing("no column x", hint="there is y")):
        output = ask(repo, model, failing(error))
        assert (output.status, output.error) == ("failed", "no column x; there is y")
        assert [saved.name for saved in output.data] == ["log"]
        with Records(repo) as records:
            kept = records.data.read(records.data.get(model.ref, "log")).decode()
        assert kept.startswith("SELECT 1\nfailed after ")
        assert kept.endswith(" s: no column x; there is y\n")


def test_a_query_that_takes_longer_than_its_timeout_says_so(repo, define):
    model = define("spark/sql", "report", {"sql": "SELECT 1", "timeout": 0.01})

    def slow(*arguments: Any) -> Result:
        deadline: Deadline = arguments[-1]
        while True:
            deadline.sleep(0.01)

    output = ask(repo, model, slow)

    assert (output.status, output.error) == ("failed", "the query took longer than 0.01 s, and was stopped")


def test_a_deadline_of_spark_s_own_is_not_the_query_s_timeout(repo, define):
    model = define("spark/sql", "report", {"sql": "SELECT 1", "timeout": 60})

    output = ask(repo, model, failing(DeadlinePassed("Spark did not start in 30 s")))

    assert (output.status, output.error) == ("failed", "Spark did not start in 30 s")


def test_models_import_nothing_of_spark():
    code = (
        "import sys; import bayou.models.types.registry, bayou.models.run;"
        "print([name for name in sys.modules if name.startswith(('bayou.spark', 'pyspark'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
