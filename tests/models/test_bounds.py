"""17.10: expressions are bounded in time and memory, and can be interrupted (V12, V25)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bayou
from bayou.core.errors import ExpressionInvalid, QueryInvalid
from bayou.data.catalog.rows import VersionRow
from bayou.data.query import evaluator
from bayou.data.query.cost import cost_of
from bayou.data.query.evaluator import BoundedProgram, TooCostly
from bayou.data.query.expression import Expression
from bayou.data.query.query import evaluate_rows
from bayou.models.expressions import EvaluationScope, evaluate
from bayou.models.expressions.scan import Code, parse

SOURCE = Path(bayou.__file__).resolve().parents[1]


def nested(depth: int, inner: str) -> str:
    """Go through ten elements, for each of them through ten, and so on."""
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    return "".join(f"{ten}.map(x{level}, " for level in range(depth)) + inner + ")" * depth


ENDLESS = {
    "a long list": ("xs.map(x, x)", {"xs": list(range(100_000))}),
    "loops in loops": (nested(9, "1"), {}),
    "a pattern": ('s.matches("(a{300}){300}")', {"s": "a" * 1_000_000}),
    "a pattern that is computed": ('s.matches("(a{300})" + "{300}")', {"s": "a" * 1_000_000}),
}
LARGE = {
    "texts that double": (nested(4, "s + s + s + s"), {"s": "x" * 1_000_000}),
    "one long result": (nested(5, "s"), {"s": "x" * 1000}),
}


@pytest.fixture
def short(expression_limits: Callable[..., None]) -> None:
    expression_limits(seconds=1.0)


@pytest.mark.parametrize(("source", "values"), ENDLESS.values(), ids=ENDLESS.keys())
def test_17_10_an_endless_expression_ends(short: None, source: str, values: dict[str, Any]) -> None:
    with pytest.raises(TooCostly, match="it takes more than"):
        BoundedProgram(source, "it").execute(values)


@pytest.mark.parametrize(("source", "values"), LARGE.values(), ids=LARGE.keys())
def test_17_10_an_expression_takes_no_more_memory_than_it_may(
    expression_limits: Callable[..., None], source: str, values: dict[str, Any]
) -> None:
    expression_limits(memory=400 << 20)
    with pytest.raises(TooCostly):
        BoundedProgram(source, "it").execute(values)


def test_17_10_a_costly_expression_of_a_definition_is_an_error_with_its_place(short: None) -> None:
    scope = EvaluationScope(inputs={"xs": list(range(100_000))}, env={})
    with pytest.raises(ExpressionInvalid, match=r"models/x\.yaml, line 3: .* it takes more than 1 s"):
        evaluate("${{ inputs.xs.map(x, x) }}", scope, lambda _: "models/x.yaml, line 3")


def test_17_10_a_query_over_hostile_content_names_the_versions_and_ends(expression_limits: Callable[..., None]) -> None:
    expression_limits(seconds=0.3)
    rows = [
        VersionRow("m", "id", "net", f"n{at}", 1, "x", 1, None, "text/plain", "2026-01-01T00:00:00.000Z")
        for at in range(8)
    ]
    hostile = b'{"xs": [' + b"1, " * 100_000 + b"1]}"
    wanted = Expression("attributes.xs.map(x, x).size() > 1", "the predicate")

    def load(row: VersionRow) -> bytes:
        return hostile if row.name == "n2" else b'{"xs": [1, 2]}'

    found = evaluate_rows(rows[:5], wanted, None, None, load, lambda _: None)
    assert found.total == 4
    assert [one.partition(":")[0] for one in found.failed] == ["n2 of m, version 1"]
    with pytest.raises(QueryInvalid, match="too costly for 5 versions"):
        evaluate_rows(rows, wanted, None, None, lambda _: hostile, lambda _: None)


@pytest.mark.parametrize(
    ("source", "values", "value"),
    [
        ("xs.map(x, x * 2).size()", {"xs": list(range(2000))}, 2000),
        ('xs.map(x, {"b": x.a, "a": x.b})', {"xs": [{"a": 1, "b": "é"}] * 2000}, [{"b": 1, "a": "é"}] * 2000),
        ('s.matches("a{3}")', {"s": "aaa"}, True),
        ("xs.filter(x, x > 1990).map(x, double(x) / 2.0)", {"xs": list(range(1993))}, [995.5, 996.0]),
    ],
)
def test_what_is_evaluated_apart_comes_to_the_same(source: str, values: dict[str, Any], value: Any) -> None:
    program = BoundedProgram(source, "it")
    assert program.execute(values) == value == program._program.execute(values)


def test_what_fails_apart_fails_as_it_does_here() -> None:
    with pytest.raises(KeyError, match="nothing"):
        BoundedProgram("xs.map(x, x.nothing)", "it").execute({"xs": [{}] * 5000})
    with pytest.raises(ValueError, match="matches"):
        BoundedProgram('s.matches("a{")', "it").execute({"s": "a"})


def test_functions_are_called_here_for_an_expression_that_is_evaluated_apart() -> None:
    asked = []

    def query(_: object, predicate: str) -> list[dict[str, int]]:
        asked.append(predicate)
        # The answer is evaluated while the first expression waits for it.
        return [{"size": BoundedProgram("xs.map(x, x).size()", "it").execute({"xs": list(range(2000))})}]

    program = BoundedProgram('data.query("latest").map(x, x.size)', "it", ("query",))
    assert program.execute({"data": {}}, {"query": query}) == [2000]
    assert asked == ["latest"]


def test_an_answer_that_is_too_large_to_be_worked_on_here_is_worked_on_apart() -> None:
    program = BoundedProgram('data.latest("m", "n").content.size()', "it", ("latest",))
    answers = iter([{"content": "x" * 10_000_000}, {"content": "x" * 10_000_000}])
    assert program.execute({"data": {}}, {"latest": lambda *_: next(answers)}) == 10_000_000


def test_ordinary_expressions_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "evaluate_in_child", lambda *_: pytest.fail("a process was started"))
    tags = {"env": "prod", "team": "a"}
    inputs = {"host": "h" * 200, "hosts": [f"host-{at}" for at in range(100)], "n": 3}
    for source, values in (
        (
            'name == "report" && latest && tags.env == "prod" && size > 1000',
            {"name": "x", "latest": True, "tags": tags},
        ),
        ('tags.exists(k, k == "env")', {"tags": tags}),
        ('inputs.host + ":80"', {"inputs": inputs}),
        ('inputs.hosts.filter(h, h.startsWith("host-1")).map(h, h + ".example")', {"inputs": inputs}),
        ('name.matches("^re.*t$")', {"name": "report"}),
    ):
        try:
            BoundedProgram(source, "it").execute({"size": 1, **values})
        except TooCostly:
            pytest.fail(source)


@pytest.mark.parametrize(
    "source", ["a.sort()", 'a.matches("a{9}")', "a.matches(b)", "cel.bind(x, a, x + x)", "a.`map`"]
)
def test_what_cannot_be_judged_by_its_words_is_not_called_cheap(source: str) -> None:
    assert cost_of(source) is None


def test_an_expression_of_too_many_characters_is_refused() -> None:
    with pytest.raises(QueryInvalid, match="more than 10000 characters"):
        Expression("1 + " * 10_000 + "1 == 1", "the predicate")


def test_17_10_a_text_with_many_ends_of_expressions_is_split_in_one_pass() -> None:
    assert parse("${{ '}}' }}" + "}}" * 500_000, "here")[0] == Code("'}}'")
    parse("${{ ' " + "}}" * 500_000, "here")
    parse("${{ { " + "}}" * 500_000, "here")
    assert parse("a ${{ {'x': {'y': 1}}.x }} b ${{ c // d }} e", "here") == (
        *("a ", Code("{'x': {'y': 1}}.x"), " b ", Code("c // d"), " e"),
    )


SCRIPT = """
from bayou.data.query.evaluator import BoundedProgram
print("begins", flush=True)
BoundedProgram("xs.map(x, x)", "it").execute({"xs": list(range(100_000))})
"""


def test_17_10_an_endless_expression_is_interrupted_by_ctrl_c_and_leaves_no_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        children: list[str] = []
        while not children:
            assert process.poll() is None
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert "KeyboardInterrupt" in err
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
