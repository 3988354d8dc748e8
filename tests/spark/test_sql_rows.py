"""What `data sql` reads and writes, without Spark: rows of the catalog, entries of base, content, and their forms."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from msgspec.structs import replace
from pyarrow import parquet as pq

from bayou.cli.render import sql as render_sql
from bayou.core.errors import QueryInvalid, RecordError, StateError, UsageError
from bayou.data.catalog.rows import VersionRow
from bayou.data.catalog.schema import TABLES
from bayou.data.records import Records
from bayou.objectstore.spec import StoreSpec
from bayou.packs.entries import UnreadableContent
from bayou.repo import Repo, init_repo, open_repo
from bayou.spark.sql import content, parquet, views
from bayou.spark.sql.base import BaseView, base_view
from bayou.spark.sql.content import (
    Content,
    ContentReader,
    ContentRequest,
    ContentSource,
    Grant,
    content_column,
    grant_for,
    groups,
)
from bayou.spark.sql.query import Column, _named_views, sentence, to_rows
from bayou.spark.sql.read_only import parse_read_only
from bayou.spark.sql.views import OUTPUT, RUN, VERSION, CatalogTable, Rows
from tests.data.models import MODEL, OTHER


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return init_repo(tmp_path / "repo")


def catalog_of(repo: Repo) -> Path:
    return repo.root / ".bayou" / "catalog.db"


def read_all(file: Path, table: CatalogTable, size: int, where: str = "TRUE") -> list[dict[str, object]]:
    parts = views.ranges(file, table, size)
    return [row for part in parts for batch in views.read(file, table, part, where) for row in batch.to_pylist()]


@pytest.mark.parametrize(("table", "left_out"), [(VERSION, set()), (OUTPUT, set()), (RUN, {"words"})])
def test_every_column_of_the_catalog_is_read(table, left_out):
    assert set(table.columns) == set(TABLES[table.name]) - left_out


def test_ranges_hold_every_row_once_also_where_rowids_have_gaps(repo):
    with Records(repo) as records:
        rows = [
            VersionRow(MODEL.name, MODEL.id, MODEL.type, f"n{number}", 1, f"i{number}", 1, None, "text/plain", "2026")
            for number in range(100)
        ]
        records.catalog.refresh()
        records.catalog.change(put=rows)
        records.catalog.change(drop=[row.metadata_path for row in rows[20:70]])

        for size in (1, 7, 50, 1000):
            found = [str(row["name"]) for row in read_all(catalog_of(repo), VERSION, size)]
            assert sorted(found) == sorted(row.name for row in rows[:20] + rows[70:])


def test_an_empty_table_has_no_range_and_a_catalog_that_is_not_there_says_who_must_see_it(repo, tmp_path):
    with Records(repo) as records:
        records.catalog.refresh()
        assert views.ranges(catalog_of(repo), OUTPUT) == []

    with pytest.raises(StateError, match="cannot be read") as caught:
        views.ranges(tmp_path / "nowhere.db", OUTPUT)
    assert "share" in caught.value.hint

    (tmp_path / "damaged.db").write_bytes(b"this is no database, however long one looks at it" * 100)
    with pytest.raises(StateError, match="not a database"):
        views.ranges(tmp_path / "damaged.db", OUTPUT)


def test_latest_is_the_highest_that_is_not_deleted(repo):
    with Records(repo) as records:
        for number in range(3):
            records.data.save(MODEL, "a", b"%d" % number)
        records.data.delete(MODEL, "a", 3)
        records.data.save(OTHER, "a", b"other")
        records.data.save(OTHER, "gone", b"x")
        records.data.delete(OTHER, "gone")
        records.catalog.refresh()

        found = {
            (row["model"], row["name"], row["version"]): (bool(row["deleted"]), row["latest"])
            for row in read_all(catalog_of(repo), VERSION, 2)
        }
        latest = read_all(catalog_of(repo), VERSION, 2, VERSION.derived["latest"])
        listed = {(row.model, row.name, row.version) for row in records.data.find()}

    assert found["main", "a", 1] == (False, False)
    assert found["main", "a", 2] == (False, True)
    assert found["main", "a", 3] == (True, False)
    assert found["weekly", "gone", 1] == (True, False)
    assert {(row["model"], row["name"], row["version"]) for row in latest} == listed


def test_readers_read_while_somebody_writes(repo):
    """Workers hold no lock that a writer would wait for."""
    with Records(repo) as records:
        records.data.save(MODEL, "a", b"1")
        records.catalog.refresh()
        batches = views.read(catalog_of(repo), VERSION, Rows(1, 100))
        first = next(batches)
        records.data.save(MODEL, "a", b"2")
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 1


def test_base_is_its_leaves_and_what_came_since(team):
    clone = team.clone("one")
    clone.write_all({f"files/{number:05}": b"%d" % number for number in range(1500)})
    clone.sync(engine="point")
    view = base_view(clone.repo)
    moved = pickle.loads(pickle.dumps(view))
    parts = moved.parts(size=1)

    assert len(parts) > 1
    entries = {entry.path: entry for part in parts for some in moved.scan(part) for entry in some}
    entries |= {entry.path: entry for entry in moved.recent()}
    assert sorted(entries) == [f"files/{number:05}" for number in range(1500)]

    changed = BaseView(view.nodes, view.root, {"files/00001": None, "files/x": entries["files/00002"]})
    seen = [entry.path for part in changed.parts() for some in changed.scan(part) for entry in some]
    assert "files/00001" not in seen
    assert changed.lookup(["files/00001", "files/x", "files/00003"]).keys() == {"files/x", "files/00003"}


def test_a_directory_has_no_entries(repo):
    assert base_view(repo).parts() == []
    assert base_view(repo).recent() == []


def wanted(records: Records, name: str) -> ContentRequest:
    (row,) = records.catalog.find(name=name)
    return ContentRequest(row.raw_path, row.size, row.sha256, row.streaming, row.deleted)


def source_of(repo: Repo) -> ContentSource:
    source = ContentSource(repo.tree_root, base_view(repo), grant_for(repo))
    return pickle.loads(pickle.dumps(source))


def read(repo: Repo, rows: list[ContentRequest]) -> list[Content]:
    return [one for group in ContentReader(source_of(repo)).read(rows) for one in group]


def asked(repo: Repo, rows: list[ContentRequest], *, tolerant: bool) -> list[dict[str, object]]:
    """What Spark gets of the function behind the columns."""
    columns = [[row.path for row in rows], [row.size for row in rows], [row.sha256 for row in rows]]
    columns += [[row.streaming for row in rows], [row.deleted for row in rows], [None] * len(rows)]
    function = content_column(source_of(repo), tolerant=tolerant)
    return [row for part in function(iter([tuple(pyarrow.array(one) for one in columns)])) for row in part.to_pylist()]


def test_content_is_proved_and_streaming_content_ends_where_its_metadata_says(repo):
    with Records(repo) as records:
        records.data.save(MODEL, "a", b"alpha")
        records.data.save(MODEL, "log", b"one\n", streaming=True)
        records.data.append(MODEL, "log", b"two\n")
        one, log = wanted(records, "a"), wanted(records, "log")
        with open(repo.tree_root / log.path, "ab") as file:
            file.write(b"half a li")  # an append that is under way

        gone = ContentRequest("data/x/y/z/1/raw", 5, None, False, True)
        assert read(repo, [one, gone, log]) == [b"alpha", None, b"one\ntwo\n"]

        (repo.tree_root / one.path).chmod(0o644)
        (repo.tree_root / one.path).write_bytes(b"alphb")
        assert read(repo, [one, log]) == [
            UnreadableContent(f"{one.path} is not what was saved: its SHA-256 is another one"),
            b"one\ntwo\n",
        ]


def test_content_that_is_nowhere_is_named(repo):
    assert read(repo, [ContentRequest("data/x/y/z/1/raw", 5, None, False, False)]) == [
        UnreadableContent("the content of data/x/y/z/1/raw is missing")
    ]


def test_a_path_that_leads_out_of_the_tree_is_a_row_of_its_own(repo):
    (found,) = read(repo, [ContentRequest("data/x/../../../bayou.toml", 5, None, False, False)])

    assert isinstance(found, UnreadableContent)


def test_content_that_is_too_large_for_a_column_is_refused_before_it_is_read(repo):
    too_large = ContentRequest("data/x/y/z/1/raw", content.LARGEST + 1, None, False, False)

    assert read(repo, [too_large]) == [
        UnreadableContent(f"the content of data/x/y/z/1/raw is too large for a column: {content.LARGEST + 1} bytes")
    ]


def test_the_content_of_many_files_is_their_manifest_however_large_they_are(repo, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.csv").write_bytes(b"a,b")
    with Records(repo) as records:
        records.data.save_directory(MODEL, "orders", tmp_path / "source")
        row = replace(wanted(records, "orders"), size=content.LARGEST + 1)
        (found,) = read(repo, [row])

    assert isinstance(found, bytes)
    assert [file["name"] for file in json.loads(found)["files"]] == ["a.csv"]


def test_v25_content_that_cannot_be_read_ends_a_query_unless_the_query_asks_for_the_reasons(repo):
    with Records(repo) as records:
        records.data.save(MODEL, "a", b"alpha")
        rows = [wanted(records, "a"), ContentRequest("data/x/y/z/1/raw", 5, None, False, False)]

    assert asked(repo, rows, tolerant=True) == [
        {"content": b"alpha", "error": None},
        {"content": None, "error": "the content of data/x/y/z/1/raw is missing"},
    ]
    with pytest.raises(RecordError, match="the content of data/x/y/z/1/raw is missing"):
        asked(repo, rows, tolerant=False)


def test_lazy_content_comes_from_the_store_and_stays_there(team):
    one, two = team.clone("one"), team.clone("two", hydrate="lazy")
    with Records(one.repo) as records:
        records.data.save(MODEL, "a", b"alpha")
        records.data.save(MODEL, "b", b"beta")
    one.sync()
    two.sync()
    with Records(two.repo) as records:
        records.catalog.refresh()
        both = [wanted(records, "a"), wanted(records, "b")]

    assert read(two.repo, both) == [b"alpha", b"beta"]
    assert not (two.repo.tree_root / both[0].path).exists()

    offline = open_repo(two.repo.root, offline=True)
    with pytest.raises(RecordError, match=r"the content of .*/raw is not here: this is offline"):
        read(offline, both)


def test_content_that_cannot_be_fetched_for_want_of_credentials_says_so_only_when_it_is_needed(team):
    clone = team.clone("one")
    clone.repo.file.write_text(clone.repo.file.read_text().replace(team.url, "s3://nobodys/x"))
    clone.reopen()

    grant = grant_for(clone.repo)

    assert grant.spec is None
    assert "no AWS credentials" in grant.refused


def test_no_secret_is_shown(monkeypatch, team):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    clone = team.clone("one")
    assert "hush-hush" not in pickle.dumps(grant_for(clone.repo)).decode(errors="replace"), "its store is a directory"

    grant = Grant(StoreSpec.of("s3://bucket", None, {}))

    assert "hush-hush" in pickle.dumps(grant).decode(errors="replace")
    assert "hush-hush" not in repr(ContentSource(clone.repo.tree_root, BaseView(clone.repo.state), grant))
    assert Grant(refused="x").spec is None


def test_content_is_held_in_groups_of_bounded_size():
    large = content.GROUP_BYTES // 2 + 1
    sizes = [large, large, 1, 1, 3 * large, 1]
    rows = [(ContentRequest(str(at), size, None, False, False), size) for at, size in enumerate(sizes)]

    divided = list(groups(rows))

    assert [[one.path for one in group] for group in divided] == [["0"], ["1", "2", "3"], ["4"], ["5"]]
    many = [(ContentRequest("x", 0, None, False, False), 0)] * 10_000
    assert [len(group) for group in groups(many)] == [4096, 4096, 1808]
    assert list(groups([])) == []


COLUMNS = [Column("name", "string"), Column("size", "bigint"), Column("tags", "string")]
ROWS = [("a", 5, {"env": "prod"}), ("b\nc", None, {}), (None, 12, None)]


def test_a_table_is_aligned_and_one_line_is_one_row():
    out = io.StringIO()

    assert render_sql.table(COLUMNS, iter(ROWS), out, None) == 3
    assert out.getvalue().splitlines() == [
        "name  size  tags",
        'a        5  {"env": "prod"}',
        "b\\nc  null  {}",
        "null    12  null",
    ]


def test_a_table_is_as_wide_as_its_first_rows_and_its_terminal_let_it():
    long = "x" * 500
    out = io.StringIO()
    rows = [("short",)] * 300 + [(long,)]

    render_sql.table([Column("a", "string")], iter(rows), out, None)

    assert out.getvalue().splitlines()[-1] == "xxxx…"
    assert render_sql.fit([500, 3], None) == [60, 3]
    assert sum(render_sql.fit([60, 60, 5], 80)) <= 80 - 4
    assert render_sql.fit([60] * 40, 80) == [8] * 40, "too many columns: narrow, and readable still"


def test_a_table_of_no_rows_has_its_headings():
    out = io.StringIO()
    assert render_sql.table(COLUMNS, iter(()), out, 80) == 0
    assert out.getvalue() == "name  size  tags\n"


def test_bytes_are_shown_to_people_where_they_are_text():
    out = io.StringIO()
    render_sql.table([Column("c", "string")], [(b"hello\n",), (b"\xff\x00",), (b"\x1b[2J",)], out, None)
    assert out.getvalue().splitlines()[1:] == ["hello\\n", "(2 bytes)", "\\x1b[2J"]


def test_json_has_every_kind_of_value():
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    values = {
        "time": (moment, "2026-01-02T03:04:05.678Z"),
        "finer": (moment.replace(microsecond=1), "2026-01-02T03:04:05.000001Z"),
        "day": (date(2026, 1, 2), "2026-01-02"),
        "bytes": (b"\xff\x00", "/wA="),
        "whole": (Decimal("12.00"), 12),
        "part": (Decimal("1.5"), 1.5),
        "nothing": (float("nan"), "nan"),
        "deep": ([{"at": moment}], [{"at": "2026-01-02T03:04:05.678Z"}]),
    }
    out = io.StringIO()
    columns = [Column(name, "string") for name in values]

    assert render_sql.json_lines(columns, [tuple(value for value, _ in values.values())], out) == 1
    assert json.loads(out.getvalue()) == {name: told for name, (_, told) in values.items()}


def test_the_json_document_is_one_also_without_rows():
    for rows in ([], ROWS):
        out = io.StringIO()
        render_sql.document(COLUMNS, iter(rows), out, {"notes": ["x"]})
        found = json.loads(out.getvalue())
        assert found["total"] == len(found["results"]) == len(rows)
        assert found["notes"] == ["x"]


def test_csv_quotes_what_must_be_and_null_is_nothing():
    out = io.StringIO()
    assert render_sql.csv([*COLUMNS, Column("flag", "string")], [("b\nc", None, {"a": "1"}, True)], out) == 1
    assert out.getvalue() == 'name,size,tags,flag\n"b\nc",,"{""a"": ""1""}",true\n'


def test_text_that_spark_made_of_bytes_is_readable():
    whole = pyarrow.array([b"good", b"\xff\xfe", None], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, whole.buffers())

    assert list(to_rows(pyarrow.table({"a": text}))) == [("good",), ("��",), (None,)]
    assert list(to_rows(pyarrow.table({"a": text.slice(1)}))) == [("��",), (None,)]


def test_maps_are_dicts_and_columns_may_share_a_name():
    tags = pyarrow.array([[("a", "1")]], pyarrow.map_(pyarrow.string(), pyarrow.string()))
    table = pyarrow.Table.from_arrays([tags, pyarrow.array([2])], names=["x", "x"])
    assert list(to_rows(table)) == [({"a": "1"}, 2)]


def test_parts_become_one_file_in_their_order_at_once(tmp_path):
    target = tmp_path / "out.parquet"
    target.write_bytes(b"what was there")
    with parquet.staging(target, directory=False) as parts:
        parts.mkdir()
        for at in (1, 0, 2):
            pq.write_table(pyarrow.table({"n": [10 * at, 10 * at + 1]}), parts / f"part-0000{at}-x.parquet")
        assert target.read_bytes() == b"what was there"
        assert parquet.publish(parts, target, directory=False) == 6

    assert pq.read_table(target)["n"].to_pylist() == [0, 1, 10, 11, 20, 21]
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_take_parquet_is_refused_first(tmp_path):
    for target, directory in ((tmp_path / "no" / "x", False), (tmp_path, True), (tmp_path, False)):
        with pytest.raises(UsageError), parquet.staging(target, directory=directory):
            pytest.fail("not refused")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n== SQL ==\n", "division by zero"),
        ("[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601\n\n", "syntax error at or near 'x'"),
        ("", "the query cannot be run"),
    ],
)
def test_an_error_of_spark_is_one_sentence(said, told):
    assert sentence(said) == told


@pytest.mark.parametrize(
    "text",
    [
        *("select 1", " -- why\n/* or\n not */ (SELECT 1)", "With a as (select 1) table a", "EXPLAIN select 1"),
        *("((from x |> select 1))", "with a as (select 'insert into', `insert` into, \"insert into\" from b) table a"),
    ],
)
def test_a_question_is_let_through(text):
    parse_read_only(text)


@pytest.mark.parametrize(
    "text",
    [
        *("drop view data", "insert into x values (1)", "", "-- only a comment", "set a=1", "'select'"),
        *("-- why\rdrop view data", "/* /* */ drop view data", "`select`", "(", "begin select 1; end"),
        *("with a as (select r'\\') Insert /* so */ OVERWRITE directory 'x' table a", "from a insert into b select 1"),
    ],
)
def test_what_is_no_question_is_refused(text):
    with pytest.raises(QueryInvalid):
        parse_read_only(text)


def test_only_named_views_are_made():
    assert _named_views("select * from Data join entries using (path)") == ["data", "entries"]
    assert _named_views("select metadata from dataset") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--format", "parquet"], "Parquet is not for a terminal"), (["--json", "--format", "csv"], "one JSON document")],
)
def test_what_contradicts_itself_is_refused_before_spark_is_loaded(command, repo, options, message):
    ran = command("data", "sql", "SELECT 1", "--repo", str(repo.root), *options)

    assert ran.code == 2
    assert message in ran.err


def test_the_command_line_loads_neither_spark_nor_pyarrow(processes):
    heavy = "pyspark", "pyarrow", "pandas", "grpc"
    script = f"import sys, bayou.cli.commands.data; print([name for name in {heavy} if name in sys.modules])"
    assert processes.finish(processes.script(script)).out == "[]\n"
