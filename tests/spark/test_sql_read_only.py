"""17.2: nothing but a read-only query passes, and read-only queries do. Without Spark: what decides is pure Python."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bayou.core.errors import QueryInvalid
from bayou.spark.sql.lexer import spell, tokenize
from bayou.spark.sql.plan_check import check_plan
from bayou.spark.sql.read_only import ALLOWED, DENIED, parse_read_only
from tests.spark.sql_grammar import CALLS, LITERALS, RELATIONS, STATEMENTS, UNCLOSED, Grammar

ROOT = Path(__file__).parents[2]
PARAMETERS = {"name": "data"}
FRAGMENTS = [
    *(
        "'",
        '"',
        "`",
        "\\",
        "/*",
        "*/",
        "--",
        "\n",
        "\r",
        "(",
        ")",
        ";",
        "$",
        "{",
        "}",
        "${",
        "r'",
        'R"',
        "''",
        "``",
        "/*+",
        "://",
    ),
    *(
        "\u00e9",
        "\u017f",
        "\u2028",
        "\ud800",
        "\0",
        ".",
        "/",
        "*",
        "-",
        "+",
        "|>",
        " ",
        "1",
        "E+5",
        "a",
        "select ",
        " from ",
    ),
    *("data", "text", " using ", "identifier", "reflect", "transform", "with ", "insert into ", "values ", ","),
]

seeds = st.integers(0, 2**64)
"""Of a generator each: a query is too large to be made of Hypothesis's own choices one by one."""


def documented() -> list[tuple[str, str]]:
    """Return every query of the documentation and of the demo, each with where it is."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        found += [(page.name, query) for query in re.findall(r'bayou data sql "([^"]+)"', text)]
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
            found += [(page.name, query) for query in _of_model(block)]
    for file in sorted((ROOT / "demo").rglob("*.yaml")):
        found += [(file.name, query) for query in _of_model(file.read_text())]
    return [(where, query.replace("…", "name FROM data")) for where, query in found]


def _of_model(text: str) -> list[str]:
    document = yaml.safe_load(text)
    if not isinstance(document, dict) or document.get("type") != "spark/sql":
        return []
    return [document["arguments"]["sql"]]


def check_sent(text: str) -> None:
    """Look at what Spark gets, a character at a time: one pair of parentheses around all, no comment, no variable."""
    assert "${" not in text
    assert text[0] + text[-1] == "()"
    depth, at = 0, 0
    while at < len(text):
        one = text[at]
        raw = (
            one in "'\""
            and at
            and text[at - 1] in "rR"
            and not (at > 1 and (text[at - 2].isalnum() or text[at - 2] == "_"))
        )
        if one in "'\"`":
            at += 1
            while text[at] != one:
                at += 2 if text[at] == "\\" and one != "`" and not raw else 1
        else:
            assert one.isascii()
            assert one not in ";${}\\@#"
            at += text[at : at + 2] == "*/"  # the end of a hint, which takes its slash with it
            assert text[at : at + 2] != "--"
            assert text[at : at + 2] != "/*" or text[at + 2] == "+"
            depth += {"(": 1, ")": -1}.get(one, 0)
            assert depth > 0 or at == len(text) - 1
        at += 1
    assert depth == 0


def test_there_are_documented_queries():
    assert {where for where, _ in documented()} >= {"spark.md", "models.md", "usage-report.yaml"}
    assert len(documented()) >= 6


@pytest.mark.parametrize(("where", "query"), documented())
def test_every_documented_query_passes(where, query):
    assert parse_read_only(query).query is not None


def check_reading(grammar: Grammar) -> None:
    tokens = grammar.query()
    text = grammar.spell(tokens)
    question = parse_read_only(text, PARAMETERS)
    assert question.query is not None
    check_sent(question.query)
    # What was found is what was written, whatever stood between: so nothing of the query is lost, and nothing added.
    assert re.sub(r"\s", "", spell(tokenize(text))) == re.sub(r"\s", "", spell(tokenize(" ".join(tokens))))


def check_poisoned(grammar: Grammar) -> None:
    for tokens in (grammar.poisoned(), grammar.random.choice(STATEMENTS)):
        with pytest.raises(QueryInvalid):
            parse_read_only(grammar.spell(tokens), PARAMETERS)


def check_any_text(text: str) -> None:
    try:
        question = parse_read_only(text, PARAMETERS)
    except QueryInvalid:
        return
    if question.query is not None:
        check_sent(question.query)
        assert parse_read_only(question.query, PARAMETERS).query == f"({question.query})"


any_text = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join)


@given(seeds)
@settings(max_examples=300)
def test_queries_that_only_read_pass_however_they_are_spelled(seed):
    check_reading(Grammar(Random(seed)))


@given(seeds)
@settings(max_examples=300)
def test_whatever_else_is_refused_wherever_it_stands(seed):
    check_poisoned(Grammar(Random(seed)))


@given(st.one_of(any_text, any_text.map("select ".__add__), st.text()))
@settings(max_examples=600)
@example("select 1 -- \\")
@example("select /*+ x */ 1")
@example("select */*'*/1")
def test_any_text_is_refused_or_sent_as_one_query_in_parentheses(text):
    check_any_text(text)


@pytest.mark.soak
@given(seeds)
def test_soak_queries_that_only_read(seed):
    check_reading(Grammar(Random(seed)))


@pytest.mark.soak
@given(seeds)
def test_soak_whatever_else(seed):
    check_poisoned(Grammar(Random(seed)))


@pytest.mark.soak
@given(st.one_of(any_text, any_text.map("select ".__add__), st.text()))
def test_soak_any_text(text):
    check_any_text(text)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_a_function_that_does_more_is_refused(call):
    for text in (["SELECT", *call], ["SELECT", "1", "WHERE", "a", "=", *call], ["VALUES", "(", "1", ",", *call, ")"]):
        with pytest.raises(QueryInvalid):
            parse_read_only(" ".join(text), PARAMETERS)


@pytest.mark.parametrize("relation", RELATIONS, ids=" ".join)
def test_a_relation_that_is_no_view_is_refused(relation):
    for before in (
        "SELECT * FROM",
        "FROM",
        "SELECT 1 FROM data JOIN",
        "SELECT 1 FROM (data),",
        "SELECT (SELECT 1 FROM",
    ):
        with pytest.raises(QueryInvalid):
            parse_read_only(f"{before} {' '.join(relation)}{')' if '(SELECT' in before else ''}", PARAMETERS)


@pytest.mark.parametrize("statement", [*map(" ".join, STATEMENTS), *UNCLOSED])
def test_what_is_no_query_is_refused(statement):
    with pytest.raises(QueryInvalid):
        parse_read_only(statement, PARAMETERS)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("SELECT 1;", "(SELECT 1)"),
        ("SELECT 1 -- why\\", "(SELECT 1)"),
        ("SELECT/**/1 /* /* */ */ + 2 -- a\\\n+ 3", "(SELECT 1 + 2)"),
        ("SELECT 1 - /* x */ - 2", "(SELECT 1 - - 2)"),
        ("SELECT '${env:HOME}', r'a${x}'", "(SELECT '$' '{env:HOME}', r'a$' r'{x}')"),
        ("EXPLAIN FORMATTED SELECT 1", "EXPLAIN FORMATTED (SELECT 1)"),
        ("DESC SELECT 1", "DESC (SELECT 1)"),
        ("describe /* it */ extended Data", "describe extended Data"),
        ("SHOW FUNCTIONS LIKE 'a*'", "SHOW FUNCTIONS LIKE 'a*'"),
        ("DESCRIBE `versions` content", "DESCRIBE `versions` content"),
    ],
)
def test_what_was_checked_is_what_is_sent(text, sent):
    assert parse_read_only(text).statement == sent


@pytest.mark.parametrize(
    "value", ["text.`/etc/passwd`", "a.b", "reflect(", "", 1, None, ["data"], "data\n", "d\u0430ta"]
)
def test_a_name_that_a_parameter_stands_for_is_a_plain_one(value):
    parse_read_only("SELECT * FROM IDENTIFIER(:view)", {"view": "data"})
    with pytest.raises(QueryInvalid, match="one plain name"):
        parse_read_only("SELECT * FROM IDENTIFIER(:view)", {"view": value})


def test_a_name_that_a_parameter_stands_for_may_not_be_called_if_it_does_more():
    assert parse_read_only("SELECT IDENTIFIER(:f)(1)", {"f": "abs"}).query
    for name in ("reflect", "no_such"):
        with pytest.raises(QueryInvalid, match=name):
            parse_read_only("SELECT IDENTIFIER(:f)(1)", {"f": name})


def test_a_refusal_is_one_line_that_helps():
    for text, message, hint in [
        ("SELECT uper(name) FROM data", "there is no function uper that a query may call", "did you mean upper?"),
        ("SELECT * FROM text.`/p`", "text. … is neither a view nor a part of this query", "data, versions"),
        ("SELECT reflect('a')", "a query may not call reflect", "more than compute"),
        ("SELECT 1; SELECT 2", "that is more than one statement", "one question"),
        ("MAP a USING 'x' FROM data", "MAP is no query", "SELECT"),
        ("SELECT TRANSFORM(a) USING 'x' FROM data", "a query runs no script (USING)", "parentheses"),
        ("SELECT \u00e9 FROM data", "'\u00e9' is not SQL", "backquotes"),
    ]:
        with pytest.raises(QueryInvalid) as refused:
            parse_read_only(text)
        assert refused.value.message == message
        assert hint in (refused.value.hint or "")


def test_no_function_is_both_allowed_and_denied():
    assert not ALLOWED & DENIED


WORD = "0123456789abcdef"
LEAVES = ["OneRowRelation", "View (`data`, [a#1])", "Range (0, 3, step=1, splits=Some(2))", "LocalRelation [a#1]"]
INNER = [
    "Project [{}]",
    "Filter ({} = a#1)",
    "Sort [{} ASC NULLS FIRST], true",
    "SubqueryAlias {}",
    "Generate explode({})",
]
BAD_LINES = [
    *(
        "ScriptTransformation sh -c id, [a#1]",
        "Relation [value#1] text",
        "View (`global_temp`.`x`, [a#1])",
        "LogicalRDD [a#1]",
    ),
    *(
        "InsertIntoHadoopFsRelationCommand file:/x",
        "HiveTableRelation [`a`.`b`]",
        "View (`data2`, [a#1])",
        "RelationV2[a#1] x",
    ),
    *(
        "Project [reflect(java.lang.System, getenv) AS x#1]",
        "Project [TRY_REFLECT(a)]",
        "Project [a#1, ... 3 more fields]",
    ),
    *("'UnresolvedRelation [text, /etc/passwd], [], false", "StreamingRelation x", "*(1) Range", "CommandResult [a#1]"),
]
TRICKS = [
    *(
        "a",
        "it's",
        "Project [x]",
        "== Optimized Logical Plan ==",
        "\n== Optimized Logical Plan ==\nProject",
        "\n",
        "\n\n",
        "x\ny",
    ),
    *(
        "\nOneRowRelation\n\n== Analyzed Logical Plan ==\na: int\nProject",
        "ScriptTransformation",
        "SELECT TRANSFORM",
        "\r+- Foo",
    ),
    *("\u2028+- Foo", "AS bayou_end#1]", "\n]", "]\n:", "\n   ", "\n:  :  "),
]


def explained(random: Random, bad: str | None) -> str:
    """Write a plan as Spark does, with tricks for literals; `bad` is one of its nodes."""
    nodes = random.randrange(1, 6)
    at = random.randrange(nodes)
    lines = []
    for number in range(nodes):
        inner = random.choice(INNER).format(random.choice(TRICKS)) if number < nodes - 1 else random.choice(LEAVES)
        lines.append("   :  " + "   " * number + "+- " + (bad if bad is not None and number == at else inner))
    title = random.choice(["a", *TRICKS])
    end = f"   +- SubqueryAlias x\n      +- Project [{WORD} AS bayou_end#7]\n         +- OneRowRelation\n"
    tree = f"+- Join LeftSemi, true\n   :- SubqueryAlias x\n{chr(10).join(lines)}\n{end}"
    return (
        f"== Parsed Logical Plan ==\n'Project [*]\n{tree}"
        f"\n== Analyzed Logical Plan ==\n{title}: int\nProject [{title}#1]\n{tree}"
        f"\n== Optimized Logical Plan ==\nWhatever {WORD}\n\n== Physical Plan ==\nWhatever\n"
    )


def check_one_plan(random: Random) -> None:
    check_plan(explained(random, None), WORD)
    with pytest.raises(QueryInvalid, match="cannot be shown that this query only reads"):
        check_plan(explained(random, random.choice(BAD_LINES)), WORD)


@given(seeds)
@settings(max_examples=300)
def test_no_literal_hides_a_node_of_a_plan(seed):
    check_one_plan(Random(seed))


@pytest.mark.soak
@given(seeds)
def test_soak_no_literal_hides_a_node_of_a_plan(seed):
    check_one_plan(Random(seed))


@given(st.text())
@example("== Analyzed Logical Plan ==\na: int\nProject [a#1]\n+- OneRowRelation")
@example(f"{WORD} AS bayou_end#1]\n+- OneRowRelation\n\n== Analyzed Logical Plan ==\n")
def test_a_plan_that_cannot_be_read_is_refused(text):
    with pytest.raises(QueryInvalid, match="its plan cannot be read"):
        check_plan(text, WORD)


@pytest.mark.parametrize("literal", LITERALS)
def test_a_literal_is_no_attack(literal):
    parse_read_only(f"SELECT {literal} AS x FROM data WHERE name = {literal}")
