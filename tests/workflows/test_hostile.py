"""17.10: a hostile file of `models/` or `workflows/` is one reported problem, and hides no other (V25)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import InputInvalid, ModelInvalid, WorkflowInvalid
from bayou.models import create_model
from bayou.models.find import find_model, list_models
from bayou.repo import Repo, init_repo
from bayou.workflows.check import check_schemas, resolve_inputs, validate_workflows
from bayou.workflows.definition import Workflow, parse_source
from bayou.workflows.find import create_workflow, find_workflow, list_workflows
from tests.data.hostile import NUMBERS, UNPARSABLE

ID = "3f0e7bd2-62cf-4c59-9d0f-36d0a2f3e0b1"
BAD = {
    **UNPARSABLE,
    **{f"arguments.{kind}": f"id: {ID}\nname: x\ntype: net\narguments: {{a: {text}}}\n".encode()
       for kind, text in NUMBERS.items() if len(text) > 1000 or text.startswith((".", "20", "1.0e", "!!"))},
}  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return init_repo(tmp_path / "repo")


def test_17_10_hostile_definitions_hide_no_others(repo: Repo) -> None:
    create_model(repo, "net", "good")
    for at, content in enumerate(BAD.values()):
        (repo.root / "models" / "net" / f"bad-{at}.yaml").write_bytes(content)
    os.mkfifo(repo.root / "models" / "net" / "pipe.yaml")
    found = list_models(repo)
    assert [one.name for one in found.models] == ["good"]
    assert len(found.bad) == len(BAD) + 1
    for error in found.bad:
        assert error.message.startswith("models/net/")
        assert error.message.isprintable()
        assert len(error.message) < 500
    assert find_model(repo, "good").name == "good"
    with pytest.raises(ModelInvalid):
        find_model(repo, "bad-0")


def test_17_10_hostile_workflows_hide_no_others(repo: Repo) -> None:
    create_workflow(repo, "good")
    for at, content in enumerate(BAD.values()):
        (repo.root / "workflows" / f"bad-{at}.yaml").write_bytes(content)
    found = list_workflows(repo)
    assert [one.name for one in found.workflows] == ["good"]
    assert len(found.bad) == len(BAD)
    for error in found.bad:
        assert error.message.startswith("workflows/")
        assert error.message.isprintable()
        assert len(error.message) < 500
    assert find_workflow(repo, "good").name == "good"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [\n", "line 2"),
        ("a: 1\nb: *x\n", "line 2: there is no anchor x"),
        ("a: 1\na: 2\n", "line 2: a stands there twice"),
        ("a: 1\nb: .nan\n", "line 2: nan is no number that can be kept"),
        ("a: 1\nb: 2026-01-01\n", "line 2: 2026-01-01 is taken for a date"),
        ("a: 1\nb: !x y\n", "line 2: could not read the tag !x"),
        ("a: 1\n---\nb: 2\n", "line 2: it has more than one document"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(WorkflowInvalid) as caught:
        parse_source(text.encode(), "workflows/bad.yaml")
    assert f"workflows/bad.yaml, {problem}" in caught.value.message


SECRET = "the first line of a file of this machine"


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server that notes who asks for what, and its address."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/schema.json", paths
    server.shutdown()
    thread.join()
    server.server_close()


def workflow_with(schema: dict[str, Any]) -> Workflow:
    text = json.dumps({"id": ID, "name": "deploy", "inputs": {"x": schema}, "jobs": []})
    source = parse_source(text.encode(), "workflows/deploy.yaml")
    return Workflow(id=ID, name="deploy", source=source, jobs=(), inputs={"x": schema})


def references(target: str) -> list[dict[str, Any]]:
    return [
        {"$ref": target},
        {"$dynamicRef": target},
        {"allOf": [{"not": {"$ref": target}}]},
        {"items": {"properties": {"$ref": {"$ref": target}}}},
        {"$id": target, "$ref": "#/$defs/x", "$defs": {"x": {}}},
        {"$defs": {"x": {"$id": target}}, "$ref": "#/$defs/x"},
        {"patternProperties": {"a": {"$ref": target}}},
        {"dependentSchemas": {"a": {"$ref": target}}},
        {"if": {"$ref": target}},
        {"default": {"$ref": target}, "$ref": "#/properties/x/default"},
    ]


def test_17_10_a_schema_fetches_nothing_and_quotes_no_file(asked: tuple[str, list[str]], tmp_path: Path) -> None:
    url, paths = asked
    (tmp_path / "secret.json").write_text(json.dumps(SECRET))
    for target in (
        url,
        f"file://{tmp_path}/secret.json",
        str(tmp_path / "secret.json"),
        "secret.json",
        "//127.0.0.1/x",
    ):
        for schema in references(target):
            workflow = workflow_with(schema)
            said = [str(problem) for problem in check_schemas(workflow)]
            for value in ({"x": {"a": [1], "$ref": 2}}, {"x": [{"$ref": 1}]}):
                try:
                    resolve_inputs(workflow, value)
                except InputInvalid as error:
                    said.append(error.message)
            assert said, schema
            assert SECRET not in " ".join(said)
    assert paths == []


ENDLESS: dict[str, dict[str, Any]] = {
    "itself": {"$ref": "#/properties/x"},
    "itself twice": {"allOf": [{"$ref": "#/properties/x"}, {"$ref": "#/properties/x"}]},
    "a bomb of references": {
        "$ref": "#/properties/x/$defs/a0",
        "$defs": {
            **{f"a{n}": {"allOf": [{"$ref": f"#/properties/x/$defs/a{n + 1}"}] * 2} for n in range(60)},
            "a60": {},
        },
    },
    "a pattern": {"pattern": "^(a+)+$"},
    "a pattern of names": {"patternProperties": {"^(a+)+$": {}}},
    "a pattern of other names": {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
    "a pattern in a schema": {"anyOf": [{"type": "integer"}, {"pattern": "(a|a)*(a|a)*$"}]},
    "different elements": {"uniqueItems": True},
}
VALUES: dict[str, Any] = {
    "a pattern": "a" * 60 + "b",
    "a pattern in a schema": "a" * 60 + "b",
    "a pattern of names": {"a" * 60 + "b": 1},
    "a pattern of other names": {"a" * 60 + "b": 1},
    "different elements": [{"a": at} for at in range(30_000)],
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_17_10_an_endless_schema_ends(kind: str, expression_limits: Callable[..., None]) -> None:
    expression_limits(seconds=1.0)
    with pytest.raises(InputInvalid, match=r"the schema (takes more than 1 s|refers to itself)"):
        resolve_inputs(workflow_with(ENDLESS[kind]), {"x": VALUES.get(kind, 1)})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"required": 1},
        {"properties": 1},
        {"multipleOf": 0},
        {"pattern": "("},
        {"pattern": "(" * 5000},
        {"enum": 1},
        {"minLength": "a"},
        {"$ref": 1},
        {"$ref": "#/nowhere"},
        {"$ref": "#/properties/x/%zz"},
        {"items": {"$ref": "#nothing"}},
        {"multipleOf": 0.1},
    ],
)
def test_17_10_what_is_no_schema_is_an_error_with_its_place(schema: dict[str, Any]) -> None:
    for value in ("text", 10**400, [1], {"a": 1}):
        workflow = workflow_with(schema)
        list(check_schemas(workflow))
        with contextlib.suppress(InputInvalid):
            resolve_inputs(workflow, {"x": value})


def test_references_within_a_schema_are_followed() -> None:
    tree = {"type": "object", "properties": {"below": {"$ref": "#/properties/x"}, "name": {"type": "string"}}}
    workflow = workflow_with({**tree, "additionalProperties": False})
    assert list(check_schemas(workflow)) == []
    assert resolve_inputs(workflow, {"x": {"below": {"below": {"name": "a"}}}})
    with pytest.raises(InputInvalid, match=r"x\.below\.below\.name must be a text"):
        resolve_inputs(workflow, {"x": {"below": {"below": {"name": 1}}}})


@pytest.mark.parametrize(
    "pattern", ["^[a-z][a-z0-9-]*$", "^(dev|prod)$", r"^\d{4}-\d{2}$", "^(?!x)", r"^([a-z]+-)*[a-z]+$"]
)
def test_patterns_mean_what_they_meant(pattern: str) -> None:
    workflow = workflow_with({"type": "string", "pattern": pattern})
    for text in ("dev", "2026-01", "a-b-c", "x", "X!", ""):
        if re.search(pattern, text):
            assert resolve_inputs(workflow, {"x": text}) == {"x": text}
        else:
            with pytest.raises(InputInvalid, match="does not match"):
                resolve_inputs(workflow, {"x": text})


def test_17_10_a_costly_name_of_a_model_is_a_problem_of_its_workflow(
    repo: Repo, expression_limits: Callable[..., None]
) -> None:
    expression_limits(seconds=1.0)
    create_workflow(repo, "good")
    step = {
        "name": "s",
        "model": "${{ each.value.map(x, x).size() > 1 ? 'web' : 'web' }}",
        "method": "sync",
        "for_each": [list(range(60_000))],
    }
    fields = {"id": ID, "name": "bad", "jobs": [{"name": "j", "steps": [step]}]}
    (repo.root / "workflows" / "bad.yaml").write_text(json.dumps(fields))
    names, problems = validate_workflows(repo)
    assert names == ["bad", "good"]
    assert any("it takes more than 1 s" in str(problem) for problem in problems), problems


@pytest.mark.parametrize("methods", ["{<<: *a}", "{m: {<<: *a}}", "{<<: {m: 3}}", "{m: {<<: {arguments: 3}}}"])
def test_17_10_methods_that_a_merge_brought_are_named_with_the_nearest_line(repo: Repo, methods: str) -> None:
    """Found by fuzzing: a key of a merge has no line of its own."""
    text = "id: 7c1f0d3e-6a7b-4f0e-9d53-0c4a1f5f0a11\nname: m\ntype: t\narguments: &a {region: eu}\n"
    (repo.root / "models" / "t").mkdir(parents=True, exist_ok=True)
    (repo.root / "models" / "t" / "m.yaml").write_text(f"{text}methods: {methods}\n")

    (bad,) = list_models(repo).bad

    assert "models/t/m.yaml" in bad.message
