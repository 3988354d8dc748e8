"""What is asked of SQL first never changes an answer: neither what is found, nor what fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayou.data.catalog import VersionRow, catalog, schema
from bayou.data.catalog.catalog import Where
from bayou.data.query.expression import Expression
from bayou.data.query.pushdown import push_down
from bayou.data.query.query import evaluate_rows

_NAMES = ["", "a", "ab", "B", "é", "a b", "\U0010ffff", "z" * 3]
_TIMES = ["2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.001Z", "2025-12-31T23:59:59.999Z"]


def _rows() -> Iterator[VersionRow]:
    for number in range(48):
        yield VersionRow(
            model=_NAMES[number % 5],
            model_id=f"m{number % 4}",
            type=["t", "t/u"][number % 2],
            name=_NAMES[number % 8],
            version=number % 6 + 1,
            id="i",
            size=[0, 5, 1000, 2**53 + 1][number % 4],
            sha256=None,
            content_type=["text/plain", "application/json"][number % 2],
            created_at=_TIMES[number % 3],
            tags=[{}, {"env": "prod"}, {"env": "", "a.b": "x"}][number % 3],
            lifetime=[None, "7d"][number % 2],
            run=[None, "01J", "a"][number % 3],
            deleted=number % 7 == 0,
        )


@pytest.fixture(scope="module")
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema.SCHEMA)
    schema.put(connection, "version", [(*schema.values(row)[1], None) for row in _rows()])
    yield connection
    connection.close()


_text = st.sampled_from([f'"{name}"' for name in _NAMES] + ["'a'", 'r"a"', '"a\\u0062"', '"""a"""', 'b"a"'])
_number = st.sampled_from(["0", "5", "-5", "- 5", "5u", "5.0", "0x5", "9007199254740992", "9007199254740992.0", "1e3"])
_time = st.sampled_from(
    [f'"{time}"' for time in _TIMES]
    + [f'timestamp("{time}")' for time in _TIMES]
    + ['"2026"', '"2026-01"', '"2026-01-01"', '"2026-01-01T02:00:00.0005+02:00"', 'timestamp("2026-01-01")']
)
_other = st.sampled_from(["null", "true", "false", "[]", "{}", "name"])
_sign = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
_texts = st.sampled_from(["model", "model_id", "type", "name", "content_type", "lifetime", "run", "workflow", "step"])
_numbers = st.sampled_from(["size", "version"])
_literal = st.one_of(_text, _number, _other)


def _either_way(left: st.SearchStrategy[str], right: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(left, _sign, right, st.booleans()).map(
        lambda one: f"{one[0]} {one[1]} {one[2]}" if one[3] else f"{one[2]} {one[1]} {one[0]}"
    )


_term = st.one_of(
    _either_way(_texts, _text),
    _either_way(_numbers, _number),
    _either_way(st.one_of(_texts, _numbers, st.just("latest")), _literal),
    _either_way(st.just("created_at"), _time),
    _either_way(st.sampled_from(["tags.env", 'tags["env"]', 'tags["a.b"]', "tags.zz"]), _text),
    st.tuples(st.one_of(_texts, st.just("created_at")), _text).map(lambda one: f"{one[0]}.startsWith({one[1]})"),
    st.tuples(st.one_of(_texts, _numbers), st.lists(_literal, max_size=3)).map(
        lambda one: f"{one[0]} in [{', '.join(one[1])}]"
    ),
    st.sampled_from(
        [
            *("latest", "!latest", "size", "tags.env", "has(tags.env)", '"env" in tags', "owner.run == run"),
            *("1 / size > 0", "size(name) > 1", "name + name == 'aa'", "5 - 5 == size", "size == 5 - 5"),
            *("name in ['a'] + ['ab']", "created_at.getDate() == 1", "[1, 2].exists(size, size == version)"),
            "latest == name < 'b'",
        ]
    ),
)
_predicate = st.recursive(
    _term,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(" && ".join),
        st.lists(inner, min_size=2, max_size=3).map(" || ".join),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"!({one})"),
        st.tuples(inner, inner, inner).map(lambda one: f"({one[0]}) ? ({one[1]}) : ({one[2]})"),
    ),
    max_leaves=6,
)


@given(predicate=_predicate)
@example(predicate='run < "a"')
@example(predicate='run != "a" && lifetime.startsWith("7")')
@example(predicate="5 < size && 5 >= version")
@example(predicate='"2026-01-01T00:00:00Z" < created_at')
def test_an_answer_is_the_same_with_and_without_asking_sql_first(db: sqlite3.Connection, predicate: str) -> None:
    expression = Expression(predicate, "the predicate")
    everything = Where()
    everything.add("NOT deleted")

    def ask(where: Where) -> object:
        rows = catalog.select_versions(db, where)
        return evaluate_rows(rows, expression, None, None, lambda row: b"", lambda rows: None)

    assert ask(push_down(expression)) == ask(everything)


@pytest.mark.parametrize(
    ("predicate", "conditions"),
    [
        ('name == "a" && (size > 5 && latest)', 3),
        ('name == "a" && size(name) > 1', 1),
        ('("a" != name)', 1),
        ('name in ["a", "b"] && model.startsWith("m") && version in [1]', 3),
        ('created_at >= "2026-01" && created_at < timestamp("2026-02-01T00:00:00Z")', 2),
        ('tags.env == "prod" && tags["a.b"] != "x" && run == null && lifetime != null', 4),
        ("!latest", 1),
        ("latest == false && -5 < size", 2),
        ('name == "a" || name == "b"', 0),
        ('latest ? name == "a" : true', 0),
        ("size(name) > 1", 0),
        ('tags.env == "prod" && size(tags) > 1', 0),
    ],
)
def test_comparisons_joined_by_and_are_asked_of_sql(predicate: str, conditions: int) -> None:
    assert len(push_down(Expression(predicate, "the predicate")).conditions) == conditions + 1


@pytest.mark.parametrize(
    ("predicate", "index"),
    [
        ('name == "a"', "version_name"),
        ('model == "a"', "version_model"),
        ('model_id == "a" && name == "b"', "version_model_id"),
        ('name.startsWith("a")', "version_name"),
        ('created_at > "2026-01-01"', "version_created"),
        ('run == "01J"', "version_run"),
        ('type == "t" && model_id == "m"', "version_"),
    ],
)
def test_an_indexed_field_is_looked_up_and_not_searched_for(db: sqlite3.Connection, predicate: str, index: str) -> None:
    where = push_down(Expression(predicate, "the predicate"))
    plan = db.execute(f"EXPLAIN QUERY PLAN SELECT * FROM version {where.sql}", where.parameters).fetchall()
    assert all("SEARCH version USING INDEX" in row[3] for row in plan), plan
    assert any(index in row[3] for row in plan), plan
