"""Types: which there are, what their methods take, and what is said about arguments that do not fit."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import ArgumentsInvalid, ExpressionInvalid, MethodNotFound, TypeInvalid, TypeNotFound
from bayou.models.run import RunRequest, prepare
from bayou.models.types import Method, coerce, find_type, load_types, problems
from bayou.models.types.schema import schema_of
from bayou.state.connection import Connection
from tests.models.conftest import files


def test_what_is_built_in_has_methods_with_schemas(repo):
    from jsonschema import Draft202012Validator

    types = load_types(repo)

    assert {"command/shell", "python/call"} <= set(types)
    assert types.bad == ()
    for kind in types.values():
        for name, method in kind.methods.items():
            assert method.name == name
            Draft202012Validator.check_schema(method.arguments)
            assert method.description
            assert method.outputs


def test_a_type_that_nobody_has_is_named_with_the_nearest(repo):
    with pytest.raises(TypeNotFound) as caught:
        find_type(repo, "command/shel")

    assert "command/shel" in caught.value.message
    assert caught.value.hint == "did you mean command/shell?"


def test_types_come_from_entry_points_too(repo, monkeypatch):
    points = [
        EntryPoint("words", "tests.models.offered:Words", "bayou.models"),
        EntryPoint("whole", "tests.models.offered:WHOLE", "bayou.models"),
        EntryPoint("gone", "tests.models.offered:Gone", "bayou.models"),
        EntryPoint("wrong", "tests.models.offered:NUMBER", "bayou.models"),
        EntryPoint("taken", "tests.models.offered:Taken", "bayou.models"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "bayou.models" else [])

    types = load_types(repo)

    assert types["text/words"].methods["count"].arguments["required"] == ["text"]
    assert types["whole/type"].description == "as it is"
    assert [error.message.partition(" (")[0] for error in types.bad] == [
        "entry point gone",
        "entry point taken",
        "entry point wrong",
    ]
    assert "there is a type command/shell already" in types.bad[1].message


def test_a_type_of_an_installed_package_runs(repo, define, go, read, monkeypatch):
    points = [EntryPoint("words", "tests.models.offered:Words", "bayou.models")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    model = define("text/words", "w", {"text": "a b a"})

    assert go(model, "count").status == "failed", "a process of its own does not have our tests on its path"
    monkeypatch.setenv("PYTHONPATH", ":".join([str(_root()), *_python_path()]))
    output = go(model, "count")

    assert (output.status, output.error) == ("succeeded", None)
    assert read(model, "result") == b"3"


def _root():
    from pathlib import Path

    return Path(__file__).resolve().parents[2]


def _python_path():
    import os

    return [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]


def schema(function) -> dict[str, Any]:
    return dict(schema_of(function, "f"))


def test_annotations_become_a_schema():
    def method(
        self,
        work,
        text: str,
        many: list[int],
        named: dict[str, float],
        one: Literal["a", "b"] = "a",
        maybe: Optional[bool] = None,  # noqa: UP045  (as people write it, too)
        either: int | str = 3,
        anything=None,
    ):
        pass

    assert schema(method) == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "many": {"type": "array", "items": {"type": "integer"}},
            "named": {"type": "object", "additionalProperties": {"type": "number"}},
            "one": {"enum": ["a", "b"], "default": "a"},
            "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3},
            "anything": {"default": None},
        },
        "required": ["text", "many", "named"],
        "additionalProperties": False,
    }


def test_named_arguments_without_end_are_typed_too():
    def method(self, **more: int):
        pass

    assert schema(method)["additionalProperties"] == {"type": "integer"}


def _set(self, x: set[str]): ...
def _bytes(self, x: bytes): ...
def _keys(self, x: dict[int, str]): ...
def _pair(self, x: tuple[int, str]): ...
def _star(self, *x: int): ...
def _only(self, x, /): ...
def _default(self, x: Any = object()): ...  # noqa: B008
def _unknown(self, x: Nowhere): ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("method", [_set, _bytes, _keys, _pair, _star, _only, _default, _unknown])
def test_a_parameter_that_json_cannot_give_is_named(method):
    with pytest.raises(TypeInvalid) as caught:
        schema(method)

    assert caught.value.message.startswith("f: ")
    assert caught.value.hint


SHELL = {
    "type": "object",
    "properties": {"run": {"type": "string"}, "timeout": {"type": "number"}, "env": {"type": "object"}},
    "required": ["run"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "path", "message", "hint"),
    [
        ({}, (), "run is missing", None),
        ({"run": 1}, ("run",), "run must be a text, not 1", None),
        ({"run": "x", "timeout": "5"}, ("timeout",), 'timeout must be a number, not "5"', None),
        ({"run": "x", "tiemout": 5}, ("tiemout",), "unknown argument tiemout", "did you mean timeout?"),
        ({"run": "x", "zzz": 5}, ("zzz",), "unknown argument zzz", "there are run, timeout, env"),
    ],
)
def test_what_does_not_fit_is_said_in_words(arguments, path, message, hint):
    (found,) = problems(SHELL, arguments)

    assert (found.path, found.message, found.hint) == (path, message, hint)


def test_each_unknown_and_each_missing_name_is_a_problem_of_its_own():
    schema = {**SHELL, "required": ["run", "timeout"], "patternProperties": {"^x-": {}}}

    found = problems(schema, {"rnu": "x", "x-more": 1, "zzz": 5})

    assert [one.message for one in found] == [
        "run is missing",
        "timeout is missing",
        "unknown argument rnu",
        "unknown argument zzz",
    ]


def test_an_expression_may_still_become_what_is_wanted():
    arguments = {"run": "${{ inputs.x }}", "timeout": "${{ inputs.t }}", "nope": "${{ 1 }}"}

    assert [found.message for found in problems(SHELL, arguments, evaluated=False)] == ["unknown argument nope"]
    assert len(problems(SHELL, arguments)) == 2


def test_what_was_typed_becomes_what_is_wanted():
    typed = {"run": "5", "timeout": "5", "env": '{"A": "b"}', "more": "1"}

    assert coerce(typed, SHELL) == {"run": "5", "timeout": 5, "env": {"A": "b"}, "more": "1"}
    assert coerce({"timeout": "soon", "env": "${{ inputs.e }}"}, SHELL) == {"timeout": "soon", "env": "${{ inputs.e }}"}


@given(st.text())
def test_a_text_that_is_wanted_as_a_text_is_never_changed(text):
    assert coerce({"run": text}, SHELL) == {"run": text}


@pytest.mark.parametrize(
    ("arguments", "more", "request_", "error", "said"),
    [
        ({"run": "x"}, {}, {"method": "exec"}, MethodNotFound, "command/shell has no method exec"),
        ({}, {}, {}, ArgumentsInvalid, "m.yaml, execute: run is missing"),
        ({"run": "x", "timeout": "5"}, {}, {}, ArgumentsInvalid, "m.yaml, line 6: timeout must be a number"),
        ({"run": "x", "rum": 1}, {}, {}, ArgumentsInvalid, "m.yaml, line 6: unknown argument rum"),
        ({"run": "${{ inputs.x }}"}, {}, {}, ExpressionInvalid, "m.yaml, line 5: inputs.x: there is no x"),
        ({"run": "${{ inputs.x }}"}, {}, {"inputs": {"x": 5}}, ArgumentsInvalid, "line 5: run must be a text, not 5"),
        ({"run": "${{ 1 +* }}"}, {}, {}, ExpressionInvalid, "m.yaml, line 5: '1 +*' is no CEL expression"),
        ({"run": "x"}, {}, {"inputs": {"timeout": "5"}}, ArgumentsInvalid, "input timeout: timeout must be a number"),
        ({"run": "x"}, {}, {"inputs": {"tiemout": 5}}, ArgumentsInvalid, "there is no input tiemout"),
        ({"run": "x", "env": {"A": ["b"]}}, {}, {}, ArgumentsInvalid, "line 7: env.A must be a text or a number or"),
        (
            {"run": "x"},
            {"methods": {"exec": {"arguments": {}}}},
            {},
            MethodNotFound,
            "m.yaml, line 7: command/shell has no method exec",
        ),
        (
            {"run": "x"},
            {"methods": {"execute": {"arguments": {"timeout": -1}}}},
            {},
            ArgumentsInvalid,
            "m.yaml, line 9: timeout: -1 is less than or equal to the minimum of 0",
        ),
    ],
)
def test_nothing_runs_and_nothing_is_written_when_something_is_wrong(
    repo, define, arguments, more, request_, error, said
):
    model = define("command/shell", "m", arguments, **more)
    before = files(repo)

    with pytest.raises(error) as caught:
        prepare(Connection(repo), RunRequest(model, **{"method": "execute", **request_}))

    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert files(repo) == before == set()


def test_a_type_without_methods_cannot_run(repo, define):
    with pytest.raises(TypeNotFound):
        prepare(Connection(repo), RunRequest(define("net", "web"), "execute"))


def test_arguments_for_one_method_go_over_those_for_all_and_inputs_over_both(repo, define):
    model = define(
        "command/shell",
        "m",
        {"run": "one", "timeout": 1, "env": {"A": "a"}},
        methods={"execute": {"arguments": {"run": "two", "timeout": 2}}},
    )

    prepared = prepare(Connection(repo), RunRequest(model, "execute", {"timeout": 3}))

    assert prepared.arguments == {"run": "two", "timeout": 3, "env": {"A": "a"}}


def test_an_input_that_only_an_expression_asks_for_is_no_argument(repo, define):
    model = define("command/shell", "m", {"run": "df ${{ inputs.path }}"})

    assert prepare(Connection(repo), RunRequest(model, "execute", {"path": "/tmp"})).arguments == {"run": "df /tmp"}


def test_an_input_is_a_value_and_never_an_expression(repo, define):
    model = define("command/shell", "m", {"run": "x"})

    prepared = prepare(Connection(repo), RunRequest(model, "execute", {"run": "echo ${{ env.HOME }}"}))

    assert prepared.arguments == {"run": "echo ${{ env.HOME }}"}


def test_a_method_without_declared_data_says_nothing_about_it():
    assert Method("m", "", {}).output("x").content_type is None
