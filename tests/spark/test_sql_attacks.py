"""17.2: attacks on a real Spark, each with something that it would read, run or change; and queries that are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayou.config import SparkConfig
from bayou.core.errors import QueryInvalid
from bayou.data.records import Records
from bayou.repo import LOCAL, Repo, init_repo
from bayou.spark.session import spark_session
from bayou.spark.sql import plan_check, query
from bayou.spark.sql.base import base_view
from bayou.spark.sql.content import ContentSource, Grant
from bayou.spark.sql.plan_check import require_read_only, restrict_session
from bayou.spark.sql.query import open_query, silence
from bayou.spark.sql.read_only import Question, parse_read_only
from bayou.spark.sql.views import VIEWS, ContentPlan, create_views
from tests.data.models import MODEL, OTHER
from tests.spark.sql_grammar import Grammar
from tests.spark.test_model_sql import ask
from tests.spark.test_sql_read_only import documented

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECRET = "the-secret-of-the-server"
_CLASS_AS_TYPE = (
    '{"type": "array", "containsNull": true,'
    ' "elementType": {"type": "udt", "pyClass": "bayou.nonesuch.A", "serializedClass": "", "sqlType": "integer"}}'
)
"""Spark's client would import that module."""


@dataclass
class Canary:
    """What an attack would touch: a file to read, a directory to replace, a file to make, a server to call."""

    root: Path
    port: int = 0
    called: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        (self.root / "secret").write_text(SECRET)
        (self.root / "kept").mkdir(exist_ok=True)
        (self.root / "kept" / "file").write_text("kept")

    def calls(self) -> dict[str, str]:
        """Return expressions that Spark 4.3 would evaluate, each with what it does."""
        return {
            "java": "java_method('java.lang.System', 'getProperty', 'user.home')",
            "reflect": "reflect('java.lang.System', 'getenv', 'HOME')",
            "try_reflect": "try_reflect('java.lang.System', 'getenv', 'HOME')",
            "quoted": "`reflect`('java.lang.System', 'getenv', 'HOME')",
            "qualified": "system.builtin.java_method('java.lang.System', 'getProperty', 'user.home')",
            "named": "IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')",
            "dtd": f"xpath_string('<!DOCTYPE a SYSTEM \"http://127.0.0.1:{self.port}/\"><a>1</a>', 'a')",
            "xsd": "from_xml('<a>1</a>', 'a STRING',"
            f" map('rowValidationXSDPath', 'http://127.0.0.1:{self.port}/x', 'mode', 'FAILFAST'))",
            "type": "from_json('[1]', '" + _CLASS_AS_TYPE + "')",
            "computed type": "from_json('[1]', concat('{', '" + _CLASS_AS_TYPE[1:] + "'))",
            "file": f"(SELECT max(value) FROM text.`{self.root}/secret`)",
            "script": f"(SELECT max(y) FROM (SELECT TRANSFORM(1) USING 'touch {self.root}/made' AS (y STRING)))",
        }

    def relations(self) -> dict[str, str]:
        """Return relations that Spark 4.3 would read."""
        return {
            "text": f"text.`{self.root}/secret`",
            "binary": f"binaryFile.`{self.root}/secret`",
            "class": f"`org.apache.spark.sql.execution.datasources.text.TextFileFormat`.`{self.root}/secret`",
            "csv": f"csv.`file:{self.root}`",
            "identifier": f"IDENTIFIER('text.`{self.root}/secret`')",
            "parentheses": f"((text.`{self.root}/secret`))",
            "transform": f"(SELECT TRANSFORM(id) USING 'touch {self.root}/made' AS y FROM range(1))",
            "map": f"(FROM range(1) MAP id USING 'touch {self.root}/made' AS y)",
            "reduce": f"(FROM range(1) REDUCE id USING 'touch {self.root}/made' AS y)",
            "global": "global_temp.bayou_canary",
        }

    def statements(self) -> list[str]:
        """Return statements that are no query."""
        directory = f"DIRECTORY '{self.root}/kept' USING csv"
        return [
            f"WITH a AS (SELECT 1) INSERT/* /* */ */OVERWRITE {directory} SELECT * FROM a",
            f"WITH a AS (SELECT 1) INSERT OVERWRITE {directory} SELECT * FROM a",
            f"FROM range(1) INSERT/**/OVERWRITE {directory} SELECT id",
            f"INSERT OVERWRITE {directory} SELECT 1",
            f"SELECT 1) x; INSERT OVERWRITE {directory} (SELECT 1",
            f"SELECT 1; INSERT OVERWRITE {directory} SELECT 1",
            f"EXECUTE IMMEDIATE 'INSERT OVERWRITE {directory.replace(chr(39), chr(34))} SELECT 1'",
            f"BEGIN INSERT OVERWRITE {directory} SELECT 1; END",
            f"EXPLAIN INSERT OVERWRITE {directory} SELECT 1",
            f"CREATE TABLE made USING csv LOCATION '{self.root}/made' AS SELECT 1",
            f"DESCRIBE csv.`{self.root}/secret`",
            "DROP VIEW data",
            "SET spark.sql.runSQLOnFiles = true",
        ]

    def check(self, *outputs: object) -> None:
        """Assert that nothing was read, run, called or changed."""
        assert SECRET not in repr(outputs)
        assert sorted(file.name for file in self.root.iterdir()) == ["kept", "secret"]
        assert [file.name for file in (self.root / "kept").iterdir()] == ["file"]
        assert self.called == []


@contextmanager
def listening(canary: Canary) -> Iterator[Canary]:
    """Note whoever calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        canary.port = server.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    canary.called.append(peer.recv(100))
                    peer.sendall(b"HTTP/1.0 404 no\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield canary
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def canary(tmp_path) -> Iterator[Canary]:
    with listening(Canary(tmp_path / "canary")) as made:
        yield made


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    repo = init_repo(tmp_path_factory.mktemp("shelf") / "repo")
    with Records(repo) as records:
        for model, name, content in (
            (MODEL, "report", b"1"),
            (MODEL, "report", b"22"),
            (OTHER, "blob", b"333"),
            (MODEL, "a", b""),
        ):
            records.data.save(model, name, content, tags={"env": "prod"})
    return repo


@pytest.fixture
def repo(tmp_path) -> Repo:
    return init_repo(tmp_path / "repo")


def attacks(canary: Canary) -> list[str]:
    """Return whole statements, one for each attack."""
    found = [f"SELECT {call} AS x" for call in canary.calls().values()]
    found += [f"SELECT * FROM {relation}" for relation in canary.relations().values()]
    return [*found, *canary.statements()]


@pytest.mark.usefixtures("warm")
def test_data_sql_does_nothing_but_read(command, repo, canary):
    for attack in attacks(canary):
        ran = command("data", "sql", attack, "--json", "--repo", str(repo.root))

        assert (ran.code, ran.error["code"]) == (2, "query_invalid"), attack
        assert "\n" not in ran.error["message"]
        canary.check(ran.out, ran.err)


@pytest.mark.usefixtures("warm")
def test_the_model_type_does_nothing_but_read(repo, canary):
    script = f"touch {canary.root}/made"
    for attack in attacks(canary):
        output = ask(repo, attack)

        assert (output.status, [saved.name for saved in output.data]) == ("failed", ["log"]), attack
        canary.check(output)
    for sql in ("SELECT TRANSFORM(1) USING :script", "SELECT * FROM IDENTIFIER(:file)"):
        output = ask(repo, sql, parameters={"script": script, "file": f"text.`{canary.root}/secret`"})
        assert output.status == "failed"
        canary.check(output)


@pytest.mark.usefixtures("warm")
def test_variables_of_the_server_stay_what_was_written(shelf):
    """Spark replaces ${…} in the text of a statement, in literals too."""
    text = (
        "SELECT '${env:PATH}' AS a, \"${spark.app.name}\" AS b, r'${system:user.home}' AS c, :p AS d /* ${env:PATH} */"
    )
    values = ("${env:PATH}", "${spark.app.name}", "${system:user.home}", "${env:HOME}")

    with open_query(shelf, text, {"p": "${env:HOME}"}) as opened:
        assert list(opened.rows()) == [values]


# ---- the second look, without the first: on a server that has none of our settings ----

PLACES = [
    *(
        "SELECT {} AS x",
        "SELECT 1 WHERE {} IS NOT NULL",
        "SELECT max({}) FROM data",
        "SELECT * FROM data d, LATERAL (SELECT {})",
    ),
    *(
        "WITH a AS (SELECT {} AS x) SELECT * FROM a",
        "SELECT 1 UNION ALL SELECT length({})",
        "SELECT if(true, 1, length({}))",
    ),
    *("SELECT CASE WHEN EXISTS (SELECT 1 FROM data WHERE {} = 'x') THEN 1 END", "SELECT id FROM data ORDER BY {}"),
    "SELECT " + ", ".join(f"{number} AS c{number}" for number in range(40)) + ", {} AS x",
    "SELECT '\n== Optimized Logical Plan ==\n' AS a, {} AS `b\n== Physical Plan ==\nProject`",
    "SELECT transform(array(1), x -> {})",
]
FROM = [
    *("SELECT * FROM {}", "SELECT count(*) FROM {}", "SELECT (SELECT count(*) FROM {}) AS n", "SELECT * FROM data, {}"),
    *(
        "WITH a AS (SELECT * FROM {}) SELECT * FROM a",
        "SELECT 1 FROM data WHERE EXISTS (SELECT 1 FROM {})",
        "FROM {} |> LIMIT 1",
    ),
    *(
        "SELECT 1 AS `x\n+- OneRowRelation\n\n== Optimized Logical Plan ==` FROM {}",
        "SELECT * FROM data LEFT JOIN {} ON true",
    ),
    "SELECT * FROM (SELECT 'a\nOneRowRelation\n\n== Analyzed Logical Plan ==\nx: int\nProject' AS y FROM {})",
]


@contextmanager
def bare_session() -> Iterator:
    """A session of a server whose settings let everything happen."""
    with spark_session(SparkConfig()) as spark:
        silence()
        for name in ("spark.sql.runSQLOnFiles", "spark.sql.variable.substitute"):
            spark.conf.set(name, "true")
        spark.range(3).createOrReplaceTempView("data")
        spark.range(3).selectExpr(f"'{SECRET}' AS value").createOrReplaceGlobalTempView("bayou_canary")
        try:
            yield spark
        finally:
            spark.catalog.dropGlobalTempView("bayou_canary")


@pytest.mark.usefixtures("warm")
def test_every_attack_would_succeed_if_nobody_looked(canary):
    """Or the tests of refusals would prove nothing."""
    with bare_session() as spark:
        for name in ("java", "reflect", "try_reflect", "quoted", "qualified", "named", "file"):
            assert spark.sql(f"SELECT {canary.calls()[name]}").collect()[0][0]
        for name in ("text", "binary", "class", "identifier", "parentheses", "global"):
            assert SECRET in repr(spark.sql(f"SELECT * FROM {canary.relations()[name]}").collect())
        for name in ("transform", "map", "reduce"):
            spark.sql(f"SELECT * FROM {canary.relations()[name]}").collect()
            (canary.root / "made").unlink()


@pytest.mark.usefixtures("warm")
def test_the_plan_alone_refuses_every_attack_in_every_place(canary):
    from pyspark.errors import PySparkException

    asked = [
        place.format(call) for place in PLACES for name, call in canary.calls().items() if name not in ("dtd", "xsd")
    ]
    asked += [place.format(relation) for place in FROM for relation in canary.relations().values()]
    with bare_session() as spark:
        for text in asked:
            with pytest.raises((QueryInvalid, PySparkException)) as refused:
                require_read_only(spark, f"(\n{text}\n)", {})
            canary.check(refused.value)
        for text in [*canary.statements(), *(f"{statement} --" for statement in canary.statements())]:
            with pytest.raises((QueryInvalid, PySparkException)):
                require_read_only(spark, f"(\n{text}\n)", {})
            canary.check()


def check_sample(spark, canary: Canary, seed: int) -> None:
    from pyspark.errors import PySparkException

    random = Random(seed)
    calls = [call for name, call in canary.calls().items() if name not in ("dtd", "xsd")]
    if random.random() < 0.5:
        text = random.choice(PLACES).replace("{}", random.choice(calls))
    else:
        text = random.choice(FROM).replace("{}", random.choice(list(canary.relations().values())))
    if random.random() < 0.5:
        text = random.choice(
            ["SELECT * FROM ({}) q", "({}) UNION ALL ({})", "SELECT (SELECT count(*) FROM ({}))"]
        ).replace("{}", text)
    with pytest.raises((QueryInvalid, PySparkException)):
        require_read_only(spark, f"(\n{text}\n)", {})
    with pytest.raises(QueryInvalid):
        parse_read_only(text)
    made = Grammar(random)
    sent = parse_read_only(made.spell(made.query()), {"name": "data"}).query
    assert sent is not None
    with suppress(PySparkException):  # its names and types are made up; but it is not refused
        require_read_only(spark, sent, {"name": "data"})
    canary.check()


@pytest.mark.usefixtures("warm")
def test_a_sample_of_generated_sql_does_nothing(canary):
    with bare_session() as spark:

        @given(st.integers(0, 2**64))
        @settings(max_examples=60, suppress_health_check=[HealthCheck.nested_given])
        def sample(seed: int) -> None:
            check_sample(spark, canary, seed)

        sample()


@pytest.mark.soak
@pytest.mark.usefixtures("warm")
def test_soak_a_sample_of_generated_sql_does_nothing(canary):
    with bare_session() as spark:

        @given(st.integers(0, 2**64))
        @settings(suppress_health_check=[HealthCheck.nested_given])
        def sample(seed: int) -> None:
            check_sample(spark, canary, seed)

        sample()


@pytest.mark.usefixtures("warm")
def test_a_server_that_does_not_take_our_settings_is_no_way_round(shelf, canary, monkeypatch):
    """Even if the text had passed."""

    def unrestricted(spark) -> None:
        spark.conf.set("spark.sql.runSQLOnFiles", "true")

    monkeypatch.setattr(query, "restrict_session", unrestricted)
    monkeypatch.setattr(query, "parse_read_only", lambda text, _: Question("", f"({text})"))
    for relation in ("text", "transform"):
        text = f"SELECT * FROM {canary.relations()[relation]}"
        with (
            pytest.raises(QueryInvalid, match="cannot be shown that this query only reads"),
            open_query(shelf, text) as opened,
        ):
            list(opened.rows())
        canary.check()


@pytest.mark.usefixtures("warm")
def test_a_server_that_shows_no_plan_gets_no_query(shelf, monkeypatch):
    monkeypatch.setattr(
        "pyspark.sql.connect.dataframe.DataFrame._explain_string", lambda *_, **__: "== Physical Plan ==\n"
    )
    with pytest.raises(QueryInvalid, match="its plan cannot be read"), open_query(shelf, "SELECT 1"):
        pytest.fail("not refused")


# ---- what is no attack ----

READING = [
    "SELECT name, version FROM versions ORDER BY name DESC, version DESC",
    "SELECT name FROM data ORDER BY size DESC LIMIT 2",
    "SELECT * EXCEPT (content) FROM data ORDER BY name;",
    "WITH a(n, v) AS (SELECT name, version FROM versions), b(m) AS (SELECT max(v) FROM a) SELECT * FROM b",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t ORDER BY n",
    "SELECT d.name, v.version FROM data d JOIN versions v USING (name) ORDER BY 1, 2",
    "SELECT name, row_number() OVER (PARTITION BY type ORDER BY name) AS r FROM data QUALIFY r = 1 ORDER BY name",
    "SELECT /*+ BROADCAST(d), REPARTITION(2) */ d.name FROM data d LEFT ANTI JOIN outputs o ON o.id = d.id ORDER BY 1",
    "SELECT type, name, count(*) AS n FROM versions GROUP BY CUBE (type, name) ORDER BY type, name, n",
    "SELECT k, v FROM data LATERAL VIEW explode(tags) t AS k, v ORDER BY k",
    "SELECT name FROM data WHERE name IN (SELECT name FROM versions WHERE version > 1) OR EXISTS (SELECT 1 FROM runs)",
    "SELECT (SELECT max(version) FROM versions v WHERE v.name = d.name) AS m FROM data d ORDER BY m",
    "FROM data |> WHERE size > 0 |> EXTEND upper(name) AS u |> SELECT name, u |> ORDER BY u DESC |> LIMIT 2",
    "TABLE entries",
    "VALUES (1, 'a'), (2, 'b')",
    "SELECT * FROM VALUES (1, 'a'), (2, 'b') AS v(n, t) ORDER BY n DESC",
    "SELECT * FROM (VALUES (1, 2)) v(a, b) UNPIVOT (x FOR y IN (a, b)) ORDER BY x",
    "SELECT * FROM (SELECT type, size FROM data) PIVOT (sum(size) FOR type IN ('net/vpc' AS vpc))",
    "(SELECT name FROM data) UNION (SELECT name FROM versions) ORDER BY name DESC",
    "SELECT name FROM versions EXCEPT ALL SELECT name FROM data INTERSECT SELECT name FROM data",
    "SELECT r.x, u.w FROM range(2) r(x) CROSS JOIN unnest(array(1, 2)) u(w) ORDER BY 1, 2",
    "SELECT transform(array(3, 1), x -> x + 1) AS t, reduce(array(1, 2), 0, (a, b) -> a + b) AS r",
    "SELECT extract(YEAR FROM d.created_at) > 2000 AS y, trim(BOTH 'r' FROM d.name) AS t FROM data d ORDER BY t",
    "SELECT d.name IS DISTINCT FROM d.type AS i, filter(array(1), x -> x > 1) AS f FROM data d",
    "SELECT 'SELECT TRANSFORM(x) USING ''sh''' AS a, \"; DROP VIEW data\" AS b, r'\\' AS c, '-- /*' AS d FROM data",
    "SELECT concat_ws('\n', collect_list(name)) AS names, split('a\\nb', '\\n') AS parts FROM data",
    "SELECT name FROM data TABLESAMPLE (100 PERCENT) ORDER BY name",
    "SELECT j.a FROM json_table('[{\"a\": 1}]', '$[*]' COLUMNS (a INT PATH '$.a')) AS j",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY size) AS p, count(*) FILTER (WHERE size > 1) AS n FROM data",
    "SELECT parse_json('{\"a\": 1}'):a::int AS a, CAST('1.5' AS DECIMAL(3, 1)) AS d",
    "SELECT DATE '2026-01-02' + INTERVAL '1' DAY AS t",
    "SELECT created_at BETWEEN TIMESTAMP '2020-01-01' AND current_timestamp() AS b FROM data ORDER BY 1",
    "SELECT name FROM data DISTRIBUTE BY name SORT BY name",
    "SELECT o.* FROM outputs o, LATERAL (SELECT o.id AS i) l",
    "SELECT name, size FROM IDENTIFIER('data') -- all \\",
    "SELECT from_json('{\"a\": 1}', 'a INT').a AS a, from_json('[1]', schema_of_json('[1]')) AS b",
    "SELECT from_csv('1', 'x INT', map('sep', ',')) AS c",
    "SELECT variant_get(parse_json('[1]'), '$[0]', 'int') AS v, string(content) AS c FROM data ORDER BY c",
]


@pytest.mark.usefixtures("warm")
def test_queries_that_only_read_have_the_rows_and_the_order_that_spark_gives_them(shelf):
    content = ContentPlan(ContentSource(shelf.tree_root, base_view(shelf), Grant(refused="no store")))
    with spark_session(SparkConfig()) as spark:
        restrict_session(spark)
        create_views(spark, VIEWS, shelf.root / LOCAL / "catalog.db", content)
        for text in READING:
            question = parse_read_only(text)
            assert question.query is not None
            require_read_only(spark, question.query, {})
            asked, plain = spark.sql(question.statement).toArrow(), spark.sql(text.removesuffix(";")).toArrow()
            assert asked.equals(plain), text


@pytest.mark.usefixtures("warm")
def test_every_documented_query_runs(shelf):
    for where, text in documented():
        parameters = {name: "x" for name in ("run", "model") if f":{name}" in text}
        with open_query(shelf, text, parameters) as opened:
            rows = list(opened.rows())
        assert rows or parameters, where


def test_what_is_set_for_a_session_is_also_set_on_our_own_server(tmp_path):
    from bayou.spark.server.files import ServerFiles
    from bayou.spark.server.options import write_spark

    place = ServerFiles(tmp_path)
    written = write_spark(place, "local[1]", token="t", identity="i").read_text().splitlines()
    for name in ("spark.sql.runSQLOnFiles", "spark.sql.variable.substitute"):
        assert f"{name}={plan_check._SETTINGS[name]}" in written
