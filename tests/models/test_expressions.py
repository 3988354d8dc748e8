"""Expressions: what they see, what they become, and what is said when they cannot be."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import ExpressionInvalid
from bayou.core.redaction import SHORTEST
from bayou.data.records import Records
from bayou.models.expressions import (
    DataLookup,
    EvaluationScope,
    check,
    evaluate,
    has_expression,
    inputs_used,
    redact,
    uses,
)
from bayou.state.connection import Connection


def where(path) -> str:
    return "m.yaml, " + ".".join(map(str, path))


def value(of, **scope):
    return evaluate(of, EvaluationScope(**{"env": {}, **scope}), where).value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${{ 1 + 2 }}", 3),
        ("${{ inputs.items }}", [1, 2.5, None, True, {"a": "b"}]),
        ("${{ inputs.host == 'h' }}", True),
        ("${{ null }}", None),
        ("${{ {'a': {'b': 1}} }}", {"a": {"b": 1}}),
        ("${{{'a': {'b': 1}}}}", {"a": {"b": 1}}),
        ("${{ '}}' + \"}}\" }}", "}}}}"),
        ("${{ timestamp('2026-01-31T00:00:00Z') }}", "2026-01-31T00:00:00.000Z"),
        ("${{ [1, 2].map(x, x * 2) }}", [2, 4]),
        ("plain $ {{ }} text", "plain $ {{ }} text"),
    ],
)
def test_a_whole_value_keeps_its_type(text, expected):
    inputs = {"items": [1, 2.5, None, True, {"a": "b"}], "host": "h"}

    assert value(text, inputs=inputs) == expected


def test_maps_have_their_keys_in_one_order():
    """What is stored must not depend on the evaluator's hash maps: equal records are equal files."""
    names = [f"key-{number:02}" for number in range(20)]
    given = {name: {"b": 1, "a": 2} for name in reversed(names)}

    found = value("${{ inputs.map }}", inputs={"map": given})

    assert found == given
    assert list(found) == names
    assert {tuple(one) for one in found.values()} == {("a", "b")}
    assert value("x ${{ {'b': 1, 'a': 2} }}") == 'x {"a": 2, "b": 1}'


def test_an_expression_inside_a_text_becomes_text():
    inputs = {"host": "h", "port": 80, "on": True, "tags": {"a": [1]}}

    assert value("${{inputs.host}}:${{ inputs.port }}/${{inputs.on}}", inputs=inputs) == "h:80/true"
    assert value("x ${{ inputs.tags }}", inputs=inputs) == 'x {"a": [1]}'
    assert value("${{ inputs.port }}\n", inputs=inputs) == "80\n"
    assert value("a ${{ '${{' }} b", inputs=inputs) == "a ${{ b", "how to write the sign itself"


def test_expressions_are_found_in_lists_and_maps_but_not_in_keys():
    nested = {"a": ["x", {"${{ 1 }}": "${{ inputs.n }}"}], "b": 1}

    assert value(nested, inputs={"n": 5}) == {"a": ["x", {"${{ 1 }}": 5}], "b": 1}
    assert [found.path for found in uses(nested, where)] == [("a", 1, "${{ 1 }}")]
    assert has_expression(nested)
    assert not has_expression({"a": ["x", 1]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${{ inputs.x", "an expression has no end"),
        ("${{ }}", "is empty"),
        ("${{ 1 + }}", "is no CEL expression"),
        ("${{ input.x }}", "there is no name input"),
        ("${{ inputs.x.foo() }}", "there is no function foo"),
        ("${{ inputs.x }}", "inputs.x: there is no x"),
        ("${{ env.NOPE }}", "there is no NOPE"),
        ("${{ 1 / 0 }}", "has no value"),
        ("a ${{ null }}", "evaluates to null in the middle of a text"),
        ("${{ data.latest('m') }}", "data.latest takes model, name"),
        ("${{ data.latest('m', 'n').content }}", "there is no data to be asked for here"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(text, said, capfd):
    with pytest.raises(ExpressionInvalid) as caught:
        value({"run": [text]})

    assert caught.value.message.startswith("m.yaml, run.0: ")
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert capfd.readouterr() == ("", ""), "the evaluator prints nothing of its own"


def test_a_near_miss_is_named():
    with pytest.raises(ExpressionInvalid) as caught:
        check("${{ input.x }}", where)
    assert caught.value.hint == "did you mean inputs?"

    with pytest.raises(ExpressionInvalid) as caught:
        check("${{ data.latst('a', 'b') }}", where)
    assert caught.value.hint == "did you mean latest?"


def test_names_of_the_caller_are_known_too():
    assert value("${{ item.name }}", more={"item": {"name": "x"}}) == "x"
    check("${{ item }}", where, ("inputs", "item"))


def test_inputs_that_are_asked_for_by_name_are_known():
    asked = {"a": "${{ inputs.host }} ${{ inputs['port'] }}", "b": "${{ steps.inputs.x }}"}

    assert inputs_used(asked, where) == {"host", "port"}


def test_values_of_the_environment_are_told_apart():
    env = {"TOKEN": "s3cret", "OTHER": "o", "EMPTY": ""}

    evaluated = evaluate({"a": "Bearer ${{ env.TOKEN }}${{ env.EMPTY }}"}, EvaluationScope(env=env), where)

    assert evaluated.value == {"a": "Bearer s3cret"}
    assert evaluated.secrets == {"s3cret"}
    assert redact(evaluated.value, evaluated.secrets) == {"a": "Bearer ***"}


def test_an_environment_that_is_asked_for_at_a_distance_is_secret_as_a_whole():
    env = {"A": "first", "B": "second"}

    evaluated = evaluate("${{ env[inputs.which] }}", EvaluationScope(env=env, inputs={"which": "B"}), where)

    assert evaluated.value == "second"
    assert evaluated.secrets == {"first", "second"}


def test_an_error_does_not_tell_a_secret():
    with pytest.raises(ExpressionInvalid) as caught:
        evaluate("${{ int(env.TOKEN) }}", EvaluationScope(env={"TOKEN": "s3cret"}), where)

    assert "s3cret" not in caught.value.message


def test_a_number_made_of_a_secret_is_redacted():
    evaluated = evaluate({"port": "${{ int(env.PIN) }}"}, EvaluationScope(env={"PIN": "4711"}), where)

    assert evaluated.value == {"port": 4711}
    assert redact(evaluated.value, evaluated.secrets) == {"port": "***"}


_NESTED = st.recursive(
    st.text() | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_NESTED, st.text(min_size=SHORTEST).filter(lambda text: "*" not in text and len(text.strip()) >= SHORTEST))
def test_no_text_that_is_redacted_still_has_the_secret(nested, secret):
    redacted = redact({"value": nested, "text": f"<{secret}>"}, {secret})

    assert all(secret not in text for text in _texts(redacted))


def _texts(nested):
    if isinstance(nested, dict):
        for key, one in nested.items():
            yield key
            yield from _texts(one)
    elif isinstance(nested, list):
        for one in nested:
            yield from _texts(one)
    elif isinstance(nested, str):
        yield nested


def test_data_can_be_asked_for(repo, define):
    model = define("net", "web")
    with Records(repo) as records:
        records.data.save(model.ref, "conf", b'{"port": 80, "hosts": ["a"]}', content_type="application/json")
        records.data.save(model.ref, "conf", b'{"port": 81}', content_type="application/json", tags={"t": "x"})
        records.data.save(model.ref, "blob", b"\xff\xfe")
    with DataLookup(Connection(repo)) as data:
        scope = EvaluationScope(env={}, data=data)

        def ask(text):
            return evaluate(text, scope, where).value

        assert ask("${{ data.latest('web', 'conf').attributes.port }}") == 81
        assert ask("${{ data.version('web', 'conf', 1).attributes.hosts[0] }}") == "a"
        assert ask("${{ data.latest('web', 'conf').content }}") == '{"port": 81}'
        assert ask("${{ data.latest('web', 'blob').content }}") is None
        latest = ask("${{ data.latest('web', 'conf') }}")
        assert (latest["version"], latest["tags"], "content" in latest) == (2, {"t": "x"}, False)
        assert ask("${{ data.query('latest && size > 5').map(x, x.name) }}") == ["conf"]
        assert ask("${{ size(data.query('name == \"conf\"')) }}") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${{ data.latest('web', 'nope').version }}", "web has no data named nope"),
        ("${{ data.latest('nobody', 'x').version }}", "there is no model nobody"),
        ("${{ data.version('web', 'conf', 7) }}", "there is no version 7 of conf of web"),
        ("${{ data.query('sise > 1') }}", "there is no field sise"),
        ("${{ data.query('attributes.zz > 1') }}", "cannot be evaluated"),
    ],
)
def test_data_that_is_not_there_is_said_with_the_place(repo, define, text, said, capfd):
    model = define("net", "web")
    with Records(repo) as records:
        records.data.save(model.ref, "conf", b"{}")

    with pytest.raises(ExpressionInvalid) as caught, DataLookup(Connection(repo)) as data:
        evaluate(text, EvaluationScope(env={}, data=data), where)

    assert caught.value.message.startswith("m.yaml, : ")
    assert said in caught.value.message
    assert capfd.readouterr().err == ""


def test_the_evaluator_is_loaded_only_where_an_expression_occurs():
    script = (
        "import sys; from bayou.models.expressions import EvaluationScope, evaluate;"
        "evaluate({'a': ['x', 1]}, EvaluationScope(), str); print('cel.cel' in sys.modules);"
        "evaluate('${{ 1 }}', EvaluationScope(), str); print('cel.cel' in sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["False", "True"]
